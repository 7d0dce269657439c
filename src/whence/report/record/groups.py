"""The section of an audit about groups of test inputs."""

from __future__ import annotations

from dataclasses import dataclass

from whence.numerals import p_equals
from whence.report.record.common import Count, Estimate, MetricName, Number, Sentence, Sentences


@dataclass(frozen=True)
class GroupDifference:
    """A quantity in a group minus the same in the rest. The interval holds for all comparisons of the section together,
    and the p-value is corrected for their number."""

    quantity: str
    difference: Estimate
    p: Number
    is_share: bool
    least_p: float | None = None  # that the number of permutations allows

    @property
    def significant(self) -> bool:
        return self.p is not None and self.p <= 1 - self.difference.level

    @property
    def p_words(self) -> str:
        return p_equals(self.p, self.least_p)


@dataclass(frozen=True)
class Group:
    """Test inputs of one kind. ``few`` are too few for a comparison, and have intervals of shares only."""

    name: str
    inputs: Count
    few: bool
    metrics: tuple[Estimate | None, ...]  # as Groups.metrics
    deferred: Estimate | None  # share, by the rule that answers 80% of the validation data
    answered_error: Estimate | None
    differences: tuple[GroupDifference, ...]
    why: tuple[str | None, ...] | None = None  # why a metric is missing, as ``metrics``
    positives: int | None = None  # of two classes, with the share, and the rates where there are enough
    prevalence: Estimate | None = None
    sensitivity: Estimate | None = None
    specificity: Estimate | None = None


@dataclass(frozen=True)
class Grouping:
    """One way to divide the test inputs."""

    name: str
    about: Sentence
    groups: tuple[Group, ...]

    @property
    def smallest(self) -> Group:
        return min(self.groups, key=lambda one: one.inputs)


@dataclass(frozen=True)
class Groups:
    """Every metric by group, and whether groups differ by more than chance."""

    metrics: tuple[MetricName, ...]
    overall: Group
    groupings: tuple[Grouping, ...]
    comparisons: Count
    level: float
    fewest: Count
    error: str  # name of answered_error
    words: Sentences
    permutations: int | None = None
    positive: str | None = None  # of two classes

    @property
    def is_rate(self) -> bool:
        """Whether ``answered_error`` is a share."""
        return self.error.endswith("rate")
