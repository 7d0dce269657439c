"""Errors, densities and intervals of predicted numbers.

Index legend: N elements that count, S draws.
"""

from __future__ import annotations

from typing import Any, Unpack

import torch
from torch import Tensor
from torch.distributions import Distribution, Independent, Normal, Poisson

from whence.errors import BadData
from whence.metrics.bootstrap import mean, measure, ratio
from whence.metrics.elements import (
    ArrayLike,
    Common,
    Elements,
    Options,
    check_share,
    elements,
    finite,
    read,
    squeezed,
    tensor,
)
from whence.metrics.estimate import Estimate
from whence.metrics.forecasts import Draws, Forecast, Normals, Other, Point, Poissons
from whence.predictive.predictions import CountPrediction, OutputPrediction, RegressionPrediction


def rmse(prediction: Any, targets: ArrayLike, **common: Unpack[Common]) -> Estimate:
    """Root mean squared error of the predicted mean."""
    options = read("rmse", common)
    found, y, members = numbers(prediction, targets, options)
    return measure("rmse", ratio(members, (found.mean - y).square(), root=True), members, options)


def mae(prediction: Any, targets: ArrayLike, **common: Unpack[Common]) -> Estimate:
    """Mean absolute error of the predicted mean."""
    options = read("mae", common)
    found, y, members = numbers(prediction, targets, options)
    return mean("mae", (found.mean - y).abs(), members, options)


def crps(prediction: Any, targets: ArrayLike, *, fair: bool = True, **common: Unpack[Common]) -> Estimate:
    """Continuous ranked probability score (Gneiting & Raftery 2007, eq. 20), in the unit of the targets.

    Exact for normals and Poissons and their mixtures. Of plain draws: unbiased in their number, or, with
    ``fair=False``, of their empirical distribution.
    """
    options = read("crps", common)
    found, y, members = numbers(prediction, targets, options)
    return mean("crps", found.crps(y, fair), members, options)


def coverage(prediction: Any, targets: ArrayLike, *, of: float = 0.95, **common: Unpack[Common]) -> Estimate:
    """Share of targets inside the central interval of probability ``of``, or inside a given pair (low, high)."""
    options = read("coverage", common)
    low, high, y, members = _ends(prediction, targets, of, options)
    inside = (low <= y) & (y <= high)
    return mean("coverage", inside.double(), members, options, (0.0, 1.0))


def width(prediction: Any, targets: ArrayLike | None = None, *, of: float = 0.95, **common: Unpack[Common]) -> Estimate:
    """Mean width of the central interval of probability ``of``; targets only lend their shape."""
    options = read("width", common)
    low, high, _, members = _ends(prediction, targets, of, options)
    return mean("width", high - low, members, options)


def interval_score(prediction: Any, targets: ArrayLike, *, of: float = 0.95, **common: Unpack[Common]) -> Estimate:
    """Width plus 2/α times what a target lies outside, α = 1 − of (Gneiting & Raftery 2007, eq. 43)."""
    options = read("interval_score", common)
    low, high, y, members = _ends(prediction, targets, of, options)
    outside = (low - y).clamp(min=0) + (y - high).clamp(min=0)
    return mean("interval_score", high - low + 2 / (1 - of) * outside, members, options)


def numbers(prediction: Any, targets: ArrayLike, options: Options) -> tuple[Forecast, Tensor, Elements]:
    """The forecast and the targets [N] of the elements that count."""
    given = tensor(targets, "targets")
    if given.dim() == 0:
        raise BadData("targets need an example dimension: N numbers.")
    device = _device(prediction, given)
    members = elements(given.shape, options, device)
    y = finite(given.to(device).reshape(-1)[members.keep].double(), "targets")
    found = forecast(prediction, members.keep, given.shape)
    if isinstance(found, Poissons) and bool(((y < 0) | (y != y.round())).any()):
        raise BadData("targets of a prediction of counts must be 0, 1, 2, …")
    return found, y, members


def _device(prediction: Any, targets: Tensor) -> torch.device:
    """Where the prediction is, as far as it says so."""
    if not isinstance(prediction, Tensor):
        prediction = getattr(prediction, "mean", None)
    if isinstance(prediction, Tensor) and prediction.device.type != "mps":
        return prediction.device
    return targets.device if targets.device.type != "mps" else torch.device("cpu")


def forecast(prediction: Any, keep: Tensor, shape: torch.Size) -> Forecast:
    """Read a prediction of numbers for the elements ``keep`` of targets in ``shape``."""

    def one(value: Tensor, what: str = "predictions") -> Tensor:
        value = value.detach().expand(shape) if value.numel() == 1 else value
        if squeezed(value.shape) != squeezed(shape):
            raise BadData(f"{what} have shape {tuple(value.shape)}, but the targets have {tuple(shape)}.")
        return finite(value.detach().reshape(-1)[keep.to(value.device)].double(), what).to(keep.device)

    def many(value: Tensor, what: str = "draws") -> Tensor:
        return torch.stack([one(draw, what) for draw in value])

    if isinstance(prediction, RegressionPrediction):
        centre, variance = one(prediction.mean), _positive(one(prediction.variance, "variances"))
        if prediction.samples is None:
            return Normals(centre, variance.sqrt(), centre.unsqueeze(0), variance.unsqueeze(0))
        noise = prediction.noise_samples
        noises = one(prediction.aleatoric).unsqueeze(0) if noise is None else many(noise)
        return Normals(centre, variance.sqrt(), many(prediction.samples), _positive(noises))
    if isinstance(prediction, CountPrediction):
        return Poissons(one(prediction.mean), many(prediction.samples))
    if isinstance(prediction, OutputPrediction):
        return Point(one(prediction.mean))
    if isinstance(prediction, Distribution):
        return _distribution(prediction, one, keep, shape)
    if hasattr(prediction, "probs"):
        raise BadData(f"a {type(prediction).__name__} predicts labels, not numbers; use accuracy, nll or brier.")
    given = tensor(prediction, "predictions")
    if squeezed(given.shape) == squeezed(shape):
        return Point(one(given))
    if given.dim() and len(given) and squeezed(given.shape[1:]) == squeezed(shape):
        draws = many(given)
        return Draws(draws.mean(0), draws)
    raise BadData(
        f"predictions of shape {tuple(given.shape)} do not go with targets of shape {tuple(shape)}: "
        f"expected the same, or draws (S, {', '.join(map(str, shape))})."
    )


def _distribution(given: Distribution, one: Any, keep: Tensor, shape: torch.Size) -> Forecast:
    while isinstance(given, Independent):
        given = given.base_dist
    if given.event_shape:
        raise BadData(
            f"{type(given).__name__} is one distribution over {tuple(given.event_shape)} outputs together; "
            "pass that of each output alone, or draws."
        )
    if isinstance(given, Normal):
        centre, std = one(given.loc), one(given.scale)
        return Normals(centre, std, centre.unsqueeze(0), std.square().unsqueeze(0))
    if isinstance(given, Poisson):
        rate = one(given.rate)
        return Poissons(rate, rate.unsqueeze(0))
    if given.batch_shape.numel() == 1:
        given = given.expand(shape)
    return Other(one(given.mean), given, keep)


def _positive(variance: Tensor) -> Tensor:
    if bool((variance <= 0).any()):
        raise BadData(f"the smallest predicted variance is {float(variance.min()):.4g}; it must be above 0.")
    return variance


def _ends(
    prediction: Any, targets: ArrayLike | None, of: float, options: Options
) -> tuple[Tensor, Tensor, Tensor, Elements]:
    """Ends of the interval, targets (zeros where None) and elements; [N] each."""
    check_share(of, "of", "0.95 asks for the 95 % interval")
    if targets is None:
        targets = torch.zeros(_shape(prediction), dtype=torch.float64)
    if is_pair(prediction):
        found, y, members = numbers(prediction[0], targets, options)
        low, high = found.mean, forecast(prediction[1], members.keep, tensor(targets, "targets").shape).mean
    else:
        found, y, members = numbers(prediction, targets, options)
        low, high = found.interval(of)
    if bool((low > high).any()):
        raise BadData(f"{int((low > high).sum())} of {len(low)} intervals end before they begin; pass (low, high).")
    return low, high, y, members


def is_pair(prediction: Any) -> bool:
    """Whether this is a pair (low, high); draws come as one tensor or array."""
    return isinstance(prediction, (tuple, list)) and len(prediction) == 2


def _shape(prediction: Any) -> torch.Size:
    """Shape of what is predicted, without targets: of an end, of the mean, or of one draw."""
    if is_pair(prediction):
        return tensor(prediction[0], "low").shape
    if isinstance(prediction, Distribution):
        return prediction.batch_shape + prediction.event_shape
    if hasattr(prediction, "epistemic"):
        return torch.Size(prediction.mean.shape)
    return tensor(prediction, "draws").shape[1:]
