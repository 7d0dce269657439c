"""The Triton kernels of :mod:`whence.linalg.gram_kernel`, in a module of its own because Triton may be missing."""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit  # type: ignore[untyped-decorator]
def grams(  # type: ignore[no-untyped-def]
    rows, index, weights, out, count, length, stride_n, stride_k,
    chunk: tl.constexpr, block: tl.constexpr, width: tl.constexpr, indexed: tl.constexpr, precision: tl.constexpr,
):  # fmt: skip
    """One chunk m of the rows r of example n: out[n, m] = Σ_p w_p r_p r_pᵀ.

    If entries are ``indexed``, out[n, m, 0] is that, and out[n, m, 1] = Σ_p r_p r_pᵀ.
    """
    m = tl.program_id(0).to(tl.int64)
    n = tl.program_id(1).to(tl.int64)
    k = tl.arange(0, width)
    first = rows + n * stride_n + k.to(tl.int64) * stride_k
    weighted = tl.zeros((width, width), dtype=tl.float32)
    unweighted = tl.zeros((width, width), dtype=tl.float32)
    for start in range(0, chunk, block):
        slot = m * chunk + start + tl.arange(0, block)
        if indexed:
            at = tl.load(index + slot).to(tl.int64)
            there = at >= 0
        else:
            at = slot
            there = slot < length
        w = tl.load(weights + slot, mask=there, other=0.0)
        tile = tl.load(first[:, None] + at[None, :], mask=(k[:, None] < count) & there[None, :], other=0.0)
        turned = tl.trans(tile)
        weighted = tl.dot(tile * w[None, :], turned, weighted, input_precision=precision)
        if indexed:
            unweighted = tl.dot(tile, turned, unweighted, input_precision=precision)
    own = (k[:, None] < count) & (k[None, :] < count)
    matrices = 2 if indexed else 1
    place = out + (n * tl.num_programs(0) + m) * matrices * count * count + k[:, None] * count + k[None, :]
    tl.store(place, weighted, mask=own)
    if indexed:
        tl.store(place + count * count, unweighted, mask=own)


@triton.jit  # type: ignore[untyped-decorator]
def diagonals(  # type: ignore[no-untyped-def]
    rows, weights, others, out, count, length, stride_n, stride_k,
    chunk: tl.constexpr, block: tl.constexpr, width: tl.constexpr, centred: tl.constexpr, unweighted: tl.constexpr,
):  # fmt: skip
    """One chunk m of the rows r of example n: out[n, m, 0, k] = Σ_p w_p r_kp², and out[n, m, 1, k] = Σ_p v_p r_kp²."""
    m = tl.program_id(0).to(tl.int64)
    n = tl.program_id(1).to(tl.int64)
    k = tl.arange(0, width)
    first = rows + n * stride_n + k.to(tl.int64) * stride_k
    own = tl.zeros((width, block), dtype=tl.float32)
    alone = tl.zeros((width, block), dtype=tl.float32)
    for start in range(0, chunk, block):
        at = m * chunk + start + tl.arange(0, block)
        there = at < length
        inside = (k[:, None] < count) & there[None, :]
        w = tl.load(weights + at, mask=there, other=0.0)
        tile = tl.load(first[:, None] + at[None, :], mask=inside, other=0.0)
        if centred:
            tile = tl.where(inside, tile - (tl.sum(tile, 0) / count)[None, :], 0.0)
        squares = tile * tile
        own += squares * w[None, :]
        if unweighted:
            alone += squares
        else:
            alone += squares * tl.load(others + at, mask=there, other=0.0)[None, :]
    place = out + (n * tl.num_programs(0) + m) * 2 * count + k
    tl.store(place, tl.sum(own, 1), mask=k < count)
    tl.store(place + count, tl.sum(alone, 1), mask=k < count)
