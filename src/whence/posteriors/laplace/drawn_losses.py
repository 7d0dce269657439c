"""The loss on validation data by draws: of the weights, or of the linearised network.

Index legend: S draws, N examples.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from whence.posteriors.laplace.validation import Validation, one
from whence.predictive.dispatch import Method
from whence.predictive.linearised_draws import LinearisedDraws, linearised_draws
from whence.predictive.sampled import WeightDraws
from whence.predictive.score import mixture_loss

if TYPE_CHECKING:
    from whence.posteriors.laplace.posterior import Laplace

DRAWS = 20  # while tuning


@dataclass(frozen=True)
class DrawnLosses:
    """Losses by ``count`` draws, with the same noise for every prior."""

    validation: Validation
    method: Method
    count: int
    seed: int

    def losses(self, posterior: Laplace, logs: Sequence[float] = (0.0,)) -> Tensor:
        """NLL of each example with the covariance divided by e^s for each s of ``logs``, [len(logs), N]."""
        outputs_of, found = self._drawn(posterior, logs), []
        for batch in self.validation.batches(posterior.likelihood):
            some = []
            for outputs in outputs_of(one(batch.inputs)):
                targets = posterior.likelihood.check(outputs[0], batch.targets, batch.index)
                some.append(mixture_loss(posterior.likelihood, outputs, targets).double().cpu())
            found.append(torch.stack(some))
        return torch.cat(found, 1)

    def mean_variance(self, posterior: Laplace) -> float:
        """Of the outputs, over the first examples."""
        batch = next(self.validation.batches(posterior.likelihood))
        (outputs,) = self._drawn(posterior, (0.0,))(one(batch.inputs))
        return float(outputs.double().var(0).mean())

    def _drawn(self, posterior: Laplace, logs: Sequence[float]) -> Callable[[Any], Iterator[Tensor]]:
        """A function from inputs to outputs [S, N, …] for each s."""
        generator = torch.Generator(posterior.network.device).manual_seed(self.seed)  # a CPU's would keep a GPU waiting
        factors = [math.exp(-s / 2) for s in logs]
        if self.method is Method.LINEARISED:
            draws = linearised_draws(posterior, -(-self.count // 2), generator)
            return lambda inputs: _moved(draws, inputs, factors)
        deviations, mean = posterior.deviations(self.count, generator), posterior.mean()
        shrunk = ({n: mean[n] + factor * v for n, v in deviations.items()} for factor in factors)
        functions = [WeightDraws(posterior.network, weights, posterior.likelihood) for weights in shrunk]
        return lambda inputs: _outputs(functions, inputs)


@torch.no_grad()
def _moved(draws: LinearisedDraws, inputs: Any, factors: Sequence[float]) -> Iterator[Tensor]:
    """f ± e^(−s/2) J z: one pass for all s."""
    mean, moved = draws.moved(inputs)
    both = torch.cat([moved, -moved])
    yield from (mean + factor * both for factor in factors)


@torch.no_grad()
def _outputs(functions: Sequence[WeightDraws], inputs: Any) -> Iterator[Tensor]:
    yield from (some.outputs(inputs) for some in functions)
