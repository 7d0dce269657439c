"""The calls of one batch, with the example dimension first, and backward passes to their outputs.

Index legend: K root columns, N examples, T positions, E Kronecker pairs, O outputs, D inputs, F features.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from whence.engine.batches import Inputs
from whence.linalg.dense import is_narrow, widened
from whence.recording.blocks import Block, MatrixForm
from whence.recording.broadcast import BroadcastRule
from whence.recording.gradients import Gradients
from whence.recording.layer_input import LayerInput
from whence.recording.layout import Layout, Place, lead_dims
from whence.recording.recorder import Pass, Ref, Use
from whence.recording.rules import EmbeddingRule, LinearRule, MatrixRule, Rule, TrailingRule

if TYPE_CHECKING:
    from whence.recording.plan import Plan


class LayerCall:
    """A use of a parameter in one batch: its inputs and gradients, with the example dimension first."""

    def __init__(
        self, use: Use, layout: Layout, size: int, keep_graph: bool, autocast: torch.dtype | None = None
    ) -> None:
        self.use, self.layout, self.size, self.keep_graph, self.autocast = use, layout, size, keep_graph, autocast
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
                found = self._examples_first(self.use.rule, narrow=False)
            self._features = found if self.keep_graph else found.detach()
        return self._features

    @property
    def has_features(self) -> bool:
        """Whether :attr:`features` are computed already or needed anyway, so that avoiding them gains nothing."""
        return self._features is not None or self.keep_graph

    def narrow_features(self) -> Tensor | None:
        """The features in half precision, if a GPU multiplied them in it."""
        rule = self.as_multiplied()
        return self._examples_first(rule, narrow=True).detach() if sums_in_float32(rule.x) else None

    def as_multiplied(self) -> Rule:
        """The rule with its input in the dtype that autocast used."""
        rule = self.use.rule
        if self.autocast is None or not rule.x.is_cuda or rule.x.dtype != torch.float32:
            return rule
        return replace(rule, x=rule.x.detach().to(self.autocast))

    def _examples_first(self, rule: Rule, narrow: bool) -> Tensor:
        if isinstance(rule, EmbeddingRule):
            return self.layout.examples_first(rule.x.unsqueeze(-1), 0, self.size).squeeze(-1)
        lead = 1 if isinstance(rule, MatrixRule) else 0
        found = rule.features()  # type: ignore[attr-defined]
        return self.layout.examples_first(found if narrow else widened(found), lead, self.size)

    def input(self, form: MatrixForm) -> LayerInput:
        """The input of a matrix call, in the form of its block."""
        return LayerInput(self.features, bool(form.inputs), form.bias, self.live)

    def gradient(self, raw: Tensor) -> Tensor:
        """Matrix: [K, E, N, T, O], perhaps in half precision; element and embedding: [K, N, T, F]."""
        narrow = sums_in_float32(raw) and isinstance(self.use.rule, MatrixRule)
        g = self.use.rule.gradient(raw if narrow else widened(raw))
        start, _ = lead_dims(self.use, g)
        return self.layout.examples_first(g, start, self.size)


def sums_in_float32(t: Tensor) -> bool:
    """Whether products of this half-precision tensor are accumulated in float32 without widening it, as on a GPU."""
    return t.is_cuda and is_narrow(t)


class Recording:
    """One batch after its forward pass, ready for backward passes."""

    def __init__(
        self, plan: Plan, inputs: Inputs, seen: Pass, size: int, keep_graph: bool, moved: Tensor | None = None
    ) -> None:
        self.plan, self.inputs, self.seen, self.size = plan, inputs, seen, size
        self.outputs = seen.outputs if moved is None else seen.outputs + moved.to(seen.outputs.dtype)
        self.calls: list[LayerCall] = []
        self.needed: list[int] = []  # the uses that are calls of a block
        self._calls_of: dict[str, list[tuple[int, Ref]]] = {}
        for index, use in enumerate(seen.uses):
            refs = [ref for ref in use.refs if ref.name in plan.block_of]
            for ref in refs:
                calls = self._calls_of.setdefault(plan.block_of[ref.name].name, [])
                if not calls or calls[-1][0] != len(self.calls):
                    calls.append((len(self.calls), ref))
            if refs:
                self.needed.append(index)
                layout = plan.layout_of(use, size)
                assert layout is not None
                self.calls.append(LayerCall(use, layout, size, keep_graph, plan.network.autocast))

    def calls_of(self, block: Block) -> list[tuple[int, Ref]]:
        """The :attr:`calls` of a block, with the rows of its parameter that each one used."""
        return self._calls_of.get(block.name, [])

    def inputs_of(self, block: Block) -> Iterator[tuple[slice, LayerInput]]:
        """The Kronecker pairs that each call of a matrix block covers, and its input."""
        assert block.form is not None
        for index, ref in self.calls_of(block):
            yield block.form.pairs_of(ref), self.calls[index].input(block.form)

    @property
    def is_last_layer(self) -> bool:
        """Whether the outputs [N, C] are those of one Linear call, and no other layer is Bayesian: then J = I ⊗ aᵀ."""
        if len(self.calls) != 1 or self.plan.example_blocks or self.outputs.dim() != 2:
            return False
        if any(not self.calls_of(block) for block in self.plan.blocks):
            return False  # this batch does not use the layer
        (call,) = self.calls
        if type(call.use.rule) is not LinearRule or call.layout != Layout(Place.DIM, 0):
            return False
        if not all(ref.whole for calls in self._calls_of.values() for _, ref in calls):
            return False
        end = self.seen.outputs.grad_fn
        return end is not None and end is call.use.edge.node and call.use.shape == self.outputs.shape

    @property
    def multiplications(self) -> float:
        """Of one forward pass, about: weights times the positions that they are used at, for all examples."""
        total = 0.0
        for block in self.plan.blocks:
            positions = sum(a.positions for _, a in self.inputs_of(block)) if block.form is not None else 1
            total += self.size * block.size * max(positions, 1)
        return total

    def bytes_per_column(self) -> int:
        """Memory of the gradients of one root column."""
        elements = sum(self.seen.uses[i].shape.numel() for i in self.needed)
        return 2 * elements * self.outputs.element_size()

    def differentiate(self, columns: Tensor, create_graph: bool = False) -> Gradients:
        """Send root columns [K, *outputs.shape] backward."""
        raw = self.seen.backward(columns, self.needed, create_graph)
        grads = [call.gradient(g) for call, g in zip(self.calls, raw, strict=True)]
        return Gradients(self, grads, columns, create_graph)
