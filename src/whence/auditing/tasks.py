"""Tasks: everything that depends on the kind of prediction, chosen once from the likelihood."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from whence.errors import BadOption, WhenceError
from whence.likelihoods import Likelihood, TaskKind
from whence.report.record.common import TaskName
from whence.report.record.sections import PredictedNumber, Probability

PROBABLE = 3  # classes that are named


@dataclass(frozen=True)
class Task:
    """The task of a custom likelihood."""

    name: TaskName
    measure: str = "variance"  # of uncertainty: the attribute of a prediction
    label: str = "variance of the outputs"
    has_labels: bool = False  # whether answers are right or wrong

    def uncertainty(self, prediction: Any, counted: Tensor | None = None) -> Tensor:
        """One number for each input, summed over outputs; float64 on the CPU.

        ``counted``: which positions of its sequence are tokens, bool [N, T].
        """
        return summed(getattr(prediction, self.measure), counted)

    def outputs(self, prediction: Any) -> int:
        """Number of outputs of the network."""
        return int((prediction.probs if self.has_labels else prediction.mean).shape[-1])

    def class_names(self, given: Sequence[Any] | None, outputs: int) -> tuple[str, ...] | None:
        """One name for each class."""
        if given is not None:
            raise BadOption(f"classes= applies only to classification; this is {self.name}.")
        return None

    def describe(self, prediction: Any, i: int, target: Tensor | None, name: Callable[[int], str]) -> dict[str, Any]:
        """The prediction for one input, as fields of a ``ShownInput``."""
        if prediction.mean[i].numel() != 1:
            return {}
        mean, std = float(prediction.mean[i]), float(prediction.variance[i].double().clamp(min=0).sqrt())
        goal = None if target is None or target.numel() != 1 else f"{float(target):.4g}"
        return {"predicted": f"{mean:.4g}", "target": goal, "prediction": PredictedNumber(mean, std)}


@dataclass(frozen=True)
class Numbers(Task):
    """Regression and counts."""

    label: str = "variance of the prediction"


@dataclass(frozen=True)
class Labels(Task):
    """One label of two for each output."""

    measure: str = "entropy"
    label: str = "entropy of the prediction (nats)"
    has_labels: bool = True

    def class_names(self, given: Sequence[Any] | None, outputs: int) -> tuple[str, ...] | None:
        if given is None:
            return None
        names, wanted, what = tuple(map(str, given)), *self._wanted(outputs)
        if len(names) != wanted:
            raise BadOption(f"classes= has {len(names)} names for {wanted} {what}.")
        return names

    def _wanted(self, outputs: int) -> tuple[int, str]:
        return (outputs if outputs > 1 else 2), "labels"

    def describe(self, prediction: Any, i: int, target: Tensor | None, name: Callable[[int], str]) -> dict[str, Any]:
        if prediction.probs[i].numel() != 1:
            return {}
        p = float(prediction.probs[i])
        probs = {1: p, 0: 1 - p}
        return _described(int(p > 0.5), probs, None if target is None or target.numel() != 1 else int(target), name)


@dataclass(frozen=True)
class Classes(Labels):
    """One class of several."""

    def outputs(self, prediction: Any) -> int:
        return int(prediction.probs.shape[prediction.class_dim])

    def _wanted(self, outputs: int) -> tuple[int, str]:
        return outputs, "classes"

    def describe(self, prediction: Any, i: int, target: Tensor | None, name: Callable[[int], str]) -> dict[str, Any]:
        if prediction.probs.dim() != 2:
            return {}
        probs = prediction.probs[i].double()
        top = probs.argsort(descending=True)[:PROBABLE].tolist()
        return _described(top[0], {c: float(probs[c]) for c in top}, None if target is None else int(target), name)


def _described(label: int, probs: dict[int, float], target: int | None, name: Callable[[int], str]) -> dict[str, Any]:
    return {
        "predicted": name(label),
        "target": None if target is None else name(target),
        "correct": None if target is None else target == label,
        "confidence": max(probs.values()),
        "probs": tuple(Probability(name(c), p) for c, p in probs.items()),
    }


TASKS: dict[TaskKind, Task] = {
    TaskKind.CLASSIFICATION: Classes("classification"),
    TaskKind.BINARY: Labels("binary"),
    TaskKind.REGRESSION: Numbers("regression"),
    TaskKind.COUNT: Numbers("count"),
    TaskKind.OUTPUTS: Task("outputs"),
}


def task_of(likelihood: Likelihood) -> Task:
    return TASKS[likelihood.task_kind]


def summed(values: Tensor, counted: Tensor | None = None) -> Tensor:
    """One number for each input, over its outputs; float64 on the CPU."""
    flat = values.detach().double().cpu()
    if counted is not None and flat.shape[:2] == counted.shape:
        flat = flat * counted.reshape(*counted.shape, *[1] * (flat.dim() - 2))
    return flat.reshape(len(flat), -1).sum(1)


def part_of_uncertainty(prediction: Any, name: str, counted: Tensor | None = None) -> Tensor | None:
    """``aleatoric`` or ``epistemic``, one number for each input, if there is a split."""
    try:
        return summed(getattr(prediction, name), counted)
    except (WhenceError, AttributeError):
        return None
