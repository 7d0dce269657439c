"""Where draws of the outputs come from: functions that were drawn once, or the Gaussian of a linearised network.

Index legend: S draws, N inputs, C classes.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import torch
from torch import Tensor

from whence.curvature.jacobian import budget
from whence.functional import Network
from whence.posteriors.laplace import Laplace
from whence.posteriors.unstructured import Unstructured
from whence.predictive.linearised import moments, piece_size
from whence.predictive.links import output_draws
from whence.randomness import Points

Part = tuple[Callable[[], Tensor], Tensor]  # gives outputs [S, N, C]; log weights [S]
ANY = 2**31


class Source(ABC):
    """Draws of the outputs, each with its weight."""

    network: Network

    @abstractmethod
    def most(self, x: Tensor) -> int:
        """How many inputs go through together."""

    def together(self, x: Tensor, graph: bool, most: int | None) -> int:
        """How many draws go through together: at most ``most``; 1 where they cannot be parted."""
        return 1

    @abstractmethod
    def parts(self, x: Tensor, graph: bool, most: int | None) -> Iterator[Part]:
        """The draws in chunks; with ``graph`` their outputs are differentiable in ``x``."""


def log_weights(weights: Tensor | None, count: int, share: float = 1.0) -> Tensor:
    """log w of each draw, [S]; equal ones for None. ``share``: of the source in a mixture."""
    equal = torch.full((count,), 1 / count, dtype=torch.float64)
    return ((equal if weights is None else weights.double().cpu()) * share).log()


class Drawn(Source):
    """Functions x → outputs."""

    def __init__(
        self, draws: Sequence[Any], network: Network, weights: Tensor | None = None, share: float = 1.0
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
        fit = int(budget(self.network.device) // max((kept if graph else alone) * len(x), 1))
        return max(1, min(fit, len(self.draws), most or ANY))

    def parts(self, x: Tensor, graph: bool, most: int | None) -> Iterator[Part]:
        step = self.together(x, graph, most)
        for start in range(0, len(self.draws), step):
            which = slice(start, start + step)
            some = self.draws if step >= len(self.draws) else self.draws[which]
            yield partial(outputs_of, some, x), self.weights[which]


class Linearised(Source):
    """f ~ N(f*(x), J Σ Jᵀ) at fixed points: a function of x through mean and covariance."""

    def __init__(self, posterior: Laplace, points: Points, share: float = 1.0) -> None:
        self.posterior, self.network, self.points = posterior, posterior.network, points
        self.weights = log_weights(None, points.count, share)
        self._most: int | None = None

    def most(self, x: Tensor) -> int:
        if self._most is None:
            self._most = piece_size(self.posterior, x)
        return min(self._most, self.posterior.plan.together or ANY)

    def parts(self, x: Tensor, graph: bool, most: int | None) -> Iterator[Part]:
        def compute() -> Tensor:
            found = moments(self.posterior, x.clone())
            return output_draws(found.mean, found.cov, self.points)

        yield compute, self.weights


class Antithetic(Source):
    """f*(x) ± J(x) z of the draws z of an unstructured posterior."""

    def __init__(self, posterior: Unstructured) -> None:
        self.posterior, self.network = posterior, posterior.network
        self.weights = log_weights(None, 2 * len(posterior))

    def most(self, x: Tensor) -> int:
        return 256

    def together(self, x: Tensor, graph: bool, most: int | None) -> int:
        return min(len(self.posterior), most or ANY)

    def parts(self, x: Tensor, graph: bool, most: int | None) -> Iterator[Part]:
        step = self.together(x, graph, most)
        for start in range(0, len(self.posterior), step):
            some = {n: z[start : start + step] for n, z in self.posterior.deviations.items()}
            part = replace(self.posterior, deviations=some)
            yield partial(_linearised, part, x), self.weights[2 * start : 2 * (start + step)]


def _linearised(posterior: Unstructured, x: Tensor) -> Tensor:
    return posterior.linearised_outputs(x.clone())


def outputs_of(draws: Sequence[Any], x: Tensor) -> Tensor:
    """[S, N, C], by whatever way the draws have; a copy of x, since a network may write into its inputs."""
    if hasattr(draws, "outputs"):
        return draws.outputs(x.clone())
    return torch.stack([function(x.clone()) for function in draws])


def bytes_of(network: Network, one: Tensor) -> tuple[int, int]:
    """Of one draw for one input: of its outputs (draws see to the rest), and of all that a backward pass needs."""
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
