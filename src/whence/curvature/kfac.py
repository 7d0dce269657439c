"""Kronecker factors of a layer's curvature: A = Σ a aᵀ / R and G = Σ g gᵀ (Martens, Grosse 2015).

a is the layer's input with a 1 for the bias; g are gradients of the root columns at its output. For weights used at
several positions there are the expand and the reduce form of Eschenhagen et al. (2023):

    expand   A = Σ_{n,t} a aᵀ / R        G = Σ_{n,t} g gᵀ        over all R = (example, position, call) triples
    reduce   A = Σ_n ā āᵀ / N            G = Σ_n (Σ_t g)(Σ_t g)ᵀ    with ā the mean over positions

Index legend: K root columns, N examples, T positions, E Kronecker pairs, O outputs, D inputs.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import replace
from typing import ClassVar, TypeVar

import torch
from torch import Tensor

from whence.curvature.conv_gram import Autocorrelation, ImageRows, add_appended_one, without_patches
from whence.curvature.sums import CurvatureSums, PendingSums
from whence.engine.memory import sizes
from whence.likelihoods import Likelihood
from whence.linalg import split
from whence.linalg.dense import accumulation_dtype, add_upper_gram, gram, is_narrow, mirrored, widened
from whence.linalg.structures import Kronecker
from whence.recording.blocks import Block, MatrixForm
from whence.recording.calls import LayerCall, Recording, sums_in_float32
from whence.recording.gradients import Gradients
from whence.recording.layer_input import LayerInput
from whence.recording.layout import Layout, Place
from whence.recording.rules import ConvRule

T = TypeVar("T")


class KroneckerSums(CurvatureSums):
    """Σ a aᵀ and Σ g gᵀ of one layer; only the diagonal of a factor that would be too wide."""

    host: ClassVar[tuple[str, ...]] = ("count",)

    def __init__(self, block: Block, reduce: bool, like: Tensor) -> None:
        assert block.form is not None
        self.block, self.name, self.reduce = block, block.name, reduce
        self.coarse = any(len(p.shape) > 2 for p in block.params)  # a convolution, computed in TF32 on a GPU
        pairs, outputs, inputs = block.form.native
        dtype = accumulation_dtype(like.dtype)
        a_shape = (pairs, inputs) if block.thin_inputs else (pairs, inputs, inputs)
        g_shape = (pairs, outputs) if block.thin_outputs else (pairs, outputs, outputs)
        self.a = torch.zeros(a_shape, dtype=dtype, device=like.device)
        self.g = torch.zeros(g_shape, dtype=dtype, device=like.device)
        self.count = torch.zeros(pairs, dtype=torch.float64)  # R, counted on the host
        self.live = torch.zeros(pairs, dtype=torch.float64, device=like.device)  # R, counted on the device (masked)

    def add_inputs(self, recording: Recording) -> None:
        pending = PendingSums()
        if self.reduce:
            for pairs, seen in _by_pairs(recording.inputs_of(self.block)):
                number = sum(a.rows_of_examples for a in seen)  # positions of each example, [N, 1]
                number = number.clamp(min=1) if isinstance(number, Tensor) else number
                mean = torch.stack([a.summed() for a in seen]).sum(0) / number  # ā, [E, N, D]
                part = mean.square().sum(1) if self.block.thin_inputs else gram(mean)
                pending.add(pairs, part, recording.size)
            pending.commit(self.a, self.count, self.live)
            return
        for pairs, a, last in input_pieces(recording, self.block):
            if self.block.thin_inputs:
                pending.add(pairs, input_squares(a) if isinstance(a, LayerInput) else a.squares(), a.rows)
            elif isinstance(a, LayerInput) and not _adds_in_place(a):
                pending.add(pairs, input_gram(a, self.coarse), a.rows)
            elif not last:
                _add_gram(a, pending.part(pairs, self.a, a.rows))
            else:  # last piece: nothing can fail after it, so the sum needs no copy
                _add_gram(a, self.a[pairs])
                (self.live if isinstance(a.rows, Tensor) else self.count)[pairs] += a.rows
        pending.commit(self.a, self.count, self.live)

    def add_gradients(self, grads: Gradients) -> None:
        pending = PendingSums()
        if self.reduce:
            for pairs, seen in _by_pairs(grads.outputs_of(self.block)):
                total = torch.stack([widened(g).sum(3) for g in seen]).sum(0)  # Σ_t g, [K, E, N, O]
                pending.add(pairs, self._gradient_moment(total.unsqueeze(3)))
        else:
            for pairs, g in grads.outputs_of(self.block):
                pending.add(pairs, self._gradient_moment(g))
        pending.commit(self.g)

    def _gradient_moment(self, g: Tensor) -> Tensor:
        return squares_of_positions(g) if self.block.thin_outputs else gram_of_positions(g, self.coarse)

    @property
    def has_last_layer(self) -> bool:
        return not self.block.thin_outputs

    def add_last_layer(self, recording: Recording, likelihood: Likelihood, targets: Tensor) -> None:
        self.g[0] += likelihood.hessian_sum(widened(recording.outputs.detach()), targets).to(self.g.dtype)

    def result(self) -> Kronecker:
        a = self.a if self.block.thin_inputs else mirrored(self.a)
        return Kronecker(a, self.g, self.count.to(self.a.device) + self.live)


def _by_pairs(calls: Iterator[tuple[slice, T]]) -> Iterator[tuple[slice, list[T]]]:
    """Group the calls of a batch by the pairs that they cover."""
    found: dict[tuple[int, int], list[T]] = defaultdict(list)
    for pairs, value in calls:
        found[pairs.start, pairs.stop].append(value)
    for (start, stop), values in found.items():
        yield slice(start, stop), values


# Σ a aᵀ


Moments = LayerInput | Autocorrelation | ImageRows


def input_pieces(recording: Recording, block: Block) -> Iterator[tuple[slice, Moments, bool]]:
    """The terms of a block's Σ a aᵀ by call and piece, each with whether it is the last."""
    assert block.form is not None
    calls = recording.calls_of(block)
    for i, (index, ref) in enumerate(calls, 1):
        for piece, last in _call_pieces(recording.calls[index], block.form):
            yield block.form.pairs_of(ref), piece, last and i == len(calls)


def _call_pieces(call: LayerCall, form: MatrixForm) -> Iterator[tuple[Moments, bool]]:
    """A convolution in patch-free form or as patches of a few examples at a time; other layers in one piece."""
    rule = call.as_multiplied()
    examples_first = call.layout == Layout(Place.DIM, 0) and isinstance(rule, ConvRule) and len(rule.x) == call.size
    if call.has_features or not examples_first:
        halves = None if call.has_features else call.narrow_features()
        features = call.features if halves is None else halves
        yield LayerInput(features, bool(form.inputs), form.bias, call.live), True
        return
    assert isinstance(rule, ConvRule)
    narrow = sums_in_float32(rule.x)
    if form.inputs and not narrow:
        pieces = without_patches(rule, widened(rule.x.detach()), form.bias)
        yield from ((piece, piece is pieces[-1]) for piece in pieces)
        if pieces:
            return
    each = rule.patch_bytes(call.use.shape[2:].numel())
    most = sizes().patches if rule.x.device.type == "cpu" else sizes().one_tensor(rule.x.device)
    step = max(1, int(most) // max(each, 1))
    for start in range(0, call.size, step):
        patches = replace(rule, x=rule.x[start : start + step].detach()).features()
        patches = patches if narrow else widened(patches)
        yield LayerInput(patches, bool(form.inputs), form.bias, call.live), start + step >= call.size


def input_gram(a: LayerInput, coarse: bool = False) -> Tensor:
    """Σ a aᵀ, [E, D (+ 1), D (+ 1)]; only its upper triangle is valid."""
    if not a.weight:
        dtype = torch.promote_types(a.x.dtype, torch.float32)
        return a.x.new_ones((a.x.shape[0], 1, 1), dtype=dtype) * a.rows
    if a.live is None and a.bias and a.x.is_cuda and not _fast_without_one(a, coarse):
        return gram_of_positions(a.dense(), coarse)  # two launches
    if _adds_in_place(a):
        size = a.x.shape[-1] + a.bias
        out = a.x.new_zeros(1, size, size)
        _add_gram(a, out)
        return out
    x = a.counted()
    inner = gram_of_positions(x, coarse)
    if not a.bias:
        return inner
    size = inner.shape[-1]
    out = inner.new_empty(inner.shape[0], size + 1, size + 1)
    flat = x.flatten(1, 2)  # [E, N · T, D]
    narrow = flat.dtype != inner.dtype
    sums = flat.sum(1, dtype=inner.dtype) if narrow else (flat.new_ones(1, flat.shape[1]) @ flat).squeeze(1)
    out[:, :size, :size] = inner
    out[:, :size, size] = sums
    out[:, size, :size] = sums
    out[:, size, size] = a.rows
    return out


def _fast_without_one(a: LayerInput, coarse: bool) -> bool:
    """Whether x is multiplied on tensor cores, which are slow on the odd width that the appended 1 gives."""
    return is_narrow(a.x) or (coarse and len(a.x) == 1 and split.gram_pays(a.x, a.x[0, ..., 0].numel(), a.x.shape[-1]))


def _adds_in_place(a: LayerInput) -> bool:
    """Whether to add Σ a aᵀ in place: wide products on a CPU."""
    return a.weight and len(a.x) == 1 and a.x.device.type == "cpu" and not is_narrow(a.x)


def _add_gram(a: Moments, out: Tensor) -> None:
    """Add the upper triangle of Σ a aᵀ to ``out`` [1, D (+ 1), D (+ 1)]."""
    if not isinstance(a, LayerInput):
        a.add_gram(out)
        return
    flat = a.counted()[0].flatten(0, 1)  # [N · T, D]
    if not (flat.is_contiguous() or flat.mT.is_contiguous()):
        flat = flat.contiguous()  # once, before anything is added; otherwise every product copies it
    size = flat.shape[1]
    sums = (flat.new_ones(1, len(flat)) @ flat)[0] if a.bias else None
    add_upper_gram(flat, out[0, :size, :size])
    if sums is not None:
        add_appended_one(out[0], sums, a.rows)


def input_squares(a: LayerInput) -> Tensor:
    """The diagonal of Σ a aᵀ, [E, D (+ 1)]."""
    inner = squares_of_positions(a.counted())
    count = inner.new_ones((a.x.shape[0], 1)) * a.rows
    if not a.weight:
        return count
    return torch.cat([inner, count], dim=-1) if a.bias else inner


def gram_of_positions(x: Tensor, coarse: bool = False) -> Tensor:
    """Σ x xᵀ over examples and positions of x [..., E, N, T, D], summed over the dimensions before E too: [E, D, D].

    Where positions outnumber features, it goes example by example, which keeps their layout and copies nothing.
    """
    *before, _, _, positions, features = x.shape
    if positions >= 2 * features and x.stride(-1) != 1 and not is_narrow(x):
        per_example = (x.mT @ x).sum(-3)
        return per_example.sum(tuple(range(len(before)))) if before else per_example
    return gram(x.movedim(-4, 0).flatten(1, -2), coarse)


def squares_of_positions(x: Tensor) -> Tensor:
    """Σ x² over all but pairs and features of x [..., E, N, T, D], without storing the squares: [E, D]."""
    flat = x.movedim(-4, 0).flatten(1, -2)  # [E, R, D]
    dtype = torch.promote_types(flat.dtype, torch.float32)
    return torch.linalg.vector_norm(flat, dim=1, dtype=dtype).square()
