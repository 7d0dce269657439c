"""Running sums over the data for each block or structure.

Each call adds everything or nothing: if memory runs out in between, the call is repeated.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import defaultdict
from collections.abc import Mapping
from typing import ClassVar

from torch import Tensor

from whence.likelihoods import Likelihood
from whence.linalg.structures import Structure
from whence.recording.calls import Recording
from whence.recording.gradients import Gradients


class InputSums(ABC):
    """Sums over a block's inputs, which need no backward pass."""

    name = "all layers together"
    fixed: ClassVar[tuple[str, ...]] = ("keep",)  # tensors that are not sums
    host: ClassVar[tuple[str, ...]] = ()  # sums that are kept on the CPU

    @abstractmethod
    def add_inputs(self, recording: Recording) -> None:
        """Add a batch; called once for each."""

    def state(self) -> dict[str, Tensor]:
        """The running sums by name: every tensor attribute that is not ``fixed``."""
        return {k: v for k, v in vars(self).items() if isinstance(v, Tensor) and k not in self.fixed}

    def load_state(self, state: Mapping[str, Tensor]) -> None:
        """Set the running sums."""
        for key, value in self.state().items():
            if state[key].shape != value.shape or state[key].dtype != value.dtype:
                raise ValueError(f"{self.name}: {key} has shape {list(state[key].shape)}, not {list(value.shape)}")
            value.copy_(state[key])


class CurvatureSums(InputSums):
    """Sums of curvature, which need gradients."""

    def add_inputs(self, recording: Recording) -> None:
        """Do nothing, unless a structure needs its inputs."""

    @abstractmethod
    def add_gradients(self, grads: Gradients) -> None:
        """Add the gradients of a chunk of root columns."""

    @property
    def has_last_layer(self) -> bool:
        """Whether :meth:`add_last_layer` is implemented."""
        return False

    def add_last_layer(self, recording: Recording, likelihood: Likelihood, targets: Tensor) -> None:
        """Add all columns at once, from Λ itself; for a layer whose outputs are the network's."""
        raise NotImplementedError

    @abstractmethod
    def result(self) -> Structure: ...


class PendingSums:
    """The terms of a batch's calls, by the Kronecker pairs that they cover; added together at the end."""

    def __init__(self) -> None:
        self.parts: dict[tuple[int, int], Tensor] = {}
        self.rows: dict[tuple[int, int], int] = defaultdict(int)
        self.live: dict[tuple[int, int], Tensor] = {}  # rows counted on the device

    def add(self, pairs: slice, part: Tensor, rows: int | Tensor = 0) -> None:
        key = (pairs.start, pairs.stop)
        self.parts[key] = self.parts[key].add_(part) if key in self.parts else part
        self._count(key, rows)

    def part(self, pairs: slice, like: Tensor, rows: int | Tensor) -> Tensor:
        """The sum so far, for in-place addition."""
        key = (pairs.start, pairs.stop)
        if key not in self.parts:
            self.parts[key] = like.new_zeros(like[pairs].shape)
        self._count(key, rows)
        return self.parts[key]

    def _count(self, key: tuple[int, int], rows: int | Tensor) -> None:
        if isinstance(rows, Tensor):
            self.live[key] = self.live[key] + rows if key in self.live else rows
        else:
            self.rows[key] += rows

    def commit(self, total: Tensor, count: Tensor | None = None, live: Tensor | None = None) -> None:
        """Add everything to ``total``; the numbers of rows to ``count`` and ``live``."""
        for key, part in self.parts.items():
            pairs = slice(*key)
            total[pairs] += part
            if count is not None:
                count[pairs] += self.rows[key]
            if live is not None and key in self.live:
                live[pairs] += self.live[key]
