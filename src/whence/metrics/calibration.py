"""Calibration errors and reliability tables.

Index legend: N elements, C classes, B resamples, K cells (bins, of all classes).
"""

from __future__ import annotations

import math
from dataclasses import dataclass, fields
from typing import Any, Unpack

import torch
from torch import Tensor

from whence.errors import BadOption, one_of
from whence.metrics.binning import Cells, assign, check_binning, edges
from whence.metrics.bootstrap import alone, edge, normal_quantile, resamples
from whence.metrics.elements import ArrayLike, Elements, ForLabels, Options, is_whole, read
from whence.metrics.estimate import Estimate
from whence.metrics.inversion import Norm, directions, invert, largest, weighted_l1, weighted_l2
from whence.metrics.labels import Labels, labels
from whence.metrics.tables import frame


def ece(
    prediction: Any,
    targets: ArrayLike,
    *,
    bins: int = 15,
    binning: str = "width",
    norm: str = "l1",
    **common: Unpack[ForLabels],
) -> Estimate:
    """Expected calibration error of the largest probability (Guo et al. 2017, eq. 3).

    ``norm="l1"``: Σ_b w_b |accuracy_b − confidence_b|; ``"l2"``: the root of the weighted squares. The interval is
    by test inversion; it may lie below the value, which is biased upward.
    """
    check_binning(bins, binning)
    chosen = weighted_l1 if one_of(norm, ("l1", "l2"), "norm") == "l1" else weighted_l2
    return _top_label("ece", prediction, targets, chosen, bins, binning, read("ece", common, labels=True))


def mce(
    prediction: Any, targets: ArrayLike, *, bins: int = 15, binning: str = "width", **common: Unpack[ForLabels]
) -> Estimate:
    """Maximum calibration error: the largest gap of any bin that holds something (Naeini et al. 2015)."""
    check_binning(bins, binning)
    return _top_label("mce", prediction, targets, largest, bins, binning, read("mce", common, labels=True))


def classwise_ece(
    prediction: Any, targets: ArrayLike, *, bins: int = 15, binning: str = "width", **common: Unpack[ForLabels]
) -> Estimate:
    """Mean over classes of the calibration error of p_c against 1[y = c] (Kull et al. 2019, eq. 2)."""
    check_binning(bins, binning)
    options = read("classwise_ece", common, labels=True)
    found = labels(prediction, targets, options)
    count, weights = found.probs.shape[1], found.elements.weights
    index = torch.stack([assign(found.column(c), weights, bins, binning, found.dtype) for c in range(count)], 1)

    def gap(c: int) -> Tensor:
        return (found.truth == c).double() - found.column(c)

    def over_classes(shares: Tensor, gaps: Tensor) -> Tensor:
        return weighted_l1(shares, gaps) / count

    return _estimate("classwise_ece", over_classes, Cells(index, found.column, gap, bins, found.elements), options)


def _top_label(
    name: str, prediction: Any, targets: ArrayLike, norm: Norm, bins: int, binning: str, options: Options
) -> Estimate:
    found = labels(prediction, targets, options)
    index = assign(found.confidence, found.elements.weights, bins, binning, found.dtype)
    p, gap = found.confidence, found.correct - found.confidence
    cells = Cells(index.unsqueeze(1), lambda _: p, lambda _: gap, bins, found.elements)
    return _estimate(name, norm, cells, options, pool=norm is not largest)


def _estimate(name: str, norm: Norm, cells: Cells, options: Options, pool: bool = False) -> Estimate:
    """The error of the cells and its interval by test inversion, with the bins of the whole sample."""
    members = cells.elements
    ones = torch.ones(1, members.groups, dtype=torch.float64, device=members.weights.device)
    share, gap = cells.sums(ones)
    held = (share[0] > 0).nonzero().flatten()
    observed = torch.cat([share[:, held], gap[:, held]])
    value = float(norm(observed[:1], observed[1:]))
    if options.resamples == 0:
        low = high = math.nan
    elif alone(name, members):
        low = high = value
    else:
        drawn = [[s[:, held], g[:, held]] for s, g in map(cells.sums, resamples(members, options))]
        shares, gaps = (torch.cat(part) for part in zip(*drawn, strict=True))
        factor, least = (part[held] for part in cells.small_cells())
        noise = _noise((gaps - observed[1]) * factor, shares > 0, least, int(options.seed))
        low, high = edge(value, norm(shares, gaps), options.level, (0.0, 1.0), members.groups) or invert(
            norm,
            observed,
            directions(observed[0], observed[1], noise, pool),
            shares if norm is largest else observed[:1].expand_as(shares),
            noise,
            options.level,
        )
    return Estimate(value, low, min(high, 1.0), options.level, members.count, options.resamples, name)


def _noise(resampled: Tensor, held: Tensor, least: Tensor, seed: int) -> Tensor:
    """Noise of resampled gaps [B, K], with normal noise added in cells whose variance is below the ``least`` [K]."""
    variance = (resampled.square() * held).sum(0) / held.sum(0).clamp(min=1)
    missing = (least - variance).clamp(min=0).sqrt()
    normal = torch.randn(resampled.shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    return resampled * held + missing * normal.to(resampled.device)


@dataclass(frozen=True)
class Reliability:
    """One row for each bin; what an empty bin has not is nan."""

    low: Tensor  # borders of the bins; of equal weight: the smallest and largest probability in each
    high: Tensor
    confidence: Tensor  # mean probability
    accuracy: Tensor  # how often it was right
    count: Tensor  # elements
    weight: Tensor  # share of the weight
    gap: Tensor  # accuracy − confidence
    accuracy_low: Tensor  # Wilson interval of the accuracy
    accuracy_high: Tensor

    def to_pandas(self) -> Any:
        """The table as a ``pandas.DataFrame``."""
        return frame({f.name: getattr(self, f.name).cpu().numpy() for f in fields(self)})


def reliability(
    prediction: Any,
    targets: ArrayLike,
    *,
    bins: int = 15,
    binning: str = "width",
    of: str | int = "confidence",
    **common: Unpack[ForLabels],
) -> Reliability:
    """How often the prediction is right in each bin: of its largest probability, or of that of one class."""
    check_binning(bins, binning)
    options = read("reliability", common, labels=True)
    found = labels(prediction, targets, options)
    p, hit = _column(found, of)
    weights = found.elements.weights
    index = assign(p, weights, bins, binning, found.dtype)
    low, high = _borders(p, index, bins, binning, found.dtype)
    weight = torch.bincount(index, weights, bins)
    accuracy = torch.bincount(index, weights * hit, bins) / weight
    confidence = torch.bincount(index, weights * p, bins) / weight
    effective = weight.square() / _squares(found.elements, index, bins)
    accuracy_low, accuracy_high = wilson(accuracy, effective, options.level)
    return Reliability(
        low=low,
        high=high,
        confidence=confidence,
        accuracy=accuracy,
        count=torch.bincount(index, minlength=bins),
        weight=weight / weight.sum(),
        gap=accuracy - confidence,
        accuracy_low=accuracy_low,
        accuracy_high=accuracy_high,
    )


def _squares(members: Elements, index: Tensor, bins: int) -> Tensor:
    """Σ over groups of the squared weight in each bin, for Kish's effective number."""
    if members.group is None:
        return torch.bincount(index, members.weights.square(), bins)
    sums = torch.bincount(members.group * bins + index, members.weights, members.groups * bins)
    return sums.reshape(-1, bins).square().sum(0)


def _column(found: Labels, of: str | int) -> tuple[Tensor, Tensor]:
    """Probabilities [N] and whether what they are of came true [N]."""
    if of == "confidence":
        return found.confidence, found.correct
    count = found.probs.shape[1]
    if isinstance(of, str) or not is_whole(of) or not 0 <= of < count:
        raise BadOption(f"of={of!r} is neither 'confidence' nor a class, 0..{count - 1}.")
    return found.column(of), (found.truth == of).double()


def _borders(p: Tensor, index: Tensor, bins: int, binning: str, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    if binning == "width":
        borders = edges(bins, dtype, p.device)
        return borders[:-1], borders[1:]
    nothing = torch.full((bins,), math.nan, dtype=torch.float64, device=p.device)
    low = nothing.scatter_reduce(0, index, p, "amin", include_self=False)
    return low, nothing.scatter_reduce(0, index, p, "amax", include_self=False)


def wilson(share: Tensor, trials: Tensor, level: float) -> tuple[Tensor, Tensor]:
    """Interval of a share (Wilson 1927); with weights, of Kish's effective number of trials."""
    z = normal_quantile((1 + level) / 2)
    middle = (share + z * z / (2 * trials)) / (1 + z * z / trials)
    half = z / (1 + z * z / trials) * (share * (1 - share) / trials + z * z / (4 * trials.square())).sqrt()
    return (middle - half).clamp(min=0), (middle + half).clamp(max=1)
