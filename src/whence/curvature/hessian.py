"""The exact Hessian of the negative log likelihood, for small networks."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from whence.curvature.accumulate import InputSums, accumulation_dtype
from whence.curvature.blocks import Block
from whence.curvature.capture import gradients
from whence.curvature.checkpoint import Sums
from whence.curvature.jacobian import widened
from whence.curvature.memory import Room, within
from whence.curvature.passes import Passes
from whence.curvature.plan import Plan
from whence.curvature.positions import find_live, has_sequences, probe
from whence.curvature.record import FitRecord, Recorder
from whence.curvature.sweep import Piece, relevant
from whence.errors import TooLarge, UnsupportedLayer
from whence.functional import differentiable
from whence.likelihoods import Likelihood
from whence.linalg.structures import Diagonal, Structure, Symmetric

if TYPE_CHECKING:
    from whence.curvature.options import Options

LIMIT = 20_000  # parameters; a Hessian takes one backward pass for each
TOGETHER = 64  # rows


def compute(
    plan: Plan,
    batches: Passes,
    likelihood: Likelihood,
    options: Options,
    keep: Tensor | None,
    signals: Sequence[InputSums],
) -> tuple[list[Structure], FitRecord]:
    """Σ ∇² NLL: jointly, by block, or its diagonal; with sums of what the blocks saw."""
    size = sum(b.size for b in plan.blocks)
    if size > LIMIT:
        raise TooLarge(
            f"curvature='hessian' takes a backward pass for each of {size:,} parameters (limit {LIMIT:,}). Use "
            "curvature='ggn', or select fewer weights."
        )
    groups = [plan.blocks] if options.structure == "full" or keep is not None else [[b] for b in plan.blocks]
    recorder, room = Recorder(likelihood), Room()
    like = plan.network.like
    dtype = accumulation_dtype(like.dtype)
    sums = [_empty(group, options.structure == "diag" and keep is None, dtype, like) for group in groups]
    kept = Sums(like.device, {str(i): total for i, total in enumerate(sums)})
    for batch in batches.passes(options.passes, options.progress, "hessian", [recorder, kept, *signals]):
        batch, numbers = relevant(batch, likelihood)
        if len(numbers):
            second = _Second(plan, groups, list(kept.values.values()), likelihood, recorder, room, signals)
            within(room, Piece(batch, numbers, [0] * len(groups)), second.add, _too_large)
    room.say("the fit", "row")
    totals = kept.values.values()
    return [_structure(total, group, keep) for total, group in zip(totals, groups, strict=True)], recorder.record


def _empty(group: list[Block], diagonal: bool, dtype: torch.dtype, like: Tensor) -> Tensor:
    size = sum(b.size for b in group)
    return torch.zeros((size,) if diagonal else (size, size), dtype=dtype, device=like.device)


@dataclass
class _Second:
    """Second derivatives of a batch's loss; a piece's columns are the rows that each group has of it."""

    plan: Plan
    groups: list[list[Block]]
    totals: list[Tensor]
    likelihood: Likelihood
    recorder: Recorder
    room: Room
    signals: Sequence[InputSums]

    def add(self, piece: Piece) -> None:
        batch, piece.trying = piece.batch, 0
        self._add_signals(piece)
        with differentiable(self.plan.network):
            outputs = widened(self.plan.network(batch.inputs))
            targets = self.likelihood.check(outputs, batch.targets, batch.index)
            if not piece.recorded:
                self.recorder.add(outputs, targets, batch.index)
                piece.recorded = True
            loss = self.likelihood.nll(outputs, targets).sum()
            for i, (group, total) in enumerate(zip(self.groups, self.totals, strict=True)):
                if piece.columns[i] < len(total):
                    self._add_rows(piece, i, group, total, loss)

    def _add_signals(self, piece: Piece) -> None:
        if piece.inputs == len(self.signals):
            return
        recording = self.plan.record(piece.batch.inputs, len(piece.rows))
        if has_sequences(recording):
            outputs = recording.outputs.detach()
            targets = self.likelihood.check(outputs, piece.batch.targets, piece.batch.index)
            column = probe(recording, self.likelihood, targets)
            find_live(recording, recording.differentiate(column), column)
        for sums in self.signals[piece.inputs :]:
            sums.inputs(recording)
            piece.inputs += 1

    def _add_rows(self, piece: Piece, i: int, group: list[Block], total: Tensor, loss: Tensor) -> None:
        piece.trying = 0
        params = [self.plan.network.params[p.name] for b in group for p in b.params]
        first = torch.autograd.grad(loss, params, create_graph=True, allow_unused=True, materialize_grads=True)
        flat = torch.cat([g.reshape(-1) for g in first])
        piece.trying = step = self.room.columns or TOGETHER
        for start, rows in _rows(self.plan, params, flat, piece.columns[i], step):
            which = slice(start, start + len(rows))
            total[which] += rows[:, which].diagonal() if total.dim() == 1 else rows
            piece.columns[i] = which.stop


def _too_large(piece: Piece) -> str:
    return (
        f"one row of the Hessian of one example does not fit into the memory of {piece.rows.device}. Select fewer "
        "weights with layers=…, or use curvature='ggn'."
    )


def _rows(plan: Plan, params: list[nn.Parameter], flat: Tensor, done: int, step: int) -> Iterator[tuple[int, Tensor]]:
    """Pieces of the Hessian from one row on, by the gradient ``flat``: (first row, rows)."""
    for start in range(done, len(flat), step):
        eye = torch.zeros(min(step, len(flat) - start), len(flat), dtype=flat.dtype, device=flat.device)
        eye[torch.arange(len(eye)), start + torch.arange(len(eye))] = 1
        if not flat.requires_grad:
            yield start, eye * 0
            continue
        found = gradients(plan.network, flat, params, eye, False)
        pieces = [
            eye.new_zeros(len(eye), p.numel()) if g is None else g.reshape(len(eye), -1)
            for p, g in zip(params, found, strict=True)
        ]
        yield start, torch.cat(pieces, dim=1)


def _structure(total: Tensor, group: list[Block], keep: Tensor | None) -> Structure:
    if total.dim() == 1:
        return Diagonal(total)
    skew = float((total - total.mT).norm() / total.norm().clamp(min=1e-30))
    if skew > (1e-6 if total.dtype == torch.float64 else 1e-2):
        names = ", ".join(b.name for b in group[:3])
        raise UnsupportedLayer(
            f"the second derivatives of {names} are not symmetric (by {skew:.2g}): an operation there has a wrong "
            "double backward (torch's fused weight norm is one). Use curvature='ggn', which needs no second derivative."
        )
    total = (total + total.mT) / 2
    return Symmetric(total if keep is None else total[keep][:, keep])
