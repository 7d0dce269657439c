"""Predictions by drawing weights: the same draw for the whole batch, many draws at once."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from whence.batches import Inputs, check_finite, joined, size_of, take
from whence.curvature.jacobian import budget, widened
from whence.curvature.memory import Room, attempt, release
from whence.errors import TooLarge, is_out_of_memory
from whence.functional import Network, fused_attention_off
from whence.likelihoods import Likelihood
from whence.predictive.links import predict_draws
from whence.predictive.predictions import Prediction

BATCH = 1024
BUSY = 64 * 2**20  # bytes of one draw's largest activation that keep a GPU busy


class WeightDraws(Sequence[Callable[[Any], Tensor]]):
    """A fixed set of weight draws: a sequence of functions x → raw outputs, to be used as an ensemble."""

    def __init__(self, network: Network, params: dict[str, Tensor], likelihood: Likelihood) -> None:
        self.network, self.params, self.likelihood = network, params, likelihood
        self._vectorised = True
        self._largest: int | None = None
        self._room = Room()

    def __len__(self) -> int:
        return len(next(iter(self.params.values())))

    def __getitem__(self, index: Any) -> Any:
        if isinstance(index, slice):
            return WeightDraws(self.network, {n: p[index] for n, p in self.params.items()}, self.likelihood)
        if not -len(self) <= index < len(self):
            raise IndexError(f"draw {index} of {len(self)}")
        weights = {name: value[index] for name, value in self.params.items()}

        def function(x: Any) -> Tensor:
            outputs = [self.network.functional(weights, piece) for piece in self._pieces(x)]
            return torch.cat(outputs)

        return function

    def _pieces(self, x: Any) -> Iterator[Inputs]:
        for piece in self.network.pieces(x, BATCH):
            self.network.find_caches(take(piece, slice(0, 2)))
            yield piece

    def outputs(self, x: Any) -> Tensor:
        """Raw outputs of every draw, [S, N, …]."""
        with fused_attention_off:
            found = widened(joined((self._fitting(piece) for piece in self._pieces(x)), dim=1))
        self._room.say("the prediction", "draw")
        return found

    def modules(self) -> list[nn.Module]:
        """One plain network for each draw, for serving."""
        from whence.predictive.serving import member

        return [member(self, s) for s in range(len(self))]

    def predict(self, x: Any) -> Prediction:
        """Predict with exactly these draws."""
        outputs = self.outputs(x)
        check_finite(outputs, "the outputs under the weight draws", 0)
        return predict_draws(self.likelihood, outputs)

    def _fitting(self, inputs: Inputs) -> Tensor:
        """A piece; with fewer draws together, then fewer inputs, where memory runs out."""
        while (found := attempt(lambda: self._piece(inputs))) is None:
            release(self.network.device)
            size, draws = size_of(inputs), min(self._chunk(inputs), len(self)) if self._vectorised else 1
            if not self._room.shrink(size, draws):
                raise TooLarge(
                    f"one draw for one input does not fit into the memory of {self.network.device}. Select fewer "
                    "weights with layers=…, or take fewer draws."
                )
            if draws == 1:
                halves = take(inputs, slice(0, size // 2)), take(inputs, slice(size // 2, size))
                return torch.cat([self._fitting(half) for half in halves], dim=1)
        return found

    def _piece(self, inputs: Inputs) -> Tensor:
        if self._vectorised:
            try:
                return self._together(inputs)
            except (RuntimeError, ValueError, NotImplementedError, TypeError) as error:
                if is_out_of_memory(error):
                    raise
                self._vectorised = False
        return torch.stack(
            [self.network.functional({n: p[s] for n, p in self.params.items()}, inputs) for s in range(len(self))]
        )

    def _together(self, inputs: Inputs) -> Tensor:
        step = self._chunk(inputs)
        run = torch.func.vmap(self.network.functional, in_dims=(0, None))
        pieces = [{n: p[i : i + step] for n, p in self.params.items()} for i in range(0, len(self), step)]
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", message="There is a performance drop")
            return torch.cat([run(piece, inputs) for piece in pieces])

    def _chunk(self, inputs: Inputs) -> int:
        """How many draws go through together."""
        if self._largest is None:
            few = next(self.network.pieces(inputs, 1))
            self._largest = largest_activation(self.network, few)
        step = draws_together(self._largest * size_of(inputs), self.network.device)
        return min(step, self._room.columns or step)


def draws_together(size: int, device: torch.device) -> int:
    """How many draws fit, by the bytes of the largest activation of one.

    One by one where that keeps a GPU busy: convolutions of several draws become grouped ones, which are slower.
    """
    if device.type == "cuda" and size >= BUSY:
        return 1
    return max(1, int(budget(device) // max(4 * size, 1)))


def largest_activation(network: Network, inputs: Inputs) -> int:
    """Bytes of the largest output of any module."""
    largest = 0

    def note(_module: Any, _args: Any, out: Any) -> None:
        nonlocal largest
        if isinstance(out, Tensor):
            largest = max(largest, out.numel() * out.element_size())

    handles = [module.register_forward_hook(note) for module in network.module.modules()]
    try:
        with torch.no_grad():
            network(inputs)
    finally:
        for handle in handles:
            handle.remove()
    return largest
