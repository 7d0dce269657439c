"""What members are trained by: the mean negative log likelihood; and the noise of their residuals."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from whence.errors import BadOption
from whence.functional import Network
from whence.likelihoods import Categorical, Gaussian, HeteroscedasticGaussian, Likelihood, resolve
from whence.likelihoods.base import match_shape


def resolve_without_data(likelihood: Likelihood | str, verb: str) -> Likelihood:
    """For verbs that see no data, and so no residuals that a noise could be estimated from."""
    found, estimate = resolve(likelihood)
    if estimate:
        raise BadOption(
            f"likelihood='regression' takes the noise from training residuals, and {verb} sees no data; pass "
            "likelihood=whence.Gaussian(noise=σ)."
        )
    return found


@dataclass(frozen=True)
class MeanNll:
    """Mean over the examples that count of the negative log likelihood: what :func:`whence.zoo.train` minimises."""

    likelihood: Likelihood

    def __call__(self, outputs: Tensor, targets: Tensor) -> Tensor:
        if outputs.is_cuda and torch.cuda.is_current_stream_capturing():  # a graph cannot look at values
            return self.of(outputs, self._shaped(outputs, targets))
        return self.of(outputs, self.likelihood.check(outputs, targets))

    def _shaped(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """Targets as ``likelihood.check`` gives them, without a look at their values."""
        if isinstance(self.likelihood, Categorical):
            return targets.squeeze(-1).long() if targets.dim() == outputs.dim() else targets.long()
        if isinstance(self.likelihood, HeteroscedasticGaussian):
            outputs = self.likelihood.halves(outputs)[0]
        return match_shape(outputs, targets, type(self.likelihood).__name__, 0)

    def of(self, outputs: Tensor, checked: Tensor) -> Tensor:
        """For targets that ``likelihood.check`` has passed; nothing here looks at values."""
        counts = self.likelihood.counts(checked)
        total = self.likelihood.nll(outputs, checked).sum()
        return total / (len(outputs) if counts is None else counts.sum().clamp(min=1))


def residual_noise(networks: Iterable[Network], data: Any) -> Gaussian:
    """The root mean square of the residuals, over the examples and the networks."""
    squares, count = 0.0, 0
    with torch.no_grad():
        for network in networks:
            for batch in network.read(data):
                outputs = network(batch.inputs)
                off = outputs - Gaussian().check(outputs, batch.targets, batch.index)
                squares, count = squares + float(off.double().square().sum()), count + off.numel()
    return Gaussian(max(math.sqrt(squares / count), 1e-12))
