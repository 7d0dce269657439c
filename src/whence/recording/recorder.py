"""Records the inputs of every parametric call in a forward pass, and runs backward passes to their outputs.

Calls are intercepted at the level of functions (``F.linear``, ``torch.conv2d`` …), so it does not matter
whether a module, a functional call or an attention layer makes them. Nothing is hooked: the recorder is a
context manager, and leaves nothing behind after an exception.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeGuard

import torch
from torch import Tensor
from torch.autograd.graph import GradientEdge, get_gradient_edge
from torch.nn import functional as F
from torch.overrides import TorchFunctionMode

from whence.engine.batches import Inputs
from whence.errors import BadData, UnsupportedLayer
from whence.functional import Network, differentiable
from whence.recording.attention import attention
from whence.recording.backward import gradients
from whence.recording.broadcast import (
    ADDITIONS,
    EXPANSIONS,
    PRODUCTS,
    PRODUCTS_IN_PLACE,
    AddedRule,
    BroadcastRule,
    ScaledRule,
    added_rows,
    broadcast_rule,
    expanded_rule,
    operands,
)
from whence.recording.recurrent import CELLS, SEQUENCES, RecurrentCall
from whence.recording.rules import BINDERS, ElementRule, EmbeddingRule, MatrixRule, Rule


@dataclass(frozen=True)
class Ref:
    """A selected parameter, or a range of its rows, used as a weight or bias."""

    name: str
    start: int
    stop: int
    rows: int  # of the whole parameter
    offset: float = 0.0  # added to it: scales are often written as 1 + p

    @property
    def whole(self) -> bool:
        return self.start == 0 and self.stop == self.rows


@dataclass(frozen=True)
class Use:
    """One call with at least one selected parameter."""

    rule: Rule
    weight: Ref | None
    bias: Ref | None
    edge: GradientEdge  # its output, before in-place changes
    shape: torch.Size  # of its output
    nth: int  # number of earlier calls of this parameter
    weight_value: Tensor | None = None  # the weight, where it is not a selected parameter

    @property
    def refs(self) -> list[Ref]:
        """Its selected parameters: weight, bias."""
        return [ref for ref in (self.weight, self.bias) if ref is not None]

    @property
    def key(self) -> tuple[Any, ...]:
        """Identifies the call across forward passes."""
        return type(self.rule).__name__, self.weight, self.bias, self.nth


PERIOD = 1_000_003  # entries
MAXIMA = {
    torch.max,
    torch.amax,
    torch.Tensor.max,
    torch.Tensor.amax,
    torch.maximum,
    F.max_pool1d,
    F.adaptive_max_pool1d,
}  # functions whose result does not depend on every entry


class Recorder(TorchFunctionMode):
    """Collects the uses of a network's selected parameters."""

    def __init__(self, network: Network, alone: Collection[Any] = ()) -> None:
        super().__init__()
        self.network = network
        self.alone = alone  # keys of calls to expect of an example alone, whose dimension may be dropped
        self.uses: list[Use] = []
        self.counts: dict[Any, int] = {}
        self.recurrent: list[RecurrentCall] = []
        self.maxima = False  # whether a maximum was taken
        self.looked_up: dict[int, tuple[Tensor, int]] = {}  # rows of embeddings, and the index of their use
        self.derived: dict[int, tuple[Tensor, Ref]] = {}  # parameters plus a constant

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if func is F.multi_head_attention_forward:
            with self:
                return attention(*args, **kwargs)
        if func in PRODUCTS_IN_PLACE:
            return self._product_in_place(func, args, kwargs)
        out = func(*args, **kwargs)
        binder = BINDERS.get(func)
        if _followed(out):
            if binder is not None:
                return self._record(binder, func, out, args, kwargs)
            if func in EXPANSIONS:
                return self._record_expansion(out, args[0])
            if func in ADDITIONS:
                self._derive(out, args, kwargs)
                self._record_sum(out, args, kwargs)
            elif func in PRODUCTS:
                self._record_product(out, operands(args, kwargs))
        if func in SEQUENCES or func in CELLS:
            self.recurrent.append(RecurrentCall(func, args))
        elif func in MAXIMA:
            self.maxima = True
        return out

    def _record(self, binder: Any, func: Any, out: Tensor, args: Any, kwargs: Any) -> Tensor:
        """Record a call, and return the output that the forward pass should continue with."""
        call = binder(*args, **kwargs)
        if call is None:
            return out
        weight, bias = self._ref(call.weight), self._ref(call.bias)
        if weight is not None and not weight.whole and getattr(call.rule, "inputs_first", False):
            return out  # a range of inputs, not of outputs: handled by the fallback
        if weight is None and bias is None:
            return out
        if not isinstance(call.rule, MatrixRule) and not all(ref is None or ref.whole for ref in (weight, bias)):
            return out  # of vectors and tables only whole ones are followed
        if (weight and weight.offset and not isinstance(call.rule, ElementRule)) or (bias and bias.offset):
            return out  # 1 + p is supported only as a scale
        if func is F.batch_norm and (kwargs.get("training", False) or (len(args) > 5 and args[5])):
            raise UnsupportedLayer(
                f"the batch normalisation of {(weight or bias).name!r} uses the statistics of the batch even in "  # type: ignore[union-attr]
                "evaluation mode (track_running_stats=False), so examples depend on each other. Give it running "
                "statistics, or replace it with group normalisation."
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
        """Record a parameter plus a constant, whose gradient is that of the parameter."""
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
            if ref is not None and ref.whole and not ref.offset:
                rule = self._broadcast(AddedRule, x, p, out, (None, ref))
                if rule is not None:
                    self._add(rule, None, ref, out)
            elif seen is not None:  # looked up once for all examples
                use = self.uses[seen[1]]
                rows = added_rows(use.rule, p, out)  # type: ignore[arg-type]
                if rows is not None:
                    self.uses[seen[1]] = replace(use, rule=rows, edge=get_gradient_edge(out), shape=out.shape)
                    del self.looked_up[id(p)]

    def _record_expansion(self, out: Tensor, p: Tensor) -> Tensor:
        """Record an expanded parameter; return an output that is not a view of it."""
        ref = self._ref(p) or self._reshaped(p)
        rule = None if ref is None or not ref.whole or ref.offset or out is p else expanded_rule(p, out)
        if rule is None:
            return out
        out = out.clone()
        self._add(rule, None, ref, out)
        return out

    def _record_product(self, out: Tensor, pairs: list[tuple[Tensor, Tensor]]) -> None:
        for x, p in pairs:
            ref = self._ref(p) or self._reshaped(p)
            rule = None if ref is None or not ref.whole else self._broadcast(ScaledRule, x, p, out, (ref, None))
            if rule is not None:
                self._add(rule, ref, None, out)

    def _broadcast(
        self, kind: type[BroadcastRule], x: Tensor, p: Tensor, out: Tensor, refs: tuple[Ref | None, Ref | None]
    ) -> BroadcastRule | None:
        """The rule of a parameter that is repeated, or that acts on an example alone as it does on several."""
        rule = broadcast_rule(kind, x, p, out)
        expected = rule is None and p.shape == out.shape and bool(self.alone)
        if expected and (kind.__name__, *refs, self.counts.get(refs, 0)) in self.alone:
            return kind(x, (), out.shape)
        return rule

    def _product_in_place(self, func: Any, args: Any, kwargs: Any) -> Any:
        """A product that overwrites one of its factors, which is copied before."""
        pairs = operands(args, kwargs)[:1]
        wanted = [(x.detach().clone(), p) for x, p in pairs if self._ref(p) or self._reshaped(p)]
        out = func(*args, **kwargs)
        if wanted and _followed(out):
            self._record_product(out, wanted)
        return out

    def _reshaped(self, tensor: Tensor) -> Ref | None:
        """The whole parameter of which ``tensor`` is a reshaped view, such as ``gamma.view(1, -1, 1, 1)``."""
        base = tensor._base if tensor.requires_grad else None
        name = None if base is None else self.network.names_by_id.get(id(base))
        if name is None or base is None or base.numel() != tensor.numel():
            return None
        if not (base.is_contiguous() and tensor.is_contiguous()):
            return None
        rows = base.shape[0] if base.dim() else 1
        return Ref(name, 0, rows, rows)

    def _ref(self, tensor: Tensor | None) -> Ref | None:
        """The selected parameter that ``tensor`` is, or of whose rows it is a contiguous range."""
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


def _followed(out: Any) -> TypeGuard[Tensor]:
    """Whether a result is recorded.

    Complex ones (of a Fourier transform), and those inside ``torch.func`` (a network that differentiates itself), are
    left to gradients of single examples.
    """
    if not (isinstance(out, Tensor) and out.requires_grad and out.is_floating_point()):
        return False
    return not torch._C._functorch.is_functorch_wrapped_tensor(out)


def own(out: Tensor) -> Tensor:
    """An output that later operations may change in place without detaching it from the graph.

    For some calls (a Linear layer with a bias on three dimensions, instance normalisation) torch returns a view of an
    inner result, and in-place operations on a view change the history of its base.
    """
    base = out._base
    if base is None or base.numel() != out.numel() or not (base.is_contiguous() and out.is_contiguous()):
        return out
    return torch.ops.aten._unsafe_view(base, out.shape)


@dataclass
class Pass:
    """The outputs of one forward pass, and the recorded uses."""

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


def forward(network: Network, inputs: Inputs, fused: bool = False, recorder: Recorder | None = None) -> Pass:
    """Run the network once, recording the uses of its selected parameters."""
    recorder = recorder or Recorder(network)
    with differentiable(network, fused), recorder:
        outputs = network(inputs)
    if outputs.dim() == 0:
        raise BadData("the network returns a single number, not one output per example.")
    return Pass(network, outputs, recorder.uses, recorder.recurrent, recorder.maxima)


def probe_like(outputs: Tensor, period: int = PERIOD) -> Tensor:
    """A direction in output space in which nothing vanishes by chance; computed on the device, for CUDA graphs.

    It repeats itself after ``period`` entries.
    """
    size = outputs.numel()
    if not size:
        return outputs.detach()
    places = torch.arange(1, min(size, period) + 1, dtype=torch.float64, device=outputs.device)
    noise = (torch.sin(places * 12.9898) * 43758.5453).frac() * 12**0.5  # spread over (−√12, √12)
    return noise.to(outputs.dtype).repeat(-(-size // len(noise)))[:size].reshape(outputs.shape)
