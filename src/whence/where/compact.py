"""A pruned network without its dead units: smaller layers that compute the same.

Index legend: O layer outputs, C channels of the layer before, I layer inputs, K kernel offsets.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn.utils import prune as torch_prune

from whence.copies import copy_module, unwrap
from whence.errors import BadData, UnsupportedLayer, notice
from whence.where.channel_flow import Flow, Flows, follow, uneven
from whence.where.wiring import TRANSPOSED, by_unit, trace, units_of


@torch.inference_mode(False)
@torch.no_grad()
def compact(pruned: nn.Module) -> nn.Module:
    """A smaller dense copy of a pruned network that computes the same in evaluation mode.

    Masks are made permanent. Units that are always constant are taken out, their constants go into the biases of the
    next layer, and units that no later weight reads are taken out too. Layers are followed through activations,
    batch norms, pools, flattening and dropout; where constant units meet anything else (a residual sum, layer norm, a
    grouped convolution, a constant beside zero padding) it is refused with the layer's name.
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
    keep = _kept(flows)
    for name, layer in flows.layers.items():
        _shrink(name, layer, keep, flows)
    for part in training:
        part.training = True
    if all(bool(stays.all()) for stays in keep.values()):
        notice(
            "compact: no unit could be taken out, so the dense copy is as large as before; single weights that are "
            "zero make no layer smaller. Prune with units=True."
        )
    return module


def _unmasked(module: nn.Module) -> nn.Module:
    """Make every mask of ``torch.nn.utils.prune`` permanent; parameters stand in their usual order."""
    for part in module.modules():
        masks = [h for h in part._forward_pre_hooks.values() if isinstance(h, torch_prune.BasePruningMethod)]
        for mask in masks:
            torch_prune.remove(part, mask._tensor_name)
        if masks and "bias" in part._parameters:
            part._parameters["bias"] = part._parameters.pop("bias")
    return module


def _kept(flows: Flows) -> dict[str, Tensor]:
    """Which units of each layer stay, [O]; from the last layer to the first."""
    readers: dict[str, list[str]] = {}
    for name, flow in flows.inflow.items():
        readers.setdefault(flow.source, []).append(name)
    keep: dict[str, Tensor] = {}
    for name, layer in reversed(flows.layers.items()):
        stays = torch.ones(units_of(layer), dtype=torch.bool, device=layer.weight.device)  # type: ignore[arg-type]
        if name not in flows.held and name in readers:
            stays = torch.stack([_read(reader, keep[reader], flows) for reader in readers[name]]).any(0)
            stays[0] |= not bool(stays.any())  # a layer keeps one unit
        keep[name] = stays
    return keep


def _read(reader: str, stays: Tensor, flows: Flows) -> Tensor:
    """Channels [C] of the layer before that a layer needs: not constant, and read by a unit that stays."""
    layer, flow = flows.layers[reader], flows.inflow[reader]
    weight = by_unit(layer, layer.weight)  # type: ignore[arg-type]
    used = (weight[stays] != 0).any(2).any(0)  # [I]
    return flow.narrow(used) & ~flow.constant


def _shrink(name: str, layer: nn.Module, keep: dict[str, Tensor], flows: Flows) -> None:
    """Slice a layer and the batch norms behind it; constants that are taken out of its input go to its bias."""
    rows, flow = keep[name], flows.inflow.get(name)
    columns = None
    if flow is not None and not bool(keep[flow.source].all()):
        weight = by_unit(layer, layer.weight.detach()).double()  # type: ignore[operator,arg-type]
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
    """Add what the constants [I] give to the bias."""
    if bool(uneven(layer, weight, value)[rows].any()):
        raise UnsupportedLayer(
            f"compact: {flow.source!r} has units that are always constant but not zero, and {name!r} sees zeros beside "
            f"them at its border, so that no bias replaces them. Leave {flow.source!r} out of the pruning with layers=…"
        )
    shift = weight.sum(2) @ value  # [O]
    if not bool(shift.any()):
        return
    given = layer.weight if layer.bias is None else layer.bias
    bias = shift if layer.bias is None else shift + layer.bias.detach().double()  # type: ignore[operator]
    layer.bias = nn.Parameter(bias.to(given.dtype), requires_grad=given.requires_grad)  # type: ignore[arg-type,union-attr]


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
    """Keep some entries of a vector of parameters, where there is one."""
    old = module._parameters.get(name)
    if old is not None:
        setattr(module, name, nn.Parameter(old.detach()[rows], requires_grad=old.requires_grad))
