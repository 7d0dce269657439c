"""The exact Hessian of the negative log likelihood, for small networks."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from whence.curvature.options import FitOptions
from whence.curvature.result import FitRecord, RecordSums
from whence.curvature.sums import InputSums
from whence.curvature.sweep import Examples, add_in_parts
from whence.engine.batches import counted_examples
from whence.engine.memory import ChunkLimits, sizes
from whence.engine.passes import Passes
from whence.engine.stages import NamedSums
from whence.errors import TooLarge, UnsupportedLayer, first_line
from whence.functional import differentiable
from whence.likelihoods import Likelihood
from whence.linalg.dense import accumulation_dtype, widened
from whence.linalg.structures import Diagonal, Structure, StructureKind, Symmetric
from whence.recording.backward import gradients
from whence.recording.blocks import Block
from whence.recording.plan import Plan
from whence.recording.positions import find_live, has_sequences, probe

LIMIT = 20_000  # parameters; the Hessian takes one backward pass for each


def compute(
    plan: Plan,
    batches: Passes,
    likelihood: Likelihood,
    options: FitOptions,
    keep: Tensor | None,
    signals: Sequence[InputSums],
) -> tuple[list[Structure], FitRecord]:
    """Σ ∇² NLL: jointly, by block, or only the diagonal. Also adds to ``signals``."""
    size = sum(b.size for b in plan.blocks)
    if size > LIMIT:
        raise TooLarge(
            f"curvature='hessian' takes a backward pass for each of {size:,} parameters (limit {LIMIT:,}). Use "
            "curvature='ggn', or select fewer weights."
        )
    joint = options.structure is StructureKind.FULL or keep is not None
    groups: list[Sequence[Block]] = [plan.blocks] if joint else [[b] for b in plan.blocks]
    record, limits = RecordSums(likelihood), ChunkLimits()
    like = plan.network.like
    dtype = accumulation_dtype(like.dtype)
    diagonal = options.structure is StructureKind.DIAG and keep is None
    sums = [_empty(group, diagonal, dtype, like) for group in groups]
    running = NamedSums(like.device, {str(i): total for i, total in enumerate(sums)})
    for batch in batches.passes(options.passes, options.progress, "hessian", [record, running, *signals]):
        batch, rows = counted_examples(batch, likelihood.counts)
        if len(rows):
            second = _SecondDerivatives(
                plan, groups, list(running.values.values()), likelihood, record, limits, signals
            )
            add_in_parts(Examples(batch, rows, [0] * len(groups)), second.add, limits, _too_large)
    limits.notify("the fit", "row")
    totals = running.values.values()
    return [_structure(total, group, keep) for total, group in zip(totals, groups, strict=True)], record.record


def _empty(group: Sequence[Block], diagonal: bool, dtype: torch.dtype, like: Tensor) -> Tensor:
    size = sum(b.size for b in group)
    return torch.zeros((size,) if diagonal else (size, size), dtype=dtype, device=like.device)


@dataclass
class _SecondDerivatives:
    """Second derivatives of a batch's loss; ``examples.columns`` counts the rows finished in each group."""

    plan: Plan
    groups: list[Sequence[Block]]
    totals: list[Tensor]
    likelihood: Likelihood
    record: RecordSums
    limits: ChunkLimits
    signals: Sequence[InputSums]

    def add(self, examples: Examples) -> None:
        batch = examples.batch
        self._add_signals(examples)
        with differentiable(self.plan.network):
            outputs = widened(self.plan.network(batch.inputs))
            targets = self.likelihood.check(outputs, batch.targets, batch.index)
            if not examples.recorded:
                self.record.add(outputs, targets, batch.index)
                examples.recorded = True
            loss = self.likelihood.nll(outputs, targets).sum()
            for i, (group, total) in enumerate(zip(self.groups, self.totals, strict=True)):
                if examples.columns[i] < len(total):
                    self._add_rows(examples, i, group, total, loss)

    def _add_signals(self, examples: Examples) -> None:
        if examples.inputs == len(self.signals):
            return
        recording = self.plan.record(examples.batch.inputs, len(examples.rows))
        if has_sequences(recording):
            outputs = recording.outputs.detach()
            targets = self.likelihood.check(outputs, examples.batch.targets, examples.batch.index)
            column = probe(recording, self.likelihood, targets)
            find_live(recording, recording.differentiate(column), column)
        for sums in self.signals[examples.inputs :]:
            sums.add_inputs(recording)
            examples.inputs += 1

    def _add_rows(self, examples: Examples, i: int, group: Sequence[Block], total: Tensor, loss: Tensor) -> None:
        self.limits.under_way = 0
        params = [self.plan.network.params[p.name] for b in group for p in b.params]
        first = torch.autograd.grad(loss, params, create_graph=True, allow_unused=True, materialize_grads=True)
        flat = torch.cat([g.reshape(-1) for g in first])
        self.limits.under_way = step = self.limits.columns or sizes().hessian_rows
        for start, rows in _rows(self.plan, params, flat, examples.columns[i], step):
            which = slice(start, start + len(rows))
            total[which] += rows[:, which].diagonal() if total.dim() == 1 else rows
            examples.columns[i] = which.stop


def _too_large(examples: Examples) -> str:
    return (
        f"one row of the Hessian of one example does not fit into the memory of {examples.rows.device}. Select fewer "
        "weights with layers=…, or use curvature='ggn'."
    )


def _rows(plan: Plan, params: list[nn.Parameter], flat: Tensor, done: int, step: int) -> Iterator[tuple[int, Tensor]]:
    """Pieces of the Hessian from row ``done`` on, as (first row, rows), from the gradient ``flat``."""
    for start in range(done, len(flat), step):
        eye = torch.zeros(min(step, len(flat) - start), len(flat), dtype=flat.dtype, device=flat.device)
        eye[torch.arange(len(eye)), start + torch.arange(len(eye))] = 1
        if not flat.requires_grad:
            yield start, eye * 0
            continue
        try:
            found = gradients(plan.network, flat, params, eye, False)
        except NotImplementedError as error:
            raise UnsupportedLayer(
                f"the Hessian needs second derivatives, and one operation of the network has none "
                f"({first_line(error)}). Use curvature='ggn'."
            ) from error
        pieces = [
            eye.new_zeros(len(eye), p.numel()) if g is None else g.reshape(len(eye), -1)
            for p, g in zip(params, found, strict=True)
        ]
        yield start, torch.cat(pieces, dim=1)


def _structure(total: Tensor, group: Sequence[Block], keep: Tensor | None) -> Structure:
    if total.dim() == 1:
        return Diagonal(total)
    skew = float((total - total.mT).norm() / total.norm().clamp(min=1e-30))
    if skew > (1e-6 if total.dtype == torch.float64 else 1e-2):
        names = ", ".join(b.name for b in group[:3])
        raise UnsupportedLayer(
            f"the second derivatives of {names} are not symmetric (by {skew:.2g}): an operation there has an incorrect "
            "double backward (torch's fused weight norm is one). Use curvature='ggn', which needs no second derivative."
        )
    total = (total + total.mT) / 2
    return Symmetric(total if keep is None else total[keep][:, keep])
