"""Tasks: everything that depends on the kind of prediction, chosen once from the likelihood."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor

from whence.errors import BadOption, WhenceError
from whence.likelihoods import Likelihood, TaskKind
from whence.report.record.audit import Elements
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
        """One number for each input: summed over outputs, the mean over pixels or tokens; float64 on the CPU.

        ``counted``: which positions of its sequence are tokens, bool [N, T].
        """
        return self._by_input(getattr(prediction, self.measure), counted)

    def part(self, prediction: Any, name: str, counted: Tensor | None = None) -> Tensor | None:
        """``aleatoric`` or ``epistemic``, one number for each input, if there is a split."""
        try:
            return self._by_input(getattr(prediction, name), counted)
        except (WhenceError, AttributeError):
            return None

    def elements(self, targets: Tensor, tokens: bool = False, images: bool = True) -> Elements | None:
        """What the scores of these targets count, if not inputs; ``tokens``: whether these are ids of tokens."""
        if targets.numel() == len(targets):
            return None
        if targets.dim() == 2:
            return "tokens" if tokens and self.dense(targets) else self.columns
        return "pixels" if images and targets.dim() - (targets.shape[1] == 1) == 3 else "positions"

    def dense(self, values: Tensor) -> bool:
        """Whether values of N inputs are one for each pixel or token, not for each output."""
        return values.dim() > 2

    columns: ClassVar[Elements] = "values"  # of targets [N, K]

    def _by_input(self, values: Tensor, counted: Tensor | None) -> Tensor:
        flat = values.detach().double().cpu()
        weight = torch.ones_like(flat)
        if counted is not None and flat.shape[:2] == counted.shape:
            weight = weight * counted.reshape(*counted.shape, *[1] * (flat.dim() - 2))
        total = (flat * weight).reshape(len(flat), -1).sum(1)
        return total / weight.reshape(len(flat), -1).sum(1).clamp(min=1) if self.dense(flat) else total

    def outputs(self, prediction: Any) -> int:
        """Number of outputs of the network."""
        return int((prediction.probs if self.has_labels else prediction.mean).shape[-1])

    def class_names(self, given: Sequence[Any] | None, outputs: int) -> tuple[str, ...] | None:
        """One name for each class."""
        if given is not None:
            raise BadOption(f"classes= applies only to classification; this is {self.name}.")
        return None

    def positive_class(self, given: str | int | None, names: Sequence[Any] | None, outputs: int) -> int:
        """The class that a binary decision looks for, 0 or 1."""
        if given is None:
            return 1
        if not self._decides(outputs):
            raise BadOption(f"positive={given!r} is for a decision between two classes; this is {self.name}.")
        known = [] if names is None else list(map(str, names))
        if str(given) in known:
            return known.index(str(given))
        if given in (0, 1) and not isinstance(given, bool):
            return int(given)
        raise BadOption(f"positive={given!r} is neither 0 nor 1{f' nor one of {known}' if known else ''}.")

    def _decides(self, outputs: int) -> bool:
        """Whether an answer is one of two classes."""
        return False

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
    columns: ClassVar[Elements] = "labels"

    def class_names(self, given: Sequence[Any] | None, outputs: int) -> tuple[str, ...] | None:
        if given is None:
            return None
        names, wanted, what = tuple(map(str, given)), *self._wanted(outputs)
        if len(names) != wanted:
            raise BadOption(f"classes= has {len(names)} names for {wanted} {what}.")
        return names

    def _wanted(self, outputs: int) -> tuple[int, str]:
        return (outputs if outputs > 1 else 2), "labels"

    def _decides(self, outputs: int) -> bool:
        return outputs == 1

    def describe(self, prediction: Any, i: int, target: Tensor | None, name: Callable[[int], str]) -> dict[str, Any]:
        if prediction.probs[i].numel() != 1:
            return {}
        p = float(prediction.probs[i])
        probs = {1: p, 0: 1 - p}
        return _described(int(p > 0.5), probs, None if target is None or target.numel() != 1 else int(target), name)


@dataclass(frozen=True)
class Classes(Labels):
    """One class of several."""

    columns: ClassVar[Elements] = "positions"

    def dense(self, values: Tensor) -> bool:
        return values.dim() > 1

    def outputs(self, prediction: Any) -> int:
        return int(prediction.probs.shape[prediction.class_dim])

    def _wanted(self, outputs: int) -> tuple[int, str]:
        return outputs, "classes"

    def _decides(self, outputs: int) -> bool:
        return outputs == 2

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
