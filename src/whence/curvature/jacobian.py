"""Per-example gradients of a block, from the recorded calls of one batch.

Index legend: K root columns, N examples, T positions, E Kronecker pairs, O outputs, D inputs, P parameters.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from whence.batches import Inputs, take
from whence.curvature.affine import Affine, times
from whence.curvature.autocorrelation import Windows
from whence.curvature.blocks import Block, MatrixForm
from whence.curvature.broadcast import BroadcastRule
from whence.curvature.capture import Pass, Ref, Use
from whence.curvature.layout import Inspection, Layout, lead_dims
from whence.curvature.layout import widened as widened
from whence.curvature.lines import Lines
from whence.curvature.rows import summed_at_first, use_rows
from whence.curvature.rules import ConvRule, EmbeddingRule, LinearRule, MatrixRule, Rule, TrailingRule
from whence.linalg.dense import is_narrow

if TYPE_CHECKING:
    from whence.curvature.plan import Plan

BUDGET = 64 * 2**20  # bytes that one intermediate may take
CUDA_BUDGET = 2 * 2**30
PIECE = 16 * 2**20  # bytes of patches that are made at a time on the CPU; they stay in the cache


def budget(device: torch.device) -> int:
    """Bytes that one intermediate tensor may take on this device."""
    return CUDA_BUDGET if device.type == "cuda" else BUDGET


def chunks(total: int, bytes_each: int, device: torch.device) -> Iterator[slice]:
    """Slices of ``range(total)`` such that a slice stays inside the budget."""
    step = max(1, int(budget(device) // max(bytes_each, 1)))
    for start in range(0, total, step):
        yield slice(start, min(start + step, total))


@dataclass(frozen=True)
class MatrixPart:
    """One call of a matrix: its inputs a, and output gradients g [K, E', N, T, O]."""

    pairs: slice  # which of the block's E pairs
    a: Affine
    g: Tensor

    def rows(self, which: slice) -> Tensor:
        """Σ_t g aᵀ for some examples, [K, n, E', O, D]."""
        return self.a.take(which).outer(self.g[:, :, which])

    def turned(self, left: Tensor, right: Tensor) -> MatrixPart:
        """The same call in the bases Q_G [E, O, O] and Q_A [E, D, D]."""
        return MatrixPart(self.pairs, Affine(self.a.turned(right[self.pairs])), self.turned_outputs(left))

    def turned_outputs(self, left: Tensor) -> Tensor:
        """g in the basis Q_G [E, O, O]."""
        return times(self.g.to(left.dtype).transpose(0, 1), left[self.pairs]).transpose(0, 1)


class CalledUse:
    """A use in a batch of known size: its features with the examples first."""

    def __init__(
        self, use: Use, inspection: Inspection, size: int, keep_graph: bool, autocast: torch.dtype | None = None
    ) -> None:
        self.use, self.size, self.keep_graph, self.autocast = use, size, keep_graph, autocast
        self.layout = inspection.layouts[use.key]
        self.live: Tensor | None = None  # which positions count, [N, T]; None for all
        self._features: Tensor | None = None

    @property
    def positions(self) -> int:
        """T."""
        rule = self.use.rule
        if isinstance(rule, BroadcastRule):
            own = math.prod(size for d, size in enumerate(self.use.shape) if d not in rule.repeated)
        else:
            own = math.prod(self.use.shape[-(rule.dims if isinstance(rule, TrailingRule) else 1) :])
        return self.use.shape.numel() // max(own * self.size, 1)

    @property
    def features(self) -> Tensor:
        """Matrix: [E, N, T, D]; element: [N, T, F]; embedding: indices [N, T]."""
        if self._features is None:
            with torch.set_grad_enabled(self.keep_graph):
                found = self._examples_first()
            self._features = found if self.keep_graph else found.detach()
        return self._features

    def pieces(self, form: MatrixForm) -> Iterator[tuple[Affine | Windows | Lines, bool]]:
        """What a matrix call saw; of a convolution what stands in for patches, or some examples' patches at a time.

        With each: whether it is the last.
        """
        for x, last in self._pieces(form):
            yield x if isinstance(x, (Windows, Lines)) else Affine(x, bool(form.inputs), form.bias, self.live), last

    def _pieces(self, form: MatrixForm) -> Iterator[tuple[Tensor | Windows | Lines, bool]]:
        rule = self.use.rule
        plain = self.layout == Layout("dim", 0) and isinstance(rule, ConvRule) and len(rule.x) == self.size
        if self._features is not None or self.keep_graph:
            yield self.features, True
            return
        rule = self._as_seen()
        if not plain:
            yield self._examples_first(rule).detach() if stays_narrow(rule.x) else self.features, True
            return
        assert isinstance(rule, ConvRule)
        if form.inputs and not stays_narrow(rule.x):
            sums = rule.without_patches(widened(rule.x.detach()), form.bias)
            yield from ((some, some is sums[-1]) for some in sums)
            if sums:
                return
        positions = self.use.shape[2:].numel()
        each = positions * rule.x.shape[1] * math.prod(rule.kernel) * rule.x.element_size()
        step = max(1, int(PIECE if rule.x.device.type == "cpu" else budget(rule.x.device)) // max(each, 1))
        for start in range(0, self.size, step):
            patches = replace(rule, x=rule.x[start : start + step].detach()).features()
            yield patches if stays_narrow(rule.x) else widened(patches), start + step >= self.size

    def _as_seen(self) -> Rule:
        """The rule of a matrix call with the input in the type in which autocast multiplied it."""
        rule = self.use.rule
        if self.autocast is None or not rule.x.is_cuda or rule.x.dtype != torch.float32:
            return rule
        return replace(rule, x=rule.x.detach().to(self.autocast))

    def _examples_first(self, rule: Rule | None = None) -> Tensor:
        as_it_is, rule = rule is not None, rule or self.use.rule
        if isinstance(rule, EmbeddingRule):
            return self.layout.examples_first(rule.x.unsqueeze(-1), 0, self.size).squeeze(-1)
        lead = 1 if isinstance(rule, MatrixRule) else 0
        found = rule.features()  # type: ignore[attr-defined]
        return self.layout.examples_first(found if as_it_is else widened(found), lead, self.size)

    def gradient(self, raw: Tensor) -> Tensor:
        """Matrix: [K, E, N, T, O], perhaps in half precision; element and embedding: [K, N, T, F]."""
        narrow = stays_narrow(raw) and isinstance(self.use.rule, MatrixRule)
        g = self.use.rule.gradient(raw if narrow else widened(raw))
        start, _ = lead_dims(self.use, g)
        return self.layout.examples_first(g, start, self.size)


def stays_narrow(t: Tensor) -> bool:
    """Whether sums of its products are had in float32 without widening it first: a GPU multiplies so."""
    return t.is_cuda and is_narrow(t)


class Recording:
    """One batch that went forward, ready for backward passes."""

    def __init__(self, plan_: Plan, inputs: Inputs, seen: Pass, size: int, keep_graph: bool) -> None:
        self.plan, self.inputs, self.seen, self.size = plan_, inputs, seen, size
        self.called: list[CalledUse] = []
        self.needed: list[int] = []
        self.calls_of: dict[str, list[tuple[int, Ref]]] = {}  # by block: which of ``called``, with which rows
        for index, use in enumerate(seen.uses):
            refs = [ref for ref in (use.weight, use.bias) if ref is not None and ref.name in plan_.block_of]
            for ref in refs:
                calls = self.calls_of.setdefault(plan_.block_of[ref.name].name, [])
                if not calls or calls[-1][0] != len(self.called):
                    calls.append((len(self.called), ref))
            if refs:
                self.needed.append(index)
                self.called.append(CalledUse(use, plan_.inspection, size, keep_graph, plan_.network.autocast))

    @property
    def outputs(self) -> Tensor:
        return self.seen.outputs

    @property
    def direct(self) -> bool:
        """Whether the outputs [N, C] are those of one Linear call, and nothing else is Bayesian."""
        if len(self.called) != 1 or self.plan.example_blocks or self.outputs.dim() != 2:
            return False
        if any(block.name not in self.calls_of for block in self.plan.blocks):
            return False  # a layer that this batch does not use
        use = self.called[0].use
        if type(use.rule) is not LinearRule or self.called[0].layout != Layout("dim", 0):
            return False
        if not all(ref.whole for calls in self.calls_of.values() for _, ref in calls):
            return False
        end = self.outputs.grad_fn
        return end is not None and end is use.edge.node and use.shape == self.outputs.shape

    def bytes_per_column(self) -> int:
        """Memory of the gradients that one root column makes."""
        elements = sum(self.seen.uses[i].shape.numel() for i in self.needed)
        return 2 * elements * self.outputs.element_size()

    def differentiate(self, columns: Tensor, create_graph: bool = False) -> Gradients:
        """Send root columns [K, *outputs.shape] backward."""
        raw = self.seen.backward(columns, self.needed, create_graph)
        grads = [called.gradient(g) for called, g in zip(self.called, raw, strict=True)]
        return Gradients(self, grads, columns, create_graph)

    def block_inputs(self, block: Block) -> Iterator[tuple[slice, Affine]]:
        """Which pairs each call of a matrix block covers, and what it saw."""
        assert block.form is not None
        for index, ref in self.calls_of.get(block.name, []):
            yield pairs_of(ref, block.form), affine(self.called[index], block.form)

    def input_pieces(self, block: Block) -> Iterator[tuple[slice, Affine | Windows | Lines, bool]]:
        """The same piece by piece, for sums over examples; with each, whether it is the last."""
        assert block.form is not None
        calls = self.calls_of.get(block.name, [])
        for i, (index, ref) in enumerate(calls, 1):
            for piece, last in self.called[index].pieces(block.form):
                yield pairs_of(ref, block.form), piece, last and i == len(calls)


def affine(called: CalledUse, form: MatrixForm) -> Affine:
    """The inputs of a call as its block sees them."""
    return Affine(called.features, bool(form.inputs), form.bias, called.live)


class Gradients:
    """Output gradients of every call for K root columns, read by block."""

    def __init__(self, recording: Recording, grads: list[Tensor], columns: Tensor, create_graph: bool) -> None:
        self.recording, self.grads, self.columns, self.create_graph = recording, grads, columns, create_graph
        self.count = len(columns)
        self._kept: tuple[tuple[int, int], dict[str, Tensor]] | None = None

    def outputs_of(self, block: Block) -> Iterator[tuple[slice, Tensor]]:
        """Which pairs each call of a matrix block covers, and its output gradients [K, E', N, T, O]."""
        assert block.form is not None
        for index, ref in self.recording.calls_of.get(block.name, []):
            yield pairs_of(ref, block.form), self.grads[index]

    def parts(self, block: Block) -> list[MatrixPart]:
        """The calls of a matrix block."""
        form = block.form
        assert form is not None
        return [
            MatrixPart(pairs_of(ref, form), affine(self.recording.called[i], form), widened(self.grads[i]))
            for i, ref in self.recording.calls_of.get(block.name, [])
        ]

    def table(self, block: Block) -> tuple[Tensor, Tensor]:
        """An embedding's rows: indices [N, T], and gradients [K, N, T, F] summed at an index's first place."""
        calls = [index for index, _ in self.recording.calls_of.get(block.name, [])]
        if not calls:  # not in this batch
            size, features = self.recording.size, block.params[0].shape[-1]
            ids = torch.zeros(size, 0, dtype=torch.long, device=self.columns.device)
            return ids, widened(self.columns.new_zeros(self.count, size, 0, features))
        ids = torch.cat([self.recording.called[i].features for i in calls], dim=1)
        return ids, summed_at_first(ids, torch.cat([self.grads[i] for i in calls], dim=2))

    def rows(self, block: Block, which: slice) -> Tensor:
        """Per-example gradients [K, n, P] of some examples, in the block's flat order."""
        size = len(range(self.recording.size)[which])
        if block.source == "example":
            return widened(block.gather(self._example_rows(which)))
        if block.source == "matrix":
            return self._matrix_rows(block, which, size)
        found = self._use_rows(block, which)
        if [ref.name for ref, _ in found] == [p.name for p in block.params] and all(ref.whole for ref, _ in found):
            return torch.cat([values for _, values in found], dim=-1)
        total = widened(self.columns.new_zeros(self.count, size, block.size))
        offsets = dict(zip((p.name for p in block.params), _starts(block), strict=True))
        for ref, values in found:
            shape = next(p.shape for p in block.params if p.name == ref.name)
            start = offsets[ref.name] + ref.start * int(torch.Size(shape[1:]).numel())
            total = total + torch.nn.functional.pad(values, (start, block.size - start - values.shape[-1]))
        return total

    def _use_rows(self, block: Block, which: slice) -> list[tuple[Ref, Tensor]]:
        """What each use of the block's parameters adds to its rows."""
        names = [p.name for p in block.params]
        return [
            (ref, values)
            for index, _ in self.recording.calls_of.get(block.name, [])
            for ref, values in use_rows(self.recording.called[index], widened(self.grads[index]), which)
            if ref.name in names
        ]

    def row_chunks(self, block: Block) -> Iterator[slice]:
        """Pieces of the batch whose rows fit the memory budget."""
        blocks = self.recording.plan.example_blocks if block.source == "example" else [block]
        elements = sum(b.size for b in blocks) * self.count
        return chunks(self.recording.size, elements * self.columns.element_size(), self.columns.device)

    def _example_rows(self, which: slice) -> dict[str, Tensor]:
        """Rows of all parameters that no rule explains; the last piece is kept for the next block."""
        key = (which.start, which.stop)
        if self._kept is None or self._kept[0] != key:
            rec = self.recording
            found = rec.plan.per_example.rows(take(rec.inputs, which), self.columns[:, which], self.create_graph)
            self._kept = (key, found)
        return self._kept[1]

    def _matrix_rows(self, block: Block, which: slice, size: int) -> Tensor:
        assert block.form is not None
        parts = self.parts(block)
        if len(parts) == 1 and parts[0].pairs == slice(0, block.form.pairs):
            return block.form.unpack(parts[0].rows(which))
        native = widened(self.columns.new_zeros(self.count, size, *block.form.native))
        for part in parts:
            native[:, :, part.pairs] += part.rows(which)
        return block.form.unpack(native)


def pairs_of(ref: Ref, form: MatrixForm) -> slice:
    """Which of a block's pairs a call over some rows of its parameter covers."""
    if ref.whole:
        return slice(0, form.pairs)
    width = ref.stop - ref.start
    return slice(ref.start // width, ref.stop // width)


def _starts(block: Block) -> list[int]:
    starts, at = [], 0
    for p in block.params:
        starts.append(at)
        at += p.numel
    return starts
