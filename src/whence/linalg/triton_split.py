"""The Triton kernel of :mod:`whence.linalg.split`, in a module of its own because Triton may be missing."""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit  # type: ignore[untyped-decorator]
def split(  # type: ignore[no-untyped-def]
    x, out, rows, columns, padded_rows, padded_columns, stride_b, stride_i, stride_j, out_b, out_i, first, again, rest,
    tile_rows: tl.constexpr, tile_columns: tl.constexpr,
):  # fmt: skip
    """x [B, I, J] = h + m: h at ``first`` and ``again`` in out[b], m at ``rest``, with zeros beyond I and J."""
    tile = tl.program_id(0).to(tl.int64)
    b = tl.program_id(1).to(tl.int64)
    across = (padded_columns + tile_columns - 1) // tile_columns
    i = ((tile // across) * tile_rows + tl.arange(0, tile_rows))[:, None]
    j = ((tile % across) * tile_columns + tl.arange(0, tile_columns))[None, :]
    there = (i < rows) & (j < columns)
    value = tl.load(x + b * stride_b + i * stride_i + j * stride_j, mask=there, other=0.0)
    h = value.to(tl.bfloat16)
    m = (value - h.to(tl.float32)).to(tl.bfloat16)
    place = out + b * out_b + i * out_i + j
    inside = (i < padded_rows) & (j < padded_columns)
    tl.store(place + first, h, mask=inside)
    tl.store(place + rest, m, mask=inside)
    if again != first:
        tl.store(place + again, h, mask=inside)
