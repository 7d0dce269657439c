"""Augmentations: functions of images in [0, 1], (N, C, H, W), that change each image differently.

Each is a small frozen object, called as ``augment(x, generator)``. ``spec()`` returns plain values, ``from_spec`` reads
them back. Random numbers come from the generator's device and are moved to the images', so that a CPU generator
gives the same images everywhere.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, ClassVar, Protocol, runtime_checkable

import torch
from torch import Tensor

from whence.engine.options import Option
from whence.errors import BadOption, one_of


@runtime_checkable
class Augment(Protocol):
    """An augmentation: a function of images in [0, 1] and a generator that returns images of the same shape."""

    def __call__(self, x: Tensor, generator: torch.Generator | None = None) -> Tensor: ...

    def spec(self) -> dict[str, Any]: ...


def uniform(shape: tuple[int, ...], x: Tensor, generator: torch.Generator | None) -> Tensor:
    """Uniform numbers in [0, 1) on the device of ``x``, drawn on the generator's device."""
    device = x.device if generator is None else generator.device
    return torch.rand(shape, generator=generator, device=device).to(x.device)


def whole(high: int, count: int, x: Tensor, generator: torch.Generator | None) -> Tensor:
    """``count`` whole numbers from 0 to ``high`` − 1 on the device of ``x``."""
    device = x.device if generator is None else generator.device
    return torch.randint(high, (count,), generator=generator, device=device).to(x.device)


def _images(x: Tensor, name: str) -> None:
    if x.dim() != 4:
        raise BadOption(f"{name} augments images (N, C, H, W), not inputs of shape {tuple(x.shape)}; omit it.")


class _Named:
    """``spec`` and ``from_spec`` by the fields."""

    name: ClassVar[str]

    def spec(self) -> dict[str, Any]:
        return {"name": self.name, **asdict(self)}  # type: ignore[call-overload]


class Fill(Option):
    """What is seen beyond the edge of an image."""

    REFLECT = "reflect"
    ZEROS = "zeros"


@dataclass(frozen=True)
class Crop(_Named):
    """Shift by up to ``padding`` pixels in each direction; fill with the mirrored image or zeros."""

    name: ClassVar[str] = "crop"
    padding: int = 4
    mode: str = "reflect"

    def __post_init__(self) -> None:
        Fill.parse(self.mode, "mode of Crop")
        if not isinstance(self.padding, int) or self.padding < 0:
            raise BadOption(f"Crop(padding={self.padding}): must be 0 or more.")

    def __call__(self, x: Tensor, generator: torch.Generator | None = None) -> Tensor:
        _images(x, "Crop")
        n, _, height, width = x.shape
        if self._fill is Fill.REFLECT and self.padding >= min(height, width):
            raise BadOption(f"Crop(padding={self.padding}) cannot mirror {height} x {width} images; use less.")
        rows, above = self._places(height, n, x, generator)
        columns, beside = self._places(width, n, x, generator)
        flat = (rows.unsqueeze(2) * width + columns.unsqueeze(1)).view(n, 1, -1)  # [N, 1, HW]: source of each pixel
        moved = x.flatten(2).gather(2, flat.expand(-1, x.shape[1], -1)).view_as(x)
        if self._fill is Fill.ZEROS:
            moved = moved * (above.unsqueeze(2) & beside.unsqueeze(1)).unsqueeze(1)
        return moved

    @property
    def _fill(self) -> Fill:
        return Fill(self.mode)

    def _places(self, size: int, n: int, x: Tensor, generator: torch.Generator | None) -> tuple[Tensor, Tensor]:
        """Along one side: the source of each pixel, and whether it is inside; both (N, size)."""
        shift = whole(2 * self.padding + 1, n, x, generator) - self.padding
        places = shift.unsqueeze(1) + torch.arange(size, device=x.device)
        inside = (places >= 0) & (places < size)
        mirrored = (size - 1) - ((size - 1) - places.abs()).abs() if self._fill is Fill.REFLECT else places
        return mirrored.clamp(0, size - 1), inside


@dataclass(frozen=True)
class Flip(_Named):
    """Mirror horizontally with probability ``p``."""

    name: ClassVar[str] = "flip"
    p: float = 0.5

    def __post_init__(self) -> None:
        if not 0 <= self.p <= 1:
            raise BadOption(f"Flip(p={self.p}): must be between 0 and 1.")

    def __call__(self, x: Tensor, generator: torch.Generator | None = None) -> Tensor:
        _images(x, "Flip")
        chosen = uniform((len(x),), x, generator) < self.p
        return torch.where(chosen.view(-1, 1, 1, 1), x.flip(3), x)


@dataclass(frozen=True)
class Binarise(_Named):
    """Set each pixel to 1 with its intensity as probability, else to 0."""

    name: ClassVar[str] = "binarise"

    def __call__(self, x: Tensor, generator: torch.Generator | None = None) -> Tensor:
        _images(x, "Binarise")
        return (uniform(tuple(x.shape), x, generator) < x).to(x.dtype)


@dataclass(frozen=True)
class Cutout(_Named):
    """Set a square of side ``size`` around a random pixel to ``fill``; it may extend over the edge."""

    name: ClassVar[str] = "cutout"
    size: int
    fill: float = 0.0

    def __post_init__(self) -> None:
        if self.size < 1:
            raise BadOption(f"Cutout(size={self.size}): must be 1 or more.")

    def __call__(self, x: Tensor, generator: torch.Generator | None = None) -> Tensor:
        _images(x, "Cutout")
        rows = self._covered(x.shape[2], x, generator)
        columns = self._covered(x.shape[3], x, generator)
        return x.masked_fill((rows.unsqueeze(2) & columns.unsqueeze(1)).unsqueeze(1), self.fill)

    def _covered(self, side: int, x: Tensor, generator: torch.Generator | None) -> Tensor:
        """(N, side): the pixels along one side that the square covers."""
        first = whole(side, len(x), x, generator).unsqueeze(1) - self.size // 2
        at = torch.arange(side, device=x.device)
        return (at >= first) & (at < first + self.size)


@dataclass(frozen=True, init=False)
class Compose(_Named):
    """Apply augmentations one after the other."""

    name: ClassVar[str] = "compose"
    steps: tuple[Augment, ...]

    def __init__(self, *steps: Augment | Sequence[Augment]) -> None:
        flat = [s for step in steps for s in (step if isinstance(step, (list, tuple)) else [step])]
        for step in flat:
            if not isinstance(step, Augment):
                raise BadOption(f"Compose({step!r}): pass augmentations, such as Compose(Crop(4), Flip()).")
        object.__setattr__(self, "steps", tuple(flat))

    def __call__(self, x: Tensor, generator: torch.Generator | None = None) -> Tensor:
        for step in self.steps:
            x = step(x, generator)
        return x

    def spec(self) -> dict[str, Any]:
        return {"name": self.name, "steps": [step.spec() for step in self.steps]}

    def __repr__(self) -> str:
        return f"Compose({', '.join(map(repr, self.steps))})"


_KINDS: dict[str, type[Any]] = {kind.name: kind for kind in (Crop, Flip, Binarise, Cutout)}


def from_spec(spec: Mapping[str, Any] | None) -> Augment | None:
    """The augmentation that ``spec()`` described; None for None."""
    if spec is None:
        return None
    options = dict(spec)
    name = one_of(options.pop("name", ""), [*_KINDS, Compose.name], "augmentation")
    if name == Compose.name:
        steps = [from_spec(step) for step in options["steps"]]
        return Compose(*(step for step in steps if step is not None))
    try:
        return _KINDS[name](**options)
    except TypeError as error:
        raise BadOption(f"the augmentation {name!r} has no options {sorted(options)}: {error}.") from error
