"""Derivatives of operations that move, select, add up or pool elements; they are linear, or take a maximum.

Index legend: S directions, N examples, r rank of a value.
"""

from __future__ import annotations

import math
from typing import Any

import torch

from whence.curvature.tangent_rules import Step, after, aten, laid_out, moves, raised, rank, rule


@rule(aten.view.default, aten.reshape.default, aten._unsafe_view.default)
def _(step: Step, x: Any, size: Any) -> Any:
    return x.tangent.reshape([step.count, *map(_plain, size)])


def _plain(size: Any) -> Any:
    """A size, which may have been computed in the graph."""
    return getattr(size, "value", size)


@rule(aten.permute.default)
def _(step: Step, x: Any, dims: Any) -> Any:
    return x.tangent.permute([0, *(after(d, rank(x)) for d in dims)])


@rule(aten.transpose.int)
def _(step: Step, x: Any, one: int, other: int) -> Any:
    return x.tangent.transpose(after(one, rank(x)), after(other, rank(x)))


@rule(aten.t.default)
def _(step: Step, x: Any) -> Any:
    return x.tangent.transpose(-1, -2) if rank(x) == 2 else x.tangent


@rule(aten.unsqueeze.default)
def _(step: Step, x: Any, dim: int) -> Any:
    return x.tangent.unsqueeze(after(dim, rank(x) + 1))


@rule(aten.squeeze.dims, aten.squeeze.dim)
def _(step: Step, x: Any, dims: Any) -> Any:
    dims = [dims] if isinstance(dims, int) else dims
    return x.tangent.squeeze(tuple(after(d, rank(x)) for d in dims))


@rule(aten.expand.default)
def _(step: Step, x: Any, size: Any, **_: Any) -> Any:
    return raised(x, len(size)).expand([step.count, *map(_plain, size)])


@rule(aten.repeat.default)
def _(step: Step, x: Any, repeats: Any) -> Any:
    return raised(x, len(repeats)).repeat([1, *map(_plain, repeats)])


@rule(aten.clone.default)
def _(step: Step, x: Any, **_: Any) -> Any:
    return laid_out(x.tangent)


@rule(aten.alias.default, aten.lift_fresh_copy.default)
def _(step: Step, x: Any) -> Any:
    return x.tangent


@rule(aten._to_copy.default)
def _(step: Step, x: Any, *, dtype: Any = None, **_: Any) -> Any:
    return x.tangent if dtype is None else x.tangent.to(dtype)


@rule(aten.slice.Tensor)
def _(step: Step, x: Any, dim: int = 0, start: Any = None, end: Any = None, by: int = 1) -> Any:
    return aten.slice.Tensor(x.tangent, after(dim, rank(x)), _plain(start), _plain(end), by)


@rule(aten.select.int)
def _(step: Step, x: Any, dim: int, index: Any) -> Any:
    return x.tangent.select(after(dim, rank(x)), _plain(index))


@rule(aten.split_with_sizes.default)
def _(step: Step, x: Any, sizes: Any, dim: int = 0) -> Any:
    parts = aten.split_with_sizes.default(x.tangent, sizes, after(dim, rank(x)))
    return [parts[i] for i in range(len(sizes))]


@rule(aten.cat.default)
def _(step: Step, parts: Any, dim: int = 0) -> Any:
    return torch.cat([_or_zero(step, p) for p in parts], after(dim, step.like.dim()))


@rule(aten.stack.default)
def _(step: Step, parts: Any, dim: int = 0) -> Any:
    return torch.stack([_or_zero(step, p) for p in parts], after(dim, step.like.dim()))


def _or_zero(step: Step, x: Any) -> Any:
    if moves(x):
        return x.tangent
    return torch.zeros_like(x.value).unsqueeze(0).expand([step.count, *[-1] * rank(x)])


@rule(aten.constant_pad_nd.default)
def _(step: Step, x: Any, pad: Any, fill: float = 0) -> Any:
    return aten.constant_pad_nd.default(x.tangent, pad, 0)


@rule(aten.flip.default)
def _(step: Step, x: Any, dims: Any) -> Any:
    return x.tangent.flip([after(d, rank(x)) for d in dims])


@rule(aten.index_select.default)
def _(step: Step, x: Any, dim: int, index: Any) -> Any:
    return x.tangent.index_select(after(dim, rank(x)), index.value)


@rule(aten.index.Tensor)
def _(step: Step, x: Any, indices: Any) -> Any:
    return aten.index.Tensor(x.tangent, [None, *(i if i is None else i.value for i in indices)])


@rule(aten.gather.default)
def _(step: Step, x: Any, dim: int, index: Any, **_: Any) -> Any:
    return _taken(step, x, after(dim, rank(x)), index.value)


def _taken(step: Step, x: Any, dim: int, index: Any) -> Any:
    return x.tangent.gather(dim, index.unsqueeze(0).expand([step.count, *[-1] * rank(x)]))


# Sums, means, maxima


@rule(aten.sum.dim_IntList)
def _(step: Step, x: Any, dims: Any, keepdim: bool = False, **_: Any) -> Any:
    return x.tangent.sum(_places(x, dims), keepdim=keepdim)


@rule(aten.mean.dim)
def _(step: Step, x: Any, dims: Any, keepdim: bool = False, **_: Any) -> Any:
    return x.tangent.mean(_places(x, dims), keepdim=keepdim)


def _places(x: Any, dims: Any) -> list[int]:
    """Dimensions of a value (none: all) in its tangent."""
    return [after(d, rank(x)) for d in (dims or range(rank(x)))]


@rule(aten.cumsum.default)
def _(step: Step, x: Any, dim: int, **_: Any) -> Any:
    return x.tangent.cumsum(after(dim, rank(x)))


@rule(aten.var.correction)
def _(step: Step, x: Any, dims: Any = None, *, correction: Any = 1, keepdim: bool = False) -> Any:
    """2 Σ (x − mean) t / (n − correction)."""
    inside = list(dims) if dims else list(range(rank(x)))
    centred = x.value - x.value.mean(inside, keepdim=True)
    count = math.prod(int(x.like.shape[d]) for d in inside) - (1 if correction is None else correction)
    return (centred * x.tangent).sum(_places(x, inside), keepdim=keepdim) * (2 / count)


@rule(aten.max.dim, aten.min.dim)
def _(step: Step, x: Any, dim: int, keepdim: bool = False) -> Any:
    place = after(dim, rank(x))
    index = step.out[1] if keepdim else step.out[1].unsqueeze(place - 1)
    found = _taken(step, x, place, index)
    return (found if keepdim else found.squeeze(place)), None


@rule(aten.amax.default, aten.amin.default)
def _(step: Step, x: Any, dims: Any = (), keepdim: bool = False) -> Any:
    """Equal maxima share the derivative."""
    inside = list(dims) or list(range(rank(x)))
    top = step.out.node.target(x.value, inside, True)
    here = (x.value == top).to(x.like.dtype)
    here = here / here.sum(inside, keepdim=True)
    return (x.tangent * here).sum(_places(x, inside), keepdim=keepdim)


# Windows: directions are more examples


@rule(
    aten.avg_pool1d.default,
    aten.avg_pool2d.default,
    aten.avg_pool3d.default,
    aten._adaptive_avg_pool2d.default,
    aten._adaptive_avg_pool3d.default,
    aten.upsample_nearest2d.vec,
    aten.upsample_bilinear2d.vec,
    aten.reflection_pad1d.default,
    aten.reflection_pad2d.default,
    aten.replication_pad2d.default,
    aten.pixel_shuffle.default,
)
def _(step: Step, x: Any, *options: Any, **named: Any) -> Any:
    return step.split(step.out.node.target(step.merged(x.tangent), *options, **named))


@rule(aten.max_pool2d_with_indices.default, aten.max_pool3d_with_indices.default)
def _(step: Step, x: Any, *_: Any, **__: Any) -> Any:
    """The derivative at the place of each maximum; indices count over the whole map."""
    spatial = rank(x) - 2
    places = step.out[1].flatten(-spatial)  # [N, C, places]
    inside = x.tangent.flatten(-spatial)
    found = inside.gather(-1, places.unsqueeze(0).expand([step.count, -1, -1, -1]))
    return found.reshape([step.count, *step.sizes(step.out[0], step.like[0])]), None
