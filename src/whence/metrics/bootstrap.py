"""Intervals: the BCa bootstrap over groups, and the exact binomial bound at the edge of a bounded metric.

Index legend: G groups, B resamples, J leave-out blocks.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from whence.errors import notice
from whence.metrics.elements import Elements, Options
from whence.metrics.estimate import Estimate

Core = Callable[[Tensor], Tensor]  # counts of the groups [B, G] → values [B]

CHUNK = 2**24  # bytes of one matrix of weights; a core holds a few of them at once
BLOCKS = 200  # most blocks of the jackknife
UNBOUNDED = (-math.inf, math.inf)


def measure(
    name: str,
    core: Core,
    elements: Elements,
    options: Options,
    bounds: tuple[float, float] = UNBOUNDED,
    trials: int | None = None,
    spread: bool = False,
) -> Estimate:
    """The value of ``core`` and its interval.

    ``trials`` is the n of the binomial bound at an edge; ``spread`` says that the core holds rows of all elements.
    """
    value = float(core(_ones(elements)))
    if options.resamples == 0:
        low = high = math.nan
    elif alone(name, elements):
        low = high = value
    else:
        drawn = torch.cat([core(counts) for counts in resamples(elements, options, spread)])
        level = options.level
        low, high = edge(value, drawn, level, bounds, trials or elements.groups) or bca(
            value,
            drawn,
            core.left_out() if isinstance(core, Ratio) else jackknife(core, elements, options, spread),
            level,
        )
        low, high = max(low, bounds[0]), min(high, bounds[1])
    return Estimate(value, low, high, options.level, elements.count, options.resamples, name)


def mean(
    name: str, values: Tensor, elements: Elements, options: Options, bounds: tuple[float, float] = UNBOUNDED
) -> Estimate:
    """The weighted mean of ``values`` [N]."""
    return measure(name, ratio(elements, values), elements, options, bounds)


@dataclass(frozen=True)
class Ratio:
    """Σ w v / Σ w as a core, or its root; being of sums, it can leave out every group in turn."""

    sums: Tensor  # [G, 2] of w v and of w
    root: bool = False

    def __call__(self, counts: Tensor) -> Tensor:
        return self._of(counts @ self.sums)

    def left_out(self) -> Tensor:
        """Values without each group, [G]."""
        return self._of(self.sums.sum(0) - self.sums)

    def _of(self, sums: Tensor) -> Tensor:
        value = sums[:, 0] / sums[:, 1]
        return value.clamp(min=0).sqrt() if self.root else value


def ratio(elements: Elements, values: Tensor, root: bool = False) -> Ratio:
    """The weighted mean of ``values`` [N] as a core."""
    return Ratio(elements.sums(values.double(), torch.ones_like(elements.weights)), root)


def alone(name: str, elements: Elements) -> bool:
    """Whether there is one group only, of which no interval can be had; says so."""
    if elements.groups == 1:
        what = "one example" if elements.count == 1 else f"one group (of {elements.count} elements)"
        notice(f"{name}: {what} gives no interval: low and high are the value itself. Score more examples.")
        return True
    if min(elements.sizes) == 1:
        notice(f"{name}: a class has one example only: the interval leaves out how that one varies.")
    return False


def _ones(elements: Elements) -> Tensor:
    return torch.ones(1, elements.groups, dtype=torch.float64, device=elements.weights.device)


def _steps(total: int, elements: Elements, spread: bool) -> Iterator[int]:
    """Rows at a time, such that a matrix of counts, or of weights, stays within CHUNK."""
    step = max(1, CHUNK // (8 * max(elements.groups, elements.count if spread else 0)))
    for start in range(0, total, step):
        yield min(step, total - start)


def resamples(elements: Elements, options: Options, spread: bool = False) -> Iterator[Tensor]:
    """How often each group is drawn [·, G], in pieces; every stratum keeps its size. The same on every device."""
    generator = torch.Generator().manual_seed(int(options.seed))
    for rows in _steps(int(options.resamples), elements, spread):
        counts = torch.zeros(rows, elements.groups, dtype=torch.float64)
        one, start = torch.ones(1, 1, dtype=torch.float64), 0
        for size in elements.sizes:
            drawn = torch.randint(size, (rows, size), generator=generator)
            counts[:, start : start + size].scatter_add_(1, drawn, one.expand(rows, size))
            start += size
        yield counts.to(elements.weights.device)


def jackknife(core: Core, elements: Elements, options: Options, spread: bool) -> Tensor:
    """Values without each of at most BLOCKS random blocks of groups, [J]."""
    generator = torch.Generator().manual_seed(int(options.seed))
    blocks = min(BLOCKS, elements.groups)
    block = (torch.randperm(elements.groups, generator=generator) % blocks).to(elements.weights.device)
    values, start = [], 0
    for rows in _steps(blocks, elements, spread):
        left_out = torch.arange(start, start + rows, device=block.device)
        values.append(core((block != left_out.unsqueeze(1)).double()))
        start += rows
    return torch.cat(values)


def bca(value: float, drawn: Tensor, left_out: Tensor, level: float) -> tuple[float, float]:
    """Bias-corrected and accelerated percentiles (Efron 1987, J. Am. Stat. Assoc. 82, eq. 2.3 and 6.6)."""
    drawn = drawn[torch.isfinite(drawn)].cpu().sort().values
    if not len(drawn):
        return value, value
    slack = 1e-12 * max(1.0, abs(value))
    below = float((drawn < value - slack).sum()) + 0.5 * float(((drawn - value).abs() <= slack).sum())
    share = min(max(below / len(drawn), 0.5 / len(drawn)), 1 - 0.5 / len(drawn))
    bias = normal_quantile(share)
    influence = left_out[torch.isfinite(left_out)].cpu()
    influence = influence.mean() - influence
    spread = float(influence.square().sum())
    acceleration = float(influence.pow(3).sum()) / (6 * spread**1.5) if spread > 0 else 0.0
    ends = []
    for tail in ((1 - level) / 2, (1 + level) / 2):
        shift = bias + normal_quantile(tail)
        place = bias + shift / max(1 - acceleration * shift, 0.05)
        ends.append(_quantile(drawn, 0.5 * math.erfc(-place / math.sqrt(2))))
    return min(ends[0], value), max(ends[1], value)


def edge(
    value: float, drawn: Tensor, level: float, bounds: tuple[float, float], trials: int
) -> tuple[float, float] | None:
    """Where all resamples agree: the interval of Clopper & Pearson 1934 at a bound, else the value; or None."""
    slack = 1e-12 * max(1.0, abs(value))
    if bool(((drawn - value).abs() > slack).any()):
        return None
    low, high = bounds
    reach = (high - low) * (1 - ((1 - level) / 2) ** (1 / trials)) if math.isfinite(high - low) else 0.0
    if abs(value - low) <= slack:
        return low, low + reach
    if abs(value - high) <= slack:
        return high - reach, high
    return value, value


def normal_quantile(share: float) -> float:
    return float(torch.special.ndtri(torch.tensor(share, dtype=torch.float64)))


def _quantile(ordered: Tensor, share: float) -> float:
    """With linear interpolation."""
    place = share * (len(ordered) - 1)
    low = min(int(place), len(ordered) - 1)
    high, part = min(low + 1, len(ordered) - 1), place - low
    return float(ordered[low]) * (1 - part) + float(ordered[high]) * part
