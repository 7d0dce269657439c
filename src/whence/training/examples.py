"""Examples: inputs and targets of one part of a data set, stored raw and normalised in batches."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from numbers import Integral
from typing import Any

import numpy as np
import torch
from torch import Tensor

from whence.engine.files import digest
from whence.engine.memory import sizes
from whence.engine.randomness import derived_seed
from whence.errors import BadData, BadOption
from whence.training.augment import Augment


@dataclass(frozen=True, eq=False)
class Examples:
    """Inputs and targets; iterating gives normalised batches, the same in every pass and never augmented.

    Images are stored as uint8 (N, C, H, W) and read as ``raw / scale`` in [0, 1]; tables are stored unchanged, in
    double precision, and converted last.
    The network gets ``(values − mean) / std``.
    """

    raw: Tensor
    targets: Tensor  # int64 (N,), or floats (N, 1)
    mean: Tensor | None = None  # broadcasts against one example
    std: Tensor | None = None
    augment: Augment | None = None
    batch_size: int = 512
    scale: float = 255.0
    dtype: torch.dtype = torch.float32

    def __post_init__(self) -> None:
        for name in ("raw", "targets", "mean", "std"):
            value = getattr(self, name)
            if value is not None and not isinstance(value, Tensor):
                object.__setattr__(self, name, torch.as_tensor(np.asarray(value)))
        if not isinstance(self.dtype, torch.dtype) or not self.dtype.is_floating_point:
            raise BadOption(f"dtype={self.dtype!r} is not a floating-point type; use torch.float32.")
        if len(self.raw) != len(self.targets):
            raise BadData(f"{len(self.raw)} inputs but {len(self.targets)} targets.")
        if (self.mean is None) != (self.std is None):
            raise BadOption("mean and std belong together: pass both or neither.")
        _whole("batch_size", self.batch_size)

    @property
    def size(self) -> int:
        """Number of examples."""
        return len(self.targets)

    @property
    def shape(self) -> tuple[int, ...]:
        """Of one input."""
        return tuple(self.raw.shape[1:])

    @property
    def device(self) -> torch.device:
        return self.raw.device

    def __len__(self) -> int:
        """Number of batches, as of a ``DataLoader``; the examples are ``size``."""
        return -(-self.size // self.batch_size)

    def __iter__(self) -> Iterator[tuple[Tensor, Tensor]]:
        return self.epoch(self.batch_size, shuffle=False, augment=False)

    def __repr__(self) -> str:
        more = "" if self.augment is None else f", augment={self.augment!r}"
        return f"Examples({self.size:,} of shape {self.shape}, batch_size={self.batch_size}, {self.device}{more})"

    def tensors(self) -> tuple[Tensor, Tensor]:
        """All normalised inputs, and the targets; copies."""
        return self._ready(self.raw, False, None), self.targets.clone()

    def fingerprint(self) -> str:
        """A hash of everything that affects a network's inputs and targets."""
        start = repr((self.augment and self.augment.spec(), self.scale, str(self.dtype)))
        return digest((t for t in (self.raw, self.targets, self.mean, self.std) if t is not None), start)

    @property
    def inputs(self) -> Tensor:
        """All inputs, normalised; computed at every call."""
        return self.tensors()[0]

    def take(self, which: int | slice | Tensor | Sequence[int]) -> Examples:
        """The first ``which`` examples, or those selected by a slice, indices or a mask."""
        if isinstance(which, Integral):
            if which < 0:
                raise BadOption(f"take({which}): must be 0 or more.")
            which = slice(0, int(which))
        if not isinstance(which, slice):
            which = self._checked(torch.as_tensor(which, device=self.device))
        return replace(self, raw=self.raw[which], targets=self.targets[which])

    def _checked(self, which: Tensor) -> Tensor:
        """Check indices or a mask against the examples."""
        if which.numel() == 0:
            return which.long()
        if which.dtype == torch.bool:
            if which.shape != self.targets.shape[:1]:
                raise BadData(
                    f"a mask of shape {tuple(which.shape)} for {self.size} examples: pass one value per example."
                )
            return which
        if which.is_floating_point() or int(which.max()) >= self.size or int(which.min()) < -self.size:
            raise BadData(f"indices from {which.min()} to {which.max()}: pass whole numbers below {self.size}.")
        return which

    def to(self, device: torch.device | str) -> Examples:
        """A copy on another device."""
        moved: dict[str, Any] = {
            key: None if (value := getattr(self, key)) is None else value.to(device)
            for key in ("raw", "targets", "mean", "std")
        }
        return replace(self, **moved)

    def with_(self, **changes: Any) -> Examples:
        """A copy with other fields: ``batch_size``, ``augment``, ``mean`` and ``std``, …."""
        try:
            return replace(self, **changes)
        except TypeError as error:
            raise BadOption(f"Examples has no such field: {error}.") from error

    def like(self, other: Examples) -> Examples:
        """A copy normalised like ``other``, for a network trained on ``other``."""
        if self.shape != other.shape:
            raise BadData(f"inputs of shape {self.shape} cannot be normalised like inputs of shape {other.shape}.")
        return replace(self, mean=other.mean, std=other.std, dtype=other.dtype).to(self.device)

    def epoch(
        self,
        batch_size: int | None = None,
        *,
        generator: torch.Generator | None = None,
        shuffle: bool = True,
        augment: bool = True,
        drop_last: bool = False,
    ) -> Iterator[tuple[Tensor, Tensor]]:
        """Batches of one pass, shuffled and augmented; the same generator state gives the same batches.

        Chunks of many batches are prepared at once, and batches are slices of them.
        """
        batch = _whole("batch_size", self.batch_size if batch_size is None else batch_size)
        total = self.size - self.size % batch if drop_last else self.size
        return self._batches(batch, total, generator, shuffle, augment)

    def _batches(
        self, batch: int, total: int, generator: torch.Generator | None, shuffle: bool, augment: bool
    ) -> Iterator[tuple[Tensor, Tensor]]:
        order = _order(self.size, self.device, generator) if shuffle else None
        step = self._chunk(batch)
        for start in range(0, total, step):
            stop = min(start + step, total)
            if order is None:
                raw, targets = self.raw[start:stop], self.targets[start:stop]
            else:
                rows = order[start:stop]
                raw, targets = self.raw.index_select(0, rows), self.targets.index_select(0, rows)
            yield from zip(self._ready(raw, augment, generator).split(batch), targets.split(batch), strict=True)

    def _chunk(self, batch: int) -> int:
        """Examples in a chunk: a multiple of the batch size."""
        each = max(1, self.raw[0].numel() * self.dtype.itemsize) if self.size else 1
        return max(1, min(sizes().shuffled_examples, sizes().shuffled // each) // batch) * batch

    def _ready(self, raw: Tensor, augment: bool, generator: torch.Generator | None) -> Tensor:
        """Raw inputs, prepared for the network."""
        if not raw.is_floating_point() and raw.dtype != torch.uint8:
            return raw.long()  # tokens
        picture = raw.dtype == torch.uint8
        x = raw.to(self.dtype).div_(self.scale) if picture else raw
        if augment and self.augment is not None:
            x = self.augment(x if picture else raw.clone(), generator)
        if self.mean is not None and self.std is not None:
            mean, std = self.mean.to(x.dtype), self.std.to(x.dtype)
            x = x.sub_(mean).div_(std) if picture else (x - mean) / std
        return x.to(self.dtype, copy=x is raw)

    def augmented(self, copies: int, seed: int = 0) -> Augmented:
        """``copies`` augmented versions of every example, the same in every pass, for the curvature."""
        if self.augment is None:
            raise BadOption("these examples have no augmentation; set one with .with_(augment=…).")
        return Augmented(self, _whole("copies", copies), seed)

    def passes(self, seed: int = 0) -> Passes:
        """Training data whose passes are shuffled and augmented differently, by ``seed`` and the number of the pass."""
        return Passes(self, seed)


class Splits(ABC):
    """A data set in parts, such as :class:`whence.zoo.DataSet`; missing parts are None."""

    @property
    @abstractmethod
    def name(self) -> str: ...

    train: Examples | None
    validation: Examples | None
    test: Examples | None


def training_parts(data: Any, validation: Any = None) -> tuple[Any, Any]:
    """The data to train on and to validate on: parts of a data set, or the data as given."""
    if not isinstance(data, Splits):
        return data, validation
    if data.train is None:
        raise BadData(f"{data.name} has no training part here.")
    return data.train, data.validation if validation is None else validation


@dataclass(eq=False)
class Passes:
    """Batches that differ between passes, like those of a shuffling ``DataLoader``."""

    examples: Examples
    seed: int = 0
    done: int = 0  # passes started

    @property
    def size(self) -> int:
        """Number of examples."""
        return self.examples.size

    def __len__(self) -> int:
        return len(self.examples)

    def __iter__(self) -> Iterator[tuple[Tensor, Tensor]]:
        generator = torch.Generator(self.examples.device).manual_seed(derived_seed(self.seed, "pass", self.done))
        self.done += 1
        return self.examples.epoch(generator=generator)


@dataclass(frozen=True, eq=False)
class Augmented:
    """Batches of seeded, augmented copies; ``size`` counts the copies, the examples are ``examples.size``."""

    examples: Examples
    copies: int
    seed: int = 0

    @property
    def size(self) -> int:
        """Number of augmented examples."""
        return self.copies * self.examples.size

    def __len__(self) -> int:
        return self.copies * len(self.examples)

    def __iter__(self) -> Iterator[tuple[Tensor, Tensor]]:
        generator = torch.Generator(self.examples.device).manual_seed(self.seed)
        for _ in range(self.copies):
            yield from self.examples.epoch(generator=generator, shuffle=False)


def _order(size: int, device: torch.device, generator: torch.Generator | None) -> Tensor:
    drawn_on = device if generator is None else generator.device
    return torch.randperm(size, generator=generator, device=drawn_on).to(device)


def _whole(name: str, value: int) -> int:
    if isinstance(value, bool) or not isinstance(value, (int, np.integer)) or value < 1:
        raise BadOption(f"{name}={value!r}: must be a whole number, 1 or more.")
    return int(value)
