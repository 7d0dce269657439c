"""Metrics of two audits of the same test data, compared input by input.

Index legend: N inputs, B resamples.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from whence.metrics import Estimate as Measured
from whence.metrics.elements import Elements, MetricOptions, elements
from whence.metrics.intervals import bootstrap
from whence.metrics.means import mean
from whence.report.record.common import Estimate, Numbers
from whence.report.record.convert import number
from whence.report.record.scores import InputScores

ROOT = "rmse"  # whose scores are squared errors


@dataclass(frozen=True)
class PairedScores:
    """Scores of the same inputs in two audits."""

    old: InputScores
    new: InputScores
    order: Tensor  # [N] place in ``old`` of each input of ``new``

    @classmethod
    def of(cls, old: InputScores | None, new: InputScores | None) -> PairedScores | None:
        """None unless both records have scores of exactly the same inputs, in whatever order."""
        if old is None or new is None or sorted(old.ids) != sorted(new.ids):
            return None
        places: dict[str, list[int]] = {}
        for place in reversed(range(len(old.ids))):
            places.setdefault(old.ids[place], []).append(place)
        order = torch.tensor([places[one].pop() for one in new.ids])
        counts = [None if s.counts is None else torch.tensor(s.counts) for s in (old, new)]
        if (counts[0] is None) != (counts[1] is None):
            return None
        if counts[0] is not None and counts[1] is not None and not torch.equal(counts[0][order], counts[1]):
            return None
        return cls(old, new, order)

    def change(self, metric: str, kind: str) -> Estimate | None:
        """new − old with its interval; None if the metric is no mean over inputs."""
        columns = [getattr(getattr(one, kind), metric, None) for one in (self.old, self.new)]
        if columns[0] is None or columns[1] is None:
            return None
        before, after = (_numbers(column) for column in columns)
        members = self._members(~after.isnan())
        before = before[self.order]
        first, second = before[members.keep], after[members.keep]
        found = _root(first, second, members) if metric == ROOT else mean("change", second - first, members)
        return Estimate(number(found), number(found.low), number(found.high), found.level, members.count)

    def _members(self, known: Tensor) -> Elements:
        members = elements(known.shape, MetricOptions(mask=known), known.device)
        if self.new.counts is None:
            return members
        return replace(members, weights=torch.tensor(self.new.counts, dtype=torch.float64)[members.keep])


def _numbers(column: Numbers | None) -> Tensor:
    return torch.tensor([math.nan if v is None else v for v in column or ()], dtype=torch.float64)


def _root(before: Tensor, after: Tensor, members: Elements) -> Measured:
    """The change of a root mean square."""

    def statistic(counts: Tensor) -> Tensor:
        weights = members.rows(counts)
        total = weights.sum(1)
        return (weights @ after / total).sqrt() - (weights @ before / total).sqrt()

    return bootstrap("change", statistic, members, per_element=True)
