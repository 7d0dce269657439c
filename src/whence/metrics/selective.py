"""Answering only where certain: risk against coverage.

Index legend: N elements from the most certain on, U different uncertainties (ties are one), B rows of weights.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, fields, replace
from typing import Any, Unpack

import torch
from torch import Tensor

from whence.metrics.bootstrap import measure
from whence.metrics.elements import ArrayLike, Elements, ForLabels, check_share, read
from whence.metrics.estimate import Estimate
from whence.metrics.labels import Labels, labels
from whence.metrics.tables import frame


@dataclass(frozen=True)
class Queue:
    """Elements from the most certain on, with the errors they make."""

    elements: Elements
    errors: Tensor  # [N], in 0..1
    uncertainty: Tensor  # [N], ascending
    ends: Tensor  # [U] last element of each run of ties

    def cumulated(self, counts: Tensor) -> tuple[Tensor, Tensor]:
        """Weight, and weight in error, of all elements up to the end of each run of ties, [B, U] each."""
        rows = self.elements.rows(counts)
        weight, wrong = rows.cumsum(1), (rows * self.errors).cumsum(1)
        if len(self.ends) == len(self.errors):
            return weight, wrong
        return weight.index_select(1, self.ends), wrong.index_select(1, self.ends)


def queue(elements: Elements, errors: Tensor, uncertainty: Tensor) -> Queue:
    """Sort by uncertainty [N]."""
    order = uncertainty.argsort(stable=True)
    uncertainty = uncertainty[order]
    last = torch.ones_like(uncertainty, dtype=torch.bool)
    last[:-1] = uncertainty[1:] != uncertainty[:-1]
    return Queue(elements.ordered(order), errors[order], uncertainty, last.nonzero().flatten())


def _queue(found: Labels, uncertainty: ArrayLike | None) -> Queue:
    """By the given uncertainty, or by 1 − the largest probability."""
    by = 1 - found.confidence if uncertainty is None else found.per_element(uncertainty, "uncertainty")
    return queue(found.elements, 1 - found.correct, by)


def aurc(
    prediction: Any,
    targets: ArrayLike,
    *,
    uncertainty: ArrayLike | None = None,
    excess: bool = False,
    **common: Unpack[ForLabels],
) -> Estimate:
    """Area under the risk-coverage curve: mean over k of the error among the k most certain (Geifman et al. 2019).

    Ties count with their expected value over random orders. ``excess=True`` subtracts the area of the best
    possible order. Weights are scaled to a mean of 1, then count as repeats, which are ties.
    """
    options = read("aurc", common, labels=True)
    line = _queue(labels(prediction, targets, options), uncertainty)
    weights = line.elements.weights
    line = replace(line, elements=replace(line.elements, weights=weights / weights.mean()))
    name = "excess_aurc" if excess else "aurc"
    return measure(name, _area(line, excess), line.elements, options, (0.0, 1.0), spread=True)


def _area(line: Queue, excess: bool) -> Callable[[Tensor], Tensor]:
    def core(counts: Tensor) -> Tensor:
        weight, wrong = line.cumulated(counts)
        run, errors = weight.diff(dim=1, prepend=weight[:, :1] * 0), wrong.diff(dim=1, prepend=wrong[:, :1] * 0)
        rate = torch.where(run > 0, errors / run, 0.0)
        harmonic = torch.digamma(weight + 1)
        start = harmonic.new_full((len(harmonic), 1), float(torch.digamma(torch.ones((), dtype=torch.float64))))
        # Σ_j (A + j e) / (K + j) over a run of m ties with error rate e, after K elements with A errors
        extra = (wrong - errors - (weight - run) * rate) * harmonic.diff(dim=1, prepend=start)
        total, lost = weight[:, -1], wrong[:, -1]
        area = lost + extra.sum(1)
        if excess:
            right = total - lost
            area = area - lost + right * (torch.digamma(total + 1) - torch.digamma(right + 1))
        return area / total

    return core


def selective_accuracy(
    prediction: Any,
    targets: ArrayLike,
    *,
    coverage: float = 0.8,
    uncertainty: ArrayLike | None = None,
    **common: Unpack[ForLabels],
) -> Estimate:
    """Accuracy among the ``coverage`` most certain; ties at the border count by their share."""
    check_share(coverage, "coverage", "0.8 keeps the 80 % most certain", closed=True)
    options = read("selective_accuracy", common, labels=True)
    line = _queue(labels(prediction, targets, options), uncertainty)

    def core(counts: Tensor) -> Tensor:
        weight, wrong = line.cumulated(counts)
        kept = weight[:, -1:] * coverage
        at = torch.searchsorted(weight, kept * (1 - 1e-12)).clamp(max=weight.shape[1] - 1)
        before = (at - 1).clamp(min=0)
        first = at == 0
        weight_0 = torch.where(first, 0.0, weight.gather(1, before))
        wrong_0 = torch.where(first, 0.0, wrong.gather(1, before))
        share = ((kept - weight_0) / (weight.gather(1, at) - weight_0)).clamp(max=1)
        lost = wrong_0 + share * (wrong.gather(1, at) - wrong_0)
        return (1 - lost / kept).squeeze(1)

    trials = max(1, int(coverage * line.elements.groups))
    return measure("selective_accuracy", core, line.elements, options, (0.0, 1.0), trials, spread=True)


@dataclass(frozen=True)
class RiskCoverage:
    """Error among the kept for every threshold: keep where uncertainty ≤ threshold."""

    coverage: Tensor  # [U] share that is kept
    risk: Tensor  # [U] error among the kept
    threshold: Tensor  # [U], ascending

    def to_pandas(self) -> Any:
        """The table as a ``pandas.DataFrame``."""
        return frame({f.name: getattr(self, f.name).cpu().numpy() for f in fields(self)})


def risk_coverage(
    prediction: Any, targets: ArrayLike, *, uncertainty: ArrayLike | None = None, **common: Unpack[ForLabels]
) -> RiskCoverage:
    """The risk-coverage curve (El-Yaniv & Wiener 2010), one row for each different uncertainty."""
    options = read("risk_coverage", common, labels=True)
    line = _queue(labels(prediction, targets, options), uncertainty)
    ones = torch.ones(1, line.elements.groups, dtype=torch.float64, device=line.errors.device)
    weight, wrong = (part[0] for part in line.cumulated(ones))
    return RiskCoverage(weight / weight[-1], wrong / weight, line.uncertainty[line.ends])
