"""Public entry of prediction: checks the options and joins the pieces."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import fields
from numbers import Integral
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from whence.engine.batches import from_numpy, is_inputs, size_of, tensors_in
from whence.engine.checks import DeferredChecks
from whence.engine.memory import sizes
from whence.engine.options import Option
from whence.engine.randomness import Points, seed_from
from whence.errors import BadOption, NotDefined
from whence.likelihoods import HeteroscedasticGaussian
from whence.predictive import linearised
from whence.predictive.gaussian_weights import GaussianWeights
from whence.predictive.linearised_draws import Probes, check_probes, directions_for, linearised_draws
from whence.predictive.links import LINK_POINTS, Link, OutputGaussian, predict_gaussian
from whence.predictive.predictions import JointPrediction, Prediction, _Lazy, example_dim

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
    given = Method.LINEARISED if joint and method is None else method or posterior.default_method
    if Method.parse(given, "method") is Method.LINEARISED:
        return linearised_prediction(posterior, x, link, num_samples, generator, joint, probes)
    _check_count(num_samples)
    if check_probes(probes) is not Probes.AUTO:
        raise BadOption(f"probes={probes!r} is for the linearised predictive; for weight draws pass num_samples.")
    if joint:
        raise BadOption("joint=True applies only to the linearised predictive; draws are always joint: see draw().")
    if Link.parse(link, "link") is not Link.MC:
        raise BadOption(f"link={link!r} applies only to the linearised predictive; weight draws need no link.")
    draws = posterior.draw(num_samples or posterior.default_draws, generator=generator)
    with torch.set_grad_enabled(any(t.requires_grad for t in tensors_in(x))):
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
    _check_count(num_samples)
    if joint:
        if chosen is not Link.MC or num_samples is not None:
            raise BadOption("link and num_samples do not apply to a joint prediction, which is over the outputs.")
        return linearised.joint(posterior, x)
    columns = check_probes(probes)
    x = from_numpy(x)
    if chosen is not Link.MC and columns is not Probes.AUTO:
        raise BadOption(f"probes={probes!r} is for link='mc'; link={link!r} needs the exact variances.")
    count = directions_for(posterior, x, columns, num_samples) if chosen is Link.MC else None
    if count is not None:
        draws = linearised_draws(posterior, count, generator)
        with torch.set_grad_enabled(any(t.requires_grad for t in tensors_in(x))):
            return draws.predict(x)
    seed = None if generator is None else seed_from(generator)
    return _linearised(posterior, x, chosen, Points(num_samples or LINK_POINTS, seed))


def _check_count(num_samples: int | None) -> None:
    if num_samples is not None and (not isinstance(num_samples, Integral) or num_samples < 1):
        raise BadOption(f"num_samples={num_samples} is not a positive whole number.")


def _linearised(posterior: GaussianWeights, x: Any, link: Link, points: Points) -> Prediction:
    collected = _Collected(x)
    diagonal = link is Link.PROBIT and _many_outputs(posterior, x)
    with DeferredChecks():  # no piece waits for the check of its outputs
        for m in linearised.moments_of(posterior, x, diagonal):
            part = OutputGaussian(m.mean, m.cov, points, link, _replaced)
            collected.add(predict_gaussian(posterior.likelihood, part), m)

    def covariance() -> Tensor:
        found = whole()
        if isinstance(posterior.likelihood, HeteroscedasticGaussian):  # only of the means, not of the log variances
            size = found.shape[-1] // 2
            return found[..., :size, :size]
        return found

    def whole() -> Tensor:
        if collected.keeps:
            return collected.joined("covariance")
        if not is_inputs(x):
            raise NotDefined(
                f"the covariance of the outputs is too large ({collected.bytes / 2**20:,.0f} MiB), and a loader "
                "may not yield the same inputs again. Predict from a tensor, or batch by batch."
            )
        return torch.cat([m.cov for m in linearised.moments_of(posterior, x)])

    def again(mean: Tensor) -> Prediction:
        return predict_gaussian(posterior.likelihood, OutputGaussian(mean, whole(), points, link, covariance))

    return collected.prediction(covariance, again)


def _many_outputs(posterior: GaussianWeights, x: Any) -> bool:
    """Whether the covariance of all outputs is too large to keep, so that variances are used if they suffice."""
    if not is_inputs(x):
        return False
    classes = math.prod(posterior.output_shape)
    return size_of(x) * classes**2 * posterior.network.dtype.itemsize > sizes().covariance


def _replaced() -> Tensor:
    raise AssertionError("the covariance is computed for the whole prediction")


class _Collected:
    """Joins the predictions of consecutive pieces.

    If the number of inputs is known, results are written in place: small tensors kept between large temporary
    ones would keep the allocator from reusing memory, which would then grow with the inputs.
    """

    def __init__(self, x: Any) -> None:
        known = is_inputs(x) and not any(t.requires_grad for t in tensors_in(x))
        self.total = size_of(x) if known else None
        self.seen = self.bytes = 0
        self.variances_only = False
        self.first: Prediction | None = None
        self.buffers: dict[str, Tensor] = {}
        self.lists: dict[str, list[Tensor]] = {}

    @property
    def keeps(self) -> bool:
        """Whether the covariance is kept."""
        return self.bytes <= sizes().covariance and not self.variances_only

    def add(self, prediction: Prediction, moments: linearised.Moments) -> None:
        self.first = self.first or prediction
        size, classes = moments.mean.shape
        each = classes**2 * moments.mean.element_size()
        self.bytes = self.bytes + size * each if self.total is None else self.total * each
        for f in fields(prediction):
            value = getattr(prediction, f.name)
            if isinstance(value, Tensor):
                self._put(f.name, value, size)
        self.variances_only = moments.cov.dim() == 2
        if self.keeps:
            self._put("covariance", moments.cov, size)
        else:
            self.lists.pop("covariance", None)
        self.seen += size

    def _put(self, name: str, value: Tensor, size: int) -> None:
        if self.total is None:
            self.lists.setdefault(name, []).append(value)
            return
        dim = example_dim(name)
        if name not in self.buffers:
            shape = (*value.shape[:dim], self.total, *value.shape[dim + 1 :])
            self.buffers[name] = value.new_empty(shape)
        self.buffers[name].narrow(dim, self.seen, size).copy_(value)

    def joined(self, name: str) -> Tensor:
        return self.buffers[name] if self.total is not None else torch.cat(self.lists[name], dim=example_dim(name))

    def prediction(self, covariance: Callable[[], Tensor], again: Callable[[Tensor], Prediction]) -> Prediction:
        """All pieces as one prediction; lazy values are computed for all inputs."""
        assert self.first is not None
        values: dict[str, Any] = {}
        for f in fields(self.first):
            value = getattr(self.first, f.name)
            if isinstance(value, Tensor):
                values[f.name] = self.joined(f.name)
            elif f.name == "_lazy":
                samples = None if value.samples is None else lambda: again(values["logit_mean"]).samples
                values[f.name] = _Lazy(covariance, samples, value.why_not)  # type: ignore[arg-type]
            else:
                values[f.name] = value
        return type(self.first)(**values)
