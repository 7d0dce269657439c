"""Shared state of the sections of an audit: the posterior, the data in memory, and cached predictions."""

from __future__ import annotations

import functools
from collections.abc import Callable, Hashable, Mapping
from dataclasses import dataclass, field, replace
from enum import Enum, auto
from typing import Any, TypeVar

import torch
from torch import Tensor

from whence.auditing.class_groups import ClassGroups
from whence.auditing.data import Examples, plain_outputs, spaced
from whence.auditing.grouping import GivenGroups
from whence.auditing.overlap import Training, overlap, read_training
from whence.auditing.profile_prior import profiled_posterior
from whence.auditing.tasks import Classes, Task, task_of
from whence.auditing.units import TARGET, Outputs, elements_of
from whence.errors import BadData, NotDefined, WhenceError
from whence.functional import Network
from whence.metrics.conformal import ScoreName
from whence.posteriors.base import Posterior
from whence.predictive.dispatch import Method
from whence.predictive.links import predict_draws
from whence.predictive.recalibration import Recalibrated, recalibrated
from whence.report.record.audit import Elements
from whence.report.record.sections import Sensitivity
from whence.report.record.verdict import Overlap, VerdictRules
from whence.where.examined import FACTORS, Examined, NoveltyPrior, examined
from whence.where.novelty import Reference, reference_given, reference_of
from whence.where.novelty_prior import novelty_precision
from whence.where.one_pass import shares
from whence.where.tables import sensitivity_table
from whence.where.where import Where, where_given
from whence.where.with_entropy import plain_entropy


class Kind(Enum):
    """Whose prediction: the network's as it was trained, recalibrated on validation data, or the posterior's."""

    PLAIN = auto()
    RECALIBRATED = auto()
    BAYESIAN = auto()


SETS = {"test": "test data", "validation": "validation data", "ood": "out-of-distribution data"}
LABELS = {"test": "Test data", "ood": "Out of distribution"}
TRIED = 200  # inputs used to see whether another posterior can be profiled
KEPT = (("examined", "validation"), "reference", *((name, Kind.PLAIN) for name in ("test", "validation", "ood")))
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
    note: str = ""  # what is different in this audit
    wants_shares: bool = True  # whether any section needs shares or novelty
    validation_prediction: Any = None  # if tuning has computed it
    groups: GivenGroups | None = None  # of test inputs
    outputs: Outputs = TARGET  # names and units of predicted numbers
    levels: tuple[float, ...] = (0.9, 0.95)  # of conformal sets and intervals
    score: ScoreName | None = None  # of conformal sets and intervals
    positive: int = 1  # of two classes
    decode: Callable[[list[int]], list[str]] | None = None  # ids of tokens to strings
    rules: VerdictRules = field(default_factory=VerdictRules)
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
        """Whether outputs of a Laplace posterior are more than a vector, so that it predicts by draws."""
        return self.posterior.has_curvature and len(self.posterior.output_shape or ()) != 1

    @property
    def elements(self) -> Elements | None:
        """What the scores of the test data count, if not inputs: several elements of each."""
        return elements_of(self.task, self.sets.get("test"))

    @property
    def uncertainty_label(self) -> str:
        """The measure of uncertainty in words, with its unit."""
        return self.outputs.uncertainty_label(self.task, self.elements)

    def class_name(self, index: int) -> str:
        return self.classes[index] if self.classes and 0 <= index < len(self.classes) else str(index)

    @property
    def overlap(self) -> Overlap | None:
        """Inputs that the sets have in common."""
        sets = self.sets.get("test"), self.sets.get("validation")
        return self.once("overlap", lambda: overlap(self.train, *sets, lambda _: self.training))

    @property
    def training(self) -> Training | None:
        """The training inputs and targets, as far as they are read."""
        return self.once("training", lambda: read_training(self.train))

    @property
    def two_names(self) -> tuple[str, str] | None:
        """The names of the outcomes, if each input has one of two."""
        if not self.task.has_labels:
            return None
        shape = self.prediction("test").probs.shape
        two = tuple(shape[1:]) == (2,) if isinstance(self.task, Classes) else shape[1:].numel() == 1
        return (self.class_name(0), self.class_name(1)) if two else None

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

    def profiled_index(self, name: str) -> Tensor:
        """Which inputs of a set are profiled."""
        return spaced(len(self.need(name)), len(self.profiled[name]))

    # Predictions and tables

    def prediction(self, name: str, kind: Kind = Kind.BAYESIAN) -> Any:
        """The prediction for one of the sets, of the posterior or of the plain network."""
        make = {Kind.PLAIN: self._plain, Kind.RECALIBRATED: self._recalibrated, Kind.BAYESIAN: self._bayesian}[kind]
        return self.once((name, kind), lambda: make(name))

    def _outputs(self, name: str) -> Tensor:
        """The outputs of the plain network for a set."""
        return self.once(("outputs", name), lambda: plain_outputs(self.network, self.need(name).inputs))

    def _plain(self, name: str) -> Any:
        # in double precision, so that probabilities that round to 1 do not tie
        return predict_draws(self.posterior.likelihood, self._outputs(name).double()[None])

    def _recalibrated(self, name: str) -> Any:
        assert self.baseline is not None
        return self.baseline.predict(self._outputs(name))

    @property
    def baseline(self) -> Recalibrated | None:
        """The plain network recalibrated on the validation data; None without their targets, or if not defined."""
        return self.once("baseline", self._baseline)

    def _baseline(self) -> Recalibrated | None:
        try:
            targets = self.need_targets("validation")
            return recalibrated(self.posterior.likelihood, self._outputs("validation"), targets)
        except (NotDefined, BadData):
            return None

    def _bayesian(self, name: str) -> Any:
        whole = self.need(name)
        if name == "validation" and self.validation_prediction is not None:
            return self.validation_prediction
        if self.in_one_pass and len(self.profiled[name]) == len(whole) and (name != "validation" or self._unvalidated):
            return self.examined(name).prediction()
        return self.posterior.predict(whole.inputs, **self.by_draws())

    def by_draws(self) -> dict[str, Any]:
        """Options of predictions by draws, with fixed draws."""
        if self.posterior.usual_method is Method.LINEARISED:
            return {}
        return {"generator": torch.Generator().manual_seed(self.seed)}

    def uncertainty(self, name: str, kind: Kind = Kind.BAYESIAN) -> Tensor:
        """One number for each input of a set; padded positions of sequences do not count."""
        return self.task.uncertainty(self.prediction(name, kind), self.need(name).counted_positions)

    def epistemic(self, name: str) -> Tensor | None:
        """The part of the uncertainty that comes from the weights, of each input of a set."""
        return self.task.part(self.prediction(name), "epistemic", self.need(name).counted_positions)

    def profiled_uncertainties(self, kind: Kind = Kind.BAYESIAN) -> tuple[Tensor, Tensor] | None:
        """Uncertainties of the profiled inputs, in and out of distribution; None without the latter.

        Detectors are measured on the same inputs.
        """
        if not self.has("ood"):
            return None
        inside, outside = (self.uncertainty(name, kind)[self.profiled_index(name)] for name in ("test", "ood"))
        return inside, outside

    # One pass over the inputs of a set

    @property
    def in_one_pass(self) -> bool:
        """Whether predictions come from the pass that computes shares."""
        if not self.wants_shares or not self.posterior.has_curvature or self.has_dense_outputs:
            return False
        return self.posterior.as_laplace("shares").curvature.keep is None

    @property
    def _unvalidated(self) -> bool:
        """Whether the validation data have to be examined for the reference of novelty."""
        return self.posterior.has_curvature and self.posterior.reference is None

    def examined(self, name: str) -> Examined:
        """Shares, units (of test data by class), novelty and the prediction of the profiled inputs of a set."""
        return self.once(("examined", name), lambda: self._examined(name))

    def _examined(self, name: str) -> Examined:
        examples, whole = self.profiled[name], len(self.profiled[name]) == len(self.need(name))
        posterior, profile = (p.as_laplace("shares") for p in (self.posterior, self.profile_posterior))
        predict = self.in_one_pass and whole
        if name == "validation":
            novelty = NoveltyPrior(novelty_precision(posterior))
            return examined(posterior, examples.inputs, novelty=novelty, predict=predict)
        before: Examined | None = self._made.get(("predicted", name))  # under another prior of the profile
        found = examined(
            posterior,
            examples.inputs,
            profile=profile,
            factors=FACTORS if name == "test" else (1.0,),
            novelty=self._novelty_prior if before is None else None,
            units=True,
            groups=self.class_groups.members if name == "test" else None,
            predict=predict and before is None,
        )
        if before is None:
            return found
        return replace(found, moments=before.moments, whole=before.whole, unexplained=before.unexplained)

    def shown_examined(self, name: str) -> Examined:
        """The same of the inputs of a set that are shown, each a group of its own."""
        index = [index for place, index in self.most_uncertain if place == name]
        some = self.need(name).at(torch.tensor(index)).inputs
        posterior, profile = (p.as_laplace("shares") for p in (self.posterior, self.profile_posterior))
        groups = torch.eye(len(index), dtype=torch.bool)
        options: dict[str, Any] = {"profile": profile, "novelty": self._novelty_prior, "units": True, "predict": False}
        return self.once(("shown", name), lambda: examined(posterior, some, groups=groups, **options))

    @property
    def _novelty_prior(self) -> NoveltyPrior | None:
        reference = self.reference
        if reference is None:
            return None
        return NoveltyPrior(reference.precision_for(self.posterior.as_laplace("novelty")), reference.probes)

    @functools.cached_property
    def class_groups(self) -> ClassGroups:
        """The profiled test inputs by class."""
        return ClassGroups.of(self.task, self.profiled["test"], lambda: self.predicted_classes)

    @property
    def predicted_classes(self) -> Tensor | None:
        """The classes that the plain network predicts for the profiled test inputs."""
        labels = self.prediction("test", Kind.PLAIN).labels.cpu()
        return labels[self.profiled_index("test")] if labels.dim() == 1 else None

    def total_variance(self, name: str) -> Tensor:
        """tr V of the profiled inputs of a set under the posterior that predicts, [N]."""
        found = self.examined(name)
        if self.profile_posterior is self.posterior:
            return found.own.total
        if found.moments is not None:
            return found.moments.total_variance
        return shares(self.posterior.as_laplace("variance"), self.profiled[name].inputs).total

    def where(self, name: str) -> Where:
        """The tables of one of the sets."""
        self.need(name)
        inputs, posterior = self.profiled[name].inputs, self.profile_posterior
        if not posterior.has_curvature:
            return self.once(name, lambda: posterior.where(inputs))
        return self.once(name, lambda: where_given(posterior.as_laplace("where"), inputs, self.examined(name).own))

    @property
    def sensitivity(self) -> tuple[Sensitivity, ...]:
        """Shares of test inputs by layer, under priors ten times weaker and stronger; empty if there are no shares."""
        if not self.has("test") or not self.posterior.has_curvature:
            return ()
        return tuple(Sensitivity(**row) for row in sensitivity_table(self.examined("test").shares).rows())

    @property
    def reference(self) -> Reference | None:
        """The reference of novelty: from tuning, or computed from the validation data."""
        if self.posterior.reference is not None or not self.has("validation"):
            return self.posterior.reference
        return self.once("reference", self._reference)

    def _reference(self) -> Reference:
        posterior = self.posterior.as_laplace("novelty")
        found = self.examined("validation")
        if not found.own.question.is_whole:  # it has random columns of its own
            return reference_of(posterior, self.profiled["validation"].pair)
        assert found.unexplained is not None
        entropy = plain_entropy(posterior.likelihood, found.own.outputs)
        return reference_given(posterior, found.unexplained, novelty_precision(posterior), entropy=entropy)

    def with_reference(self) -> Posterior:
        """The posterior; one that was tuned on the validation data with the reference computed from them."""
        known = self._made.get("reference")
        if known is None or self.posterior.as_laplace("novelty").tuning is None:
            return self.posterior
        return replace(self.posterior.as_laplace("novelty"), reference=known)

    @property
    def most_uncertain(self) -> list[tuple[str, int]]:
        """Set and index of the inputs that are shown; half as many out-of-distribution inputs as test inputs."""
        found = []
        for name, count in (("test", self.shown), ("ood", self.shown // 2)):
            if self.has(name) and count:
                order = self.uncertainty(name).argsort(descending=True, stable=True)[:count]
                found += [(name, int(i)) for i in order]
        return found

    def once(self, key: Hashable, make: Callable[[], T]) -> T:
        """The result of ``make``, computed on first use."""
        if key not in self._made:
            self._made[key] = make()
        return self._made[key]  # type: ignore[no-any-return]

    def with_profile(self) -> Context:
        """A copy that profiles a posterior with a weaker prior, if needed."""
        name = next((name for name in ("test", "ood") if self.has(name)), None)
        if name is None or not self.posterior.has_curvature or not self.wants_shares:
            return self
        try:
            posterior = self.posterior.as_laplace("a profile")
            some = self.profiled[name].thinned(TRIED).inputs
            found, note = profiled_posterior(posterior, self.examined(name).own, some)
        except WhenceError:
            return self  # the sections that need shares give the reason
        if not note:
            return self
        other = replace(self, profile_posterior=found, profile_note=note)
        other._made.update({key: value for key, value in self._made.items() if key in KEPT})
        other._made["predicted", name] = self.examined(name)
        return other


def view_key(name: str, index: int) -> str:
    """The key of an input's view in the profile."""
    return f"input:{name}:{index}"
