"""Estimates with intervals: the BCa bootstrap over groups, the exact binomial bound, the inversion of a test.

Index legend: N elements, G groups, B resamples, J leave-out blocks, K cells (bins, of all classes).
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor

from whence.errors import notice
from whence.metrics.elements import Elements
from whence.numerals import decimals

Statistic = Callable[[Tensor], Tensor]  # multiplicity of each group [B, G] → values [B]
Bounds = tuple[float, float]

CHUNK = 2**24  # bytes of one matrix of weights; a statistic uses a few at once
SHARED = 2**25  # bytes of multiplicities up to which metrics share them
BLOCKS = 200  # largest number of jackknife blocks
BISECTIONS = 40  # twelve digits
SHARE: Bounds = (0.0, 1.0)
UNBOUNDED: Bounds = (-math.inf, math.inf)


class Estimate(float):
    """The value of a metric as a float, with its interval.

    ``format(e, ".3f")`` gives only the value; ``str(e)`` gives ``0.0231 [0.0187, 0.0289]``.
    """

    __slots__ = ("count", "high", "level", "low", "name", "resamples")

    low: float  # of the interval; NaN if resamples = 0
    high: float
    level: float  # of the interval: 0.95 for 95%
    count: int  # elements that were scored
    resamples: int
    name: str

    def __new__(
        cls,
        value: float,
        low: float = math.nan,
        high: float = math.nan,
        level: float = 0.95,
        count: int = 0,
        resamples: int = 0,
        name: str = "",
    ) -> Estimate:
        self = super().__new__(cls, value)
        fields = {"low": float(low), "high": float(high), "level": float(level), "count": int(count)}
        for key, item in {**fields, "resamples": int(resamples), "name": str(name)}.items():
            object.__setattr__(self, key, item)
        return self

    def __setattr__(self, key: str, value: Any) -> None:
        raise AttributeError(f"an Estimate is immutable: cannot set {key!r}.")

    def __getnewargs__(self) -> tuple[Any, ...]:
        return (float(self), self.low, self.high, self.level, self.count, self.resamples, self.name)

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), self.__getnewargs__()

    def __reduce_ex__(self, protocol: Any) -> tuple[Any, ...]:
        return self.__reduce__()

    @property
    def interval(self) -> tuple[float, float]:
        """(low, high)."""
        return self.low, self.high

    def to_dict(self) -> dict[str, Any]:
        """Plain numbers and strings, for JSON."""
        keys = ("value", "low", "high", "level", "count", "resamples", "name")
        return dict(zip(keys, self.__getnewargs__(), strict=True))

    def __repr__(self) -> str:
        show = _formatter(float(self), self.low, self.high)
        if math.isnan(self.low):
            return show(float(self))
        return f"{show(float(self))} [{show(self.low)}, {show(self.high)}]"

    __str__ = __repr__


def _formatter(value: float, low: float, high: float) -> Callable[[float], str]:
    """The same decimals for all three."""
    size = abs(value) if value and math.isfinite(value) else max(abs(low), abs(high), 0.0)
    if not math.isfinite(size) or not (size == 0 or 1e-6 <= size < 1e9):
        return lambda number: f"{number:.4g}"
    places = decimals(value or size, low, high)
    return lambda number: f"{0.0 if round(number, places) == 0 else number:.{places}f}"


# Estimates


def estimate(name: str, value: float, elements: Elements, interval: Callable[[], tuple[float, float]]) -> Estimate:
    """The value with its interval, if requested and there is more than one group."""
    options = elements.options
    if options.resamples == 0:
        low = high = math.nan
    elif elements.groups == 1:
        what = "one example" if elements.count == 1 else f"one group (of {elements.count} elements)"
        notice(f"{name}: {what} has no interval: low and high are the value itself. Score more examples.")
        low = high = value
    else:
        if min(elements.strata) == 1:
            notice(f"{name}: a class has only one example, so the interval does not include its variation.")
        low, high = interval()
    return Estimate(value, low, high, options.level, elements.count, options.resamples, name)


def bootstrap(
    name: str,
    statistic: Statistic,
    elements: Elements,
    bounds: Bounds = UNBOUNDED,
    trials: int | None = None,
    per_element: bool = False,
) -> Estimate:
    """The value of a statistic and its BCa interval.

    ``trials`` is the n of the binomial bound if the value is at an end of ``bounds``; ``per_element`` says that the
    statistic uses a row of all elements for every resample.
    """
    value, level = float(statistic(elements.once)), elements.options.level

    def interval() -> tuple[float, float]:
        drawn = torch.cat([statistic(counts) for counts in resamples(elements, per_element)])
        ends = binomial_bound(value, drawn, level, bounds, trials or elements.groups)
        if ends is None:
            ends = bca(value, drawn, jackknife(statistic, elements, per_element), level)
            ends = _off_the_end(ends, value, bounds, _reach(level, bounds, trials or elements.groups))
        return max(ends[0], bounds[0]), min(ends[1], bounds[1])

    return estimate(name, value, elements, interval)


# The bootstrap


def _chunks(total: int, elements: Elements, per_element: bool) -> Iterator[int]:
    """Rows at a time, so that a matrix of counts or weights fits CHUNK."""
    step = max(1, CHUNK // (8 * max(elements.groups, elements.count if per_element else 0)))
    for start in range(0, total, step):
        yield min(step, total - start)


def resamples(elements: Elements, per_element: bool = False) -> Iterator[Tensor]:
    """How often each group is drawn [·, G], in chunks; every stratum keeps its size. The same on every device."""
    options, device = elements.options, elements.weights.device
    drawn = int(options.seed), int(options.resamples), tuple(elements.strata), device
    if 8 * drawn[1] * elements.groups <= SHARED:
        whole = _shared_counts(*drawn)
        start = 0
        for rows in _chunks(drawn[1], elements, per_element):
            yield whole[start : start + rows]
            start += rows
        return
    generator = torch.Generator().manual_seed(drawn[0])
    for rows in _chunks(drawn[1], elements, per_element):
        yield _counts(rows, elements.strata, generator).to(device)


@functools.lru_cache(maxsize=3)
def _shared_counts(seed: int, rows: int, strata: tuple[int, ...], device: torch.device) -> Tensor:
    """Many metrics of the same elements are resampled in the same way."""
    return _counts(rows, strata, torch.Generator().manual_seed(seed)).to(device)


def _counts(rows: int, strata: Sequence[int], generator: torch.Generator) -> Tensor:
    counts = torch.zeros(rows, sum(strata), dtype=torch.float64)
    one, start = torch.ones(1, 1, dtype=torch.float64), 0
    for size in strata:
        drawn = torch.randint(size, (rows, size), generator=generator)
        counts[:, start : start + size].scatter_add_(1, drawn, one.expand(rows, size))
        start += size
    return counts


def jackknife(statistic: Statistic, elements: Elements, per_element: bool) -> Tensor:
    """Values without each of at most BLOCKS random blocks of groups, [J]."""
    generator = torch.Generator().manual_seed(int(elements.options.seed))
    blocks = min(BLOCKS, elements.groups)
    block = (torch.randperm(elements.groups, generator=generator) % blocks).to(elements.weights.device)
    values, start = [], 0
    for rows in _chunks(blocks, elements, per_element):
        left_out = torch.arange(start, start + rows, device=block.device)
        values.append(statistic((block != left_out.unsqueeze(1)).double()))
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
    squares = float(influence.square().sum())
    acceleration = float(influence.pow(3).sum()) / (6 * squares**1.5) if squares > 0 else 0.0
    ends = []
    for tail in ((1 - level) / 2, (1 + level) / 2):
        shift = bias + normal_quantile(tail)
        z = bias + shift / max(1 - acceleration * shift, 0.05)
        ends.append(_quantile(drawn, 0.5 * math.erfc(-z / math.sqrt(2))))
    return min(ends[0], value), max(ends[1], value)


def binomial_bound(
    value: float, drawn: Tensor, level: float, bounds: Bounds, trials: int
) -> tuple[float, float] | None:
    """If all resamples agree: the interval of Clopper & Pearson 1934 at a bound, or the value; else None.

    A difference of 0 (of shares, by bounds −1 and 1) may be as far off on both sides as a share of 0 on one.
    """
    slack = 1e-12 * max(1.0, abs(value))
    if bool(((drawn - value).abs() > slack).any()):
        return None
    low, high = bounds
    reach = _reach(level, bounds, trials)
    if abs(value - low) <= slack:
        return low, low + reach
    if abs(value - high) <= slack:
        return high - reach, high
    if abs(value) <= slack and low == -high:
        return -reach / 2, reach / 2
    return value, value


def _reach(level: float, bounds: Bounds, trials: int) -> float:
    """How far from a bound a value may be of which no trial showed anything else."""
    low, high = bounds
    return (high - low) * (1 - ((1 - level) / 2) ** (1 / trials)) if math.isfinite(high - low) else 0.0


def _off_the_end(ends: tuple[float, float], value: float, bounds: Bounds, reach: float) -> tuple[float, float]:
    """Ends at least as wide as the binomial bound for a value at a bound: few resamples may differ from it."""
    low, high = ends
    slack = 1e-12 * max(1.0, abs(value))
    if abs(value - bounds[0]) <= slack:
        high = max(high, bounds[0] + reach)
    if abs(value - bounds[1]) <= slack:
        low = min(low, bounds[1] - reach)
    return low, high


def normal_quantile(share: float) -> float:
    return float(torch.special.ndtri(torch.tensor(share, dtype=torch.float64)))


def _quantile(ordered: Tensor, share: float) -> float:
    """Quantile with linear interpolation."""
    place = share * (len(ordered) - 1)
    low = min(int(place), len(ordered) - 1)
    high, part = min(low + 1, len(ordered) - 1), place - low
    return float(ordered[low]) * (1 - part) + float(ordered[high]) * part


# Calibration errors: the inversion of a bootstrap test
#
# The plug-in estimate is biased upward, and not regular at 0, so percentiles of resamples mislead. Instead the gaps are
# scaled by t, the noise of the resamples is added, and the interval contains the t for which the observed error is not
# unlikely.

Norm = Callable[[Tensor, Tensor], Tensor]  # weights of the cells [B, K], gaps [B, K] → errors [B]


def invert_test(
    norm: Norm, observed: Tensor, direction: Tensor, weights: Tensor, noise: Tensor, level: float
) -> tuple[float, float]:
    """(low, high) of the error if the true gaps are proportional to ``direction`` [K].

    ``observed`` are weights and gaps [2, K]; ``weights`` and ``noise`` those of resamples [B, K]. With T the observed
    error, g the direction and T*(t) = norm(w*, t g + noise): low is t norm(g) where P(T* ≥ T) = α/2, high where
    P(T* ≤ T) = α/2. If the error is below the median of T*(0), high is that of the median, as in
    power-constrained limits (Cowan et al. 2011, arXiv:1105.3166); otherwise chance could give [0, 0].
    """
    value, tail = float(norm(observed[:1], observed[1:])), (1 - level) / 2
    size = float(norm(observed[:1], direction.unsqueeze(0)))
    unit = direction / size if size > 0 else torch.ones_like(direction)
    seen = max(value, float(norm(weights, noise).median()))

    def above(t: float) -> float:
        return float((norm(weights, noise + t * unit) >= value * (1 - 1e-12)).double().mean())

    def below(t: float) -> float:
        return float((norm(weights, noise + t * unit) <= seen * (1 + 1e-12)).double().mean())

    low, high = _crossing(lambda t: above(t) < tail), _crossing(lambda t: below(t) > tail)
    return min(low, high), high


def _crossing(holds: Callable[[float], bool]) -> float:
    """The size in 0..1 up to which ``holds`` is true; 0 if it never is."""
    if not holds(0.0):
        return 0.0
    if holds(1.0):
        return 1.0
    low, high = 0.0, 1.0
    for _ in range(BISECTIONS):
        middle = (low + high) / 2
        low, high = (middle, high) if holds(middle) else (low, middle)
    return (low + high) / 2
