"""The record of what changed between two audits."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Literal

from whence.report.record.common import (
    Date,
    Estimate,
    Form,
    Header,
    LayerName,
    MetricName,
    Number,
    Sentence,
    Sentences,
    Tone,
    Versions,
)
from whence.report.record.verdict import Point

RATE = "error rate"
Sameness = Literal["same", "different", "unknown"]


@dataclass(frozen=True)
class Side:
    """One of the two audits."""

    title: str
    created: Date
    words: Sentence
    tone: Tone
    record: str | None  # sha256 of its record
    weights: str | None  # of its network


@dataclass(frozen=True)
class ChangedPoint:
    """A point of the verdict in both audits; None where it is missing."""

    label: str
    old: Point | None
    new: Point | None

    @property
    def changed(self) -> bool:
        return self.old != self.new


@dataclass(frozen=True)
class ChangedValue(MetricName):
    """A number in both audits, and its change with an interval."""

    of: str  # "trained network", "with the posterior", a rule, a set
    old: Estimate | None
    new: Estimate | None
    change: Estimate | None
    paired: bool | None = None  # whether the interval of the change compares input by input

    @property
    def form(self) -> Form:
        return "percent" if self.label.startswith(RATE) else super().form

    @property
    def changed(self) -> bool:
        return self.old != self.new

    @property
    def judgement(self) -> str:
        """Whether the change is larger than chance, in words."""
        if not self.changed:
            return "unchanged"
        if self.old is None or self.new is None:
            return "not in the old audit" if self.old is None else "not in the new audit"
        found = self.judge(self.change)
        return "not known" if found is None else "within chance" if found == "same" else found

    @property
    def is_significant(self) -> bool:
        return self.judgement in ("better", "worse", "differs")


@dataclass(frozen=True)
class ChangedLayer:
    """A layer's share of the variance on test data and what is explained of it, in both audits."""

    name: LayerName
    old_share: Number
    new_share: Number
    old_explained: Number
    new_explained: Number

    @property
    def changed(self) -> bool:
        return (self.old_share, self.old_explained) != (self.new_share, self.new_explained)


@dataclass(frozen=True)
class ChangedFact:
    """A setting, a version, a property of the data or of the network that differs."""

    group: Literal["network", "data", "settings", "software"]
    name: str
    old: str | None
    new: str | None


@dataclass(frozen=True)
class DiffRecord(Header):
    """The result of whence.diff. Rows are those of both audits; ``facts`` only those that differ."""

    schema: Literal["whence.diff/1"] = field()
    old: Side
    new: Side
    same_weights: Sameness
    same_test: Sameness
    versions: Versions  # of the comparison itself
    how: Sentence  # how changes are judged
    words: Sentences
    points: tuple[ChangedPoint, ...]
    metrics: tuple[ChangedValue, ...]
    deferral: tuple[ChangedValue, ...]
    novelty: tuple[ChangedValue, ...]
    layers: tuple[ChangedLayer, ...]
    facts: tuple[ChangedFact, ...]

    @property
    def values(self) -> Iterator[ChangedValue]:
        yield from (*self.metrics, *self.deferral, *self.novelty)

    @property
    def is_empty(self) -> bool:
        """Whether nothing differs except dates and times."""
        words = (self.old.words, self.old.tone) != (self.new.words, self.new.tone)
        rows = [row.changed for row in self.points] + [row.changed for row in self.values]
        return not (self.facts or words or any(rows) or any(row.changed for row in self.layers))
