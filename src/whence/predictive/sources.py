"""Sources of output draws: fixed functions, or the Gaussian of a linearised network.

Index legend: S draws, N inputs, C classes.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import torch
from torch import Tensor

from whence.engine.memory import sizes
from whence.engine.randomness import Points, seed_from
from whence.functional import Network
from whence.predictive.gaussian_weights import GaussianWeights
from whence.predictive.linearised import Moments, moments, piece_size
from whence.predictive.linearised_draws import LinearisedDraws, linearised_draws, pairs_for
from whence.predictive.links import LINK_POINTS, output_draws
from whence.predictive.sampled import FunctionDraws

Part = tuple[Callable[[], Tensor], Tensor]  # gives outputs [S, N, C]; log weights [S]
ANY = 2**31


class Source(ABC):
    """Draws of the outputs, each with its weight."""

    network: Network

    @abstractmethod
    def most(self, x: Tensor) -> int:
        """Number of inputs at a time."""

    def together(self, x: Tensor, graph: bool, most: int | None) -> int:
        """Number of draws at a time, at most ``most``; 1 if they cannot be split."""
        return 1

    @abstractmethod
    def parts(self, x: Tensor, graph: bool, most: int | None) -> Iterator[Part]:
        """The draws in chunks; with ``graph`` their outputs are differentiable in ``x``."""


def log_weights(weights: Tensor | None, count: int, share: float = 1.0) -> Tensor:
    """log w of each draw, [S]; equal weights for None. ``share`` is the weight of the source in a mixture."""
    equal = torch.full((count,), 1 / count, dtype=torch.float64)
    return ((equal if weights is None else weights.double().cpu()) * share).log()


class Drawn(Source):
    """Functions x → outputs."""

    def __init__(
        self, draws: FunctionDraws, network: Network, weights: Tensor | None = None, share: float = 1.0
    ) -> None:
        self.draws, self.network = draws, network
        self.weights = log_weights(weights, len(draws), share)
        self._each: tuple[int, int] | None = None

    def most(self, x: Tensor) -> int:
        return ANY

    def together(self, x: Tensor, graph: bool, most: int | None) -> int:
        if self._each is None:
            self._each = bytes_of(self.network, x[:1])
        alone, kept = self._each
        fit = int(sizes().one_tensor(self.network.device) // max((kept if graph else alone) * len(x), 1))
        return max(1, min(fit, len(self.draws), most or ANY))

    def parts(self, x: Tensor, graph: bool, most: int | None) -> Iterator[Part]:
        step = self.together(x, graph, most)
        for start in range(0, len(self.draws), step):
            which = slice(start, start + step)
            some: Any = self.draws if step >= len(self.draws) else self.draws[which]
            yield partial(_outputs, some, x), self.weights[which]


class Linearised(Source):
    """f ~ N(f*(x), J Σ Jᵀ) at fixed points: a function of x through mean and covariance."""

    def __init__(
        self, network: Network, make: Callable[[Tensor], GaussianWeights], points: Points, share: float = 1.0
    ) -> None:
        self.network, self.points, self._make = network, points, make  # building the Gaussian may need inputs
        self.weights = log_weights(None, points.count, share)
        self._most: int | None = None
        self._made: GaussianWeights | None = None

    def _posterior(self, x: Tensor) -> GaussianWeights:
        self._made = self._made or self._make(x)
        return self._made

    def most(self, x: Tensor) -> int:
        posterior = self._posterior(x)
        if self._most is None:
            self._most = piece_size(posterior, x)
        return min(self._most, posterior.network.runtime.inputs_together or ANY)

    def parts(self, x: Tensor, graph: bool, most: int | None) -> Iterator[Part]:
        def compute() -> Tensor:
            found = moments(self._posterior(x), x.clone())
            return output_draws(found.mean, found.cov, self.points)

        yield compute, self.weights


class GaussianOutputs(Source):
    """Gaussians over the outputs, by their moments, at fixed points."""

    def __init__(
        self, network: Network, moments: Callable[[Tensor], Moments], most: Callable[[Tensor], int], points: Points
    ) -> None:
        self.network, self.points, self._moments, self._most = network, points, moments, most
        self.weights = log_weights(None, points.count)

    def most(self, x: Tensor) -> int:
        return self._most(x)

    def parts(self, x: Tensor, graph: bool, most: int | None) -> Iterator[Part]:
        def compute() -> Tensor:
            found = self._moments(x.clone())
            return output_draws(found.mean, found.cov, self.points)

        yield compute, self.weights


def linearised_source(
    posterior: GaussianWeights, num_samples: int | None, generator: torch.Generator | None, share: float = 1.0
) -> Source:
    """What a linearised prediction averages."""
    if len(posterior.output_shape) != 1:
        return Antithetic(linearised_draws(posterior, pairs_for(num_samples), generator), share)
    seed = None if generator is None else seed_from(generator)
    return Linearised(posterior.network, lambda _: posterior, Points(num_samples or LINK_POINTS, seed), share)


class Antithetic(Source):
    """f*(x) ± J(x) z for directions z in weight space."""

    def __init__(self, draws: LinearisedDraws, share: float = 1.0) -> None:
        self.draws, self.network = draws, draws.network
        self.weights = log_weights(None, len(draws), share)

    def most(self, x: Tensor) -> int:
        return 256

    def together(self, x: Tensor, graph: bool, most: int | None) -> int:
        return min(self.draws.pairs, most or ANY)

    def parts(self, x: Tensor, graph: bool, most: int | None) -> Iterator[Part]:
        step = self.together(x, graph, most)
        for start in range(0, self.draws.pairs, step):
            some = {n: z[start : start + step] for n, z in self.draws.directions.items()}
            part = LinearisedDraws(self.network, some, self.draws.likelihood)
            yield partial(_outputs, part, x), self.weights[2 * start : 2 * (start + step)]


def _outputs(draws: FunctionDraws, x: Tensor) -> Tensor:
    """Outputs [S, N, C], from a copy of x, since a network may change its inputs in place."""
    return draws.outputs(x.clone())


def bytes_of(network: Network, one: Tensor) -> tuple[int, int]:
    """Bytes of one draw for one input: of its outputs, and of all that a backward pass needs."""
    sizes: list[int] = [one.numel() * one.element_size()]

    def note(_module: Any, _args: Any, out: Any) -> None:
        if isinstance(out, Tensor):
            sizes.append(out.numel() * out.element_size())

    handles = [module.register_forward_hook(note) for module in network.module.modules()]
    try:
        with torch.no_grad():
            network(next(network.pieces(one, 1)))
    finally:
        for handle in handles:
            handle.remove()
    return 4 * sizes[-1], 2 * sum(sizes)
