"""The potential energy of a network's weights: U(θ) = Σ NLL + ½ (θ − μ₀)ᵀ Δ (θ − μ₀), for all chains at once.

Index legend: K chains, P parameters, N examples.
"""

from __future__ import annotations

import contextlib
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from whence.engine.batches import Data, Inputs, check_finite, concatenate, size_of, take, tensors_in
from whence.engine.memory import sizes
from whence.errors import BadData, BadOption, TooLarge, is_out_of_memory
from whence.functional import Network, differentiable
from whence.likelihoods import Gaussian, Likelihood
from whence.predictive.sampled import largest_activation
from whence.recording.blocks import Block

DATA_LIMIT = 2 * 2**30  # bytes
HELD = 8  # assumed memory of a gradient, in largest activations


@dataclass(frozen=True)
class TrainingData:
    """All of the training data, as one batch."""

    inputs: Inputs
    targets: Tensor  # in the shape that the likelihood needs
    outputs: Tensor  # of the trained network, [N, …]
    likelihood: Likelihood  # with its noise

    def __len__(self) -> int:
        return len(self.outputs)


def read(network: Network, data: Data, likelihood: Likelihood, estimate: bool) -> TrainingData:
    """Read all data into memory; an estimated noise is the root mean square of the trained network's residuals."""
    parts, held = [], 0
    for batch in data:
        held += sum(t.numel() * t.element_size() for t in tensors_in((batch.inputs, batch.targets)))
        if held > DATA_LIMIT:
            raise TooLarge(
                f"HMC keeps all data in memory, and they need more than {DATA_LIMIT / 2**30:.0f} GiB. Every step needs "
                "the gradient over all data: use a subset, or whence.laplace, which reads batches."
            )
        parts.append(batch)
    try:
        inputs = concatenate([b.inputs for b in parts])
        raw = torch.cat([b.targets for b in parts])
    except RuntimeError as error:
        raise BadData(
            f"HMC keeps the data as one batch, but these batches cannot be joined ({error}). Pad them to one shape."
        ) from error
    with torch.no_grad():
        outputs = network(inputs)
    check_finite(outputs, "the outputs of the network", 0)
    targets = likelihood.check(outputs, raw)
    if estimate:
        noise = float((outputs - targets).square().mean().sqrt())
        if not noise > 1e-7 * float(targets.abs().max()):
            raise BadOption(
                f"the training residuals are {noise:g}, so the noise cannot be estimated from them: the network fits "
                "its data exactly. Pass likelihood=whence.Gaussian(noise=…)."
            )
        likelihood = Gaussian(noise)
    return TrainingData(inputs, targets, outputs, likelihood)


class Potential:
    """U and its gradient at positions [K, P]: vectorised over chains and traced where possible.

    A trace is kept for each number of chains; if ``vmap`` fails, chains run one after the other.
    """

    def __init__(self, network: Network, data: TrainingData, weights: Block, precision: Tensor, mean: Tensor) -> None:
        self.network, self.data, self.weights = network, data, weights
        self.precision, self.mean = precision, mean  # Δ and μ₀, [P]
        self._functions: dict[int, Callable[[Tensor], tuple[Tensor, Tensor]]] = {}
        self.how: dict[int, str] = {}  # how K chains are computed: "traced", "vmap" or "loop"

    def one(self, flat: Tensor) -> Tensor:
        """U at one position [P]."""
        outputs = self.network.functional(self.weights.scatter(flat), self.data.inputs)
        loss = self.data.likelihood.nll(outputs, self.data.targets).sum()
        off = flat - self.mean
        return loss + 0.5 * (self.precision * off * off).sum()

    def __call__(self, position: Tensor) -> tuple[Tensor, Tensor]:
        chains = len(position)
        if chains not in self._functions:
            self._functions[chains], self.how[chains] = self._fastest(position)
        with torch.no_grad():
            gradient, value = self._functions[chains](position)
        return value, gradient

    def _fastest(self, position: Tensor) -> tuple[Callable[[Tensor], Any], str]:
        single = torch.func.grad_and_value(self.one)
        step = self._together(len(position))
        with differentiable(self.network), torch.no_grad(), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            try:
                several = torch.func.vmap(single, chunk_size=None if step >= len(position) else step)
                several(position)
            except (RuntimeError, ValueError, NotImplementedError, TypeError) as error:
                if is_out_of_memory(error):
                    raise
                return self._guarded(lambda q: _stacked([single(row) for row in q])), "loop"
            if step >= len(position):
                traced = _traced(several, position)
                if traced is not None:
                    return traced, "traced"
        return self._guarded(several), "vmap"

    def _guarded(self, function: Callable[[Tensor], Any]) -> Callable[[Tensor], Any]:
        def run(position: Tensor) -> Any:
            with differentiable(self.network), torch.no_grad(), warnings.catch_warnings():
                warnings.filterwarnings("ignore", message="There is a performance drop")
                return function(position)

        return run

    def _together(self, chains: int) -> int:
        """Number of chains whose activations fit the memory budget."""
        few = take(self.data.inputs, slice(0, 1))
        each = HELD * largest_activation(self.network, few) * size_of(self.data.inputs)
        return max(1, min(chains, sizes().one_tensor(self.network.device) // max(each, 1)))


def _stacked(results: list[tuple[Tensor, Tensor]]) -> tuple[Tensor, Tensor]:
    return torch.stack([g for g, _ in results]), torch.stack([v for _, v in results])


def _traced(function: Callable[[Tensor], Any], position: Tensor) -> Callable[[Tensor], Any] | None:
    """A traced version of the function, if it gives the same result at another position; several times faster."""
    from torch.fx.experimental.proxy_tensor import make_fx

    try:
        graph = make_fx(lambda q: function(q))(position)  # a lambda: fx inspects the signature
        graph.graph.eliminate_dead_code()
        graph.recompile()
        script: Callable[[Tensor], Any] = torch.jit.freeze(
            torch.jit.trace(graph.eval(), (position,), check_trace=False)
        )
        other = position + 0.1 * torch.linspace(-1, 1, position.numel()).to(position).reshape(position.shape)
        with _without_fusion():
            for _ in range(3):  # the executor optimises in the first runs
                pairs = zip(script(other), function(other), strict=True)
                if not all(torch.allclose(a, b, rtol=1e-4, equal_nan=True) for a, b in pairs):
                    return None
    except Exception:
        return None
    return script


@contextlib.contextmanager
def _without_fusion() -> Iterator[None]:
    """Keep torch's executor from compiling kernels, which hangs in some builds (Debian's torch 2.6)."""
    was = torch._C._jit_texpr_fuser_enabled()
    torch._C._jit_set_texpr_fuser_enabled(False)
    try:
        yield
    finally:
        torch._C._jit_set_texpr_fuser_enabled(was)
