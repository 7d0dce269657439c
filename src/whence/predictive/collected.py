"""Predictions from the moments of outputs, piece by piece."""

from __future__ import annotations

from dataclasses import fields
from typing import Any

import torch
from torch import Tensor

from whence.engine.batches import is_inputs, size_of
from whence.engine.follow import is_followed
from whence.engine.memory import sizes
from whence.engine.randomness import Points
from whence.errors import NotDefined
from whence.likelihoods import HeteroscedasticGaussian
from whence.predictive import linearised
from whence.predictive.gaussian_weights import GaussianWeights
from whence.predictive.links import LINK_POINTS, Link, OutputGaussian, predict_gaussian
from whence.predictive.predictions import Prediction, _Lazy, example_dim


class CollectedPredictions:
    """Predictions of consecutive pieces from the moments of their outputs, joined.

    If the number of inputs is known, results are written in place: small tensors kept between large temporary
    ones would keep the allocator from reusing memory, which would then grow with the inputs.
    """

    def __init__(self, posterior: GaussianWeights, x: Any, link: Link = Link.MC, points: Points | None = None) -> None:
        self.posterior, self.x, self.link, self.points = posterior, x, link, points or Points(LINK_POINTS, None)
        known = is_inputs(x) and not is_followed(x)
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

    def add(self, moments: linearised.Moments) -> None:
        """The next piece."""
        part = OutputGaussian(moments.mean, moments.cov, self.points, self.link, _replaced)
        prediction = predict_gaussian(self.posterior.likelihood, part)
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

    def prediction(self) -> Prediction:
        """All pieces as one prediction; lazy values are computed for all inputs."""
        assert self.first is not None
        values: dict[str, Any] = {}
        for f in fields(self.first):
            value = getattr(self.first, f.name)
            if isinstance(value, Tensor):
                values[f.name] = self.joined(f.name)
            elif f.name == "_lazy":
                samples = None if value.samples is None else lambda: self._again(values["logit_mean"]).samples
                values[f.name] = _Lazy(self._covariance, samples, value.why_not)  # type: ignore[arg-type]
            else:
                values[f.name] = value
        return type(self.first)(**values)

    def _again(self, mean: Tensor) -> Prediction:
        whole = OutputGaussian(mean, self._whole_covariance(), self.points, self.link, self._covariance)
        return predict_gaussian(self.posterior.likelihood, whole)

    def _covariance(self) -> Tensor:
        found = self._whole_covariance()
        if isinstance(self.posterior.likelihood, HeteroscedasticGaussian):  # of the means, not of the log variances
            size = found.shape[-1] // 2
            return found[..., :size, :size]
        return found

    def _whole_covariance(self) -> Tensor:
        if self.keeps:
            return self.joined("covariance")
        if not is_inputs(self.x):
            raise NotDefined(
                f"the covariance of the outputs is too large ({self.bytes / 2**20:,.0f} MiB), and a loader "
                "may not yield the same inputs again. Predict from a tensor, or batch by batch."
            )
        return torch.cat([m.cov for m in linearised.moments_of(self.posterior, self.x)])


def _replaced() -> Tensor:
    raise AssertionError("the covariance is computed for the whole prediction")
