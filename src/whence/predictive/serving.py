"""Plain modules of fixed draws, for scripting, tracing and export.

A served module has two parts: draws of the raw outputs [S, N, …] (networks with drawn weights, or the linearised
network along drawn directions), and what the likelihood makes of them.

Index legend: S draws, N inputs.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence
from functools import singledispatch
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor, nn

from whence.copies import copy_module
from whence.errors import BadOption, NotDefined
from whence.likelihoods import Bernoulli, Categorical, Gaussian, HeteroscedasticGaussian, Likelihood, Poisson, standard
from whence.outputs import output_tensor
from whence.predictive.sampled import WeightDraws

if TYPE_CHECKING:
    from whence.predictive.difference import Difference

SERVED_DRAWS = 20  # weight draws that are served unless asked for another number


class Served(NamedTuple):
    """What a serving module returns for each input."""

    mean: Tensor  # probabilities, or the mean of the target
    uncertainty: Tensor  # total: entropy in nats, or the variance of the target
    epistemic: Tensor  # the part due to the weights: mutual information, or variance


class ServedDeferral(NamedTuple):
    """With ``as_module(defer=…)``."""

    mean: Tensor
    uncertainty: Tensor
    epistemic: Tensor
    defer: Tensor  # bool [N]: whether to leave the answer to a person


class ServedNovelty(NamedTuple):
    """With ``as_module(novelty=…)``."""

    mean: Tensor
    uncertainty: Tensor
    epistemic: Tensor
    novelty: Tensor  # [N], higher is more novel
    p_value: Tensor  # [N], small for inputs unlike the reference


class ServedAll(NamedTuple):
    """With both."""

    mean: Tensor
    uncertainty: Tensor
    epistemic: Tensor
    defer: Tensor
    novelty: Tensor
    p_value: Tensor


for _kind in (Served, ServedDeferral, ServedNovelty, ServedAll):
    # so that torch.export.save can write what an exported module returns
    torch.utils._pytree._register_namedtuple(_kind, serialized_type_name=f"whence.{_kind.__name__}")


# Draws of the raw outputs


class Members(nn.Module):
    """Networks with drawn weights: x → outputs [S, N, …]."""

    def __init__(self, members: Sequence[nn.Module]) -> None:
        super().__init__()
        self.members = nn.ModuleList(members)

    def forward(self, x: Tensor) -> Tensor:
        found = []
        for member in self.members:
            found.append(member(x))
        return torch.stack(found)


class LinearisedOutputs(nn.Module):
    """f(x) ± J(x) z for fixed directions z: x → outputs [2 S, N, …], from a module x → (f, J z).

    Run eagerly, it takes ``together`` inputs at a time; an exported graph takes all of them. If ``shifted``, the last
    direction belongs to the mean.
    """

    def __init__(self, tangents: nn.Module, together: int, shifted: bool = False) -> None:
        super().__init__()
        self.tangents, self.together, self.shifted = tangents, together, shifted

    def forward(self, x: Tensor) -> Tensor:
        if torch.compiler.is_compiling() or torch.jit.is_tracing() or x.shape[0] <= self.together:  # type: ignore[attr-defined]
            return self._draws(x)
        return torch.cat([self._draws(piece) for piece in x.split(self.together)], 1)

    def _draws(self, x: Tensor) -> Tensor:
        mean, moved = self.tangents(x)
        if self.shifted:
            mean, moved = mean + moved[-1], moved[:-1]
        return mean + torch.cat([moved, -moved])


class Joined(nn.Module):
    """The draws of several modules together."""

    def __init__(self, parts: Sequence[nn.Module]) -> None:
        super().__init__()
        self.parts = nn.ModuleList(parts)

    def forward(self, x: Tensor) -> Tensor:
        found = []
        for part in self.parts:
            found.append(part(x))
        return torch.cat(found)


# What the likelihood makes of them


class ServedModule(nn.Module):
    """What ``as_module`` returns. ``difference``: how far it is from ``predict``, where that was compared."""

    def __init__(self) -> None:
        super().__init__()
        self.difference: Difference | None = None


class Combined(ServedModule):
    """Interprets draws of the raw outputs."""

    def __init__(self, outputs: nn.Module) -> None:
        super().__init__()
        self.outputs = outputs


class ServedClassifier(Combined):
    """Probabilities, entropy and mutual information."""

    def __init__(self, outputs: nn.Module, class_dim: int) -> None:
        super().__init__(outputs)
        self.class_dim = class_dim
        self.stacked_dim = class_dim if class_dim < 0 else class_dim + 1

    def forward(self, x: Tensor) -> Served:
        probs = torch.softmax(self.outputs(x), dim=self.stacked_dim)
        mean = probs.mean(dim=0)
        total = -(torch.xlogy(mean, mean)).sum(dim=self.class_dim)
        expected = -(torch.xlogy(probs, probs)).sum(dim=self.stacked_dim).mean(dim=0)
        return Served(mean, total, total - expected)


class ServedBinary(Combined):
    """Probabilities of 1, entropy and mutual information."""

    def forward(self, x: Tensor) -> Served:
        probs = torch.sigmoid(self.outputs(x))
        mean = probs.mean(dim=0)
        total = -(torch.xlogy(mean, mean) + torch.xlogy(1 - mean, 1 - mean))
        expected = -(torch.xlogy(probs, probs) + torch.xlogy(1 - probs, 1 - probs)).mean(dim=0)
        return Served(mean, total, total - expected)


class ServedRegressor(Combined):
    """Mean, variance with noise, and variance without it."""

    def __init__(self, outputs: nn.Module, noise: Tensor) -> None:
        super().__init__(outputs)
        self.noise_variance: Tensor
        self.register_buffer("noise_variance", noise)

    def forward(self, x: Tensor) -> Served:
        outputs = self.outputs(x)
        epistemic = outputs.var(dim=0, correction=0)
        return Served(outputs.mean(dim=0), epistemic + self.noise_variance, epistemic)


class ServedHeteroscedastic(Combined):
    """The same for a network that returns means and log noise variances."""

    def forward(self, x: Tensor) -> Served:
        means, log_vars = self.outputs(x).chunk(2, dim=-1)
        epistemic = means.var(dim=0, correction=0)
        return Served(means.mean(dim=0), epistemic + log_vars.exp().mean(dim=0), epistemic)


class ServedCounts(Combined):
    """Expected count, its variance, and the variance of the rate."""

    def forward(self, x: Tensor) -> Served:
        rates = torch.exp(self.outputs(x))
        epistemic = rates.var(dim=0, correction=0)
        return Served(rates.mean(dim=0), rates.mean(dim=0) + epistemic, epistemic)


Builder = Callable[[nn.Module], ServedModule]


@singledispatch
def combined(likelihood: Likelihood) -> Builder:
    """Makes a served module of draws of the raw outputs."""
    known = standard(likelihood)
    if known is None:
        raise NotDefined(f"as_module() cannot combine the outputs of {likelihood!r}; use draw().")
    return combined(known)


@combined.register
def _(likelihood: Categorical) -> Builder:
    return lambda outputs: ServedClassifier(outputs, likelihood.class_dim)


@combined.register
def _(likelihood: Bernoulli) -> Builder:
    return ServedBinary


@combined.register
def _(likelihood: Gaussian) -> Builder:
    def build(outputs: nn.Module) -> ServedModule:
        like = next(itertools.chain(outputs.parameters(), outputs.buffers()))
        return ServedRegressor(outputs, likelihood.noise.square().to(like.device, like.dtype))

    return build


@combined.register
def _(likelihood: HeteroscedasticGaussian) -> Builder:
    return ServedHeteroscedastic


@combined.register
def _(likelihood: Poisson) -> Builder:
    return ServedCounts


# Deferral and novelty beside the prediction


class WithDeferral(ServedModule):
    """Defers inputs whose uncertainty, summed over outputs or averaged over pixels, is above the threshold."""

    def __init__(self, inner: nn.Module, threshold: float) -> None:
        super().__init__()
        self.inner, self.threshold = inner, threshold

    def forward(self, x: Tensor) -> ServedDeferral:
        found = self.inner(x)
        return ServedDeferral(found[0], found[1], found[2], above(found[0], found[1], self.threshold))


class WithNovelty(ServedModule):
    """Scores the inputs by a module x → (score, p-value)."""

    def __init__(self, inner: nn.Module, scored: nn.Module) -> None:
        super().__init__()
        self.inner, self.scored = inner, scored

    def forward(self, x: Tensor) -> ServedNovelty:
        found, (score, p_value) = self.inner(x), self.scored(x)
        return ServedNovelty(found[0], found[1], found[2], score, p_value)


class WithBoth(ServedModule):
    """Defers, and scores."""

    def __init__(self, inner: nn.Module, threshold: float, scored: nn.Module) -> None:
        super().__init__()
        self.inner, self.threshold, self.scored = inner, threshold, scored

    def forward(self, x: Tensor) -> ServedAll:
        found, (score, p_value) = self.inner(x), self.scored(x)
        return ServedAll(found[0], found[1], found[2], above(found[0], found[1], self.threshold), score, p_value)


def above(mean: Tensor, uncertainty: Tensor, threshold: float) -> Tensor:
    """Whether the sum over an input's outputs, or the mean over its pixels or tokens, is above a threshold, [N]."""
    of_classes = mean.dim() > uncertainty.dim()
    by_input = uncertainty.reshape(uncertainty.shape[0], -1)
    dense = uncertainty.dim() > (1 if of_classes else 2)
    return (by_input.mean(1) if dense else by_input.sum(1)) > threshold


def with_more(module: ServedModule, threshold: float | None, scored: nn.Module | None) -> ServedModule:
    """The module with a deferral rule, a novelty score, or both."""
    if threshold is None:
        return module if scored is None else WithNovelty(module, scored)
    return WithDeferral(module, threshold) if scored is None else WithBoth(module, threshold, scored)


def threshold_of(defer: Any) -> float | None:
    """The threshold of what is passed as ``defer``: a number, or a rule that has one."""
    if defer is None:
        return None
    found = getattr(defer, "threshold", defer)
    found = -math.inf if found is None else found  # a rule in a record that answers nothing
    if isinstance(found, bool) or not isinstance(found, (int, float)) or math.isnan(found):
        raise BadOption(
            f"defer={defer!r} is no threshold; pass a number, a rule of whence.metrics.defer, or one of an audit."
        )
    return float(found)


# Networks


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
