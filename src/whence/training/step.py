"""The gradients of one step: a forward and a backward pass, optionally as a CUDA graph."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from whence.engine.batches import Inputs
from whence.engine.graphs import capture_stream, capturing
from whence.errors import BadOption

WARM_UP = 3  # eager steps before a capture, which create handles and plans
LossValues = tuple[Tensor, Tensor]  # the loss to differentiate, and the values to record


class ForwardBackward:
    """Computes the gradients of a batch for the parameters of an optimiser.

    With ``capture``, batches of the first size are replayed as a graph after the capture.
    """

    def __init__(
        self,
        loss: Callable[[Inputs, Tensor], LossValues],
        optimiser: torch.optim.Optimizer,
        device: torch.device,
        capture: bool,
    ) -> None:
        self.loss, self.optimiser, self.device = loss, optimiser, device
        self.capture = capture and device.type == "cuda"
        self._seen = 0
        self._shape: torch.Size | None = None
        self._graph: CapturedStep | None = None

    def __call__(self, inputs: Inputs, targets: Tensor) -> Tensor:
        """The values to record; a graph's are overwritten by its next replay."""
        if not self.capture or not isinstance(inputs, Tensor):
            return self._eager(inputs, targets)
        self._shape = self._shape or inputs.shape
        if inputs.shape != self._shape:
            return self._eager(inputs, targets)
        self._seen += 1
        if self._seen <= WARM_UP:
            return self._warm_up(inputs, targets)
        if self._graph is None:
            self._graph = self._captured(inputs, targets)
        return self._graph.replay(inputs, targets)

    def _eager(self, inputs: Inputs, targets: Tensor) -> Tensor:
        self.optimiser.zero_grad(set_to_none=True)
        objective, values = self.loss(inputs, targets)
        objective.backward()  # type: ignore[no-untyped-call]
        return values.detach()

    def _warm_up(self, inputs: Tensor, targets: Tensor) -> Tensor:
        """An eager step on the side stream that the capture will use."""
        stream, current = capture_stream(self.device), torch.cuda.current_stream(self.device)
        stream.wait_stream(current)
        with torch.cuda.stream(stream):
            values = self._eager(inputs, targets)
        current.wait_stream(stream)
        return values

    def _captured(self, inputs: Tensor, targets: Tensor) -> CapturedStep:
        graph, inputs, targets = torch.cuda.CUDAGraph(), inputs.clone(), targets.clone()
        self.optimiser.zero_grad(set_to_none=True)
        try:
            with capturing(graph, self.device):
                objective, values = self.loss(inputs, targets)
                objective.backward()  # type: ignore[no-untyped-call]
        except RuntimeError as error:
            why = str(error).splitlines()[0]
            raise BadOption(f"the network cannot be captured as a graph ({why}). Pass capture=False.") from error
        params = [p for group in self.optimiser.param_groups for p in group["params"] if p.grad is not None]
        return CapturedStep(graph, inputs, targets, values.detach(), [(p, p.grad) for p in params])


@dataclass(frozen=True)
class CapturedStep:
    """A graph of one forward and backward pass, with the memory that it reads and writes."""

    graph: torch.cuda.CUDAGraph
    inputs: Tensor
    targets: Tensor
    values: Tensor
    gradients: list[tuple[Tensor, Tensor]]

    def replay(self, inputs: Tensor, targets: Tensor) -> Tensor:
        """Gradients of this batch. They are assigned again, since an eager step may have replaced them."""
        self.inputs.copy_(inputs)
        self.targets.copy_(targets)
        with torch.cuda.device(self.inputs.device):
            self.graph.replay()
        for parameter, gradient in self.gradients:
            parameter.grad = gradient
        return self.values
