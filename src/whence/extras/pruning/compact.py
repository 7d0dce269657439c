"""A pruned network without its constant units: smaller layers that compute the same in evaluation mode.

The channels of each layer are followed through the graph: which are constant, with what value, and which layers read
them. Index legend: O layer outputs, C channels of the layer that a flow comes from, I layer inputs, K kernel offsets.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from enum import Enum, auto

import torch
from torch import Tensor, fx, nn
from torch.nn.utils import prune as torch_prune

from whence.copies import copy_module, unwrap
from whence.errors import BadData, UnsupportedLayer, notice
from whence.extras.pruning import graph
from whence.extras.pruning.graph import MATRIX, NORM, TRANSPOSED, TracedNetwork, by_unit, trace, units_of


class Layout(Enum):
    """Where the channels are in a tensor."""

    SPATIAL = auto()  # the first dimension, before positions
    FEATURES = auto()  # the last
    ROWS = auto()  # flattened: the positions of a channel are contiguous
    TILES = auto()  # flattened: the channels of a position are


FLATTENED = {Layout.SPATIAL: Layout.ROWS, Layout.FEATURES: Layout.TILES}


@torch.inference_mode(False)
@torch.no_grad()
def compact(pruned: nn.Module) -> nn.Module:
    """A smaller dense copy of a pruned network that computes the same in evaluation mode.

    Masks are made permanent. Units that are always constant are removed, their constants go into the biases of the
    next layer, and units that no later weight reads are removed too. Layers are followed through activations,
    batch norms, pools, flattening and dropout; constant units before anything else (a residual sum, layer norm, a
    grouped convolution, a constant next to zero padding) raise an error with the layer's name.
    """
    if not isinstance(pruned, nn.Module):
        raise BadData(f"compact() takes a pruned torch.nn.Module, not a {type(pruned).__name__}.")
    module = _unmasked(copy_module(unwrap(pruned)))
    training = [part for part in module.modules() if part.training]
    module.eval()
    try:
        flows = follow(trace(module))
    except UnsupportedLayer as error:
        raise UnsupportedLayer(f"compact: {error}") from error
    keep = _units_to_keep(flows)
    for name, layer in flows.layers.items():
        _shrink(name, layer, keep, flows)
    for part in training:
        part.training = True
    if all(bool(stays.all()) for stays in keep.values()):
        notice(
            "compact: no unit could be removed, so the dense copy has the same size; single zero weights "
            "do not make a layer smaller. Prune with units=True."
        )
    return module


def _unmasked(module: nn.Module) -> nn.Module:
    """Make every mask of ``torch.nn.utils.prune`` permanent, with parameters in their usual order."""
    for part in module.modules():
        masks = [h for h in part._forward_pre_hooks.values() if isinstance(h, torch_prune.BasePruningMethod)]
        for mask in masks:
            torch_prune.remove(part, mask._tensor_name)
        if masks and "bias" in part._parameters:
            part._parameters["bias"] = part._parameters.pop("bias")
    return module


# Following channels through the graph


@dataclass(frozen=True)
class Flow:
    """The channels of one layer at a later point of the graph."""

    source: str  # the layer
    constant: Tensor  # whether a channel is the same number everywhere and for every input, [C]
    value: Tensor  # that number; 0 elsewhere, [C] in float64
    layout: Layout

    def widen(self, channels: Tensor, inputs: int) -> Tensor:
        """Expand values per channel [C] to values per input [I] of the next layer."""
        times = inputs // len(channels)
        return channels.repeat(times) if self.layout is Layout.TILES else channels.repeat_interleave(times)

    def narrow(self, used: Tensor) -> Tensor:
        """Which channels [C] have any of the inputs [I]."""
        count = len(self.constant)
        return used.reshape(-1, count).any(0) if self.layout is Layout.TILES else used.reshape(count, -1).any(1)


@dataclass(frozen=True)
class Fixed:
    """Channels that reach an operation that needs all of them: (layer, operation, some are constant)."""

    entries: tuple[tuple[str, str, bool], ...]


@dataclass
class Flows:
    """The flows of a graph."""

    layers: dict[str, nn.Module] = field(default_factory=dict)  # in the order of their calls
    inflow: dict[str, Flow] = field(default_factory=dict)  # of a layer, if its input can be sliced
    norms: dict[str, list[nn.Module]] = field(default_factory=dict)  # over the channels of a layer
    whole: set[str] = field(default_factory=set)  # layers that must keep all units
    refused: dict[str, str] = field(default_factory=dict)  # those of them with constant units → the operation

    def fix(self, flow: Flow | Fixed, operation: str) -> Fixed:
        """Mark all channels of a flow as needed."""
        if isinstance(flow, Fixed):
            return flow
        self.whole.add(flow.source)
        return Fixed(((flow.source, operation, bool(flow.constant.any())),))


def follow(traced: TracedNetwork) -> Flows:
    """Follow the flows through the graph; an error if a constant channel cannot be removed before the next layer."""
    found, at = Flows(), dict[fx.Node, Flow | Fixed]()
    for node in traced.graph.nodes:
        if graph.is_shape(node):
            continue
        inputs = [n for n in node.all_input_nodes if n in at]
        came = [found.fix(at[n], n.name) if graph.overwritten(n, traced) else at[n] for n in inputs]
        module = traced.module_of(node)
        if isinstance(module, MATRIX):
            at[node] = _through_layer(node, module, came, traced, found)
        elif node.op == "output":
            for flow in came:
                found.fix(flow, "the output")
        elif came:
            at[node] = _through(node, module, came, traced, found)
    for source, reason in found.refused.items():
        raise UnsupportedLayer(
            f"units of {', '.join(map(repr, found.refused))} are always constant but cannot be removed: those of "
            f"{source!r} pass through {reason}. Prune other layers (layers=…), or keep the masks."
        )
    return found


def _through(
    node: fx.Node, module: nn.Module | None, came: list[Flow | Fixed], traced: TracedNetwork, found: Flows
) -> Flow | Fixed:
    """A flow after a node that is not a matrix layer."""
    if len(came) == 1 and isinstance(came[0], Flow):
        after = _through_operation(node, module, came[0], traced, found)
        if after is not None:
            return after
    what = f"{node.target} ({type(module).__name__})" if module is not None else graph.name_of(node)
    return Fixed(tuple(entry for flow in came for entry in found.fix(flow, what).entries))


def _through_operation(
    node: fx.Node, module: nn.Module | None, flow: Flow, traced: TracedNetwork, found: Flows
) -> Flow | None:
    """The same channels after the node, or None if they cannot be followed."""
    if graph.is_dropout(node, module):
        return flow
    if graph.is_pointwise(node, module):
        return _pointwise(node, module, flow)
    if graph.is_pool(node, module):
        fits = flow.layout is Layout.SPATIAL and (graph.keeps_constants(node, module) or not bool(flow.value.any()))
        return flow if fits else None
    if graph.is_flatten(node, module):
        return replace(flow, layout=FLATTENED.get(flow.layout, flow.layout))
    if graph.is_spatial_mean(node) and flow.layout is Layout.SPATIAL:
        return replace(flow, layout=Layout.FEATURES)
    if isinstance(module, NORM) and flow.layout in FLATTENED:
        alone = traced.calls(module) == 1 and module.num_features == len(flow.constant)
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
        if isinstance(node.target, str):
            value = getattr(given, node.target)(*args[1:], **kwargs)
        else:
            value = node.target(*args, **kwargs)
    return replace(flow, value=torch.where(flow.constant, value, 0.0))


def _normed(norm: nn.Module, flow: Flow) -> Flow:
    """The flow after a batch norm, where a channel with weight 0 becomes constant."""
    mean, variance = norm.running_mean.double(), norm.running_var.double()  # type: ignore[union-attr,operator]
    weight = torch.ones_like(mean) if norm.weight is None else norm.weight.double()  # type: ignore[operator]
    bias = torch.zeros_like(mean) if norm.bias is None else norm.bias.double()  # type: ignore[operator]
    constant = flow.constant | (weight == 0)
    value = (flow.value - mean) / (variance + norm.eps).sqrt() * weight + bias  # type: ignore[operator]
    return replace(flow, constant=constant, value=torch.where(constant, value, 0.0))


def _through_layer(
    node: fx.Node, layer: nn.Module, came: list[Flow | Fixed], traced: TracedNetwork, found: Flows
) -> Flow | Fixed:
    """A new flow that starts at a layer, given the constants in its input."""
    name = str(node.target)
    sliceable = traced.calls(layer) == 1 and getattr(layer, "groups", 1) == 1
    flow = came[0] if len(came) == 1 else None
    if isinstance(flow, Flow) and not (sliceable and _fits(layer, flow)):
        flow = found.fix(flow, f"{name} ({type(layer).__name__})")
    if isinstance(flow, Fixed):
        for source, operation, constant in flow.entries:
            if constant:
                found.refused.setdefault(source, f"{operation} before {name!r}")
        flow = None
    out = _outflow(name, layer, flow)
    if not sliceable:
        return found.fix(out, f"{name} (in groups, or called more than once)")
    found.layers[name] = layer
    if flow is not None:
        found.inflow[name] = flow
    return out


def _fits(layer: nn.Module, flow: Flow) -> bool:
    """Whether the inputs of the layer are the channels of the flow."""
    channels = len(flow.constant)
    if not isinstance(layer, nn.Linear):
        return flow.layout is Layout.SPATIAL and bool(layer.in_channels == channels)
    if flow.layout in FLATTENED.values():
        return layer.in_features % channels == 0
    return flow.layout is Layout.FEATURES and layer.in_features == channels


def _outflow(name: str, layer: nn.Module, flow: Flow | None) -> Flow:
    """A unit is constant if its inputs are constant, and its output is the same at every position."""
    weight = _weight(layer)
    inputs = weight.shape[1]
    fixed = torch.zeros(inputs, dtype=torch.bool, device=weight.device)
    fixed = fixed if flow is None else flow.widen(flow.constant, inputs)
    constant = (weight[:, ~fixed] == 0).flatten(1).all(1)
    shift = torch.zeros(len(weight), dtype=weight.dtype, device=weight.device)
    if flow is not None:
        value = flow.widen(flow.value, inputs)
        shift = weight.sum(2) @ value
        constant &= ~_uneven(layer, weight, value).any(1)
    layout = Layout.FEATURES if isinstance(layer, nn.Linear) else Layout.SPATIAL
    return Flow(name, constant, torch.where(constant, _shifted_bias(layer, shift), 0.0), layout)


def _weight(layer: nn.Module) -> Tensor:
    """[O, I, K] in float64."""
    return by_unit(layer, layer.weight.detach()).double()  # type: ignore[operator,arg-type]


def _shifted_bias(layer: nn.Module, shift: Tensor) -> Tensor:
    """Bias plus shift [O], in float64."""
    return shift if layer.bias is None else shift + layer.bias.detach().double()  # type: ignore[operator]


def _uneven(layer: nn.Module, weight: Tensor, value: Tensor) -> Tensor:
    """Where a constant input [I] gives different outputs at the border because of zero padding, [O, I]."""
    bordered = isinstance(layer, TRANSPOSED) or (not isinstance(layer, nn.Linear) and _zero_padded(layer))
    return (weight != 0).any(2) & (value != 0) & bordered


def _zero_padded(layer: nn.Module) -> bool:
    if layer.padding_mode != "zeros":
        return False
    if isinstance(layer.padding, str):
        return layer.padding == "same" and any(k > 1 for k in layer.kernel_size)  # type: ignore[union-attr]
    return any(layer.padding)  # type: ignore[arg-type]


# Removing units


def _units_to_keep(flows: Flows) -> dict[str, Tensor]:
    """The units of each layer to keep, [O]; from the last layer to the first."""
    readers: dict[str, list[str]] = {}
    for name, flow in flows.inflow.items():
        readers.setdefault(flow.source, []).append(name)
    keep: dict[str, Tensor] = {}
    for name, layer in reversed(flows.layers.items()):
        stays = torch.ones(units_of(layer), dtype=torch.bool, device=layer.weight.device)  # type: ignore[arg-type]
        if name not in flows.whole and name in readers:
            stays = torch.stack([_read(reader, keep[reader], flows) for reader in readers[name]]).any(0)
            stays[0] |= not bool(stays.any())  # a layer keeps one unit
        keep[name] = stays
    return keep


def _read(reader: str, stays: Tensor, flows: Flows) -> Tensor:
    """Channels [C] of the layer before that a layer needs: not constant, and read by a unit that is kept."""
    layer, flow = flows.layers[reader], flows.inflow[reader]
    weight = by_unit(layer, layer.weight)  # type: ignore[arg-type]
    used = (weight[stays] != 0).any(2).any(0)  # [I]
    return flow.narrow(used) & ~flow.constant


def _shrink(name: str, layer: nn.Module, keep: dict[str, Tensor], flows: Flows) -> None:
    """Slice a layer and the batch norms after it; constants removed from its input are added to its bias."""
    rows, flow = keep[name], flows.inflow.get(name)
    columns = None
    if flow is not None and not bool(keep[flow.source].all()):
        weight = _weight(layer)
        columns = flow.widen(keep[flow.source], weight.shape[1])
        _fold(name, layer, rows, torch.where(columns, 0.0, flow.widen(flow.value, weight.shape[1])), weight, flow)
    if columns is None and bool(rows.all()):
        return
    _slice(layer, rows, columns)
    for norm in flows.norms.get(name, []):
        for tensor in ("weight", "bias"):
            _replace(norm, tensor, rows)
        norm.running_mean, norm.running_var = norm.running_mean[rows], norm.running_var[rows]  # type: ignore[index]
        norm.num_features = int(rows.sum())  # type: ignore[assignment]


def _fold(name: str, layer: nn.Module, rows: Tensor, value: Tensor, weight: Tensor, flow: Flow) -> None:
    """Add the contribution of the constants [I] to the bias."""
    if bool(_uneven(layer, weight, value)[rows].any()):
        raise UnsupportedLayer(
            f"compact: {flow.source!r} has units that are constant but not zero, and {name!r} pads them with "
            f"zeros at its border, so no bias can replace them. Exclude {flow.source!r} from pruning with layers=…"
        )
    shift = weight.sum(2) @ value  # [O]
    if bool(shift.any()):
        given = layer.weight if layer.bias is None else layer.bias
        bias = _shifted_bias(layer, shift).to(given.dtype)  # type: ignore[arg-type]
        layer.bias = nn.Parameter(bias, requires_grad=given.requires_grad)  # type: ignore[arg-type,union-attr]


def _slice(layer: nn.Module, rows: Tensor, columns: Tensor | None) -> None:
    weight: Tensor = layer.weight.detach()  # type: ignore[operator,assignment]
    inputs_first = isinstance(layer, TRANSPOSED)
    weight = weight[:, rows] if inputs_first else weight[rows]
    if columns is not None:
        weight = weight[columns] if inputs_first else weight[:, columns]
    layer.weight = nn.Parameter(weight.contiguous(), requires_grad=layer.weight.requires_grad)  # type: ignore[arg-type]
    _replace(layer, "bias", rows)
    outputs, inputs = weight.shape[:2] if not inputs_first else (weight.shape[1], weight.shape[0])
    if isinstance(layer, nn.Linear):
        layer.out_features, layer.in_features = outputs, inputs
    else:
        layer.out_channels, layer.in_channels = outputs, inputs  # type: ignore[assignment]


def _replace(module: nn.Module, name: str, rows: Tensor) -> None:
    """Keep some entries of a parameter vector, if there is one."""
    old = module._parameters.get(name)
    if old is not None:
        setattr(module, name, nn.Parameter(old.detach()[rows], requires_grad=old.requires_grad))
