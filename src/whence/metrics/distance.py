"""Distances between two predictive distributions for each input: total variation and 1-Wasserstein.

Index legend: N inputs, E elements (an output of an input), S draws, G grid points, C classes.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import Any, Literal, Unpack

import torch
from torch import Tensor

from whence.errors import BadData, NotDefined, TooLarge, one_of
from whence.metrics.elements import Common, MetricOptions, elements, finite
from whence.metrics.intervals import SHARE, Bounds, Estimate
from whence.metrics.means import mean
from whence.metrics.regression import (
    EmpiricalForecast,
    Forecast,
    NormalForecast,
    PointForecast,
    PoissonForecast,
    forecast,
)
from whence.posteriors.base import Posterior, is_posterior
from whence.predictive.predictions import BinaryPrediction, ClassificationPrediction, OutputPrediction, Prediction

CHUNK = 2**17  # numbers in memory at once; few, so that they fit the cache
FINE = 8  # smallest number of grid points per standard deviation of a component
REACH = 9  # standard deviations around the mean of a component
COUNTS = 2**22  # largest number of counts of one element

LABELS = (ClassificationPrediction, BinaryPrediction)
Measure = Literal["total_variation", "wasserstein"]


class Distance(Estimate):
    """The mean distance with its interval over the inputs, and ``values``: one for each input (and output)."""

    __slots__ = ("values",)

    values: Tensor

    @classmethod
    def of(cls, estimate: Estimate, values: Tensor) -> Distance:
        return cls._made(estimate.__getnewargs__(), values)

    @classmethod
    def _made(cls, numbers: tuple[Any, ...], values: Tensor) -> Distance:
        self: Distance = cls(*numbers)  # type: ignore[assignment]
        object.__setattr__(self, "values", values)
        return self

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self)._made, (self.__getnewargs__(), self.values)


def total_variation(prediction: Any, reference: Any, **common: Unpack[Common]) -> Distance:
    """½ ∫ |p − q| of two predictive distributions, between 0 and 1; the mean over inputs.

    For classes ½ Σ |p − q|. For numbers, from distribution functions on a grid that is finer than the narrowest
    component everywhere, cut where the densities cross.
    """
    if isinstance(prediction, LABELS):
        values = _between_labels(prediction, reference)
    else:
        values = _between_numbers(prediction, reference, _variation)
    return _distance("total_variation", values.clamp(0, 1), common, SHARE)


def wasserstein(prediction: Any, reference: Any, **common: Unpack[Common]) -> Distance:
    """∫₀¹ |F⁻¹(u) − G⁻¹(u)| du of two predictive distributions, in the unit of the targets; the mean over inputs.

    Computed as ∫ |F − G|, which is the same in one dimension.
    """
    if isinstance(prediction, LABELS):
        raise NotDefined("the Wasserstein distance is not defined for classes; use total_variation.")
    return _distance("wasserstein", _between_numbers(prediction, reference, _transport), common, (0.0, math.inf))


def _distance(name: str, values: Tensor, common: Common, bounds: Bounds) -> Distance:
    """The mean over inputs and outputs, with its interval."""
    members = elements(values.shape, MetricOptions.read(name, common), values.device)
    return Distance.of(mean(name, values.reshape(-1)[members.keep], members, bounds), values)


def distance(
    posterior: Posterior | Prediction,
    reference: Posterior | Prediction,
    x: Any = None,
    *,
    measure: Measure | None = None,
    num_samples: int | None = None,
    generator: torch.Generator | None = None,
    **common: Unpack[Common],
) -> Distance:
    """Distance between the predictions of two posteriors for inputs ``x``; either may also be a prediction.

    ``measure``: ``"wasserstein"`` for numbers and ``"total_variation"`` for classes by default. ``num_samples`` and
    ``generator`` go to ``posterior.predict``; the reference, such as :func:`whence.hmc`'s, uses its own defaults.
    """
    first = _predicted(posterior, x, num_samples, generator)
    second = _predicted(reference, x, None, None)
    chosen = measure or ("total_variation" if isinstance(first, LABELS) else "wasserstein")
    one_of(chosen, MEASURES, "measure")
    return MEASURES[chosen](first, second, **common)


MEASURES = {"total_variation": total_variation, "wasserstein": wasserstein}


def _predicted(given: Any, x: Any, num_samples: int | None, generator: torch.Generator | None) -> Any:
    if not is_posterior(given):
        return given
    if x is None:
        raise BadData(f"a {type(given).__name__} predicts for inputs: pass x, such as a grid of them.")
    return given.predict(x, num_samples=num_samples, generator=generator)


def _between_labels(prediction: Any, reference: Any) -> Tensor:
    """½ Σ_c |p − q| of each example (and position); |p − q| of each binary label."""
    if type(prediction) is not type(reference):
        raise BadData(f"a {type(prediction).__name__} cannot be compared with a {type(reference).__name__}.")
    p, q = (finite(v.probs.detach().double(), "probabilities") for v in (prediction, reference))
    _same_shape(p, q)
    off = (p - q.to(p.device)).abs()
    return off if isinstance(prediction, BinaryPrediction) else off.sum(prediction.class_dim) / 2


def _same_shape(p: Tensor, q: Tensor) -> None:
    if p.shape != q.shape:
        raise BadData(f"predictions of shapes {tuple(p.shape)} and {tuple(q.shape)} are not for the same inputs.")


def _between_numbers(prediction: Any, reference: Any, between: Callable[[Forecast, Forecast], Tensor]) -> Tensor:
    """Distances in the shape of the means."""
    means = [_means(p) for p in (prediction, reference)]
    _same_shape(*means)
    shape = means[0].shape
    keep = torch.arange(shape.numel(), device=means[0].device)
    first, second = _forecast(prediction, keep, shape), _forecast(reference, keep, shape)
    if isinstance(first, PoissonForecast) != isinstance(second, PoissonForecast):
        raise BadData("a prediction of counts cannot be compared with one of real numbers.")
    return between(first, second).reshape(shape)


def _means(prediction: Any) -> Tensor:
    found = getattr(prediction, "mean", None)
    if not isinstance(found, Tensor):
        raise BadData(f"pass posterior.predict(x), not a {type(prediction).__name__}.")
    return found


def _forecast(prediction: Any, keep: Tensor, shape: torch.Size) -> Forecast:
    if isinstance(prediction, OutputPrediction) and prediction.samples is not None:
        draws = prediction.samples.detach().double().flatten(1)
        return EmpiricalForecast(draws.mean(0), draws)
    return forecast(prediction, keep, shape)


def _variation(first: Forecast, second: Forecast) -> Tensor:
    """Total variation of each element, [E]."""
    if isinstance(first, PoissonForecast) and isinstance(second, PoissonForecast):
        return torch.stack([off.diff(prepend=off.new_zeros(1)).abs().sum() / 2 for _, off in _counts(first, second)])
    if not (isinstance(first, NormalForecast) and isinstance(second, NormalForecast)):
        kind = first.kind if not isinstance(first, NormalForecast) else second.kind
        raise NotDefined(f"{kind} have no density, so no total variation; use wasserstein.")
    return _over_grid(first, second, cumulative)


def _transport(first: Forecast, second: Forecast) -> Tensor:
    """1-Wasserstein distance of each element, [E]."""
    if isinstance(first, PoissonForecast) and isinstance(second, PoissonForecast):
        return torch.stack([(off[:-1].abs() * at.diff()).sum() for at, off in _counts(first, second)])
    if isinstance(first, (EmpiricalForecast, PointForecast)) and isinstance(second, (EmpiricalForecast, PointForecast)):
        return empirical(_atoms(first), _atoms(second))
    if not (isinstance(first, NormalForecast) and isinstance(second, NormalForecast)):
        raise BadData(f"{first.kind} cannot be compared with {second.kind}.")
    return _over_grid(first, second, integrated)


def _atoms(given: Forecast) -> Tensor:
    return given.draws if isinstance(given, EmpiricalForecast) else given.mean.unsqueeze(0)


def cumulative(at: Tensor, centre: Tensor, std: Tensor) -> tuple[Tensor, Tensor]:
    """F(x) of a normal, and its derivative, the density."""
    z = (at - centre) / std
    return torch.special.ndtr(z), (-0.5 * z * z).exp() / (std * math.sqrt(2 * math.pi))


def integrated(at: Tensor, centre: Tensor, std: Tensor) -> tuple[Tensor, Tensor]:
    """∫_{−∞}^x F of a normal, (x − μ) Φ(z) + σ φ(z), and its derivative F."""
    z = (at - centre) / std
    below = torch.special.ndtr(z)
    return std * (z * below + (-0.5 * z * z).exp() / math.sqrt(2 * math.pi)), below


Function = Callable[[Tensor, Tensor, Tensor], tuple[Tensor, Tensor]]


def _over_grid(first: NormalForecast, second: NormalForecast, function: Function) -> Tensor:
    """∫ |d| of each element [E], d being a difference of densities (halved) or of distribution functions.

    With D = ∫ d known in closed form, Σ |ΔD| over cells is exact if d keeps its sign in a cell; so cells are split
    where it changes, by linear interpolation.
    """
    halve = 0.5 if function is cumulative else 1.0
    found = []
    for e in range(len(first.mean)):
        parts = [_components(first, e), _components(second, e)]
        grid = _grid(torch.cat([m for m, _ in parts]), torch.cat([s for _, s in parts]))
        whole, slope = _difference(parts, grid, function)
        changes = (slope[:-1] * slope[1:] < 0).nonzero().flatten()
        share = slope[changes] / (slope[changes] - slope[changes + 1])
        between = _difference(parts, grid[changes] + share * grid.diff()[changes], function)[0]
        cut = (between - whole[changes]).abs() + (whole[changes + 1] - between).abs()
        steps = whole.diff().abs()
        steps[changes] = cut
        found.append(halve * steps.sum())
    return torch.stack(found)


def _components(given: NormalForecast, e: int) -> tuple[Tensor, Tensor]:
    """Means and standard deviations of the mixture of element ``e``, [S] each."""
    centre = given.means[:, e]
    return centre, given.variances[:, e].sqrt().expand_as(centre)


def _grid(centre: Tensor, std: Tensor) -> Tensor:
    """Points [G] that cover all components, each with cells that are fine for its own width.

    The cells of a component are 2^k / FINE wide with 2^k ≤ σ; such lattices are nested, so components share points.
    """
    level = std.log2().floor()
    found = []
    for k in level.unique():
        rows = level == k
        cell = torch.exp2(k) / FINE
        spans = ((centre - REACH * std)[rows] / cell).floor(), ((centre + REACH * std)[rows] / cell).ceil()
        found.append(_covered(*spans) * cell)
    return torch.cat(found).unique()


def _covered(low: Tensor, high: Tensor) -> Tensor:
    """Whole numbers from ``low`` to ``high`` of any span, sorted, [G]; overlapping spans are joined first."""
    order = low.argsort()
    low, high = low[order], high[order].cummax(0).values
    new = torch.ones_like(low, dtype=torch.bool)
    new[1:] = low[1:] > high[:-1]
    starts = low[new]
    lengths = (high[torch.cat([new[1:], new.new_ones(1)])] - starts).long() + 1
    before = (lengths.cumsum(0) - lengths).repeat_interleave(lengths)
    return starts.repeat_interleave(lengths) + (torch.arange(len(before), device=low.device) - before)


def _difference(parts: list[tuple[Tensor, Tensor]], grid: Tensor, function: Function) -> tuple[Tensor, Tensor]:
    """The difference of two mixtures in ``function`` and in its derivative, at sorted points, [G] each."""
    (a, da), (b, db) = (_mixture(m, s, grid, function) for m, s in parts)
    return a - b, da - db


def _mixture(centre: Tensor, std: Tensor, grid: Tensor, function: Function) -> tuple[Tensor, Tensor]:
    """The means of ``function`` and of its derivative over the components, [G] each.

    A component is evaluated only within its reach; beyond it F = 1, and ∫ F = x − μ.
    """
    total, slope = torch.zeros_like(grid), torch.zeros_like(grid)
    first, last = (torch.searchsorted(grid, centre + sign * REACH * std, right=sign > 0) for sign in (-1, 1))
    for rows, points in _reached(first, last):
        value, derivative = function(grid[points], centre[rows], std[rows])
        total.index_add_(0, points, value)
        slope.index_add_(0, points, derivative)
    passed = _steps(last, torch.ones_like(centre), len(grid))
    if function is cumulative:
        total += passed
    else:
        total += passed * grid - _steps(last, centre, len(grid))
        slope += passed
    return total / len(centre), slope / len(centre)


def _reached(first: Tensor, last: Tensor, at_once: int = CHUNK) -> Iterator[tuple[Tensor, Tensor]]:
    """Pairs of a component and a grid point in its reach, first ≤ point < last, about ``at_once`` at once."""
    lengths = last - first
    ends = lengths.cumsum(0)
    start = 0
    while start < len(lengths):
        done = int(ends[start - 1]) if start else 0
        stop = max(start + 1, int(torch.searchsorted(ends, done + at_once, right=True)))
        each = lengths[start:stop]
        rows = torch.arange(start, stop, device=first.device).repeat_interleave(each)
        inside = torch.arange(len(rows), device=first.device) - (ends[rows] - lengths[rows] - done)
        yield rows, first[rows] + inside
        start = stop


def _steps(at: Tensor, height: Tensor, size: int) -> Tensor:
    """Σ of the heights of the components that are entirely below each grid point, [G]."""
    jumps = torch.zeros(size + 1, dtype=torch.float64, device=at.device)
    return jumps.index_add_(0, at, height.double()).cumsum(0)[:-1]


def _counts(first: PoissonForecast, second: PoissonForecast) -> Iterator[tuple[Tensor, Tensor]]:
    """For each element, the counts [G] within about nine standard deviations of any rate, and F − G there."""
    for e in range(first.rates.shape[1]):
        rates = [first.rates[:, e].double(), second.rates[:, e].double()]
        spans = [_span(rate) for rate in rates]
        low, high = (torch.cat(ends) for ends in zip(*spans, strict=True))
        needed = min(float((high - low + 1).sum()), float(high.max() - low.min()) + 1)
        if not needed <= COUNTS:
            raise TooLarge(
                f"the distance of counts with rates up to {float(torch.cat(rates).max()):.3g} needs up to {needed:.3g} "
                f"counts of one element (limit {COUNTS:,}). Use larger units, or fewer draws."
            )
        at = _covered(low, high)
        f, g = (_poisson(rate, *span, at) for rate, span in zip(rates, spans, strict=True))
        yield at, f - g


def _span(rate: Tensor) -> tuple[Tensor, Tensor]:
    """Range of the counts of a Poisson variable, [S] each."""
    away = REACH * rate.sqrt() + 40
    return (rate - away).floor().clamp(min=0), (rate + away).ceil()


def _poisson(rate: Tensor, low: Tensor, high: Tensor, at: Tensor) -> Tensor:
    """The distribution function of a mixture at sorted counts, [G]."""
    first, last = torch.searchsorted(at, low), torch.searchsorted(at, high, right=True)
    total = _steps(last, torch.ones_like(rate), len(at))
    for rows, points in _reached(first, last):
        total.index_add_(0, points, torch.special.gammaincc(at[points] + 1, rate[rows]))
    return total / len(rate)


def empirical(first: Tensor, second: Tensor) -> Tensor:
    """W₁ of two sets of draws [S, E], [S', E] → [E], by their quantile functions on the joint steps."""
    levels = [torch.arange(1, len(v) + 1, dtype=torch.float64, device=first.device) / len(v) for v in (first, second)]
    ends = torch.cat(levels).unique()
    widths = ends.diff(prepend=ends.new_zeros(1))
    middle = ends - widths / 2
    rows = [(middle * len(v)).long().clamp(max=len(v) - 1) for v in (first, second)]
    a, b = first.sort(0).values[rows[0]], second.sort(0).values[rows[1]]
    return (widths.unsqueeze(1) * (a - b).abs()).sum(0)
