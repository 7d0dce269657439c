"""Derivatives of softmax and of normalisations.

Index legend: S directions, N examples, C channels, G groups, r rank of a value.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from whence.curvature.tangent_rules import Step, after, aten, moves, rank, rule, total, value


@rule(aten._softmax.default)
def _(step: Step, x: Any, dim: int, _half: bool) -> Any:
    weighted = step.out * x.tangent
    return weighted - step.out * weighted.sum(after(dim, rank(x)), keepdim=True)


@rule(aten._log_softmax.default)
def _(step: Step, x: Any, dim: int, _half: bool) -> Any:
    return x.tangent - (torch.exp(step.out) * x.tangent).sum(after(dim, rank(x)), keepdim=True)


def _normalised(moved: Any, normal: Any, scale: Any, dims: list[int]) -> Any:
    """The derivative of x̂ = (x − mean) / std: (t − mean t − x̂ mean(x̂ t)) / std."""
    centred = moved - moved.mean(dims, keepdim=True)
    return (centred - normal * (normal * moved).mean(dims, keepdim=True)) * scale


def _affine(normal: Any, moved: Any, weight: Any, bias: Any, shaped: Callable[[Any], Any]) -> Any:
    """The derivative of x̂ w + b; ``shaped`` brings tangents [S, …] and values of w and b into place."""
    terms = []
    if moved is not None:
        terms.append(moved if weight is None else moved * shaped(weight.value))
    if moves(weight):
        terms.append(normal * shaped(weight.tangent))
    if moves(bias):
        terms.append(shaped(bias.tangent))
    return total(terms)


@rule(aten.native_layer_norm.default)
def _(step: Step, x: Any, shape: Any, weight: Any, bias: Any, eps: float) -> Any:
    _, mean, scale = step.out
    normal = (x.value - mean) * scale
    dims = list(range(-len(shape), 0))
    moved = _normalised(x.tangent, normal, scale, dims) if moves(x) else None
    between = rank(x) - len(shape)

    def shaped(w: Any) -> Any:
        return w if weight is not None and w is weight.value else w.unflatten(0, (-1, *[1] * between))

    found = _affine(normal, moved, weight, bias, shaped)
    inner = Step(step.count, step.out[0], step.like[0])
    return (found if moves(x) or moves(weight) else inner.full(found)), None, None


@rule(aten.native_group_norm.default)
def _(step: Step, x: Any, weight: Any, bias: Any, _n: Any, _c: Any, _hw: Any, groups: int, eps: float) -> Any:
    _, mean, scale = step.out  # [N, G]
    grouped = x.value.unflatten(1, (groups, -1)).flatten(2)  # [N, G, …]
    normal = (grouped - mean.unsqueeze(-1)) * scale.unsqueeze(-1)
    moved = None
    inner = Step(step.count, step.out[0], step.like[0])
    sizes = inner.sizes(step.out[0], step.like[0])
    if moves(x):
        tangent = x.tangent.unflatten(2, (groups, -1)).flatten(3)
        moved = _normalised(tangent, normal, scale.unsqueeze(-1), [-1]).reshape([step.count, *sizes])
    found = _affine(normal.reshape(sizes), moved, weight, bias, lambda w: _channels(w, weight, bias, rank(x)))
    return (found if moves(x) or moves(weight) else inner.full(found)), None, None


def _channels(w: Any, weight: Any, bias: Any, r: int) -> Any:
    """Values [C] → [C, 1, …] and tangents [S, C] → [S, 1, C, 1, …]."""
    tangent = any(moves(a) and w is a.tangent for a in (weight, bias))
    w = w.unsqueeze(1) if tangent else w
    for _ in range(r - 2):
        w = w.unsqueeze(-1)
    return w


@rule(aten._native_batch_norm_legit_no_training.default)
def _(step: Step, x: Any, weight: Any, bias: Any, mean: Any, var: Any, _momentum: float, eps: float) -> Any:
    r = rank(x)
    scale = _channels((value(var) + eps).rsqrt(), None, None, r)
    normal = (x.value - _channels(value(mean), None, None, r)) * scale
    moved = x.tangent * scale if moves(x) else None
    found = _affine(normal, moved, weight, bias, lambda w: _channels(w, weight, bias, r))
    inner = Step(step.count, step.out[0], step.like[0])
    return (found if moves(x) or moves(weight) else inner.full(found)), None, None


@rule(aten._native_batch_norm_legit.no_stats)
def _(step: Step, x: Any, weight: Any, bias: Any, _training: bool, _momentum: float, eps: float) -> Any:
    """Instance normalisation, whose examples torch makes channels."""
    r = rank(x)
    mean, scale = (_channels(s, None, None, r) for s in step.out[1:])
    normal = (x.value - mean) * scale
    dims = [1, *range(3, r + 1)]  # of the tangent: all but its channels
    moved = _normalised(x.tangent, normal.unsqueeze(0), scale, dims) if moves(x) else None
    found = _affine(normal, moved, weight, bias, lambda w: _channels(w, weight, bias, r))
    inner = Step(step.count, step.out[0], step.like[0])
    return (found if moves(x) or moves(weight) else inner.full(found)), None, None
