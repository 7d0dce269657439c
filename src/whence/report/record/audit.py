"""The record of an audit: one class for each section, row and cell that the page shows."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from whence.report.record.attributions import Attributions
from whence.report.record.common import (
    Bins,
    Count,
    Estimate,
    Header,
    LayerName,
    Message,
    MetricName,
    Number,
    Numbers,
    PlainAndBayesian,
    RejectionCurve,
    Run,
    Sentences,
    SetSize,
    TaskName,
)
from whence.report.record.comparison import ComparisonSection
from whence.report.record.conformal import ConformalSection
from whence.report.record.groups import Groups
from whence.report.record.labels import ClassCalibration, Confusion, TwoClasses
from whence.report.record.numbers import NumberChecks
from whence.report.record.scores import InputScores
from whence.report.record.sections import Answer, Layer, Novelty, Profile, Pruning, Sensitivity, ShownInput, WeightMap
from whence.report.record.trace import Trace
from whence.report.record.verdict import Guessing, NextStep, Overlap, Verdict

Elements = Literal["labels", "values", "tokens", "pixels", "positions"]
RATE = "error rate"  # Deferral.error if answers are right or wrong


@dataclass(frozen=True)
class NetworkSize:
    """The network that was audited, and the number of its Bayesian weights."""

    kind: str
    parameters: Count
    bayesian: Count
    layers: Count
    members: int | None = None  # of an ensemble


@dataclass(frozen=True)
class TrainingSize:
    """Number of inputs that the posterior was fitted to."""

    inputs: Count


@dataclass(frozen=True)
class ProfiledInputs:
    """How many inputs of each set are behind shares, novelty, pruning and answers."""

    test: int | None = None
    validation: int | None = None
    ood: int | None = None


@dataclass(frozen=True)
class Data:
    """The sets behind an audit."""

    train: TrainingSize | None
    test: SetSize | None
    validation: SetSize | None
    ood: SetSize | None
    input_shape: tuple[Count, ...] | None
    overlap: Overlap | None = None
    elements: Elements | None = None  # what scores count, if not inputs: several elements of each
    profiled: ProfiledInputs | None = None

    @property
    def tested(self) -> str:
        """The test inputs in words, with how many of them are in the training and validation data."""
        if self.test is None:
            return ""
        return f"{self.test.inputs:,} test input{'' if self.test.inputs == 1 else 's'}{self.shared}"

    @property
    def shared(self) -> str:
        """How many test inputs are in the training and validation data, in brackets; empty if none are."""
        found = self.overlap
        counts = () if found is None else ((found.test or 0, "training"), (found.between or 0, "validation"))
        known = [
            f"{count:,} {'is' if count == 1 else 'are'} also in the {data} data" for count, data in counts if count
        ]
        return f" ({', '.join(known)})" if known else ""

    def counted(self, count: int | None, of: str = "") -> str:
        """A number of scored elements in words: "1,200 pixels of 40 inputs"; ``of`` stands before "inputs"."""
        if count is None:
            return ""
        before = f"{of} " if of else ""
        inputs = None if self.test is None else self.test.inputs
        if self.elements is None or inputs is None or count <= inputs:
            return f"{count:,} {before}input{'' if count == 1 else 's'}"
        return f"{count:,} {self.elements} of {inputs:,} {before}inputs"


@dataclass(frozen=True)
class Metric(MetricName):
    """A metric of the plain network and of the posterior, and the paired difference between the two."""

    plain: Estimate | None
    bayesian: Estimate | None
    difference: Estimate | None
    recalibrated: Estimate | None = None  # of the plain network recalibrated on validation data
    gain: Estimate | None = None  # paired difference of the posterior from that


@dataclass(frozen=True)
class Baseline:
    """How the plain network was recalibrated on validation data."""

    label: str
    words: str
    inputs: Count


@dataclass(frozen=True)
class Uncertainties:
    """Sorted uncertainties of the inputs of both sets."""

    name: str
    label: str
    test: PlainAndBayesian[Numbers] | None
    ood: PlainAndBayesian[Numbers] | None


@dataclass(frozen=True)
class Quality:
    """How good the uncertainties are, on test data."""

    metrics: tuple[Metric, ...]
    reliability: PlainAndBayesian[Bins] | None
    uncertainty: Uncertainties | None
    words: Sentences
    baseline: Baseline | None = None
    classes: tuple[ClassCalibration, ...] | None = None
    guessing: Guessing | None = None
    confidence: float | None = None  # mean
    overconfidence: Estimate | None = None  # mean confidence minus accuracy
    implied_error_auroc: float | None = None  # AUROC of errors if each answer were right with its stated confidence
    confusion: Confusion | None = None
    two_classes: TwoClasses | None = None
    numbers: NumberChecks | None = None


@dataclass(frozen=True)
class Chosen:
    """Results of a threshold on the validation data."""

    coverage: Number
    error: Number


@dataclass(frozen=True)
class FrequentClass:
    """The most frequent class among some inputs, and its share of them."""

    name: str
    share: Number


@dataclass(frozen=True)
class Reached:
    """Results of a threshold on test data, for answered and for deferred inputs."""

    coverage: Estimate
    error: Estimate | None
    deferred_error: Estimate | None
    change: Estimate | None = None  # error of the answered inputs minus that of all
    frequent: FrequentClass | None = None  # among the answered inputs

    @property
    def answered(self) -> int:
        """The number of answers that are given."""
        return round((self.coverage.value or 0.0) * self.coverage.count)

    @property
    def deferred(self) -> int:
        return self.coverage.count - self.answered


@dataclass(frozen=True)
class ExpectedShare:
    """The 95% range of the share of test inputs that a threshold from so many validation inputs answers by chance."""

    low: float
    high: float
    inputs: Count


@dataclass(frozen=True)
class DeferralRule:
    """Defer inputs whose uncertainty is above a threshold, which is null if none are answered."""

    aim: Literal["max_error", "coverage"]
    target: float
    confidence: Number
    threshold: Number
    answers: Literal["all", "some", "none"]
    validation: Chosen
    test: Reached
    expected: ExpectedShare | None = None  # if test and validation inputs are alike; of rules for a share of inputs

    @property
    def by_coverage(self) -> bool:
        return self.aim == "coverage"


@dataclass(frozen=True)
class DeferralStep:
    """A threshold, and what it does on test data: answers given, answers deferred, and the error of those given."""

    threshold: float
    answered: Count
    deferred: Count
    coverage: Number
    error: Estimate


@dataclass(frozen=True)
class Deferral:
    """Deferral to a person, with thresholds chosen on validation data."""

    measure: str
    label: str
    error: str
    rows: tuple[DeferralRule, ...]
    curve: PlainAndBayesian[RejectionCurve] | None
    words: Sentences
    steps: tuple[DeferralStep, ...] | None = None  # thresholds on test data
    labels: int | None = None  # of each input, if each is an answer of its own
    elements: str | None = None  # of each input, which are deferred together: pixels or tokens

    @property
    def answers(self) -> str:
        """What is answered or deferred."""
        return "inputs" if self.labels is None else "answers"

    @property
    def is_rate(self) -> bool:
        return self.error == RATE


@dataclass(frozen=True)
class TrainingFit:
    """How well the network fits its training data."""

    examples: Number
    accuracy: Number
    confidence: Number


@dataclass(frozen=True)
class PosteriorSummary:
    """The posterior in a few values."""

    kind: str
    describe: str
    structure: str | None
    curvature: str | None
    prior_precision: Number
    data_scale: Number
    tuned_on: Literal["nothing", "evidence", "validation data"]
    log_evidence: Number
    training: TrainingFit | None
    prior: str | None = None


@dataclass(frozen=True)
class BlockStructure:
    """The covariance structure of a layer, and its reason."""

    name: LayerName
    kind: str
    parameters: Count
    structure: str
    reason: str


@dataclass(frozen=True)
class PriorUsed:
    """A prior, how it was chosen, and which results are under it."""

    of: Literal["predictions", "profile", "novelty"]
    prior: str
    data_scale: Number
    chosen: str
    results: str


@dataclass(frozen=True)
class AuditRun(Run):
    """How an audit was made, and what it does not cover."""

    posterior: PosteriorSummary
    structures: tuple[BlockStructure, ...]
    covered: Number
    not_covered: tuple[Message, ...]
    interrupted: str | None
    priors: tuple[PriorUsed, ...] | None = None  # that of the profile only if it is not that of the predictions

    @property
    def own_priors(self) -> dict[str, str]:
        """The priors by what they are of."""
        return {one.of: one.prior for one in self.priors or ()}


@dataclass(frozen=True, kw_only=True)
class AuditRecord(Header):
    """The result of whence.audit. A section that is null was not computed; run.left_out says why. Numbers that are not
    finite are null."""

    schema: Literal["whence.audit/1"]
    task: TaskName
    classes: tuple[str, ...] | None
    network: NetworkSize
    data: Data
    verdict: Verdict
    quality: Quality | None
    comparison: ComparisonSection | None
    deferral: Deferral | None
    layers: tuple[Layer, ...] | None
    profile: Profile | None
    sensitivity: tuple[Sensitivity, ...] | None
    maps: tuple[WeightMap, ...] | None
    inputs: tuple[ShownInput, ...] | None
    novelty: Novelty | None
    pruning: Pruning | None
    answers: tuple[Answer, ...] | None
    run: AuditRun
    next_steps: tuple[NextStep, ...] | None = None
    groups: Groups | None = None
    trace: Trace | None = None
    conformal: ConformalSection | None = None
    unit: str | None = None  # of all predicted numbers
    scores: InputScores | None = None
    attribution: Attributions | None = None
