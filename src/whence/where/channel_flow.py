"""Which channels of which layer are constant, followed through the network in evaluation mode.

Index legend: O layer outputs, C channels of the layer that a flow comes from, I layer inputs, K kernel offsets,
M features that a channel becomes when it is flattened.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Literal

import torch
from torch import Tensor, fx, nn

from whence.errors import UnsupportedLayer
from whence.where.wiring import (
    MATRIX,
    NORM,
    TRANSPOSED,
    Wiring,
    by_unit,
    is_dropout,
    is_flatten,
    is_pointwise,
    is_pool,
    is_shape,
    is_spatial_mean,
    keeps_constants,
    name_of,
    overwritten,
)

Layout = Literal["spatial", "features", "rows", "tiles"]
_FLAT: dict[Layout, Layout] = {"spatial": "rows", "features": "tiles"}


@dataclass(frozen=True)
class Flow:
    """The channels of one layer, somewhere behind it."""

    source: str  # the layer
    constant: Tensor  # whether a channel is the same number everywhere and for every input, [C]
    value: Tensor  # that number; 0 elsewhere, [C] in float64
    layout: Layout  # channels first, last, or flattened: each channel's features in a row, or far apart

    def widen(self, channels: Tensor, inputs: int) -> Tensor:
        """Something for each channel [C], for each input of the layer that it flows into, [I]."""
        times = inputs // len(channels)
        return channels.repeat(times) if self.layout == "tiles" else channels.repeat_interleave(times)

    def narrow(self, used: Tensor) -> Tensor:
        """Which channels [C] have any of the inputs [I]."""
        count = len(self.constant)
        return used.reshape(-1, count).any(0) if self.layout == "tiles" else used.reshape(count, -1).any(1)


@dataclass(frozen=True)
class Stuck:
    """Channels that met an operation from which they cannot be taken out: (layer, operation, some are constant)."""

    entries: tuple[tuple[str, str, bool], ...]


@dataclass
class Flows:
    """What was found in one walk through the graph."""

    layers: dict[str, nn.Module] = field(default_factory=dict)  # in the order of their calls
    inflow: dict[str, Flow] = field(default_factory=dict)  # of a layer, where its input can be sliced
    norms: dict[str, list[nn.Module]] = field(default_factory=dict)  # over the channels of a layer
    held: set[str] = field(default_factory=set)  # layers that must stay whole
    refused: dict[str, str] = field(default_factory=dict)  # those among them with constant units → what holds them


def follow(wiring: Wiring) -> Flows:
    """Walk through the graph; refused where a constant channel cannot be taken out before the next layer."""
    found, at = Flows(), dict[fx.Node, Flow | Stuck]()
    for node in wiring.graph.nodes:
        if is_shape(node):
            continue
        came = [
            stick(at[n], n.name, found) if overwritten(n, wiring) else at[n] for n in node.all_input_nodes if n in at
        ]
        module = wiring.module_of(node)
        if isinstance(module, MATRIX):
            at[node] = _through_layer(node, module, came, wiring, found)
        elif node.op == "output":
            for flow in came:
                stick(flow, "the output", found)
        elif came:
            at[node] = _through(node, module, came, wiring, found)
    for source, reason in found.refused.items():
        raise UnsupportedLayer(
            f"units of {', '.join(map(repr, found.refused))} are always constant but cannot be taken out: those of "
            f"{source!r} pass through {reason}. Prune other layers (layers=…), or keep the masks."
        )
    return found


def stick(flow: Flow | Stuck, operation: str, found: Flows) -> Stuck:
    """Remember that the channels of a flow must all stay."""
    if isinstance(flow, Stuck):
        return flow
    found.held.add(flow.source)
    return Stuck(((flow.source, operation, bool(flow.constant.any())),))


def _through(
    node: fx.Node, module: nn.Module | None, came: list[Flow | Stuck], wiring: Wiring, found: Flows
) -> Flow | Stuck:
    """A flow behind a node that is no matrix layer."""
    flow = came[0]
    if len(came) == 1 and isinstance(flow, Flow):
        after = _one(node, module, flow, wiring, found)
        if after is not None:
            return after
    what = f"{node.target} ({type(module).__name__})" if module is not None else name_of(node)
    return Stuck(tuple(entry for f in came for entry in stick(f, what, found).entries))


def _one(node: fx.Node, module: nn.Module | None, flow: Flow, wiring: Wiring, found: Flows) -> Flow | None:
    """The same channels behind the node, or None where they cannot be followed."""
    if is_dropout(node, module):
        return flow
    if is_pointwise(node, module):
        return _pointwise(node, module, flow)
    if is_pool(node, module):
        fits = flow.layout == "spatial" and (keeps_constants(node, module) or not bool(flow.value.any()))
        return flow if fits else None
    if is_flatten(node, module):
        return replace(flow, layout=_FLAT.get(flow.layout, flow.layout))
    if is_spatial_mean(node) and flow.layout == "spatial":
        return replace(flow, layout="features")
    if isinstance(module, NORM) and flow.layout in ("spatial", "features"):
        alone = wiring.calls(module) == 1 and module.num_features == len(flow.constant)
        if alone and module.running_mean is not None:
            found.norms.setdefault(flow.source, []).append(module)
            return _normed(module, flow)
    return None


def _pointwise(node: fx.Node, module: nn.Module | None, flow: Flow) -> Flow:
    """f(value): the node's own function, at the constants."""
    given = flow.value.clone()
    if module is not None:
        dtype = next((p.dtype for p in module.parameters()), given.dtype)
        value = module(given.to(dtype)).double()
    else:
        args = tuple(given if isinstance(a, fx.Node) else a for a in node.args)
        kwargs = {k: given if isinstance(v, fx.Node) else v for k, v in node.kwargs.items()}
        value = (
            getattr(given, node.target)(*args[1:], **kwargs)
            if isinstance(node.target, str)
            else node.target(*args, **kwargs)
        )
    return replace(flow, value=torch.where(flow.constant, value, 0.0))


def _normed(norm: nn.Module, flow: Flow) -> Flow:
    """Behind a batch norm; a channel whose weight is 0 becomes constant there."""
    mean, variance = norm.running_mean.double(), norm.running_var.double()  # type: ignore[union-attr,operator]
    weight = torch.ones_like(mean) if norm.weight is None else norm.weight.double()  # type: ignore[operator]
    bias = torch.zeros_like(mean) if norm.bias is None else norm.bias.double()  # type: ignore[operator]
    constant = flow.constant | (weight == 0)
    value = (flow.value - mean) / (variance + norm.eps).sqrt() * weight + bias  # type: ignore[operator]
    return replace(flow, constant=constant, value=torch.where(constant, value, 0.0))


def _through_layer(
    node: fx.Node, layer: nn.Module, came: list[Flow | Stuck], wiring: Wiring, found: Flows
) -> Flow | Stuck:
    """A new flow that starts at a layer, from what is constant in its input."""
    name = str(node.target)
    sliceable = wiring.calls(layer) == 1 and getattr(layer, "groups", 1) == 1
    flow = came[0] if len(came) == 1 else None
    if isinstance(flow, Flow) and not (sliceable and _fits(layer, flow)):
        flow = stick(flow, f"{name} ({type(layer).__name__})", found)
    if isinstance(flow, Stuck):
        for source, operation, constant in flow.entries:
            if constant:
                found.refused.setdefault(source, f"{operation} before {name!r}")
        flow = None
    out = _outflow(name, layer, flow)
    if not sliceable:
        return stick(out, f"{name} (in groups, or called more than once)", found)
    found.layers[name] = layer
    if flow is not None:
        found.inflow[name] = flow
    return out


def _fits(layer: nn.Module, flow: Flow) -> bool:
    """Whether the inputs of the layer are the channels of the flow."""
    channels = len(flow.constant)
    if not isinstance(layer, nn.Linear):
        return flow.layout == "spatial" and bool(layer.in_channels == channels)
    if flow.layout in ("rows", "tiles"):
        return layer.in_features % channels == 0
    return flow.layout == "features" and layer.in_features == channels


def _outflow(name: str, layer: nn.Module, flow: Flow | None) -> Flow:
    """A unit is constant if it sees nothing but constants, and the same of them everywhere."""
    weight = by_unit(layer, layer.weight.detach()).double()  # type: ignore[operator,arg-type]
    inputs = weight.shape[1]
    fixed = torch.zeros(inputs, dtype=torch.bool, device=weight.device)
    fixed = fixed if flow is None else flow.widen(flow.constant, inputs)
    constant = (weight[:, ~fixed] == 0).flatten(1).all(1)
    shift = torch.zeros(len(weight), dtype=weight.dtype, device=weight.device)
    if flow is not None:
        value = flow.widen(flow.value, inputs)
        shift = weight.sum(2) @ value
        constant &= ~uneven(layer, weight, value).any(1)
    bias = shift if layer.bias is None else shift + layer.bias.detach().double()  # type: ignore[operator]
    layout: Layout = "features" if isinstance(layer, nn.Linear) else "spatial"
    return Flow(name, constant, torch.where(constant, bias, 0.0), layout)


def uneven(layer: nn.Module, weight: Tensor, value: Tensor) -> Tensor:
    """Where a constant input [I] does not give the same at every position: at zeros beside the border, [O, I]."""
    bordered = isinstance(layer, TRANSPOSED) or (not isinstance(layer, nn.Linear) and _zero_padded(layer))
    return (weight != 0).any(2) & (value != 0) & bordered


def _zero_padded(layer: nn.Module) -> bool:
    if layer.padding_mode != "zeros":
        return False
    if isinstance(layer.padding, str):
        return layer.padding == "same" and any(k > 1 for k in layer.kernel_size)  # type: ignore[union-attr]
    return any(layer.padding)  # type: ignore[arg-type]
