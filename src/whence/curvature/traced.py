"""J v as a plain graph of tensor operations, for networks that are exported.

``torch.func.jvp`` cannot be traced with a variable batch size, so the network's own graph (torch.export, core
operations) is extended by the derivative of every operation, for all directions at once.

Index legend: S directions, N examples.
"""

from __future__ import annotations

import operator
import warnings
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, fx, nn
from torch.nn.attention import SDPBackend, sdpa_kernel

from whence.copies import copy_module
from whence.curvature import tangent_norms, tangent_shapes  # noqa: F401  (their rules)
from whence.curvature.jvp import AGREE, plain_tangents
from whence.curvature.tangent_rules import CONSTANT, RULES, Step
from whence.engine.contexts import fused_attention_off
from whence.errors import UnsupportedLayer
from whence.functional import Network
from whence.outputs import output_tensor

REMEDY = "Serve weight draws instead, with method='sampled'."
WHOLE = ("aten.linear.default",)  # operations that have rules although they could be split
IGNORED = ("_assert", "_guards_fn", "sym_constrain")  # nodes that only check


class RawOutputs(nn.Module):
    """A network that returns its raw outputs as one tensor."""

    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, x: Tensor) -> Tensor:
        return output_tensor(self.inner(x))


@dataclass(frozen=True)
class Dual:
    """A value in the new graph with its derivatives [S, *shape] (None: it does not depend on the weights)."""

    value: Any
    tangent: Any
    like: Any  # the traced (fake) value


def traced_tangents(network: Network, x: Tensor, directions: Mapping[str, Tensor]) -> fx.GraphModule:
    """A module x → (f(x) [N, …], J(x) v [S, N, …]) of plain operations, for any number of inputs like ``x``.

    It is compared with forward-mode differentiation on ``x``.
    """
    few = torch.cat([x, x])[:2].detach()  # a batch of one would be taken for a constant
    made = _extended(_exported(network, few), network, directions)
    with torch.no_grad():
        found = made(few)
    wanted = plain_tangents(network, few, directions)
    for one, other in zip(found, wanted, strict=True):
        other = other.detach()
        if not bool((one - other).norm() <= AGREE[other.dtype == torch.float64] * other.norm()):
            raise UnsupportedLayer(
                "the derivatives of the exported network differ from those of the network by "
                f"{float((one - other).norm() / other.norm()):.2g} (relative). {REMEDY}"
            )
    return made


def _exported(network: Network, x: Tensor) -> fx.GraphModule:
    """The network as a graph of core operations, with a variable number of inputs."""
    module = RawOutputs(copy_module(network.module)).requires_grad_(False).eval()
    table = torch.export.default_decompositions()
    for name in WHOLE:
        table.pop(_operation(name), None)
    try:
        with torch.no_grad(), fused_attention_off, sdpa_kernel(SDPBackend.MATH), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            sizes = ({0: torch.export.Dim("batch")},)
            program = torch.export.export(module, (x,), dynamic_shapes=sizes, strict=False)
            return program.run_decompositions(table).module()  # type: ignore[return-value]
    except Exception as error:  # torch.export raises errors of many kinds
        raise UnsupportedLayer(
            f"torch.export does not take this network with a variable batch size ({_short(error)}), so its linearised "
            f"predictive cannot be served. Use x.shape[0], not len(x) or a number, for the batch size in forward(). "
            f"{REMEDY}"
        ) from error


def _short(error: Exception) -> str:
    return f"{type(error).__name__}: {str(error).strip().splitlines()[0][:200]}" if str(error) else repr(error)


def _operation(name: str) -> Any:
    _, packet, overload = name.split(".")
    return getattr(getattr(torch.ops.aten, packet), overload)


def _extended(traced: fx.GraphModule, network: Network, directions: Mapping[str, Tensor]) -> fx.GraphModule:
    """The graph with derivatives beside its values; unused ones are removed."""
    place = {f"inner.{alias}": name for name in directions for alias in network.aliases(name)}
    count = len(next(iter(directions.values())))
    root, graph = nn.Module(), fx.Graph()
    root.network = traced
    tracer = fx.proxy.GraphAppendingTracer(graph)
    buffers: dict[str, Any] = {}
    known: dict[fx.Node, Any] = {}

    def constant(name: str) -> Any:
        return fx.Proxy(graph.get_attr(name), tracer)

    for node in traced.graph.nodes:
        like = node.meta.get("val")
        if node.op == "placeholder":
            known[node] = Dual(fx.Proxy(graph.placeholder(node.name), tracer), None, like)
        elif node.op == "get_attr":
            tangent = None
            name = place.get(node.target)
            if name is not None:
                if name not in buffers:
                    root.register_buffer(f"direction_{len(buffers)}", directions[name].detach().clone())
                    buffers[name] = constant(f"direction_{len(buffers)}")
                tangent = buffers[name]
            known[node] = Dual(constant(f"network.{node.target}"), tangent, _attribute(traced, node.target))
        elif node.op == "call_function" and not _only_checks(node):
            known[node] = _applied(node, known, count, tracer)
        elif node.op == "output":
            (out,) = _flat(node.args)
            found = known[out]
            moved = found.tangent
            if moved is None:
                moved = found.value.unsqueeze(0).expand(count, *[-1] * found.like.dim()) * 0
            graph.output((found.value.node, moved.node))
    graph.eliminate_dead_code()
    graph.lint()
    return fx.GraphModule(root, graph, "Tangents")


def _attribute(module: nn.Module, target: str) -> Any:
    return operator.attrgetter(target)(module)


def _only_checks(node: fx.Node) -> bool:
    return any(word in str(node.target) for word in IGNORED)


def _flat(args: Any) -> list[Any]:
    if isinstance(args, (tuple, list)):
        return [one for arg in args for one in _flat(arg)]
    return [args]


def _applied(node: fx.Node, known: Mapping[fx.Node, Any], count: int, tracer: fx.proxy.TracerBase) -> Any:
    """One operation on values, and its derivative if an argument has one and the result is a number."""
    args: Any = fx.map_arg(node.args, lambda n: known[n])
    kwargs: Any = fx.map_arg(node.kwargs, lambda n: known[n])
    target: Any = node.target
    if target is operator.getitem:
        return args[0][args[1]]  # of several results
    value: Any = tracer.create_proxy("call_function", target, _values(args), _values(kwargs))
    like: Any = node.meta.get("val")
    several = isinstance(like, (tuple, list))
    likes: list[Any] = list(like) if several else [like]
    parts = [value[i] for i in range(len(likes))] if several else [value]
    moved: Any = [None] * len(likes)
    depends = target not in CONSTANT and any(d.tangent is not None for d in _duals((args, kwargs)))
    if depends and any(map(_is_number, likes)):
        rule = RULES.get(target)
        if rule is None:
            raise UnsupportedLayer(
                f"there is no rule for the derivative of {target} (traced from {_origin(node)}), so the linearised "
                f"predictive of this network cannot be served. {REMEDY}"
            )
        step = Step(count, parts if several else value, like)
        moved = rule(step, *args, **kwargs)
        moved = list(moved) if several else [moved]
    duals = [Dual(*found) for found in zip(parts, moved, likes, strict=True)]
    return duals if several else duals[0]


def _is_number(like: Any) -> bool:
    return isinstance(like, Tensor) and like.is_floating_point()


def _duals(args: Any) -> list[Dual]:
    found = _flat(args if not isinstance(args, dict) else list(args.values()))
    return [d for one in found for d in (_duals(one) if isinstance(one, dict) else [one]) if isinstance(d, Dual)]


def _values(args: Any) -> Any:
    if isinstance(args, Dual):
        return args.value
    if isinstance(args, dict):
        return {k: _values(v) for k, v in args.items()}
    if isinstance(args, (tuple, list)):
        return type(args)(_values(a) for a in args)
    return args


def _origin(node: fx.Node) -> str:
    stack = node.meta.get("nn_module_stack") or {}
    names = [str(name) for name, _ in stack.values()]
    return repr(names[-1].removeprefix("inner.")) if names else "the network"
