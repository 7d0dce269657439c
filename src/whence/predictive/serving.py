"""A plain module of fixed weight draws, for scripting, tracing and export."""

from __future__ import annotations

from functools import singledispatch
from typing import NamedTuple

import torch
from torch import Tensor, nn

from whence.copies import copy_module
from whence.errors import NotDefined
from whence.functional import output_tensor
from whence.likelihoods import Bernoulli, Categorical, Gaussian, HeteroscedasticGaussian, Likelihood, Poisson, standard
from whence.predictive.sampled import WeightDraws


class Served(NamedTuple):
    """What a serving module returns for each input."""

    mean: Tensor  # probabilities, or the mean of the target
    uncertainty: Tensor  # total: entropy in nats, or the variance of the target
    epistemic: Tensor  # the part due to the weights: mutual information, or variance


class Ensemble(nn.Module):
    """Networks with drawn weights; subclasses interpret their outputs."""

    def __init__(self, members: list[nn.Module]) -> None:
        super().__init__()
        self.members = nn.ModuleList(members)

    def outputs(self, x: Tensor) -> Tensor:
        """Raw outputs of every member, [S, N, …]."""
        found = []
        for member in self.members:
            found.append(member(x))
        return torch.stack(found)


class ServedClassifier(Ensemble):
    """Probabilities, entropy and mutual information."""

    def __init__(self, members: list[nn.Module], class_dim: int) -> None:
        super().__init__(members)
        self.class_dim = class_dim
        self.stacked_dim = class_dim if class_dim < 0 else class_dim + 1

    def forward(self, x: Tensor) -> Served:
        probs = torch.softmax(self.outputs(x), dim=self.stacked_dim)
        mean = probs.mean(dim=0)
        total = -(torch.xlogy(mean, mean)).sum(dim=self.class_dim)
        expected = -(torch.xlogy(probs, probs)).sum(dim=self.stacked_dim).mean(dim=0)
        return Served(mean, total, total - expected)


class ServedBinary(Ensemble):
    """Probabilities of 1, entropy and mutual information."""

    def forward(self, x: Tensor) -> Served:
        probs = torch.sigmoid(self.outputs(x))
        mean = probs.mean(dim=0)
        total = -(torch.xlogy(mean, mean) + torch.xlogy(1 - mean, 1 - mean))
        expected = -(torch.xlogy(probs, probs) + torch.xlogy(1 - probs, 1 - probs)).mean(dim=0)
        return Served(mean, total, total - expected)


class ServedRegressor(Ensemble):
    """Mean, variance with noise, and variance without it."""

    def __init__(self, members: list[nn.Module], noise: Tensor) -> None:
        super().__init__(members)
        self.noise_variance: Tensor
        self.register_buffer("noise_variance", noise)

    def forward(self, x: Tensor) -> Served:
        outputs = self.outputs(x)
        epistemic = outputs.var(dim=0, correction=0)
        return Served(outputs.mean(dim=0), epistemic + self.noise_variance, epistemic)


class ServedHeteroscedastic(Ensemble):
    """The same for a network that returns means and log noise variances."""

    def forward(self, x: Tensor) -> Served:
        means, log_vars = self.outputs(x).chunk(2, dim=-1)
        epistemic = means.var(dim=0, correction=0)
        return Served(means.mean(dim=0), epistemic + log_vars.exp().mean(dim=0), epistemic)


class ServedCounts(Ensemble):
    """Expected count, its variance, and the variance of the rate."""

    def forward(self, x: Tensor) -> Served:
        rates = torch.exp(self.outputs(x))
        epistemic = rates.var(dim=0, correction=0)
        return Served(rates.mean(dim=0), rates.mean(dim=0) + epistemic, epistemic)


def serve(draws: WeightDraws) -> nn.Module:
    """One copy of the network for each draw, behind a module that combines them."""
    return served(draws.likelihood, draws.modules())


@singledispatch
def served(likelihood: Likelihood, members: list[nn.Module]) -> nn.Module:
    """Networks behind a module that combines their outputs."""
    known = standard(likelihood)
    if known is None:
        raise NotDefined(f"as_module() cannot combine the outputs of {likelihood!r}; use draw().")
    return served(known, members)


@served.register
def _(likelihood: Categorical, members: list[nn.Module]) -> nn.Module:
    return ServedClassifier(members, likelihood.class_dim).eval()


@served.register
def _(likelihood: Bernoulli, members: list[nn.Module]) -> nn.Module:
    return ServedBinary(members).eval()


@served.register
def _(likelihood: Gaussian, members: list[nn.Module]) -> nn.Module:
    like = next(members[0].parameters())
    return ServedRegressor(members, likelihood.noise.square().to(like.device, like.dtype)).eval()


@served.register
def _(likelihood: HeteroscedasticGaussian, members: list[nn.Module]) -> nn.Module:
    return ServedHeteroscedastic(members).eval()


@served.register
def _(likelihood: Poisson, members: list[nn.Module]) -> nn.Module:
    return ServedCounts(members).eval()


class Logits(nn.Module):
    """Wraps a network that returns an object, and returns its ``logits``."""

    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, x: Tensor) -> Tensor:
        return output_tensor(self.inner(x))


def member(draws: WeightDraws, index: int) -> nn.Module:
    """The network with one draw's weights."""
    module = copy_module(draws.network.module)
    params = dict(module.named_parameters())
    with torch.no_grad():
        for name, values in draws.params.items():
            params[name].copy_(values[index])
    module.requires_grad_(False).eval()
    return Logits(module).eval() if draws.network.returns_object else module
