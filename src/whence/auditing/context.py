"""Shared state of the sections of an audit: the posterior, the data in memory, and cached predictions."""

from __future__ import annotations

import functools
import warnings
from collections.abc import Callable, Hashable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Literal, TypeVar

import torch
from torch import Tensor

from whence.auditing.data import Examples, plain_prediction
from whence.auditing.tasks import Task, task_of
from whence.engine.batches import Inputs
from whence.errors import NotDefined, Notice, WhenceError
from whence.functional import Network
from whence.posteriors.base import Posterior
from whence.posteriors.laplace.posterior import Laplace
from whence.priors import Relative
from whence.report.record.sections import Sensitivity
from whence.where.novelty import Reference, reference_of
from whence.where.one_pass import shares
from whence.where.where import Where

FACTORS = (0.1, 1.0, 10.0)  # on the prior precision
SETS = {"test": "test data", "validation": "validation data", "ood": "out-of-distribution data"}
LABELS = {"test": "Test data", "ood": "Out of distribution"}
TRIED = 200  # inputs used to choose the posterior to profile
LEAST = 0.1  # share of the prior variance that the data must explain for a profile
SAMPLES = 30  # draws behind predictions of dense outputs
Kind = Literal["plain", "bayesian"]
T = TypeVar("T")


@dataclass
class Context:
    """Made once for an audit. Predictions and tables are computed on first use and cached."""

    posterior: Posterior
    train: Any
    sets: Mapping[str, Examples | None]
    classes: tuple[str, ...] | None
    features: tuple[str, ...] | None  # names of the columns of tabular inputs
    most: int  # inputs behind shares, novelty, pruning and answers
    shown: int  # of the most uncertain inputs
    seed: int
    methods: Mapping[str, Posterior]  # to compare the posterior with
    profile_posterior: Posterior  # the posterior of the profile
    profile_note: str = ""  # why it is not the posterior itself
    _made: dict[Any, Any] = field(default_factory=dict, init=False, repr=False)  # predictions and tables

    @functools.cached_property
    def task(self) -> Task:
        return task_of(self.posterior.likelihood)

    @property
    def network(self) -> Network:
        """The plain network that the posterior is compared with; of an ensemble its first member."""
        return self.posterior.snapshots[0]

    @property
    def network_name(self) -> str:
        return type(self.network.module).__name__

    @property
    def parameters(self) -> int:
        """Number of parameters of all networks behind the posterior."""
        return sum(p.numel() for network in self.posterior.snapshots for p in network.params.values())

    @property
    def has_dense_outputs(self) -> bool:
        """Whether a Laplace posterior must predict by draws, since outputs are more than a vector."""
        return self.posterior.has_curvature and self.posterior.default_method == "sampled"

    def class_name(self, index: int) -> str:
        return self.classes[index] if self.classes and 0 <= index < len(self.classes) else str(index)

    # Data

    def has(self, name: str) -> bool:
        return self.sets.get(name) is not None

    def need(self, name: str) -> Examples:
        """A data set; NotDefined if it was not given."""
        found = self.sets.get(name)
        if found is None:
            raise NotDefined(f"no {SETS[name]} were given.")
        return found

    def need_targets(self, name: str) -> Tensor:
        """The targets of a set; NotDefined if it has none."""
        targets = self.need(name).targets
        if targets is None:
            raise NotDefined(f"the {SETS[name]} have no targets.")
        return targets

    @functools.cached_property
    def profiled(self) -> dict[str, Examples]:
        """The inputs behind shares, novelty, pruning and answers, by set."""
        return {name: found.thinned(self.most) for name, found in self.sets.items() if found is not None}

    # Predictions and tables

    def prediction(self, name: str, kind: Kind = "bayesian") -> Any:
        """The prediction for one of the sets, of the posterior or of the plain network."""
        inputs = self.need(name).inputs
        if kind == "plain":
            return self._once((name, kind), lambda: plain_prediction(self.network, self.posterior.likelihood, inputs))
        return self._once((name, kind), lambda: self.posterior.predict(inputs, **self._by_draws()))

    def _by_draws(self) -> dict[str, Any]:
        """Options of predictions by draws, with fixed draws."""
        if self.posterior.default_method == "linearised":
            return {}
        found: dict[str, Any] = {"generator": torch.Generator().manual_seed(self.seed)}
        return found | ({"method": "sampled", "num_samples": SAMPLES} if self.has_dense_outputs else {})

    def uncertainty(self, name: str, kind: Kind = "bayesian") -> Tensor:
        """One number for each input of a set."""
        return self.task.uncertainty(self.prediction(name, kind))

    def where(self, name: str) -> Where:
        """The tables of one of the sets."""
        self.need(name)
        return self._once(name, lambda: self.profile_posterior.where(self.profiled[name].inputs))

    @property
    def sensitivity(self) -> tuple[Sensitivity, ...]:
        """Shares of test inputs by layer, under priors ten times weaker and stronger; empty if there are no shares."""
        if not self.has("test") or not self.posterior.has_curvature or self.has_dense_outputs:
            return ()
        table = self.where("test")
        return self._once("sensitivity", lambda: tuple(Sensitivity(**row) for row in table.sensitivity(FACTORS).rows()))

    @property
    def reference(self) -> Reference | None:
        """The reference of novelty: from tuning, or computed from the validation data."""
        if self.posterior.reference is not None or not self.has("validation"):
            return self.posterior.reference
        posterior, pair = self.posterior.as_laplace("novelty"), self.profiled["validation"].pair
        return self._once("reference", lambda: reference_of(posterior, pair))

    @property
    def most_uncertain(self) -> list[tuple[str, int]]:
        """Set and index of the inputs that are shown; half as many out-of-distribution inputs as test inputs."""
        found = []
        for name, count in (("test", self.shown), ("ood", self.shown // 2)):
            if self.has(name) and count:
                order = self.uncertainty(name).argsort(descending=True, stable=True)[:count]
                found += [(name, int(i)) for i in order]
        return found

    def _once(self, key: Hashable, make: Callable[[], T]) -> T:
        """The result of ``make``, computed on first use."""
        if key not in self._made:
            self._made[key] = make()
        return self._made[key]  # type: ignore[no-any-return]

    def with_profile(self) -> Context:
        """A copy that profiles a posterior with a weaker prior, if needed."""
        examples = self.sets.get("test") or self.sets.get("ood")
        if examples is None or not self.posterior.has_curvature:
            return self
        try:
            found, note = profile_posterior(self.posterior.as_laplace("a profile"), examples.thinned(TRIED).inputs)
        except WhenceError:
            return self  # the sections that need shares give the reason
        return replace(self, profile_posterior=found, profile_note=note)


def view_key(name: str, index: int) -> str:
    """The key of an input's view in the profile."""
    return f"input:{name}:{index}"


def profile_posterior(posterior: Laplace, inputs: Inputs) -> tuple[Laplace, str]:
    """The posterior to profile, and a sentence if it is not the one that predicts.

    Tuning may choose a prior so strong that all shares are those of the prior. Then the prior that the
    evidence prefers is used.
    """
    if _explained(posterior, inputs) >= LEAST:
        return posterior, ""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", Notice)  # it is not used for prediction
            other = posterior.with_data_scale(1.0).tune()
    except WhenceError:
        one = Relative() if isinstance(posterior.prior_precision, Relative) else 1.0
        other = posterior.with_data_scale(1.0).with_prior(one)
    if _explained(other, inputs) < LEAST:
        return posterior, (
            f"The prior is so strong that the data explain less than {LEAST:.0%} of the variance: shares are those "
            "of the prior."
        )
    was, now = (p.prior.describe() for p in (posterior, other))
    return other, (
        f"Predictions are best under a prior so strong (precision {was}) that the data explain less than {LEAST:.0%} "
        f"of its variance. The profile uses the prior that the evidence prefers (precision {now})."
    )


def _explained(posterior: Laplace, inputs: Inputs) -> float:
    found = shares(posterior, inputs)
    return 1 - float(found.variance.sum() / found.prior.sum())
