"""Inputs that are to be moved: what they may be, by how much each dimension moves, and how far."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from numbers import Integral, Real
from typing import Any

import numpy as np
import torch
from torch import Tensor

from whence.batches import check_finite, from_numpy, inputs_of, is_pair
from whence.errors import BadData, BadOption
from whence.functional import Network

SLACK = 1e-6  # of the range, by which inputs may lie outside bounds


def one_tensor(x: Any, what: str = "x") -> Tensor:
    """Inputs as one floating-point tensor [N, …] of finite numbers."""
    x = from_numpy(x)
    if not isinstance(x, Tensor):
        raise BadData(
            f"{what} is a {type(x).__name__}; an attack moves one tensor of numbers [N, …]. Wrap a network of several "
            "inputs in a module that takes the one to be moved."
        )
    if not x.is_floating_point():
        raise BadData(
            f"{what} is of type {x.dtype}, and only real numbers can be moved along a gradient. Pass floating-point "
            "inputs; for token numbers attack the network from their embeddings on."
        )
    if x.dim() < 2 or not x.numel():
        raise BadData(f"{what} of shape {list(x.shape)} holds no inputs; [N, …] with N > 0 is expected.")
    check_finite(x, f"{what}: the inputs", 0)
    return x


def placed(x: Tensor, network: Network) -> Tensor:
    """Where the network is, without a graph, and never the caller's memory."""
    return x.detach().to(network.device, network.dtype, copy=True)


def amount(step: Any, name: str = "step") -> float:
    """The size of a step."""
    if not isinstance(step, Real) or isinstance(step, bool):
        raise BadOption(f"{name}={step!r} is no number; the size of a step is 0 or more.")
    value = float(step)
    if not math.isfinite(value) or value < 0:
        raise BadOption(
            f"{name}={value:g} is no step: it must be finite and 0 or more. The direction is that of the attack; "
            "target=… moves towards a class."
        )
    return value


def whole(value: Any, name: str, least: int = 1) -> int:
    if not isinstance(value, Integral) or isinstance(value, bool) or int(value) < least:
        raise BadOption(f"{name}={value!r} is no whole number of {least} or more.")
    return int(value)


@dataclass(frozen=True)
class Moves:
    """How inputs move: x ± η · scale · sign, held inside bounds."""

    scale: Tensor | None = None  # broadcasts against one input
    low: Tensor | None = None
    high: Tensor | None = None

    @classmethod
    def make(cls, shape: torch.Size, network: Network, scale: Any, bounds: Any) -> Moves:
        """For inputs of ``shape`` each."""

        def put(value: Any, name: str) -> Tensor:
            return _broadcast(value, shape, name).to(network.device, network.dtype)

        found = None if scale is None else put(scale, "scale")
        if found is not None and bool((found < 0).any()):
            raise BadOption(f"scale has negative values (down to {float(found.min()):g}); sizes are 0 or more.")
        if bounds is None:
            return cls(found)
        if not isinstance(bounds, (tuple, list)) or len(bounds) != 2:
            raise BadOption(f"bounds must be a pair (low, high), not {bounds!r}.")
        low, high = put(bounds[0], "bounds[0]"), put(bounds[1], "bounds[1]")
        if bool((low > high).any()):
            raise BadOption("bounds=(low, high): low is above high.")
        return cls(found, low, high)

    def check(self, x: Tensor) -> None:
        """Refuse inputs that lie outside the bounds before they are attacked."""
        if self.low is None or self.high is None:
            return
        slack = SLACK * (self.high - self.low)
        if bool(((x < self.low - slack) | (x > self.high + slack)).any()):
            raise BadData(
                f"inputs lie in [{float(x.min()):g}, {float(x.max()):g}] and so outside bounds from "
                f"{float(self.low.min()):g} to {float(self.high.max()):g}. Bounds are of the inputs as the network "
                "sees them: normalised ones have other limits than 0 and 1."
            )

    def signs(self, direction: Tensor) -> Tensor:
        """What one unit of step adds."""
        return direction.sign() if self.scale is None else direction.sign() * self.scale

    def moved(self, x: Tensor, step: float, signs: Tensor) -> Tensor:
        found = x + step * signs
        return found if self.low is None else found.clamp(self.low, self.high)


def _broadcast(value: Any, shape: torch.Size, name: str) -> Tensor:
    try:
        found = torch.as_tensor(value).detach()
    except (TypeError, ValueError, RuntimeError) as error:
        raise BadOption(f"{name} is a {type(value).__name__}; a number or a tensor is expected.") from error
    try:
        fits = torch.broadcast_shapes(found.shape, shape) == shape
    except RuntimeError:
        fits = False
    if not fits:
        raise BadOption(
            f"{name} of shape {list(found.shape)} does not broadcast against one input of shape {list(shape)}."
        )
    if not bool(torch.isfinite(found).all()):
        raise BadOption(f"{name} holds NaN or infinite values.")
    return found


def classes_of(value: Any, size: int, classes: int, name: str) -> Tensor:
    """A class for each input, [N], from one number or one for each."""
    try:
        found = torch.as_tensor(value).detach()
    except (TypeError, ValueError, RuntimeError) as error:
        raise BadOption(
            f"{name} is a {type(value).__name__}; a class number or a tensor of them is expected."
        ) from error
    if found.is_floating_point() or found.is_complex() or found.dtype == torch.bool:
        raise BadOption(f"{name} must be whole numbers, not {found.dtype}.")
    if found.dim() and tuple(found.shape) != (size,):
        raise BadOption(
            f"{name} of shape {list(found.shape)} for {size} inputs; pass one class, or one for each input."
        )
    wrong = found[(found < 0) | (found >= classes)].flatten()
    if len(wrong):
        raise BadOption(
            f"{name}={int(wrong[0])} is out of range: the network has {classes} outputs, so classes go from 0 to "
            f"{classes - 1}."
        )
    return found.long().expand(size)


def span(data: Any) -> Tensor:
    """max − min of each input dimension over a data set, to pass as ``scale``; in the shape of one input.

    A dimension that never varies has span 0, and an attack scaled by it does not move it.
    """
    data = from_numpy(data)
    if isinstance(data, Tensor):
        parts: Iterable[Any] = [data]
    elif is_pair(data):
        parts = [data[0]]
    elif isinstance(data, Iterable):
        parts = (inputs_of(batch) for batch in data)
    else:
        raise BadData(f"span needs inputs or a loader, not a {type(data).__name__}.")
    low: Tensor | None = None
    high: Tensor | None = None
    for part in parts:
        x = one_tensor(np.asarray(part) if isinstance(part, list) else part, "data").detach()
        low = x.amin(0) if low is None else torch.minimum(low, x.amin(0))
        high = x.amax(0) if high is None else torch.maximum(high, x.amax(0))
    if low is None or high is None:
        raise BadData("data is empty: it gave no example.")
    return high - low
