"""The front door of prediction: options checked once, pieces put together."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import fields
from numbers import Integral
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from whence.batches import from_numpy, is_inputs, size_of, tensors_in
from whence.checks import Watch
from whence.errors import BadOption, NotDefined, one_of
from whence.likelihoods import HeteroscedasticGaussian
from whence.predictive import linearised
from whence.predictive.links import LINKS, Link, predict_gaussian
from whence.predictive.predictions import JointPrediction, Prediction, _Lazy
from whence.randomness import Points, seed_from

if TYPE_CHECKING:
    from whence.posteriors.laplace import Laplace

LINK_POINTS = 256
WEIGHT_DRAWS = 100
KEEP_COVARIANCE = 64 * 2**20  # bytes of output covariance that a prediction keeps; beyond, it is computed again


@torch.inference_mode(False)
def predict(
    posterior: Laplace,
    x: Any,
    method: str | None,
    link: Link,
    num_samples: int | None,
    generator: torch.Generator | None,
    joint: bool,
) -> Prediction | JointPrediction:
    """See :meth:`whence.posteriors.laplace.Laplace.predict`."""
    one_of(link, LINKS, "link")
    if num_samples is not None and (not isinstance(num_samples, Integral) or num_samples < 1):
        raise BadOption(f"num_samples={num_samples} is not a positive whole number.")
    if method is None:
        method = "linearised" if joint or len(posterior.record.output_shape) == 1 else "sampled"
    one_of(method, ("linearised", "sampled"), "method")
    if method == "sampled":
        if joint:
            raise BadOption("joint=True is for the linearised predictive; draws are joint by nature: see draw().")
        if link != "mc":
            raise BadOption(f"link={link!r} is for the linearised predictive; weight draws need no link.")
        draws = posterior.draw(num_samples or WEIGHT_DRAWS, generator=generator)
        wanted = any(t.requires_grad for t in tensors_in(x))
        with torch.set_grad_enabled(wanted):
            return draws.predict(x)
    if joint:
        if link != "mc" or num_samples is not None:
            raise BadOption("a joint prediction is of the outputs themselves: link and num_samples have no part in it.")
        return linearised.joint(posterior, x)
    seed = None if generator is None else seed_from(generator)
    return _linearised(posterior, x, link, Points(num_samples or LINK_POINTS, seed))


def _linearised(posterior: Laplace, x: Any, link: Link, points: Points) -> Prediction:
    x = from_numpy(x)
    collected = _Collected(x)
    diagonal = link == "probit" and _many_outputs(posterior, x)
    with Watch():  # no piece waits for the check of its outputs
        for m in linearised.moments_of(posterior, x, diagonal):
            collected.add(predict_gaussian(posterior.likelihood, m.mean, m.cov, link, points, _replaced), m)

    def covariance() -> Tensor:
        found = whole()
        if isinstance(posterior.likelihood, HeteroscedasticGaussian):  # of the means, not of the log variances
            size = found.shape[-1] // 2
            return found[..., :size, :size]
        return found

    def whole() -> Tensor:
        if collected.keeps:
            return collected.joined("covariance")
        if not is_inputs(x):
            raise NotDefined(
                f"the covariance of so many outputs ({collected.bytes / 2**20:.0f} MiB) is not kept, and a loader "
                "cannot be relied on to give the same inputs again. Predict from a tensor, or batch by batch."
            )
        return torch.cat([m.cov for m in linearised.moments_of(posterior, x)])

    def again(mean: Tensor) -> Prediction:
        return predict_gaussian(posterior.likelihood, mean, whole(), link, points, covariance)

    return collected.prediction(covariance, again)


def _many_outputs(posterior: Laplace, x: Any) -> bool:
    """Whether the covariance of all outputs would not be kept, so that a link that needs the variances takes those."""
    if not is_inputs(x):
        return False
    classes = math.prod(posterior.record.output_shape)
    return size_of(x) * classes**2 * posterior.network.dtype.itemsize > KEEP_COVARIANCE


def _replaced() -> Tensor:
    raise AssertionError("the covariance of a piece is asked of the whole")


class _Collected:
    """Predictions of consecutive pieces, put together.

    Where the number of inputs is known, results are written into place: small tensors that live on between large
    ones that do not would keep the allocator from reusing memory, and it would grow with the inputs.
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
        return self.bytes <= KEEP_COVARIANCE and not self.variances_only

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
        dim = _example_dim(name)
        if name not in self.buffers:
            shape = (*value.shape[:dim], self.total, *value.shape[dim + 1 :])
            self.buffers[name] = value.new_empty(shape)
        self.buffers[name].narrow(dim, self.seen, size).copy_(value)

    def joined(self, name: str) -> Tensor:
        return self.buffers[name] if self.total is not None else torch.cat(self.lists[name], dim=_example_dim(name))

    def prediction(self, covariance: Callable[[], Tensor], again: Callable[[Tensor], Prediction]) -> Prediction:
        """All pieces as one; what is lazy is asked of the whole."""
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


def _example_dim(name: str) -> int:
    return 1 if name in ("samples", "noise_samples") else 0
