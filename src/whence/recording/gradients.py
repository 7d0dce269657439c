"""Per-example gradients of a block, from the output gradients of its calls.

Parameters without a layer rule are differentiated one example after the other (:class:`PerExample`).

Index legend: K root columns, N examples, T positions, E Kronecker pairs, O outputs, D inputs, F features, P parameters.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch.nn import functional as F

from whence.engine.batches import Inputs, size_of, take
from whence.engine.contexts import capturing
from whence.engine.memory import chunks
from whence.errors import is_out_of_memory
from whence.functional import Network, differentiable
from whence.linalg.dense import widened
from whence.recording.backward import agree, densified, gradients, mixed_by, mixing
from whence.recording.blocks import Block, GradientSource
from whence.recording.layer_input import LayerInput, outer_sum, times
from whence.recording.layout import as_weight
from whence.recording.recorder import Ref
from whence.recording.rules import EmbeddingRule, MatrixRule

if TYPE_CHECKING:
    from whence.recording.calls import LayerCall, Recording


@dataclass(frozen=True)
class MatrixCall:
    """One call of a matrix: its inputs a, and output gradients g [K, E', N, T, O]."""

    pairs: slice  # which of the block's E pairs
    a: LayerInput
    g: Tensor

    def rows(self, which: slice) -> Tensor:
        """Σ_t g aᵀ for some examples, [K, n, E', O, D]."""
        return self.a.take(which).outer(self.g[:, :, which])

    def in_basis(self, left: Tensor, right: Tensor) -> MatrixCall:
        """The same call in the bases Q_G [E, O, O] and Q_A [E, D, D]."""
        return MatrixCall(self.pairs, LayerInput(self.a.in_basis(right[self.pairs])), self.outputs_in_basis(left))

    def outputs_in_basis(self, left: Tensor) -> Tensor:
        """g in the basis Q_G [E, O, O]."""
        return times(self.g.to(left.dtype).transpose(0, 1), left[self.pairs]).transpose(0, 1)


class Gradients:
    """Output gradients of every call for K root columns, read by block."""

    def __init__(self, recording: Recording, grads: list[Tensor], columns: Tensor, create_graph: bool) -> None:
        self.recording, self.grads, self.columns, self.create_graph = recording, grads, columns, create_graph
        self.count = len(columns)
        self._example_rows: tuple[tuple[int, int], dict[str, Tensor]] | None = None

    def outputs_of(self, block: Block) -> Iterator[tuple[slice, Tensor]]:
        """The pairs that each call of a matrix block covers, and its output gradients [K, E', N, T, O]."""
        assert block.form is not None
        for index, ref in self.recording.calls_of(block):
            yield block.form.pairs_of(ref), self.grads[index]

    def matrix_calls(self, block: Block) -> list[MatrixCall]:
        """The calls of a matrix block."""
        form, calls = block.form, self.recording.calls
        assert form is not None
        return [
            MatrixCall(form.pairs_of(ref), calls[i].input(form), widened(self.grads[i]))
            for i, ref in self.recording.calls_of(block)
        ]

    def table(self, block: Block) -> tuple[Tensor, Tensor]:
        """An embedding's rows: indices [N, T], and gradients [K, N, T, F] summed at an index's first position."""
        calls = [index for index, _ in self.recording.calls_of(block)]
        if not calls:  # not in this batch
            size, features = self.recording.size, block.params[0].shape[-1]
            ids = torch.zeros(size, 0, dtype=torch.long, device=self.columns.device)
            return ids, widened(self.columns.new_zeros(self.count, size, 0, features))
        ids = torch.cat([self.recording.calls[i].features for i in calls], dim=1)
        return ids, summed_at_first(ids, torch.cat([self.grads[i] for i in calls], dim=2))

    # Rows

    def row_chunks(self, block: Block) -> Iterator[slice]:
        """Parts of the batch whose rows fit the memory budget."""
        blocks = self.recording.plan.example_blocks if block.source is GradientSource.EXAMPLE else [block]
        elements = sum(b.size for b in blocks) * self.count
        return chunks(self.recording.size, elements * self.columns.element_size(), self.columns.device)

    def rows(self, block: Block, which: slice) -> Tensor:
        """Per-example gradients [K, n, P] of some examples, in the block's flat order."""
        size = len(range(self.recording.size)[which])
        if block.source is GradientSource.EXAMPLE:
            return widened(block.gather(self._unexplained_rows(which)))
        if block.source is GradientSource.MATRIX:
            return self._matrix_rows(block, which, size)
        names = [p.name for p in block.params]
        found = [
            (ref, values)
            for index, _ in self.recording.calls_of(block)
            for ref, values in call_rows(self.recording.calls[index], widened(self.grads[index]), which)
            if ref.name in names
        ]
        if [ref.name for ref, _ in found] == names and all(ref.whole for ref, _ in found):
            return torch.cat([values for _, values in found], dim=-1)
        total = widened(self.columns.new_zeros(self.count, size, block.size))
        for ref, values in found:
            start = block.offset_of(ref.name, ref.start)
            total = total + F.pad(values, (start, block.size - start - values.shape[-1]))
        return total

    def _unexplained_rows(self, which: slice) -> dict[str, Tensor]:
        """Rows of all parameters without a rule; the last chunk is cached for the next block."""
        key = (which.start, which.stop)
        if self._example_rows is None or self._example_rows[0] != key:
            per_example, inputs = self.recording.plan.per_example, take(self.recording.inputs, which)
            self._example_rows = key, per_example.rows(inputs, self.columns[:, which], self.create_graph)
        return self._example_rows[1]

    def _matrix_rows(self, block: Block, which: slice, size: int) -> Tensor:
        assert block.form is not None
        calls = self.matrix_calls(block)
        if len(calls) == 1 and calls[0].pairs == slice(0, block.form.pairs):
            return block.form.unpack(calls[0].rows(which))
        native = widened(self.columns.new_zeros(self.count, size, *block.form.native))
        for call in calls:
            native[:, :, call.pairs] += call.rows(which)
        return block.form.unpack(native)


def summed_at_first(ids: Tensor, g: Tensor) -> Tensor:
    """Gradients [K, N, T, F] of looked-up rows [N, T], summed at the first position of an index in its example."""
    first = (ids.unsqueeze(2) == ids.unsqueeze(1)).byte().argmax(2)  # [N, T]: first position of the same index
    return torch.zeros_like(g).scatter_add(2, first[None, :, :, None].expand_as(g), g)


def call_rows(call: LayerCall, g: Tensor, which: slice) -> Iterator[tuple[Ref, Tensor]]:
    """Per-example gradients of a call's weight and bias, [K, n, numel]."""
    use, rule = call.use, call.use.rule
    if isinstance(rule, MatrixRule):
        g = g[:, :, which]
        if use.weight is not None:
            native = outer_sum(g, call.features[:, which])
            yield use.weight, as_weight(native, rule).flatten(2)
        if use.bias is not None:
            yield use.bias, g.sum(3).movedim(1, 2).flatten(2)
    elif isinstance(rule, EmbeddingRule):
        assert use.weight is not None
        g, ids = g[:, which], call.features[which]
        table = g.new_zeros(*g.shape[:2], use.weight.rows, g.shape[-1])
        yield use.weight, table.scatter_add(2, ids[None, :, :, None].expand_as(g), g).flatten(2)
    else:
        g = g[:, which]
        if use.weight is not None:
            yield use.weight, (g * call.features[which]).sum(2)
        if use.bias is not None:
            yield use.bias, g.sum(2)


class PerExample:
    """Rows Σ_c column[k, c] ∂f_c / ∂θ for each example, by vmap or, where that fails, one by one."""

    def __init__(self, network: Network, names: list[str]) -> None:
        self.network, self.names = network, names

    def rows(self, inputs: Inputs, columns: Tensor, create_graph: bool = False) -> dict[str, Tensor]:
        """Columns [K, N, *outputs] → parameter name → [K, N, *shape]."""
        with differentiable(self.network):
            if self.network.runtime.vmapped_examples and not create_graph:
                try:
                    found = self._vectorised(inputs, columns)
                except (RuntimeError, ValueError, TypeError, NotImplementedError) as error:
                    if is_out_of_memory(error):
                        raise
                else:
                    if self._confirmed(found, inputs, columns):
                        return found
                self.network.runtime.vmapped_examples = False
            return self._one_by_one(inputs, columns, create_graph)

    def _vectorised(self, inputs: Inputs, columns: Tensor) -> dict[str, Tensor]:
        params = {name: self.network.params[name].detach() for name in self.names}

        def one(x: Any, cotangents: Tensor) -> dict[str, Tensor]:
            def f(p: dict[str, Tensor]) -> Tensor:
                return self.network.functional(p, _expand(x)).squeeze(0)

            pull = torch.func.vjp(f, params)[1]
            return torch.func.vmap(pull)(cotangents)[0]

        with torch.no_grad(), warnings.catch_warnings():
            warnings.filterwarnings("ignore", message="There is a performance drop")
            found = torch.func.vmap(one)(inputs, columns.transpose(0, 1))
        return {name: value.detach().transpose(0, 1) for name, value in found.items()}

    def _confirmed(self, found: dict[str, Tensor], inputs: Inputs, columns: Tensor) -> bool:
        """Whether a mixture of the rows is the gradient of one plain backward pass; checked once."""
        compared = self.network.runtime.compared
        if "examples" in compared or capturing():
            return True
        weights = mixing(columns, 2)  # [K, N]
        sent = (weights.reshape(*weights.shape, *[1] * (columns.dim() - 2)) * columns).sum(0, keepdim=True)
        params = [self.network.params[name] for name in self.names]
        true = gradients(self.network, self.network(inputs), params, sent, False)
        mixed = [mixed_by(weights, found[name]) for name in self.names]
        agreed = agree(self.network, mixed, [None if g is None else densified(g)[0] for g in true])
        if agreed:
            compared.add("examples")
        return agreed

    def _one_by_one(self, inputs: Inputs, columns: Tensor, create_graph: bool) -> dict[str, Tensor]:
        params = [self.network.params[name] for name in self.names]
        per_example: list[list[Tensor]] = []
        for n in range(size_of(inputs)):
            outputs = self.network(take(inputs, slice(n, n + 1)))
            grads = gradients(self.network, outputs, params, columns[:, n : n + 1], create_graph)
            per_example.append(
                [
                    p.new_zeros(len(columns), *p.shape) if g is None else densified(g)
                    for p, g in zip(params, grads, strict=True)
                ]
            )
        return {name: torch.stack([row[i] for row in per_example], 1) for i, name in enumerate(self.names)}


def _expand(x: Any) -> Any:
    """Restore the example dimension that vmap removed."""
    if isinstance(x, Tensor):
        return x.unsqueeze(0)
    if isinstance(x, dict):
        return {key: _expand(value) for key, value in x.items()}
    if isinstance(x, (tuple, list)):
        return type(x)(_expand(value) for value in x)
    return x
