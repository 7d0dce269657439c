"""How far apart two predictive distributions are, input by input: total variation and 1-Wasserstein distance.

Index legend: N inputs, E elements (an output of an input), S draws, G grid points, C classes.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import Any, Literal, Unpack

import torch
from torch import Tensor

from whence.errors import BadData, NotDefined, one_of
from whence.metrics.bootstrap import mean
from whence.metrics.elements import Common, elements, finite, read
from whence.metrics.estimate import Estimate
from whence.metrics.forecasts import Draws, Forecast, Normals, Point, Poissons
from whence.metrics.regression import forecast
from whence.predictive.predictions import BinaryPrediction, ClassificationPrediction, OutputPrediction

PIECE = 2**17  # numbers that are held at once; few, so that they stay in the cache
FINE = 4  # grid points to the narrowest standard deviation
REACH = 9  # standard deviations beyond the outermost means
MOST = 2**12  # grid points

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

    Of classes ½ Σ |p − q|. Of numbers, by distribution functions on a grid finer than the narrowest component,
    cut where the densities cross.
    """
    options = read("total_variation", common)
    if isinstance(prediction, (ClassificationPrediction, BinaryPrediction)):
        values = _labels(prediction, reference)
    else:
        values = _numbers(prediction, reference, _variation)
    found = elements(values.shape, options, values.device)
    clamped = values.clamp(0, 1)
    flat = clamped.reshape(-1)[found.keep]
    return Distance.of(mean("total_variation", flat, found, options, (0.0, 1.0)), clamped)


def wasserstein(prediction: Any, reference: Any, **common: Unpack[Common]) -> Distance:
    """∫₀¹ |F⁻¹(u) − G⁻¹(u)| du of two predictive distributions, in the unit of the targets; the mean over inputs.

    Computed as ∫ |F − G|, which is the same in one dimension.
    """
    options = read("wasserstein", common)
    if isinstance(prediction, (ClassificationPrediction, BinaryPrediction)):
        raise NotDefined("classes have no distance from each other, so no Wasserstein distance; use total_variation.")
    values = _numbers(prediction, reference, _transport)
    found = elements(values.shape, options, values.device)
    flat = values.reshape(-1)[found.keep]
    return Distance.of(mean("wasserstein", flat, found, options, (0.0, math.inf)), values)


def distance(
    posterior: Any,
    reference: Any,
    x: Any = None,
    *,
    measure: Measure | None = None,
    num_samples: int | None = None,
    generator: torch.Generator | None = None,
    **common: Unpack[Common],
) -> Distance:
    """Distance between what two posteriors predict for inputs ``x``; either may also be a prediction for them.

    ``measure``: ``"wasserstein"`` for numbers and ``"total_variation"`` for classes by default. ``num_samples`` and
    ``generator`` go to ``predict`` of ``posterior``; the reference, as from :func:`whence.hmc`, takes its own default.
    """
    first = _predicted(posterior, x, num_samples, generator)
    second = _predicted(reference, x, None, None)
    labels = isinstance(first, (ClassificationPrediction, BinaryPrediction))
    chosen = measure or ("total_variation" if labels else "wasserstein")
    one_of(chosen, ("total_variation", "wasserstein"), "measure")
    return (total_variation if chosen == "total_variation" else wasserstein)(first, second, **common)


def _predicted(given: Any, x: Any, num_samples: int | None, generator: torch.Generator | None) -> Any:
    if not hasattr(given, "predict"):
        return given
    if x is None:
        raise BadData(f"a {type(given).__name__} predicts for inputs: pass x, such as a grid of them.")
    return given.predict(x, num_samples=num_samples, generator=generator)


def _labels(prediction: Any, reference: Any) -> Tensor:
    """½ Σ_c |p − q| of each example (and position); |p − q| of each binary label."""
    if type(prediction) is not type(reference):
        raise BadData(f"a {type(prediction).__name__} cannot be held against a {type(reference).__name__}.")
    p, q = (finite(v.probs.detach().double(), "probabilities") for v in (prediction, reference))
    _same_shape(p, q)
    off = (p - q.to(p.device)).abs()
    return off if isinstance(prediction, BinaryPrediction) else off.sum(prediction.class_dim) / 2


def _same_shape(p: Tensor, q: Tensor) -> None:
    if p.shape != q.shape:
        raise BadData(f"predictions of shapes {tuple(p.shape)} and {tuple(q.shape)} are not for the same inputs.")


Between = Callable[[Forecast, Forecast], Tensor]


def _numbers(prediction: Any, reference: Any, between: Between) -> Tensor:
    """Distances in the shape of the means."""
    shapes = [_means(p) for p in (prediction, reference)]
    _same_shape(*shapes)
    shape, device = shapes[0].shape, shapes[0].device
    keep = torch.arange(shape.numel(), device=device)
    first, second = _forecast(prediction, keep, shape), _forecast(reference, keep, shape)
    if (isinstance(first, Poissons)) != (isinstance(second, Poissons)):
        raise BadData("a prediction of counts cannot be held against one of real numbers.")
    return between(first, second).reshape(shape)


def _means(prediction: Any) -> Tensor:
    found = getattr(prediction, "mean", None)
    if not isinstance(found, Tensor):
        raise BadData(f"a {type(prediction).__name__} is no prediction; pass what posterior.predict(x) returns.")
    return found


def _forecast(prediction: Any, keep: Tensor, shape: torch.Size) -> Forecast:
    if isinstance(prediction, OutputPrediction) and prediction.samples is not None:
        draws = prediction.samples.detach().double().flatten(1)
        return Draws(draws.mean(0), draws)
    return forecast(prediction, keep, shape)


def _variation(first: Forecast, second: Forecast) -> Tensor:
    """Total variation of each element, [E]."""
    if isinstance(first, Poissons) and isinstance(second, Poissons):
        masses = [torch.cat([f[:1], f.diff(dim=0)]) for f in _counts(first, second)]
        return (masses[0] - masses[1]).abs().sum(0) / 2
    if not (isinstance(first, Normals) and isinstance(second, Normals)):
        kind = first.kind if not isinstance(first, Normals) else second.kind
        raise NotDefined(f"{kind} have no density, so no total variation; use wasserstein.")
    return _over_grid(first, second, cumulative)


def _transport(first: Forecast, second: Forecast) -> Tensor:
    """1-Wasserstein distance of each element, [E]."""
    if isinstance(first, Poissons) and isinstance(second, Poissons):
        f, g = _counts(first, second)
        return (f - g).abs().sum(0)
    if isinstance(first, (Draws, Point)) and isinstance(second, (Draws, Point)):
        return empirical(_atoms(first), _atoms(second))
    if not (isinstance(first, Normals) and isinstance(second, Normals)):
        raise BadData(f"{first.kind} cannot be held against {second.kind}.")
    return _over_grid(first, second, integrated)


def _atoms(given: Forecast) -> Tensor:
    return given.draws if isinstance(given, Draws) else given.mean.unsqueeze(0)


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


def _over_grid(first: Normals, second: Normals, function: Function) -> Tensor:
    """∫ |d| of each element [E], d being a difference of densities (halved) or of distribution functions.

    With D = ∫ d known in closed form, Σ |ΔD| over cells is exact where d keeps its sign in a cell; so cells are cut
    where it changes, by linear interpolation.
    """
    halve = 0.5 if function is cumulative else 1.0
    found = []
    for e in range(len(first.mean)):
        grid = _grid(first, second, e)
        whole, slope = _difference(first, second, e, grid, function)
        changes = (slope[:-1] * slope[1:] < 0).nonzero().flatten()
        share = slope[changes] / (slope[changes] - slope[changes + 1])
        between = _difference(first, second, e, grid[changes] + share * grid.diff()[changes], function)[0]
        cut = (between - whole[changes]).abs() + (whole[changes + 1] - between).abs()
        steps = whole.diff().abs()
        steps[changes] = cut
        found.append(halve * steps.sum())
    return torch.stack(found)


def _components(given: Normals, e: int) -> tuple[Tensor, Tensor]:
    """Means and standard deviations of the mixture of element ``e``, [S] each."""
    centre = given.means[:, e]
    return centre, given.variances[:, e].sqrt().expand_as(centre)


def _grid(first: Normals, second: Normals, e: int) -> Tensor:
    """Points [G] that cover both mixtures."""
    parts = [_components(first, e), _components(second, e)]
    low = min(float((m - REACH * s).min()) for m, s in parts)
    high = max(float((m + REACH * s).max()) for m, s in parts)
    narrow = min(float(s.min()) for _, s in parts)
    count = int(min(max((high - low) / narrow * FINE, 512), MOST))
    return torch.linspace(low, high, count, dtype=torch.float64, device=first.mean.device)


def _difference(first: Normals, second: Normals, e: int, grid: Tensor, function: Function) -> tuple[Tensor, Tensor]:
    """Of two mixtures, in ``function`` and in its derivative, [G] each."""
    (a, da), (b, db) = (_mixture(m, e, grid, function) for m in (first, second))
    return a - b, da - db


def _mixture(given: Normals, e: int, grid: Tensor, function: Function) -> tuple[Tensor, Tensor]:
    """The means of ``function`` and of its derivative over the components, [G] each."""
    centre, std = _components(given, e)
    total, slope = torch.zeros_like(grid), torch.zeros_like(grid)
    for m, s in _pieces(centre, std, len(grid)):
        value, derivative = function(grid, m.unsqueeze(1), s.unsqueeze(1))
        total += value.sum(0)
        slope += derivative.sum(0)
    return total / len(centre), slope / len(centre)


def _pieces(centre: Tensor, std: Tensor, width: int) -> Iterator[tuple[Tensor, Tensor]]:
    step = max(1, PIECE // max(width, 1))
    yield from zip(centre.split(step), std.split(step), strict=True)


def _counts(first: Poissons, second: Poissons) -> tuple[Tensor, Tensor]:
    """Distribution functions of both at 0, 1, … beyond twelve standard deviations, [G, E] each."""
    top = max(float(first.rates.max()), float(second.rates.max()))
    at = torch.arange(int(top + 12 * math.sqrt(top) + 40), dtype=torch.float64, device=first.rates.device)

    def function(given: Poissons) -> Tensor:
        total = torch.zeros(len(at), given.rates.shape[1], dtype=torch.float64, device=at.device)
        for rate in given.rates:
            total += torch.special.gammaincc(at.unsqueeze(1) + 1, rate)
        return total / len(given.rates)

    return function(first), function(second)


def empirical(first: Tensor, second: Tensor) -> Tensor:
    """W₁ of two sets of draws [S, E], [S', E] → [E], by their quantile functions on the joint steps."""
    levels = [torch.arange(1, len(v) + 1, dtype=torch.float64, device=first.device) / len(v) for v in (first, second)]
    ends = torch.cat(levels).unique()
    widths = ends.diff(prepend=ends.new_zeros(1))
    middle = ends - widths / 2
    rows = [(middle * len(v)).long().clamp(max=len(v) - 1) for v in (first, second)]
    a, b = first.sort(0).values[rows[0]], second.sort(0).values[rows[1]]
    return (widths.unsqueeze(1) * (a - b).abs()).sum(0)
