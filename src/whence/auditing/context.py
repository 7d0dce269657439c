"""What the sections of an audit share: the posterior, the data held in memory, predictions made once."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from whence.auditing.sets import Held, outputs_of
from whence.errors import BadOption, NotDefined, WhenceError
from whence.predictive.links import predict_draws
from whence.where.table import Where


@dataclass(frozen=True)
class Options:
    """What the sections need to know of what was asked for."""

    classes: tuple[str, ...] | None = None
    features: tuple[str, ...] | None = None
    profiled: int = 1_000
    inputs: int = 12
    seed: int = 0


@dataclass
class Context:
    """Made once for an audit; everything here is read by sections and changed by none."""

    posterior: Any
    train: Any
    sets: Mapping[str, Held | None]
    options: Options
    where_posterior: Any = None  # the one that the profile is of; see :mod:`whence.auditing.sharing`
    where_note: str = ""
    made: dict[str, Any] = field(default_factory=dict)  # finished sections, for words about them

    @property
    def task(self) -> str:
        return str(self.posterior.likelihood.task)

    def need(self, name: str, targets: bool = False) -> Held:
        """A data set that a section cannot do without."""
        held = self.sets.get(name)
        words = {"test": "test data", "validation": "validation data", "ood": "out-of-distribution data"}[name]
        if held is None:
            raise NotDefined(f"no {words} were given.")
        if targets and held.targets is None:
            raise NotDefined(f"the {words} have no targets.")
        return held

    def has(self, name: str) -> bool:
        return self.sets.get(name) is not None

    @functools.cached_property
    def _predictions(self) -> dict[tuple[str, str], Any]:
        return {}

    def prediction(self, name: str, kind: str = "bayesian") -> Any:
        """The prediction for one of the sets, of the posterior or of the plain network, on the CPU."""
        key = (name, kind)
        if key not in self._predictions:
            held = self.need(name)
            if kind == "plain":
                found = predict_draws(self.posterior.likelihood, outputs_of(self.posterior.network, held.inputs)[None])
            else:
                generator = torch.Generator().manual_seed(self.options.seed)
                dense = len(self.posterior.record.output_shape) != 1
                found = self.posterior.predict(
                    held.inputs, **({"method": "sampled", "num_samples": 30, "generator": generator} if dense else {})
                )
            self._predictions[key] = found
        return self._predictions[key]

    @functools.cached_property
    def profiled(self) -> dict[str, Held]:
        """The inputs that stand behind the profile, by set."""
        return {n: h.thinned(self.options.profiled) for n, h in self.sets.items() if h is not None}

    @functools.cached_property
    def _tables(self) -> dict[str, Where]:
        return {}

    def where(self, name: str) -> Where:
        """The tables of one of the sets."""
        self.need(name)
        if name not in self._tables:
            self._tables[name] = self.where_posterior.where(self.profiled[name].inputs)
        return self._tables[name]

    def class_name(self, index: int) -> str:
        names = self.options.classes
        return names[index] if names is not None else str(index)


def check_classes(classes: Any, outputs: int, task: str) -> tuple[str, ...] | None:
    """One name for each class."""
    if classes is None:
        return None
    names = tuple(str(c) for c in classes)
    wanted = outputs if task == "classification" else 2
    if task not in ("classification", "binary"):
        raise BadOption(f"classes= names the classes of a classification; this is {task}.")
    if len(names) != wanted:
        raise BadOption(f"classes= has {len(names)} names for {wanted} classes.")
    return names


def uncertainty(prediction: Any) -> Tensor:
    """One number for each input: entropy for labels, variance for numbers; summed over outputs, float64."""
    values = prediction.entropy if hasattr(prediction, "entropy") else prediction.variance
    return values.detach().double().cpu().reshape(len(values), -1).sum(1)


def part(prediction: Any, name: str) -> Tensor | None:
    """``aleatoric`` or ``epistemic``, one number for each input, where there is a split."""
    try:
        values = getattr(prediction, name)
    except (WhenceError, AttributeError):
        return None
    return values.detach().double().cpu().reshape(len(values), -1).sum(1)


UNCERTAINTY = {
    "classification": ("entropy", "entropy of the prediction (nats)"),
    "binary": ("entropy", "entropy of the prediction (nats)"),
    "regression": ("variance", "variance of the prediction"),
    "count": ("variance", "variance of the prediction"),
    "outputs": ("variance", "variance of the outputs"),
}
