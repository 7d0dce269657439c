"""One step of training: forward, backward, update; on a GPU also as a captured graph, launched at once."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from whence.batches import Inputs
from whence.errors import BadOption
from whence.replay import capture_stream, capturing
from whence.zoo.feed import outputs_of
from whence.zoo.objective import Objective
from whence.zoo.settings import Settings

WARM_UP = 3  # steps before a capture, so that lazily made handles and plans are there


@dataclass
class Step:
    """What happens to one batch. Batches of the size first seen are replayed from a graph once it is captured."""

    network: nn.Module
    objective: Objective
    optimiser: torch.optim.Optimizer
    settings: Settings
    device: torch.device
    seen: int = 0
    shape: tuple[int, ...] | None = None
    captured: Captured | None = None

    def __call__(self, x: Inputs, y: Tensor) -> Tensor:
        """Update the weights; the mean loss of the batch before that."""
        value = self._gradients(x, y)
        if self.settings.clip is not None:
            nn.utils.clip_grad_norm_(self.network.parameters(), self.settings.clip)
        self.optimiser.step()
        return value

    def _gradients(self, x: Inputs, y: Tensor) -> Tensor:
        if not (self.settings.capture and self.device.type == "cuda" and isinstance(x, Tensor)):
            return self._eager(x, y)
        self.shape = self.shape or tuple(x.shape)
        if tuple(x.shape) != self.shape:
            return self._eager(x, y)
        self.seen += 1
        if self.seen <= WARM_UP:
            return self._aside(x, y)
        if self.captured is None:
            self.captured = self._capture(x, y)
        return self.captured.replay(x, y)

    def _eager(self, x: Inputs, y: Tensor) -> Tensor:
        self.optimiser.zero_grad(set_to_none=True)
        value = self._forward(x, y)
        value.backward()
        return value.detach()

    def _forward(self, x: Inputs, y: Tensor, cache: bool = True) -> Tensor:
        with self._precision(cache):
            return self.objective.loss(outputs_of(self.network, x), y)

    def _precision(self, cache: bool) -> AbstractContextManager[Any]:
        if self.settings.amp and self.device.type == "cuda":
            return torch.autocast("cuda", torch.bfloat16, cache_enabled=cache)
        return nullcontext()

    def _aside(self, x: Tensor, y: Tensor) -> Tensor:
        """An eager step on a side stream, as warming up for a capture asks for."""
        stream, current = capture_stream(self.device), torch.cuda.current_stream(self.device)
        stream.wait_stream(current)
        with torch.cuda.stream(stream):
            value = self._eager(x, y)
        current.wait_stream(stream)
        return value

    def _capture(self, x: Tensor, y: Tensor) -> Captured:
        graph, inputs, targets = torch.cuda.CUDAGraph(), x.clone(), y.clone()
        self.optimiser.zero_grad(set_to_none=True)
        try:
            with capturing(graph, self.device):
                value = self._forward(inputs, targets, cache=False)
                value.backward()
        except RuntimeError as error:
            why = str(error).splitlines()[0]
            raise BadOption(f"the network cannot be captured as a graph ({why}). Pass capture=False.") from error
        params = [p for p in self.network.parameters() if p.grad is not None]
        return Captured(graph, inputs, targets, value.detach(), [(p, p.grad) for p in params if p.grad is not None])


@dataclass(frozen=True)
class Captured:
    """A graph of one forward and backward pass, with the memory that it reads and writes."""

    graph: torch.cuda.CUDAGraph
    inputs: Tensor
    targets: Tensor
    value: Tensor
    gradients: list[tuple[nn.Parameter, Tensor]]

    def replay(self, x: Tensor, y: Tensor) -> Tensor:
        """Gradients of this batch; an eager step in between may have put other ones in their place."""
        self.inputs.copy_(x)
        self.targets.copy_(y)
        with torch.cuda.device(x.device):
            self.graph.replay()
        for parameter, gradient in self.gradients:
            parameter.grad = gradient
        return self.value
