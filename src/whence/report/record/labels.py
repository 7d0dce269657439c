"""Tables of labels in an audit: by class or label, confusions, and the two outcomes of a binary decision."""

from __future__ import annotations

from dataclasses import dataclass

from whence.report.record.common import Bins, Count, Estimate, Number, Numbers, PlainAndBayesian


@dataclass(frozen=True)
class ClassCalibration:
    """A class, or a label of several: its frequency in the test data, how it is predicted, and how often deferred.

    Of pixels and tokens, ``count`` is theirs, and intervals take those of one input together.

    ``recall`` is of the inputs that have it, ``precision`` and ``confidence`` (the mean) of the answers that say it;
    ``ece`` is of its probability over all inputs; ``deferred`` is by the rule that answers 80% of the validation data,
    of the inputs of a class, and of all answers about a label.
    """

    name: str
    frequency: Number
    predicted: Number
    difference: Estimate  # with an interval that holds for all classes together
    count: int | None = None  # inputs that have it
    recall: Estimate | None = None
    precision: Estimate | None = None
    confidence: float | None = None
    ece: Estimate | None = None
    deferred: Estimate | None = None
    specificity: Estimate | None = None  # of labels
    auroc: Estimate | None = None  # of labels
    iou: Estimate | None = None  # of pixels and tokens: those that have it and say it, of those that have or say it
    recalibrated: float | None = None  # mean probability of the recalibrated network
    overconfidence: Estimate | None = None  # confidence minus precision; the interval holds for all classes together
    in_training: float | None = None  # its frequency in the training data
    in_validation: float | None = None


@dataclass(frozen=True)
class Confused:
    """Inputs of one class that are predicted as another; the share is of the inputs of the true class."""

    true: str
    predicted: str
    count: Count
    share: Estimate


@dataclass(frozen=True)
class Confusion:
    """How often each class is predicted for inputs of each class: ``counts[true][predicted]``; null for many."""

    names: tuple[str, ...]
    inputs: Count
    errors: Count
    counts: tuple[tuple[Count, ...], ...] | None
    largest: tuple[Confused, ...]  # the most frequent confusions

    @property
    def shares(self) -> tuple[tuple[float | None, ...], ...]:
        """Counts as shares of the inputs of the true class; None for a class without inputs."""
        return tuple(
            tuple(count / total if (total := sum(row)) else None for count in row) for row in self.counts or ()
        )


@dataclass(frozen=True)
class Curve:
    """Two rates at decreasing thresholds: recall and precision, or false and true positive rate."""

    x: Numbers
    y: Numbers


@dataclass(frozen=True)
class TwoClasses:
    """A binary decision at a threshold of the probability of the positive class. Intervals of rates are exact
    (Clopper and Pearson), those of average precision and AUROC are bootstrapped."""

    positive: str
    negative: str
    threshold: float
    true_positives: Count
    false_negatives: Count
    true_negatives: Count
    false_positives: Count
    prevalence: Estimate
    sensitivity: Estimate | None
    specificity: Estimate | None
    precision: Estimate | None
    npv: Estimate | None
    average_precision: Estimate | None
    auroc: Estimate | None
    precision_recall: Curve | None
    roc: Curve | None
    reliability: PlainAndBayesian[Bins] | None = None  # probability of the positive class and its frequency
