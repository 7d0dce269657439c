"""Whether a layer reads the inputs of the network entry by entry, so that a row of its matrix is a picture of them."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor, nn

from whence.engine.contexts import fused_attention_off
from whence.functional import Network
from whence.recording.blocks import owner_of

CHANNELS = 4  # most channels of an image whose last dimension counts them
CHANGED = 0.9  # of the changed entries that must arrive changed; a clamp may hide some


def input_shape(network: Network, parameter: str, inputs: Any) -> tuple[int, ...] | None:
    """The shape of an input (two or three dimensions) where the columns of a Linear layer are its entries in order.

    Found by changing half of the entries of an input: those columns and no others must see a change. So entries may be
    scaled on the way, but not moved or mixed.
    """
    if not isinstance(inputs, Tensor) or inputs.dim() not in (3, 4) or not len(inputs):
        return None
    shape = tuple(inputs.shape[1:])
    module = network.module.get_submodule(owner_of(parameter))
    if not isinstance(module, nn.Linear) or math.prod(shape) != module.in_features:
        return None
    columns = module.in_features
    one = next(network.pieces(inputs, 1))
    if not one.is_floating_point():
        return None
    mask = torch.rand(one.shape, generator=torch.Generator().manual_seed(0)).to(one.device) < 0.5
    seen = [_seen(network, parameter, x) for x in (one, torch.where(mask, one + 1 + one.abs(), one))]
    if any(a is None or a.numel() != columns for a in seen):
        return None
    before, after = (a.reshape(-1) for a in seen if a is not None)
    changed, expected = before != after, mask.reshape(-1)
    arrived = int((changed & expected).sum()) >= CHANGED * int(expected.sum())
    return shape if arrived and not bool((changed & ~expected).any()) else None


def _seen(network: Network, parameter: str, x: Tensor) -> Tensor | None:
    """What the module that holds a parameter is called with; None if it is not called with one tensor."""
    found: list[Tensor] = []

    def note(_module: nn.Module, args: tuple[Any, ...]) -> None:
        found.extend(a.detach().clone() for a in args if isinstance(a, Tensor))

    handle = network.module.get_submodule(owner_of(parameter)).register_forward_pre_hook(note)
    try:
        with torch.no_grad(), fused_attention_off:
            network(x)
    finally:
        handle.remove()
    return found[0] if len(found) == 1 else None


def channels_first(values: Tensor, shape: tuple[int, ...]) -> Tensor:
    """Rows [O, D] as pictures [O, C, H, W]: inputs H × W, C × H × W, or H × W × C with few channels."""
    if len(shape) == 2:
        return values.reshape(len(values), 1, *shape)
    pictures = values.reshape(len(values), *shape)
    return pictures.movedim(-1, 1) if shape[-1] <= CHANNELS < shape[0] else pictures
