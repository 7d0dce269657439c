"""The gradients of one step: a forward and a backward pass, optionally as a CUDA graph."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial

import torch
from torch import Tensor

from whence.engine.batches import Inputs
from whence.engine.graphs import BatchNumber, Capture, CapturedChecks, capture_stream, cuda_capture, hand_back
from whence.errors import BadOption, notice

WARM_UP = 3  # eager steps before a capture, which create handles and plans
AGREE = 1e-2  # relative difference of all gradients between a graph and the eager step that it is compared with
LossValues = tuple[Tensor, Tensor]  # the loss to differentiate, and the values to record


def capture_on(device: torch.device) -> Capture | None:
    """How a step is captured on this device; None where it is not."""
    return cuda_capture if device.type == "cuda" else None


class ForwardBackward:
    """Computes the gradients of a batch for the parameters of an optimiser.

    With ``capture``, batches of the first size are replayed as a graph after it. With ``or_eager``, the graph is
    compared with an eager step from the same random state, and a step that cannot be captured or gives other gradients
    stays eager, with a notice; without it, a failed capture is an error. ``number`` names the batch in errors.
    """

    def __init__(
        self,
        loss: Callable[[Inputs, Tensor], LossValues],
        optimiser: torch.optim.Optimizer,
        device: torch.device,
        capture: bool,
        or_eager: bool = False,
        number: BatchNumber | None = None,
    ) -> None:
        self.loss, self.optimiser, self.device, self.or_eager = loss, optimiser, device, or_eager
        self.capture = capture_on(device) if capture else None
        self.number = number or BatchNumber()
        self._seen = 0
        self._shape: torch.Size | None = None
        self._graph: CapturedStep | None = None

    def __call__(self, inputs: Inputs, targets: Tensor, index: int = 0) -> Tensor:
        """The values to record; a graph's are overwritten by its next replay."""
        self.number.set(index)
        if self.capture is None or not isinstance(inputs, Tensor):
            return self._eager(inputs, targets)
        self._shape = self._shape or inputs.shape
        if inputs.shape != self._shape:
            return self._eager(inputs, targets)
        self._seen += 1
        if self._seen <= WARM_UP:
            return self._warm_up(inputs, targets)
        if self._graph is not None:
            return self._graph.replay(inputs, targets, index)
        if self.or_eager:
            return self._compared(inputs, targets, index)
        try:
            self._graph = self._captured(inputs, targets)
        except RuntimeError as error:
            raise BadOption(
                f"the network cannot be captured as a graph ({_first(error)}). Pass capture=False."
            ) from error
        return self._graph.replay(inputs, targets, index)

    def _eager(self, inputs: Inputs, targets: Tensor) -> Tensor:
        self.optimiser.zero_grad(set_to_none=True)
        objective, values = self.loss(inputs, targets)
        objective.backward()  # type: ignore[no-untyped-call]
        return values.detach()

    def _warm_up(self, inputs: Tensor, targets: Tensor) -> Tensor:
        """An eager step on the side stream that the capture will use."""
        if self.device.type != "cuda":
            return self._eager(inputs, targets)
        stream, current = capture_stream(self.device), torch.cuda.current_stream(self.device)
        stream.wait_stream(current)
        with torch.cuda.stream(stream):
            values = self._eager(inputs, targets)
        current.wait_stream(stream)
        return values

    def _compared(self, inputs: Tensor, targets: Tensor, index: int) -> Tensor:
        """An eager step; its graph serves later ones if it gives the same gradients from the same random numbers."""
        with same_random_numbers(self.device) as again:
            values = self._eager(inputs, targets)
            eager = [(p, p.grad) for p in self._parameters() if p.grad is not None]
            try:
                graph = self._captured(inputs, targets)
                again()
                graph.replay(inputs, targets, index)
                problem = "" if _agree(eager, graph.gradients) else "its graph gives other gradients"
            except Exception as error:  # a step that fails eagerly too has done so above
                hand_back(self.device)
                problem = _first(error)
        if problem:
            self.capture = None
            notice(f"the training step runs eagerly instead of as a CUDA graph: {problem}.")
        else:
            self._graph = graph
        self.optimiser.zero_grad(set_to_none=True)
        for parameter, gradient in eager:
            parameter.grad = gradient
        return values

    def _parameters(self) -> list[Tensor]:
        return [p for group in self.optimiser.param_groups for p in group["params"] if p.requires_grad]

    def _captured(self, inputs: Tensor, targets: Tensor) -> CapturedStep:
        assert self.capture is not None
        inputs, targets, checks = inputs.clone(), targets.clone(), CapturedChecks(self.device)
        parameters, held = self._parameters(), Held()

        def function() -> None:
            self.optimiser.zero_grad(set_to_none=True)
            objective, values = checks.around(partial(self.loss, inputs, targets))
            objective.backward()  # type: ignore[no-untyped-call]
            held.take(values.detach(), [p.grad for p in parameters])

        self.number.captured = True
        try:
            replay = self.capture(function, self.device)
        finally:
            self.number.captured = False
        assert held.values is not None
        gradients = [(p, g) for p, g in zip(parameters, held.gradients, strict=True) if g is not None]
        return CapturedStep(replay, inputs, targets, held.values, gradients, checks, self.number)


@dataclass
class Held:
    """What a captured step wrote, in memory that stays the same between replays."""

    values: Tensor | None = None
    gradients: list[Tensor | None] = field(default_factory=list)

    def take(self, values: Tensor, gradients: list[Tensor | None]) -> None:
        if self.values is None:
            self.values, self.gradients = values, gradients
            return
        self.values.copy_(values)
        for mine, new in zip(self.gradients, gradients, strict=True):
            if mine is not None and new is not None:
                mine.copy_(new)


@dataclass(frozen=True)
class CapturedStep:
    """A graph of one forward and backward pass, with the memory that it reads and writes."""

    launch: Callable[[], None]
    inputs: Tensor
    targets: Tensor
    values: Tensor
    gradients: list[tuple[Tensor, Tensor]]
    checks: CapturedChecks
    number: BatchNumber

    def replay(self, inputs: Tensor, targets: Tensor, index: int) -> Tensor:
        """Gradients of this batch. They are assigned again, since an eager step may have replaced them."""
        self.inputs.copy_(inputs)
        self.targets.copy_(targets)
        self.launch()
        self.checks.refuse(partial(self.number.set, index))
        for parameter, gradient in self.gradients:
            parameter.grad = gradient
        return self.values


@contextmanager
def same_random_numbers(device: torch.device) -> Iterator[Callable[[], None]]:
    """Yields a function that goes back to the random state of the beginning; afterwards it is that of one pass."""
    cuda = device.type == "cuda"
    read = partial(torch.cuda.get_rng_state, device) if cuda else torch.get_rng_state
    write = partial(torch.cuda.set_rng_state, device=device) if cuda else torch.set_rng_state
    before, after = read(), []

    def again() -> None:
        after.append(read())
        write(before)

    try:
        yield again
    finally:
        if after:
            write(after[0])


def _agree(eager: list[tuple[Tensor, Tensor]], captured: list[tuple[Tensor, Tensor]]) -> bool:
    """Whether all gradients together are the same up to rounding."""
    found = dict(captured)
    if any(p not in found for p, _ in eager) or not eager:
        return False
    off = torch.stack([(found[p].double() - g.double()).square().sum() for p, g in eager]).sum()
    size = torch.stack([g.double().square().sum() for _, g in eager]).sum()
    return bool(off.sqrt() <= AGREE * size.sqrt())


def _first(error: BaseException) -> str:
    """The first line of an error."""
    return (str(error).splitlines() or [type(error).__name__])[0]
