"""Predictions by drawing weights: the same draw for the whole batch, many draws at once."""

from __future__ import annotations

import warnings
from abc import abstractmethod
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from whence.engine.batches import Inputs, check_count, check_finite, cut, is_inputs, joined, size_of, take
from whence.engine.contexts import fused_attention_off
from whence.engine.memory import ChunkLimits, in_parts_that_fit, sizes
from whence.engine.padding import without_padding
from whence.engine.progress import over_inputs
from whence.errors import BadData, is_out_of_memory
from whence.functional import Network
from whence.likelihoods import Likelihood
from whence.linalg.dense import widened
from whence.predictive.links import predict_draws
from whence.predictive.predictions import Prediction

BATCH = 1024
BUSY = 64 * 2**20  # bytes of one draw's largest activation that keep a GPU busy


class FunctionDraws(Sequence[Callable[[Any], Tensor]]):
    """A fixed set of functions x → raw outputs."""

    likelihood: Likelihood

    @abstractmethod
    def outputs(self, x: Any) -> Tensor:
        """Raw outputs of every draw, [S, N, …]."""

    @abstractmethod
    def modules(self) -> list[nn.Module]:
        """One plain network for each draw, in evaluation mode, for serving."""

    def predict(self, x: Any) -> Prediction:
        """Predict with exactly these draws."""
        outputs = widened(self.outputs(x))
        check_finite(outputs if is_inputs(x) else without_padding(outputs), "the outputs under the draws", 0)
        return predict_draws(self.likelihood, outputs)


class WeightDraws(FunctionDraws):
    """A fixed set of weight draws, to be used as an ensemble."""

    def __init__(self, network: Network, params: dict[str, Tensor], likelihood: Likelihood) -> None:
        self.network, self.params, self.likelihood = network, params, likelihood
        self._vectorised = True
        self._largest: int | None = None

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
            return joined(outputs)

        return function

    def _pieces(self, x: Any) -> Iterator[Inputs]:
        for piece in self.network.pieces(x, BATCH):
            self.network.find_caches(take(piece, slice(0, 2)))
            yield piece

    def outputs(self, x: Any) -> Tensor:
        """Raw outputs of every draw, [S, N, …]."""
        limits = ChunkLimits()
        with fused_attention_off:
            pieces = over_inputs(self._pieces(x), x, "predict")
            found = (part for piece in pieces for part in self._in_parts(piece, limits))
            outputs = widened(joined(found, dim=1))
        limits.notify("the prediction", "draw")
        return outputs

    def modules(self) -> list[nn.Module]:
        """One plain network for each draw, for serving."""
        from whence.predictive.serving import member

        return [member(self, s) for s in range(len(self))]

    def _in_parts(self, inputs: Inputs, limits: ChunkLimits) -> Iterator[Tensor]:
        """With fewer draws at a time, then fewer inputs, if memory runs out."""
        return in_parts_that_fit(
            inputs,
            lambda some: self._compute(some, limits),
            limits=limits,
            size=size_of,
            split=lambda some, size: list(cut(some, size)),
            device=self.network.device,
            too_large=lambda _: (
                f"a single draw for one input does not fit into the memory of {self.network.device}. Select fewer "
                "weights with layers=…, or take fewer draws."
            ),
        )

    def _compute(self, inputs: Inputs, limits: ChunkLimits) -> Tensor:
        if self._vectorised:
            try:
                found = self._together(inputs, limits)
                check_count(found[0], size_of(inputs))
                return found
            except BadData:
                raise  # nothing that another way would change
            except (RuntimeError, ValueError, NotImplementedError, TypeError) as error:
                if is_out_of_memory(error):
                    raise
                self._vectorised = False
        each = ({n: p[s] for n, p in self.params.items()} for s in range(len(self)))
        return torch.stack([check_count(self.network.functional(one, inputs), size_of(inputs)) for one in each])

    def _together(self, inputs: Inputs, limits: ChunkLimits) -> Tensor:
        step = self._chunk(inputs)
        step = limits.under_way = min(step, limits.columns or step, len(self))
        run = torch.func.vmap(self.network.functional, in_dims=(0, None))
        pieces = [{n: p[i : i + step] for n, p in self.params.items()} for i in range(0, len(self), step)]
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", message="There is a performance drop")
            return torch.cat([run(piece, inputs) for piece in pieces])

    def _chunk(self, inputs: Inputs) -> int:
        """Number of draws at a time."""
        if self._largest is None:
            few = next(self.network.pieces(inputs, 1))
            self._largest = largest_activation(self.network, few)
        return draws_together(self._largest * size_of(inputs), self.network.device)


def draws_together(size: int, device: torch.device) -> int:
    """Number of draws that fit, from the bytes of one draw's largest activation.

    One by one if that keeps a GPU busy: convolutions of several draws become grouped convolutions, which are slower.
    """
    if device.type == "cuda" and size >= BUSY:
        return 1
    return max(1, int(sizes().one_tensor(device) // max(4 * size, 1)))


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
