"""What the sections of an audit share: the posterior, the data held in memory, predictions made once."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from whence.auditing.sets import Held, outputs_of
from whence.auditing.subject import Subject
from whence.errors import BadOption, NotDefined, WhenceError
from whence.predictive.links import predict_draws

FACTORS = (0.1, 1.0, 10.0)  # on the prior precision


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
    methods: Mapping[str, Any] = field(default_factory=dict)  # other posteriors
    made: dict[str, Any] = field(default_factory=dict)  # finished sections, for words about them

    @functools.cached_property
    def subject(self) -> Subject:
        return Subject(self.posterior)

    @property
    def task(self) -> str:
        return str(self.posterior.likelihood.task)

    def need_closed_forms(self, what: str) -> None:
        """For sections that only a Laplace posterior has."""
        if not self.subject.laplace:
            raise NotDefined(f"{what} needs a Laplace posterior; this is a {type(self.posterior).__name__}.")

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
                found = predict_draws(self.posterior.likelihood, outputs_of(self.subject.network, held.inputs)[None])
            else:
                found = self.posterior.predict(held.inputs, **self._by_draws())
            self._predictions[key] = found
        return self._predictions[key]

    def _by_draws(self) -> dict[str, Any]:
        """How to predict where that takes draws: the same ones every time."""
        if self.subject.laplace and not self.subject.dense:
            return {}
        found: dict[str, Any] = {"generator": torch.Generator().manual_seed(self.options.seed)}
        return found | ({"method": "sampled", "num_samples": 30} if self.subject.dense else {})

    @functools.cached_property
    def profiled(self) -> dict[str, Held]:
        """The inputs that stand behind the profile, by set."""
        return {n: h.thinned(self.options.profiled) for n, h in self.sets.items() if h is not None}

    @functools.cached_property
    def _tables(self) -> dict[str, Any]:
        return {}

    def where(self, name: str) -> Any:
        """The tables of one of the sets."""
        self.need(name)
        if name not in self._tables:
            self._tables[name] = self.where_posterior.where(self.profiled[name].inputs)
        return self._tables[name]

    @functools.cached_property
    def sensitivity(self) -> list[dict[str, Any]]:
        """Shares of test inputs under priors ten times weaker and stronger, layer by layer; empty without any."""
        if not self.has("test") or not self.subject.laplace or self.subject.dense:
            return []
        return list(self.where("test").sensitivity(FACTORS).rows())

    def class_name(self, index: int) -> str:
        names = self.options.classes
        return names[index] if names is not None and 0 <= index < len(names) else str(index)


def check_classes(classes: Any, outputs: int, task: str) -> tuple[str, ...] | None:
    """One name for each class."""
    if classes is None:
        return None
    names = tuple(str(c) for c in classes)
    wanted = outputs if task == "classification" or outputs > 1 else 2
    if task not in ("classification", "binary"):
        raise BadOption(f"classes= names the classes of a classification; this is {task}.")
    if len(names) != wanted:
        raise BadOption(f"classes= has {len(names)} names for {wanted} {'labels' if task == 'binary' else 'classes'}.")
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
