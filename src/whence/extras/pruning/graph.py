"""The graph of a network, traced by ``torch.fx``, and the effect of its operations on channels.

Index legend: O layer outputs (units, channels), I layer inputs, K kernel offsets, D = I · K.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor, fx, nn

from whence.errors import UnsupportedLayer

MATRIX = (nn.Linear, nn.modules.conv._ConvNd)
NORM = nn.modules.batchnorm._BatchNorm
TRANSPOSED = nn.modules.conv._ConvTransposeNd

_DROPOUT = nn.modules.dropout._DropoutNd
_POINTWISE_MODULES = (
    nn.ReLU, nn.ReLU6, nn.LeakyReLU, nn.Tanh, nn.Sigmoid, nn.GELU, nn.SiLU, nn.ELU, nn.SELU, nn.CELU, nn.Softplus,
    nn.Hardtanh, nn.Hardswish, nn.Hardsigmoid, nn.Mish, nn.LogSigmoid, nn.Softsign, nn.Tanhshrink, nn.Softshrink,
    nn.Hardshrink, nn.Threshold, nn.Identity,
)  # fmt: skip
_POINTWISE = frozenset((
    "relu", "relu6", "leaky_relu", "tanh", "sigmoid", "gelu", "silu", "elu", "selu", "celu", "softplus",
    "hardtanh", "hardswish", "hardsigmoid", "mish", "logsigmoid", "softsign", "tanhshrink", "softshrink",
    "hardshrink", "threshold", "clamp", "exp", "abs", "square", "neg", "contiguous",
))  # fmt: skip
_ARITHMETIC = frozenset(("add", "sub", "mul", "truediv", "div", "iadd", "isub", "imul", "itruediv"))
_POOL_MODULES = (
    nn.modules.pooling._MaxPoolNd, nn.modules.pooling._AvgPoolNd, nn.modules.pooling._AdaptiveAvgPoolNd,
    nn.modules.pooling._AdaptiveMaxPoolNd, nn.Upsample,
)  # fmt: skip
_POOLS = ("max_pool", "avg_pool", "adaptive_avg_pool", "adaptive_max_pool")
_DROPOUTS = frozenset(("dropout", "dropout1d", "dropout2d", "dropout3d", "alpha_dropout", "feature_alpha_dropout"))


class _Tracer(fx.Tracer):
    """Does not trace into layers, including subclasses of torch's."""

    def is_leaf_module(self, m: nn.Module, module_qualified_name: str) -> bool:
        return isinstance(m, (*MATRIX, NORM)) or super().is_leaf_module(m, module_qualified_name)


@dataclass(frozen=True, eq=False)
class TracedNetwork:
    """The graph of a module's forward pass."""

    module: nn.Module
    graph: fx.Graph

    def module_of(self, node: fx.Node) -> nn.Module | None:
        return self.module.get_submodule(str(node.target)) if node.op == "call_module" else None

    def calls(self, module: nn.Module) -> int:
        """How often a module is called."""
        return sum(self.module_of(node) is module for node in self.graph.nodes)

    def output_layers(self) -> list[nn.Module]:
        """Matrix layers with a path to the output that contains no other matrix layer."""
        found: list[nn.Module] = []
        seen: set[fx.Node] = set()
        waiting = [node for node in self.graph.nodes if node.op == "output"]
        while waiting:
            node = waiting.pop()
            if node in seen:
                continue
            seen.add(node)
            module = self.module_of(node)
            inside = [m for m in module.modules() if isinstance(m, MATRIX)] if module is not None else []
            found += inside
            if not inside:
                waiting += node.all_input_nodes
        return found

    def norms_after(self, layer: nn.Module, units: int) -> list[nn.Module]:
        """Batch norms over the layer's channels, with no mixing of channels in between; each is called once."""
        found: list[nn.Module] = []
        waiting = [user for node in self.graph.nodes if self.module_of(node) is layer for user in node.users]
        while waiting:
            node = waiting.pop()
            module = self.module_of(node)
            if isinstance(module, NORM):
                if module.num_features == units and self.calls(module) == 1:
                    found.append(module)
            elif is_pointwise(node, module) or is_pool(node, module) or is_dropout(node, module):
                waiting += node.users
        return found


def trace(module: nn.Module) -> TracedNetwork:
    """Trace a module; an error if its forward pass depends on values."""
    try:
        return TracedNetwork(module, _Tracer().trace(module))
    except Exception as error:
        reason = f"{type(error).__name__}: {error}".split("\n")[0]
        raise UnsupportedLayer(f"the forward pass of {type(module).__name__} could not be traced ({reason})") from error


# Operations


def name_of(node: fx.Node) -> str:
    """The name of the operation, without the underscore of in-place operations."""
    name = node.target if isinstance(node.target, str) else getattr(node.target, "__name__", str(node.target))
    return name if name.startswith("__") else name.rstrip("_")


def is_pointwise(node: fx.Node, module: nn.Module | None) -> bool:
    """Whether it applies the same function to every number."""
    if module is not None:
        return isinstance(module, _POINTWISE_MODULES) or (isinstance(module, nn.PReLU) and module.num_parameters == 1)
    if node.op not in ("call_function", "call_method") or len(node.all_input_nodes) != 1:
        return False
    if name_of(node) in _ARITHMETIC:
        return all(isinstance(arg, (fx.Node, int, float)) for arg in (*node.args, *node.kwargs.values()))
    return name_of(node) in _POINTWISE


def is_dropout(node: fx.Node, module: nn.Module | None) -> bool:
    if module is not None:
        return isinstance(module, _DROPOUT)
    return node.op == "call_function" and name_of(node) in _DROPOUTS


def is_pool(node: fx.Node, module: nn.Module | None) -> bool:
    """Whether it is a pool (or a resize) of each channel over positions."""
    if module is not None:
        return isinstance(module, _POOL_MODULES) and not getattr(module, "return_indices", False)
    if node.op != "call_function" or node.kwargs.get("return_indices"):
        return False
    return name_of(node).rstrip("123d") in _POOLS


def keeps_constants(node: fx.Node, module: nn.Module | None) -> bool:
    """Whether a pool of a constant is that constant; false if padded zeros are counted."""
    if module is not None:
        if not isinstance(module, nn.modules.pooling._AvgPoolNd):
            return True
        padded = any(torch.as_tensor(module.padding).flatten().tolist()) and bool(module.count_include_pad)
        return not padded and getattr(module, "divisor_override", None) is None
    if not name_of(node).startswith("avg_pool"):
        return True
    return len(node.args) <= 3 and set(node.kwargs) <= {"input", "kernel_size", "stride"}


def is_flatten(node: fx.Node, module: nn.Module | None) -> bool:
    """Whether it joins all dimensions but the first."""
    if module is not None:
        return isinstance(module, nn.Flatten) and module.start_dim == 1 and module.end_dim == -1
    name, rest = name_of(node), node.args[1:]
    if name == "flatten":
        start = rest[0] if rest else node.kwargs.get("start_dim", 0)
        end = rest[1] if len(rest) > 1 else node.kwargs.get("end_dim", -1)
        return (start, end) == (1, -1)
    if node.op != "call_method" or name not in ("view", "reshape"):
        return False
    size = rest[0] if len(rest) == 2 and rest[1] == -1 else None
    return isinstance(size, fx.Node) and _is_batch_size(size)


def _is_batch_size(node: fx.Node) -> bool:
    """``x.size(0)``, ``x.size()[0]`` or ``x.shape[0]``."""
    if node.op == "call_method" and node.target == "size":
        return node.args[1:] == (0,)
    if node.op == "call_function" and name_of(node) == "getitem" and node.args[1] == 0:
        inner = node.args[0]
        if not isinstance(inner, fx.Node):
            return False
        asked_size = inner.op == "call_method" and inner.target == "size" and len(inner.args) == 1
        return asked_size or (name_of(inner) == "getattr" and inner.args[1] == "shape")
    return False


def is_spatial_mean(node: fx.Node) -> bool:
    """``x.mean((2, 3))``: over all positions of each channel, without keeping their dimensions."""
    if node.op not in ("call_method", "call_function") or name_of(node) != "mean":
        return False
    dims = node.args[1] if len(node.args) > 1 else node.kwargs.get("dim")
    keep = node.args[2] if len(node.args) > 2 else node.kwargs.get("keepdim", False)
    return not keep and isinstance(dims, (tuple, list)) and sorted(dims) in ([2, 3], [-2, -1], [2, 3, 4], [-3, -2, -1])


def is_shape(node: fx.Node) -> bool:
    """Whether it only reads sizes."""
    if node.op == "call_method":
        return node.target in ("size", "dim", "numel")
    return (
        node.op == "call_function"
        and name_of(node) == "getattr"
        and node.args[1] in ("shape", "ndim", "device", "dtype")
    )


def overwritten(node: fx.Node, traced: TracedNetwork) -> bool:
    """Whether one consumer changes it in place while others read it."""
    return len(node.users) > 1 and any(_in_place(user, traced.module_of(user)) for user in node.users)


def _in_place(node: fx.Node, module: nn.Module | None) -> bool:
    if module is not None:
        return bool(getattr(module, "inplace", False))
    name = node.target if isinstance(node.target, str) else getattr(node.target, "__name__", "")
    in_place = node.op in ("call_function", "call_method") and name.endswith("_") and not name.startswith("__")
    return in_place or bool(node.kwargs.get("inplace")) or name in ("iadd", "isub", "imul", "itruediv")


# Units of a layer


def units_of(layer: nn.Module) -> int:
    """O: outputs or output channels."""
    return int(layer.out_features if isinstance(layer, nn.Linear) else layer.out_channels)  # type: ignore[arg-type]


def by_unit(layer: nn.Module, weight: Tensor) -> Tensor:
    """The weight, or a tensor in its shape, as [O, I, K]; I of one group."""
    if isinstance(layer, nn.Linear):
        return weight.unsqueeze(-1)
    if not isinstance(layer, TRANSPOSED):
        return weight.flatten(2)
    split = weight.flatten(2).unflatten(0, (layer.groups, -1))  # [E, I, O / E, K]
    return split.transpose(1, 2).flatten(0, 1)


def like_weight(layer: nn.Module, units: Tensor) -> Tensor:
    """One number for each unit, [O], in the shape of the weight."""
    shape = layer.weight.shape  # type: ignore[union-attr]
    if not isinstance(layer, TRANSPOSED):
        return units.reshape(-1, *[1] * (len(shape) - 1)).expand(shape)  # type: ignore[arg-type]
    split = units.reshape(layer.groups, 1, -1, 1).expand(-1, shape[0] // layer.groups, -1, shape[2:].numel())  # type: ignore
    return split.reshape(shape)  # type: ignore[arg-type]


def named_layers(module: nn.Module) -> Iterator[tuple[str, nn.Module]]:
    """Matrix layers that are called as modules; not the projection inside attention, whose weight is used directly."""
    inside = {id(m.out_proj) for m in module.modules() if isinstance(m, nn.MultiheadAttention)}
    for name, layer in module.named_modules():
        if isinstance(layer, MATRIX) and id(layer) not in inside:
            yield name, layer
