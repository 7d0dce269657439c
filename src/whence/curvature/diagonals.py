"""The diagonal of the curvature: Σ_{k,n} (per-example gradient)².

An example's gradient is summed over positions and calls before it is squared, so that the diagonal is exact for shared
weights. For a matrix that is Σ_{k,n} (Σ_t g aᵀ)², by the cheapest of four methods (:func:`matrix_squares`). Only
for a very large weight shared by different kinds of calls, such as a tied embedding and head, are squares summed call
by call (:func:`squares_per_call`).

Index legend: K root columns, N examples, T positions, E Kronecker pairs, O outputs, D inputs, P parameters.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from whence.curvature.sums import CurvatureSums, PendingSums
from whence.engine.memory import chunks
from whence.likelihoods import Likelihood
from whence.linalg.dense import accumulation_dtype, widened
from whence.linalg.structures import Diagonal
from whence.recording.blocks import Block, GradientSource
from whence.recording.calls import LayerCall, Recording
from whence.recording.gradients import Gradients, MatrixCall, summed_at_first
from whence.recording.layout import as_weight
from whence.recording.recorder import Ref
from whence.recording.rules import EmbeddingRule, MatrixRule

PAIRS_PAY = 1.5  # pairs of positions are faster up to this multiple of the multiplications of rows
LARGE = 2 * 2**20  # bytes of one example's rows above which the CPU computes them one by one


class DiagonalSums(CurvatureSums):
    """Σ (per-example gradient)² of one block."""

    def __init__(self, block: Block, like: Tensor) -> None:
        self.block, self.name = block, block.name
        self.sum = torch.zeros(block.size, dtype=accumulation_dtype(like.dtype), device=like.device)

    def add_gradients(self, grads: Gradients) -> None:
        block = self.block
        if block.source is GradientSource.MATRIX:
            assert block.form is not None
            native = matrix_squares(grads.matrix_calls(block), block.form.native, grads)
            self.sum += block.form.unpack(native).to(self.sum.dtype)
        elif block.source is GradientSource.TABLE:
            ids, merged = grads.table(block)  # [N, T], [K, N, T, F]
            squares = merged.to(self.sum.dtype).square().sum(0).flatten(0, 1)
            self.sum.view(block.params[0].shape).index_add_(0, ids.flatten(), squares)
        elif block.per_call:
            self.sum += squares_per_call(block, grads, self.sum.dtype)
        else:
            pending = PendingSums()
            for which in grads.row_chunks(block):
                pending.add(slice(0, block.size), grads.rows(block, which).to(self.sum.dtype).square().sum((0, 1)))
            pending.commit(self.sum)

    @property
    def has_last_layer(self) -> bool:
        return self.block.source is GradientSource.MATRIX

    def add_last_layer(self, recording: Recording, likelihood: Likelihood, targets: Tensor) -> None:
        assert self.block.form is not None
        ((_, a),) = recording.inputs_of(self.block)
        weights = likelihood.hessian_diagonal(widened(recording.outputs.detach()), targets).movedim(0, 1)  # [1, N, C]
        native = weights.mT.to(self.sum.dtype) @ a.dense().squeeze(2).square().to(self.sum.dtype)
        self.sum += self.block.form.unpack(native)

    def result(self) -> Diagonal:
        return Diagonal(self.sum)


# Matrices


def matrix_squares(calls: list[MatrixCall], native: tuple[int, ...], grads: Gradients) -> Tensor:
    """Σ_{k,n} (Σ_t g aᵀ)², [E, O, D], by the cheapest method that applies."""
    total = widened((calls[0].g if calls else grads.columns).new_zeros(native))
    if not calls:
        return total  # the layer was not called in this batch
    call = calls[0]
    if is_unshared(calls, native[0]):
        squares = call.g.square().sum(0).squeeze(2)  # [E, N, O]
        return squares.mT @ call.a.dense().squeeze(2).square()
    if len(calls) == 1 and call.pairs == slice(0, native[0]):
        if pairs_pay(call, grads):
            return _by_pairs_of_positions(call, total)
        if single_rows_pay(grads, total):
            return _row_by_row(call, total)
    for rows in summed_rows(calls, native, grads):
        total += rows.square().sum((0, 1))
    return total


def pairs_pay(call: MatrixCall, grads: Gradients) -> bool:
    """Whether pairs of positions are faster than rows."""
    return (call.a.positions + 1) / 2 <= PAIRS_PAY * grads.count


def single_rows_pay(grads: Gradients, total: Tensor) -> bool:
    """Whether the rows of one example are too large for the cache of a CPU."""
    return total.device.type == "cpu" and grads.count * total[0].numel() * total.element_size() > LARGE


def is_unshared(calls: list[MatrixCall], pairs: int) -> bool:
    """Whether there is one call, over all pairs, with one position per example."""
    return len(calls) == 1 and calls[0].a.positions == 1 and calls[0].pairs == slice(0, pairs)


def summed_rows(calls: list[MatrixCall], native: tuple[int, ...], grads: Gradients) -> Iterator[Tensor]:
    """Chunks over examples of Σ_calls Σ_t g aᵀ, [K, n, E, O, D]."""
    each = grads.count * int(torch.Size(native).numel()) * grads.columns.element_size()
    for which in chunks(grads.recording.size, each, grads.columns.device):
        if len(calls) == 1 and calls[0].pairs == slice(0, native[0]):
            yield calls[0].rows(which)
            continue
        rows = calls[0].g.new_zeros(grads.count, which.stop - which.start, *native)
        for call in calls:
            rows[:, :, call.pairs] += call.rows(which)
        yield rows


def _by_pairs_of_positions(call: MatrixCall, total: Tensor) -> Tensor:
    """Σ_{t,t'} (Σ_k g_t g_t') (a_t a_t'): one product over examples and pairs of positions, no rows."""
    positions, columns = call.a.positions, len(call.g)
    one, other = torch.triu_indices(positions, positions, device=total.device)
    twice = torch.where(one == other, 1.0, 2.0).to(total.dtype).unsqueeze(-1)
    widest = max(total.shape[1:])
    for which in chunks(call.a.x.shape[1], len(one) * widest * total.element_size(), total.device):
        a, g = call.a.take(which).dense(), call.g[:, :, which]  # [E, n, T, D], [K, E, n, T, O]
        outer = g[0][:, :, one] * g[0][:, :, other]
        for k in range(1, columns):
            outer.addcmul_(g[k][:, :, one], g[k][:, :, other])
        inner = a[:, :, one] * a[:, :, other] * twice
        total += outer.flatten(1, 2).mT @ inner.flatten(1, 2)
    return total


def _row_by_row(call: MatrixCall, total: Tensor) -> Tensor:
    """One row at a time, in memory that stays in the cache: all rows together would be too large."""
    a, row = call.a.dense(), torch.empty_like(total[0])
    for e, pair in enumerate(total):
        for n in range(a.shape[1]):
            for g in call.g[:, e, n]:
                torch.mm(g.mT, a[e, n], out=row)
                pair.addcmul_(row, row)
    return total


# Call by call


def squares_per_call(block: Block, grads: Gradients, dtype: torch.dtype) -> Tensor:
    """Σ over calls of Σ (gradient)², [P] in the block's flat order, without cross terms of calls and positions.

    An exact row would have the size of the weight for every example. An output layer loses nothing: labels are drawn
    independently at every position, so the cross terms vanish on average.
    """
    total = torch.zeros(block.size, dtype=dtype, device=grads.columns.device)
    pieces = dict(zip((p.name for p in block.params), total.split([p.numel for p in block.params]), strict=True))
    shapes = {p.name: p.shape for p in block.params}
    for index, _ in grads.recording.calls_of(block):
        for ref, squares in _squares_of_call(grads.recording.calls[index], widened(grads.grads[index]), dtype):
            if ref.name in pieces:
                rows = pieces[ref.name].view(shapes[ref.name])[ref.start : ref.stop]
                rows += squares.reshape(rows.shape)
    return total


def _squares_of_call(call: LayerCall, g: Tensor, dtype: torch.dtype) -> Iterator[tuple[Ref, Tensor]]:
    """The terms of one call for the diagonal of its weight and of its bias."""
    use, rule = call.use, call.use.rule
    if isinstance(rule, MatrixRule):
        if use.weight is not None:
            yield use.weight, as_weight(_squared_products(g, call.features, dtype), rule)
        if use.bias is not None:
            yield use.bias, g.to(dtype).square().sum((0, 2, 3))
    elif isinstance(rule, EmbeddingRule):
        assert use.weight is not None
        merged = summed_at_first(call.features, g)  # [K, N, T, F]
        table = torch.zeros(use.weight.rows, g.shape[-1], dtype=dtype, device=g.device)
        yield use.weight, table.index_add_(0, call.features.flatten(), merged.to(dtype).square().sum(0).flatten(0, 1))
    else:
        if use.weight is not None:
            yield use.weight, (g * call.features).sum(2).to(dtype).square().sum((0, 1))
        if use.bias is not None:
            yield use.bias, g.sum(2).to(dtype).square().sum((0, 1))


def _squared_products(g: Tensor, x: Tensor, dtype: torch.dtype) -> Tensor:
    """Σ_{k,n,t} g² ⊗ x² for g [K, E, N, T, O] and x [E, N, T, D]: [E, O, D]."""
    flat, seen = g.flatten(2, 3), x.flatten(1, 2)  # [K, E, R, O], [E, R, D]
    total = torch.zeros(x.shape[0], g.shape[-1], x.shape[-1], dtype=dtype, device=g.device)
    each = len(g) * x.shape[0] * (g.shape[-1] + x.shape[-1]) * total.element_size()
    for which in chunks(flat.shape[2], 2 * each, g.device):
        squares = flat[:, :, which].to(dtype).square()
        summed = squares[0] if len(squares) == 1 else squares.sum(0)  # [E, r, O]
        total += summed.mT @ seen[:, which].to(dtype).square()
    return total
