"""The loss on validation data by draws: of the weights, or of the linearised network.

Along a draw z(r) = D^-½ Q (λ + δ e^r)^-½ ε of a Gaussian whose prior precision is multiplied by e^r, the outputs move
by J z(r). Noise ε and basis Q do not depend on r, so J z(r) is nearly a combination of J z at other r, with weights
that hold for every λ. A search over r then needs passes over the validation data at a few r only.

Index legend: S directions, N examples.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from whence.engine.memory import sizes
from whence.linalg.gaussian import Damping
from whence.posteriors.laplace.validation import Validation, one
from whence.predictive.linearised_draws import linearised_draws
from whence.predictive.sampled import WeightDraws
from whence.predictive.score import direction_losses, mixture_loss

if TYPE_CHECKING:
    from whence.posteriors.laplace.posterior import Laplace

DRAWS = 20  # while tuning
SPANNED = 64  # points of the Gaussian over outputs that the directions span
NODES = 22  # values of r at which a search sends directions through the network, about
DECADE = math.log(10)
WIDEST = 1.01 * DECADE  # gap between nodes that is interpolated: draws are then off by 2% at the most
NEAR = 4 * DECADE  # nodes further away are not used for interpolation
EIGENVALUES = torch.linspace(-40.0, 40.0, 801, dtype=torch.float64)  # log λ / δ for which weights are chosen
RIDGE = 1e-4  # on the weights, relative to the error of each eigenvalue


class DrawnLosses(ABC):
    """Losses of examples under a posterior whose prior precision is multiplied by e^r, with the same noise for all."""

    @abstractmethod
    def losses(self, posterior: Laplace, r: float, logs: Sequence[float]) -> Tensor:
        """NLL of each example with the covariance divided by e^s for each s of ``logs``, [len(logs), N]."""

    @abstractmethod
    def mean_variance(self, posterior: Laplace, r: float) -> float:
        """Of the outputs, over the first examples."""

    def begin(self, posterior: Laplace) -> None:  # noqa: B027 (nothing to do for most)
        """Several r of this posterior follow."""

    def refine(self, r: float) -> None:  # noqa: B027 (nothing to do for most)
        """Values close to r follow."""

    def make_exact(self, r: float) -> None:  # noqa: B027 (nothing to do for most)
        """The losses at r follow, which must not be interpolated."""


def scaled_prior(posterior: Laplace, r: float) -> Laplace:
    """The posterior with its prior precision multiplied by e^r."""
    factors = {p.name: math.exp(r) for b in posterior.blocks for p in b.params}
    return posterior.under(posterior.prior.scaled_by(factors))


@dataclass(frozen=True)
class WeightLosses(DrawnLosses):
    """By ``count`` draws of the weights."""

    validation: Validation
    count: int
    seed: int

    def losses(self, posterior: Laplace, r: float, logs: Sequence[float]) -> Tensor:
        outputs_of, found = self._drawn(posterior, r, logs), []
        for batch in self.validation.batches(posterior.likelihood):
            some = []
            for outputs in outputs_of(one(batch.inputs)):
                targets = posterior.likelihood.check(outputs[0], batch.targets, batch.index)
                some.append(mixture_loss(posterior.likelihood, outputs, targets).double().cpu())
            found.append(torch.stack(some))
        return torch.cat(found, 1)

    def mean_variance(self, posterior: Laplace, r: float) -> float:
        batch = next(self.validation.batches(posterior.likelihood))
        (outputs,) = self._drawn(posterior, r, (0.0,))(one(batch.inputs))
        return float(outputs.double().var(0).mean())

    def _drawn(self, posterior: Laplace, r: float, logs: Sequence[float]) -> Callable[[Any], Iterator[Tensor]]:
        """A function from inputs to outputs [S, N, …] for each s."""
        under = scaled_prior(posterior, r)
        deviations, mean = under.deviations(self.count, _generator(under, self.seed)), under.mean()
        shrunk = ({n: mean[n] + math.exp(-s / 2) * v for n, v in deviations.items()} for s in logs)
        functions = [WeightDraws(under.network, weights, under.likelihood) for weights in shrunk]
        return lambda inputs: _outputs(functions, inputs)


@torch.no_grad()
def _outputs(functions: Sequence[WeightDraws], inputs: Any) -> Iterator[Tensor]:
    yield from (some.outputs(inputs) for some in functions)


@dataclass
class MovedExamples:
    """Some examples: their outputs, and how these move along the directions."""

    mean: Tensor  # [N, …]
    targets: Tensor  # checked
    moved: Tensor  # J z, [S, N, …]


@dataclass
class LinearisedLosses(DrawnLosses):
    """By ``count`` directions of the linearised network, interpolated between values of r where memory keeps them."""

    validation: Validation
    count: int
    points: int
    seed: int
    _of: Laplace | None = None  # whose nodes are kept
    _nodes: dict[float, list[MovedExamples]] = field(default_factory=dict)  # by r
    _room: float = 0.0

    def begin(self, posterior: Laplace) -> None:
        exact = posterior.damping is not Damping.FACTORED  # which moves with r in another way
        self._of, self._nodes = posterior if exact else None, {}
        cuda = posterior.network.device.type == "cuda"
        self._room = sizes().cuda_validation if cuda else sizes().drawn_validation

    def losses(self, posterior: Laplace, r: float, logs: Sequence[float]) -> Tensor:
        scales, likelihood = [math.exp(s) for s in logs], posterior.likelihood
        found = [
            direction_losses(likelihood, some.mean, some.moved, some.targets, scales, self.points).cpu()
            for some in self._at(posterior, r)
        ]
        return torch.cat(found, 1)

    def mean_variance(self, posterior: Laplace, r: float) -> float:
        return float(next(self._at(posterior, r)).moved.double().square().mean())

    def refine(self, r: float) -> None:
        """Nodes half a decade apart around r: values between them are then off by 0.1% at the most."""
        if self._of is None or not self._nodes:
            return
        nearest = min(self._nodes, key=lambda node: abs(node - r))
        for step in range(-3, 4):
            self.make_exact(nearest + step * DECADE / 2)

    def make_exact(self, r: float) -> None:
        if self._of is not None:
            for _ in self._node(self._of, r):
                pass

    @torch.no_grad()
    def _at(self, posterior: Laplace, r: float) -> Iterator[MovedExamples]:
        if posterior is not self._of:
            return self._computed(posterior, r)
        below = [node for node in self._nodes if r - NEAR <= node <= r]
        above = [node for node in self._nodes if r <= node <= r + NEAR]
        if r in self._nodes or not below or not above or min(above) - max(below) > WIDEST:
            return self._node(posterior, r)
        near = sorted(below + above)
        return self._interpolated(near, interpolation(near, r))

    def _interpolated(self, nodes: Sequence[float], weights: Sequence[float]) -> Iterator[MovedExamples]:
        for several in zip(*(self._nodes[node] for node in nodes), strict=True):
            moved = torch.zeros_like(several[0].moved)
            for weight, some in zip(weights, several, strict=True):
                moved.add_(some.moved, alpha=weight)
            yield replace(several[0], moved=moved)

    def _node(self, posterior: Laplace, r: float) -> Iterator[MovedExamples]:
        """The examples at one r, kept for later if memory allows."""
        if r in self._nodes:
            yield from self._nodes[r]
            return
        found: list[MovedExamples] | None = []
        used = 0
        for some in self._computed(posterior, r):
            yield some
            used += some.moved.numel() * some.moved.element_size()
            if used * NODES > self._room:
                found = None
            elif found is not None:
                found.append(some)
        if found is None:
            self._of, self._nodes = None, {}  # all or none
        else:
            self._nodes[r] = found

    @torch.no_grad()
    def _computed(self, posterior: Laplace, r: float) -> Iterator[MovedExamples]:
        under = scaled_prior(posterior, r)
        draws = linearised_draws(under, self.count, _generator(under, self.seed))
        for batch in self.validation.batches(posterior.likelihood):
            mean, moved = draws.moved(one(batch.inputs))
            yield MovedExamples(mean, posterior.likelihood.check(mean, batch.targets, batch.index), moved)


def interpolation(nodes: Sequence[float], r: float) -> list[float]:
    """Weights w_j with Σ_j w_j (λ + e^r_j)^-½ ≈ (λ + e^r)^-½ for every λ, by least squares of the relative error."""
    at = torch.tensor([*nodes, r], dtype=torch.float64)
    logs = -0.5 * torch.logaddexp(EIGENVALUES.unsqueeze(1) + r, at)  # [λ, nodes + 1]
    ratios = (logs[:, :-1] - logs[:, -1:]).exp()
    size = len(nodes)
    matrix = torch.cat([ratios, RIDGE * math.sqrt(len(ratios)) * torch.eye(size, dtype=torch.float64)])
    wanted = torch.cat([ratios.new_ones(len(ratios)), ratios.new_zeros(size)])
    found: list[float] = torch.linalg.lstsq(matrix, wanted.unsqueeze(1), driver="gelsd").solution[:, 0].tolist()
    return found


def _generator(posterior: Laplace, seed: int) -> torch.Generator:
    return torch.Generator(posterior.network.device).manual_seed(seed)  # a CPU's would keep a GPU waiting
