"""Public entry of prediction: checks the options and joins the pieces."""

from __future__ import annotations

import math
from numbers import Integral
from typing import TYPE_CHECKING, Any

import torch

from whence.engine.batches import is_inputs, size_of
from whence.engine.checks import DeferredChecks
from whence.engine.follow import is_followed
from whence.engine.memory import sizes
from whence.engine.options import Option
from whence.engine.randomness import Points, seed_from
from whence.errors import BadOption
from whence.predictive import linearised
from whence.predictive.collected import CollectedPredictions
from whence.predictive.gaussian_weights import GaussianWeights
from whence.predictive.linearised_draws import Probes, check_probes, directions_for, linearised_draws
from whence.predictive.links import LINK_POINTS, Link
from whence.predictive.predictions import JointPrediction, Prediction
from whence.recording.independence import failures_explained

if TYPE_CHECKING:
    from whence.posteriors.laplace.posterior import Laplace


class Method(Option):
    """How a Gaussian over weights predicts."""

    LINEARISED = "linearised"
    SAMPLED = "sampled"


@torch.inference_mode(False)
def predict(
    posterior: Laplace,
    x: Any,
    method: str | None,
    link: str,
    num_samples: int | None,
    generator: torch.Generator | None,
    joint: bool,
    probes: Any = "auto",
) -> Prediction | JointPrediction:
    """See :meth:`whence.posteriors.laplace.posterior.Laplace.predict`."""
    x = posterior.network.only_inputs(x)
    with failures_explained(posterior.network, x):
        return _predict(posterior, x, method, link, num_samples, generator, joint, probes)


def _predict(
    posterior: Laplace,
    x: Any,
    method: str | None,
    link: str,
    num_samples: int | None,
    generator: torch.Generator | None,
    joint: bool,
    probes: Any,
) -> Prediction | JointPrediction:
    given = Method.LINEARISED if joint and method is None else method or posterior.default_method
    if Method.parse(given, "method") is Method.LINEARISED:
        return linearised_prediction(posterior, x, link, num_samples, generator, joint, probes)
    check_count(num_samples)
    if check_probes(probes) is not Probes.AUTO:
        raise BadOption(f"probes={probes!r} is for the linearised predictive; for weight draws pass num_samples.")
    if joint:
        raise BadOption("joint=True applies only to the linearised predictive; draws are always joint: see draw().")
    if Link.parse(link, "link") is not Link.MC:
        raise BadOption(f"link={link!r} applies only to the linearised predictive; weight draws need no link.")
    draws = posterior.draw(num_samples or posterior.default_draws, generator=generator)
    with torch.set_grad_enabled(is_followed(x)):
        return draws.predict(x)


@torch.inference_mode(False)
def linearised_prediction(
    posterior: GaussianWeights,
    x: Any,
    link: str,
    num_samples: int | None,
    generator: torch.Generator | None,
    joint: bool,
    probes: Any = "auto",
) -> Prediction | JointPrediction:
    """The linearised prediction of any Gaussian over weights."""
    chosen = Link.parse(link, "link")
    x = posterior.network.only_inputs(x)
    check_count(num_samples)
    if joint:
        if chosen is not Link.MC or num_samples is not None:
            raise BadOption("link and num_samples do not apply to a joint prediction, which is over the outputs.")
        return linearised.joint(posterior, x)
    columns = check_probes(probes)
    if chosen is not Link.MC and columns is not Probes.AUTO:
        raise BadOption(f"probes={probes!r} is for link='mc'; link={link!r} needs the exact variances.")
    count = directions_for(posterior, x, columns, num_samples) if chosen is Link.MC else None
    if count is not None:
        draws = linearised_draws(posterior, count, generator)
        with torch.set_grad_enabled(is_followed(x)):
            return draws.predict(x)
    seed = None if generator is None else seed_from(generator)
    return _linearised(posterior, x, chosen, Points(num_samples or LINK_POINTS, seed))


def check_count(num_samples: int | None) -> None:
    if num_samples is not None and (not isinstance(num_samples, Integral) or num_samples < 1):
        raise BadOption(f"num_samples={num_samples} is not a positive whole number.")


def _linearised(posterior: GaussianWeights, x: Any, link: Link, points: Points) -> Prediction:
    collected = CollectedPredictions(posterior, x, link, points)
    diagonal = link is Link.PROBIT and _many_outputs(posterior, x)
    with DeferredChecks():  # no piece waits for the check of its outputs
        for moments in linearised.moments_of(posterior, x, diagonal):
            collected.add(moments)
    return collected.prediction()


def _many_outputs(posterior: GaussianWeights, x: Any) -> bool:
    """Whether the covariance of all outputs is too large to keep, so that variances are used if they suffice."""
    if not is_inputs(x):
        return False
    classes = math.prod(posterior.output_shape)
    return size_of(x) * classes**2 * posterior.network.dtype.itemsize > sizes().covariance
