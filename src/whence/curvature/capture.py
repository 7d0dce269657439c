"""One forward pass that remembers what every parametric call saw, and backward passes to its outputs.

Calls are seen at the level of functions (``F.linear``, ``torch.conv2d`` …), so that it does not matter
whether a module, a functional call or an attention layer makes them. Nothing is hooked: the recorder is a
context, and leaves nothing behind when an exception passes through it.
"""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor
from torch.autograd.graph import GradientEdge, get_gradient_edge
from torch.nn import functional as F
from torch.overrides import TorchFunctionMode

from whence.batches import Inputs
from whence.curvature.attention import attention
from whence.curvature.broadcast import (
    ADDITIONS,
    EXPANSIONS,
    PRODUCTS,
    PRODUCTS_IN_PLACE,
    AddedRule,
    ScaledRule,
    added_rows,
    broadcast_rule,
    expanded_rule,
    operands,
)
from whence.curvature.recurrent import CELLS, SEQUENCES, RecurrentCall
from whence.curvature.rules import BINDERS, ElementRule, EmbeddingRule, Rule
from whence.errors import BadData, UnsupportedLayer, is_out_of_memory
from whence.functional import Network, capturing, differentiable


@dataclass(frozen=True)
class Ref:
    """A selected parameter, or a range of its rows, in the place of a weight or bias."""

    name: str
    start: int
    stop: int
    rows: int  # of the whole parameter
    offset: float = 0.0  # that was added to it: 1 + p is a usual way to write a scale

    @property
    def whole(self) -> bool:
        return self.start == 0 and self.stop == self.rows


@dataclass(frozen=True)
class Use:
    """One call with at least one selected parameter."""

    rule: Rule
    weight: Ref | None
    bias: Ref | None
    edge: GradientEdge  # its output, before anything was done to it in place
    shape: torch.Size  # of its output
    nth: int  # how many calls of this parameter came before
    weight_value: Tensor | None = None  # the weight, where it is not a selected parameter

    @property
    def key(self) -> tuple[Any, ...]:
        """What identifies the call from one forward pass to the next."""
        return type(self.rule).__name__, self.weight, self.bias, self.nth


MAXIMA = {
    torch.max,
    torch.amax,
    torch.Tensor.max,
    torch.Tensor.amax,
    torch.maximum,
    F.max_pool1d,
    F.adaptive_max_pool1d,
}  # of entries of which some take no part in the result


class Recorder(TorchFunctionMode):
    """Collects the uses of a network's selected parameters."""

    def __init__(self, network: Network) -> None:
        super().__init__()
        self.network = network
        self.uses: list[Use] = []
        self.counts: dict[Any, int] = {}
        self.recurrent: list[RecurrentCall] = []
        self.maxima = False  # whether a maximum was taken
        self.looked_up: dict[int, tuple[Tensor, int]] = {}  # rows of embeddings, and their place among the uses
        self.derived: dict[int, tuple[Tensor, Ref]] = {}  # parameters plus a number

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if func is F.multi_head_attention_forward:
            with self:
                return attention(*args, **kwargs)
        if func in PRODUCTS_IN_PLACE:
            return self._product_in_place(func, args, kwargs)
        out = func(*args, **kwargs)
        binder = BINDERS.get(func)
        if binder is not None and isinstance(out, Tensor) and out.requires_grad:
            return self._record(binder, func, out, args, kwargs)
        if func in ADDITIONS and isinstance(out, Tensor) and out.requires_grad:
            self._derive(out, args, kwargs)
        if func in ADDITIONS and isinstance(out, Tensor) and out.requires_grad:
            self._record_sum(out, args, kwargs)
        elif func in EXPANSIONS and isinstance(out, Tensor) and out.requires_grad:
            return self._record_expansion(out, args[0])
        elif func in PRODUCTS and isinstance(out, Tensor) and out.requires_grad:
            self._record_product(out, operands(args, kwargs))
        elif func in SEQUENCES or func in CELLS:
            self.recurrent.append(RecurrentCall(func, args))
        elif func in MAXIMA:
            self.maxima = True
        return out

    def _record(self, binder: Any, func: Any, out: Tensor, args: Any, kwargs: Any) -> Tensor:
        """Note a call; its output, as what follows it should take it."""
        call = binder(*args, **kwargs)
        if call is None:
            return out
        weight, bias = self._ref(call.weight), self._ref(call.bias)
        if weight is not None and not weight.whole and getattr(call.rule, "inputs_first", False):
            return out  # a range of inputs, not of outputs: left to the fallback
        if weight is None and bias is None:
            return out
        if (weight and weight.offset and not isinstance(call.rule, ElementRule)) or (bias and bias.offset):
            return out  # 1 + p is known as a scale alone
        if func is F.batch_norm and (kwargs.get("training", False) or (len(args) > 5 and args[5])):
            raise UnsupportedLayer(
                f"the batch normalisation of {(weight or bias).name!r} uses the statistics of the batch even in "  # type: ignore[union-attr]
                "evaluation mode (track_running_stats=False), so examples are not independent. Give it running "
                "statistics, or replace it by group normalisation."
            )
        out = own(out)
        if isinstance(call.rule, EmbeddingRule):
            self.looked_up[id(out)] = (out, len(self.uses))
        self._add(call.rule, weight, bias, out, call.weight if weight is None else None)
        return out

    def _add(self, rule: Rule, weight: Ref | None, bias: Ref | None, out: Tensor, value: Tensor | None = None) -> None:
        key = (weight, bias)
        nth = self.counts.get(key, 0)
        self.counts[key] = nth + 1
        self.uses.append(Use(rule, weight, bias, get_gradient_edge(out), out.shape, nth, value))

    def _derive(self, out: Tensor, args: Any, kwargs: Any) -> None:
        """Note a parameter plus a number: gradients of the result are its own."""
        if kwargs:
            return
        tensors = [a for a in args if isinstance(a, Tensor)]
        numbers = [a for a in args if isinstance(a, (int, float)) and not isinstance(a, bool)]
        ref = self._ref(tensors[0]) if tensors else None
        if ref is None or not ref.whole or out is tensors[0] or out.shape != tensors[0].shape:
            return
        if len(tensors) == 1 and out.device == tensors[0].device:
            self.derived[id(out)] = (out, replace(ref, offset=ref.offset + sum(numbers)))

    def _record_sum(self, out: Tensor, args: Any, kwargs: Any) -> None:
        for x, p in operands(args, kwargs):
            ref, seen = self._ref(p) or self._reshaped(p), self.looked_up.get(id(p))
            if ref is not None and not ref.offset:
                rule = broadcast_rule(AddedRule, x, p, out)
                if rule is not None:
                    self._add(rule, None, ref, out)
            elif seen is not None:  # the same for all examples up to here
                use = self.uses[seen[1]]
                rows = added_rows(use.rule, p, out)  # type: ignore[arg-type]
                if rows is not None:
                    self.uses[seen[1]] = replace(use, rule=rows, edge=get_gradient_edge(out), shape=out.shape)
                    del self.looked_up[id(p)]

    def _record_expansion(self, out: Tensor, p: Tensor) -> Tensor:
        """Note a parameter that is repeated; its output, of which views for one example are no views of it."""
        ref = self._ref(p) or self._reshaped(p)
        rule = None if ref is None or ref.offset or out is p else expanded_rule(p, out)
        if rule is None:
            return out
        out = out.clone()
        self._add(rule, None, ref, out)
        return out

    def _record_product(self, out: Tensor, pairs: list[tuple[Tensor, Tensor]]) -> None:
        for x, p in pairs:
            ref = self._ref(p) or self._reshaped(p)
            rule = None if ref is None else broadcast_rule(ScaledRule, x, p, out)
            if rule is not None:
                self._add(rule, ref, None, out)

    def _product_in_place(self, func: Any, args: Any, kwargs: Any) -> Any:
        """A product that overwrites one of its factors, which is looked at before."""
        pairs = operands(args, kwargs)[:1]
        wanted = [(x.detach().clone(), p) for x, p in pairs if self._ref(p) or self._reshaped(p)]
        out = func(*args, **kwargs)
        if wanted and isinstance(out, Tensor) and out.requires_grad:
            self._record_product(out, wanted)
        return out

    def _reshaped(self, tensor: Tensor) -> Ref | None:
        """The whole parameter that ``tensor`` is in another shape, such as ``gamma.view(1, -1, 1, 1)``."""
        base = tensor._base if tensor.requires_grad else None
        name = None if base is None else self.network.names_by_id.get(id(base))
        if name is None or base is None or base.numel() != tensor.numel():
            return None
        if not (base.is_contiguous() and tensor.is_contiguous()):
            return None
        rows = base.shape[0] if base.dim() else 1
        return Ref(name, 0, rows, rows)

    def _ref(self, tensor: Tensor | None) -> Ref | None:
        """The selected parameter that ``tensor`` is, or whose rows it is a contiguous range of."""
        if tensor is None or not tensor.requires_grad:
            return None
        name = self.network.names_by_id.get(id(tensor))
        if name is not None:
            rows = tensor.shape[0] if tensor.dim() else 1
            return Ref(name, 0, rows, rows)
        if id(tensor) in self.derived:
            return self.derived[id(tensor)][1]
        base = tensor._base
        if base is None or id(base) not in self.network.names_by_id or base.dim() != tensor.dim():
            return None
        if base.shape[1:] != tensor.shape[1:] or tensor.stride() != base.stride() or base.stride(0) == 0:
            return None
        offset = tensor.storage_offset() - base.storage_offset()
        if offset % base.stride(0):
            return None
        start = offset // base.stride(0)
        return Ref(self.network.names_by_id[id(base)], start, start + tensor.shape[0], base.shape[0])


def own(out: Tensor) -> Tensor:
    """An output that what follows may change in place without cutting it off from the graph.

    Of some calls (a Linear layer with a bias on three dimensions, instance normalisation) torch gives a view of an
    inner result, and in-place operations on a view rewrite the history of that.
    """
    base = out._base
    if base is None or base.numel() != out.numel() or not (base.is_contiguous() and out.is_contiguous()):
        return out
    return torch.ops.aten._unsafe_view(base, out.shape)


@dataclass
class Pass:
    """The outputs of one forward pass, and the uses on the way to them."""

    network: Network
    outputs: Tensor
    uses: list[Use]
    recurrent: list[RecurrentCall]
    maxima: bool = False  # whether a maximum was taken

    def backward(self, columns: Tensor, which: Sequence[int], create_graph: bool = False) -> list[Tensor]:
        """Gradients of ⟨columns[k], outputs⟩ at the outputs of the uses ``which``: [K, *use.shape] each."""
        edges = [self.uses[i].edge for i in which]
        if not edges:
            return []
        with differentiable(self.network):
            grads = gradients(self.network, self.outputs, edges, columns, create_graph)
        return [
            self.outputs.new_zeros(len(columns), *self.uses[i].shape) if g is None else g
            for i, g in zip(which, grads, strict=True)
        ]


def gradients(
    network: Network, outputs: Tensor, edges: Sequence[Any], columns: Tensor, create_graph: bool
) -> list[Tensor | None]:
    """Derivatives of ⟨columns[k], outputs⟩ in the edges, batched over k where the operations allow."""
    options: dict[str, Any] = {"retain_graph": True, "create_graph": create_graph, "allow_unused": True}
    if len(columns) > 1:
        for name, together in (("vmapped_backward", _vmapped), ("batched_backward", _batched)):
            if not (network.batched_backward and getattr(network, name)):
                continue
            try:
                return together(outputs, edges, columns, options)
            except RuntimeError as error:
                if is_out_of_memory(error) or capturing():
                    raise
                setattr(network, name, False)  # some operation cannot be batched so
    single = [torch.autograd.grad(outputs, edges, column, **options) for column in columns]  # type: ignore[arg-type]
    if len(single) == 1:
        return [None if g is None else g.unsqueeze(0) for g in single[0]]
    stacked: list[Tensor | None] = []
    for per_edge in zip(*single, strict=True):
        found = next((g for g in per_edge if g is not None), None)
        if found is None:
            stacked.append(None)
            continue
        given = [torch.zeros_like(found) if g is None else g for g in per_edge]
        # Columns next to each other for each example: per-example products over them need no copy.
        stacked.append(torch.stack(given, dim=1).transpose(0, 1) if found.dim() else torch.stack(given))
    return stacked


def densified(g: Tensor) -> Tensor:
    """A sparse gradient (of an embedding) as a plain tensor."""
    return g.to_dense() if g.is_sparse else g


def _batched(outputs: Tensor, edges: Sequence[Any], columns: Tensor, options: dict[str, Any]) -> list[Tensor | None]:
    """All columns in one backward pass, but for convolutions, pools and what else it does one by one."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="There is a performance drop")
        return list(torch.autograd.grad(outputs, edges, columns, is_grads_batched=True, **options))  # type: ignore[arg-type]


def _vmapped(outputs: Tensor, edges: Sequence[Any], columns: Tensor, options: dict[str, Any]) -> list[Tensor | None]:
    """All columns in one backward pass."""
    used: list[bool] = []

    def back(column: Tensor) -> tuple[Tensor, ...]:
        found = torch.autograd.grad(outputs, edges, column, **options)  # type: ignore[arg-type]
        used[:] = [g is not None for g in found]
        return tuple(g for g in found if g is not None)

    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="There is a performance drop")
        found = iter(torch.func.vmap(back)(columns))
    return [next(found) if there else None for there in used]


def forward(network: Network, inputs: Inputs, fused: bool = False, recorder: Recorder | None = None) -> Pass:
    """Run the network once, recording the uses of its selected parameters."""
    recorder = recorder or Recorder(network)
    with differentiable(network, fused), recorder:
        outputs = network(inputs)
    if outputs.dim() == 0:
        raise BadData("the network returns a single number, not one output for each example.")
    return Pass(network, outputs, recorder.uses, recorder.recurrent, recorder.maxima)
