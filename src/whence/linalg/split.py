"""float32 products on a GPU's tensor cores, with every number split into two bfloat16 numbers.

x = h + m up to 2⁻¹⁷ |x|, and products of bfloat16 numbers are exact in float32. Tensor cores lose digits in sums,
so those over data sum ``split_rows`` rows at a time, and the pieces are added in float32. The relative error is 1e-6 to
2e-6. They are used where convolutions may use TF32 (torch's default), whose error is a hundred times larger.
"""

from __future__ import annotations

import importlib
from collections.abc import Sequence
from functools import cache

import torch
from torch import Tensor

from whence.engine.memory import sizes
from whence.errors import is_out_of_memory
from whence.linalg.kernels import trusted

WIDE = 512  # width from which Gram matrices
WORK = 8e9  # with this many operations are faster this way
WIDE_SHIFTED = 128  # the same for shifted products, which share the splitting
LEAST = 64  # rows, columns and terms of a product that is faster this way
LEAST_WORK = 2e9  # operations of it
ALIGNED = 8  # bfloat16 numbers in the 16 bytes that tensor cores read at a time
TILE = 16, 128  # numbers that one program of the kernel splits
MOST_MATRICES = 2**16 - 1  # that one launch can take


def gram_pays(like: Tensor, rows: int, width: int) -> bool:
    """Whether :func:`gram` of [rows, width] is faster than one product."""
    return width >= WIDE and rows >= sizes().split_rows and 2.0 * rows * width**2 >= WORK and able(like)


def shifted_pays(like: Tensor, width: int) -> bool:
    """Whether :func:`shifted_products` is faster."""
    return width >= WIDE_SHIFTED and able(like)


def product_pays(x: Tensor, y: Tensor) -> bool:
    """Whether :func:`product` of [..., M, R] and [..., R, N] is faster; never where it must be differentiable."""
    least = min(*x.shape[-2:], y.shape[-1])
    if least < LEAST or 2.0 * x.numel() * y.shape[-1] < LEAST_WORK or x.dtype != y.dtype:
        return False
    return able(x) and not (torch.is_grad_enabled() and (x.requires_grad or y.requires_grad))


def able(like: Tensor) -> bool:
    """Whether this device and dtype support it, and convolutions are in TF32."""
    return like.is_cuda and like.dtype == torch.float32 and _convolutions_in_tf32() and _supported(like.device)


def _convolutions_in_tf32() -> bool:
    try:
        return bool(torch.backends.cudnn.allow_tf32)
    except RuntimeError:  # set by torch's newer options, to a value that this one cannot express
        return False


def gram(x: Tensor) -> Tensor:
    """xᵀ x for x [R, D]: hᵀ h + hᵀ m + mᵀ h + mᵀ m."""
    width, rows = x.shape[1], sizes().split_rows
    at_once = rows * max(1, sizes().split_products // (4 * width**2))
    total = x.new_zeros(width, width)
    for some in x.split(at_once):
        count = -(-len(some) // rows)
        h, m = _halves(some, count * rows).movedim(1, 0).unflatten(1, (count, rows))
        mixed = _product(h, m).sum(0)
        total += _product(h, h).sum(0)
        total += _product(m, m).sum(0)
        total += mixed
        total += mixed.mT
    return total


def shifted_products(flat: Tensor, rows: int, shifts: Sequence[int]) -> Tensor:
    """Σ_r x[r] x[r + s]ᵀ for each shift s, of x [rows + max s, C] that is zero from ``rows`` on: [S, C, C]."""
    width, each = flat.shape[1], sizes().split_rows
    count = -(-rows // each)
    both = _halves(flat, count * each + max(shifts)).flatten(1)  # [R, 2 · C]
    pieces = max(1, sizes().split_products // (16 * width**2))
    found = flat.new_empty(len(shifts), width, width)
    for first in range(0, count, pieces):
        some = min(pieces, count - first)
        start, stop = first * each, (first + some) * each
        x = both[start:stop].unflatten(0, (some, each))
        for total, by in zip(found, shifts, strict=True):
            parts = _product(x, both[start + by : stop + by].unflatten(0, (some, each)))
            parts = parts.view(some, 2, width, 2, width)
            if first == 0:
                torch.sum(parts, (0, 1, 3), out=total)
            else:
                total += parts.sum((0, 1, 3))
    return found


def product(x: Tensor, y: Tensor) -> Tensor:
    """x y for x [B, M, R] and y [B, R, N] in float32: h h' + h m' + m h', as one product with 3 R terms.

    Without m m', which is at most 2⁻¹⁸ of |x| |y|: a relative error of about 2e-6.
    """
    left, right = _stacked(x, "hhm"), _stacked(y.mT, "hmh").mT
    return torch.bmm(left, right, out_dtype=torch.float32) if x.is_cuda else left.float() @ right.float()


def _stacked(x: Tensor, order: str) -> Tensor:
    """h and m of x [B, M, R] side by side in some order, each padded with zeros, [B, M, 3 · R']; in x's own layout."""
    if len(x) > 1 and x.stride(0) == 0:  # one matrix for all
        return _stacked(x[:1], order).expand(len(x), -1, -1)
    if x.stride(-1) != 1 and x.stride(-2) == 1:
        return _along(x.mT, 1, order).mT
    return _along(x, 2, order)


def _along(x: Tensor, dim: int, order: str) -> Tensor:
    size = x.shape[dim]
    padded = _aligned(size)
    shape = list(x.shape)
    shape[dim] = len(order) * padded
    if _by_kernel(x):
        whole = torch.empty(shape, dtype=torch.bfloat16, device=x.device)
        apart = padded * whole.stride(dim)
        places = [apart * i for i, part in enumerate(order) if part == "h"], apart * order.index("m")
        ends = (padded, x.shape[2]) if dim == 1 else (x.shape[1], padded)
        _launch(x, whole, ends, (whole.stride(0), whole.stride(1)), *places)
        return whole
    made = torch.zeros if padded > size else torch.empty
    whole = made(shape, dtype=torch.bfloat16, device=x.device)
    found = [part.narrow(dim, 0, size) for part in whole.split(padded, dim)]
    h, m = found[order.index("h")], found[order.index("m")]
    h.copy_(x)
    m.copy_(x - h)
    for part, which in zip(found, order, strict=True):
        source = h if which == "h" else m
        if part is not source:
            part.copy_(source)
    return whole


def _halves(x: Tensor, length: int) -> Tensor:
    """h and m of x [R, D], padded with zero rows to ``length``: [length, 2, D]."""
    width = x.shape[1]
    if _by_kernel(x):
        both = torch.empty(length, 2, width, dtype=torch.bfloat16, device=x.device)
        _launch(x.unsqueeze(0), both, (length, width), (0, 2 * width), [0, 0], width)
        return both
    made = torch.zeros if length > len(x) else torch.empty
    both = made(length, 2, width, dtype=torch.bfloat16, device=x.device)
    h, m = both[: len(x)].unbind(1)
    h.copy_(x)
    m.copy_(x - h)
    return both


def _aligned(width: int) -> int:
    return -(-width // ALIGNED) * ALIGNED


def with_aligned_columns(basis: Tensor) -> Tensor:
    """A basis [E, D, D], with zero columns where products with it would not be aligned and take four times as long."""
    width = basis.shape[-1]
    if width % ALIGNED == 0 or width < LEAST or not able(basis):
        return basis
    return torch.nn.functional.pad(basis, (0, _aligned(width) - width))


# The kernel, which splits numbers in one pass over them


def _by_kernel(x: Tensor) -> bool:
    fits = x.is_cuda and x.dtype == torch.float32 and (x.dim() == 2 or len(x) <= MOST_MATRICES) and x.numel() > 0
    return fits and trusted("split", x.device, lambda: _agrees(x.device))


def _launch(x: Tensor, out: Tensor, ends: tuple[int, int], strides: tuple[int, int], h: Sequence[int], m: int) -> None:
    """x [B, I, J] into ``out``: h at two places, m at one, with zeros up to ``ends``."""
    kernel = importlib.import_module("whence.linalg.triton_split").split
    tiles = -(-ends[0] // TILE[0]) * -(-ends[1] // TILE[1])
    with torch.cuda.device(x.device):
        kernel[(tiles, len(x))](
            x, out, *x.shape[1:], *ends, *x.stride(), *strides, h[0], h[1], m, tile_rows=TILE[0], tile_columns=TILE[1]
        )


def _agrees(device: torch.device) -> bool:
    """Whether the kernel gives the bits that torch gives."""
    x = torch.randn(3, 33, 45, device=device, generator=torch.Generator(device).manual_seed(0))
    h = x.bfloat16()
    m = (x - h).bfloat16()
    found = torch.full((3, 33, 3, 48), 7.0, dtype=torch.bfloat16, device=device)
    _launch(x, found, (33, 48), (found.stride(0), found.stride(1)), [0, 48], 96)
    wanted = torch.nn.functional.pad(torch.stack([h, h, m], 2), (0, 3))
    return torch.equal(found, wanted)


def _product(x: Tensor, y: Tensor) -> Tensor:
    """xᵀ y in float32, piece by piece: [G, D, D'] from [G, R, D] and [G, R, D']."""
    return torch.bmm(x.mT, y, out_dtype=torch.float32) if x.is_cuda else x.float().mT @ y.float()


@cache
def _supported(device: torch.device) -> bool:
    """Whether torch (2.8 or later) and the GPU support these products."""
    if torch.cuda.get_device_capability(device) < (8, 0):
        return False
    try:
        _product(*torch.zeros(2, 1, 8, 8, dtype=torch.bfloat16, device=device))
    except (TypeError, RuntimeError) as error:
        if is_out_of_memory(error):
            raise
        return False
    return True
