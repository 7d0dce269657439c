"""The section of an audit about groups of test inputs."""

from __future__ import annotations

from dataclasses import dataclass

from whence.report.record.common import Count, Estimate, MetricName, Number, Sentence, Sentences


@dataclass(frozen=True)
class GroupDifference:
    """A quantity in a group minus the same in the rest. The interval holds for all comparisons of the section together,
    and the p-value is corrected for their number."""

    quantity: str
    difference: Estimate
    p: Number
    is_share: bool

    @property
    def significant(self) -> bool:
        return self.p is not None and self.p <= 1 - self.difference.level


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

    @property
    def is_rate(self) -> bool:
        """Whether ``answered_error`` is a share."""
        return self.error.endswith("rate")
