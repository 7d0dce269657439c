"""Derivatives of single operations along S directions, written for graphs: a rule adds operations to the graph.

An argument that depends on the weights has ``tangent`` [S, *shape] beside its ``value``. At kinks the rules follow
torch: relu'(0) = 0, a maximum has the derivative of the place it was taken from.

Index legend: S directions, N examples, O outputs, D inputs, r rank of a value.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

aten = torch.ops.aten
Rule = Callable[..., Any]
RULES: dict[Any, Rule] = {}


@dataclass(frozen=True)
class Step:
    """The operation that is differentiated."""

    count: int  # S
    out: Any  # its result, or the list of its results
    like: Any  # the traced result: shapes

    def sizes(self, value: Any, like: Tensor) -> list[Any]:
        """Sizes of a value; numbers where they are fixed."""
        return [s if isinstance(s, int) else aten.sym_size.int(value, i) for i, s in enumerate(like.shape)]

    def merged(self, tangent: Any) -> Any:
        """[S, N, …] → [S N, …]."""
        return tangent.flatten(0, 1)

    def split(self, found: Any) -> Any:
        """[S N, …] → [S, N, …]."""
        return found.unflatten(0, (self.count, -1))

    def full(self, tangent: Any) -> Any:
        """Expanded to the shape of the result."""
        return tangent.expand([self.count, *self.sizes(self.out, self.like)])


# Results that do not change with their argument, or only in steps
CONSTANT = {
    aten.detach.default, aten.full_like.default, aten.zeros_like.default, aten.ones_like.default, aten.sign.default,
    aten.floor.default, aten.ceil.default, aten.round.default, aten.new_zeros.default, aten.new_ones.default,
    aten.new_full.default, aten.empty_like.default,
}  # fmt: skip


def rule(*operations: Any) -> Callable[[Rule], Rule]:
    def register(function: Rule) -> Rule:
        RULES.update(dict.fromkeys(operations, function))
        return function

    return register


def moves(x: Any) -> bool:
    """Whether an argument depends on the weights."""
    return getattr(x, "tangent", None) is not None


def value(x: Any) -> Any:
    return getattr(x, "value", x)


def values(found: Any) -> list[Any]:
    return [value(x) for x in found]


def rank(x: Any) -> int:
    return int(x.like.dim()) if isinstance(getattr(x, "like", None), Tensor) else 0


def raised(x: Any, to: int) -> Any:
    """The tangent with dimensions of size 1 after the first, so that it broadcasts like a value of rank ``to``."""
    found = x.tangent
    for _ in range(to - rank(x)):
        found = found.unsqueeze(1)
    return found


def total(terms: list[Any]) -> Any:
    found = terms[0]
    for term in terms[1:]:
        found = found + term
    return found


def laid_out(found: Any, only_moved: bool = False) -> Any:
    """In memory as it is indexed: otherwise the order in memory depends on the batch size, which export refuses.

    ``only_moved``: only directly after its dimensions have been moved or reshaped.
    """
    if only_moved and found.node.target not in ("permute", "transpose", "movedim", "reshape"):
        return found
    return found.clone(memory_format=torch.contiguous_format)


def after(dim: int, r: int) -> int:
    """A dimension of a value of rank r, in its tangent."""
    return dim % max(r, 1) + 1


# One argument, element by element: f'(x), from x and y = f(x)

DERIVATIVES: dict[Any, Callable[[Any, Any], Any]] = {
    aten.relu.default: lambda x, y: x > 0,
    aten.tanh.default: lambda x, y: 1 - y * y,
    aten.sigmoid.default: lambda x, y: y * (1 - y),
    aten.exp.default: lambda x, y: y,
    aten.expm1.default: lambda x, y: y + 1,
    aten.log.default: lambda x, y: 1 / x,
    aten.log1p.default: lambda x, y: 1 / (1 + x),
    aten.sqrt.default: lambda x, y: 0.5 / y,
    aten.rsqrt.default: lambda x, y: -0.5 * y * y * y,
    aten.reciprocal.default: lambda x, y: -y * y,
    aten.sin.default: lambda x, y: torch.cos(x),
    aten.cos.default: lambda x, y: -torch.sin(x),
    aten.abs.default: lambda x, y: torch.sign(x),
    aten.neg.default: lambda x, y: -1,
    aten.erf.default: lambda x, y: 2 / math.sqrt(math.pi) * torch.exp(-x * x),
    aten.silu.default: lambda x, y: torch.sigmoid(x) * (1 + x * (1 - torch.sigmoid(x))),
}


def _elementwise(derivative: Callable[[Any, Any], Any]) -> Rule:
    return lambda step, x: x.tangent * derivative(x.value, step.out)


RULES.update({operation: _elementwise(f) for operation, f in DERIVATIVES.items()})


@rule(aten.gelu.default)
def _(step: Step, x: Any, *, approximate: str = "none") -> Any:
    v = x.value
    if approximate == "none":
        density = torch.exp(-0.5 * v * v) / math.sqrt(2 * math.pi)
        return x.tangent * (0.5 * (1 + torch.erf(v / math.sqrt(2))) + v * density)
    scale, cubic = math.sqrt(2 / math.pi), 0.044715
    inner = torch.tanh(scale * (v + cubic * v * v * v))
    return x.tangent * (0.5 * (1 + inner) + 0.5 * v * (1 - inner * inner) * scale * (1 + 3 * cubic * v * v))


@rule(aten.leaky_relu.default)
def _(step: Step, x: Any, negative_slope: float = 0.01) -> Any:
    return torch.where(x.value > 0, x.tangent, negative_slope * x.tangent)


@rule(aten.elu.default)
def _(step: Step, x: Any, alpha: float = 1, scale: float = 1, input_scale: float = 1) -> Any:
    below = x.tangent * (input_scale * alpha * scale) * torch.exp(x.value * input_scale)
    return torch.where(x.value > 0, x.tangent * scale, below)


@rule(aten.softplus.default)
def _(step: Step, x: Any, beta: float = 1, threshold: float = 20) -> Any:
    return torch.where(x.value * beta > threshold, x.tangent, x.tangent * torch.sigmoid(x.value * beta))


@rule(aten.clamp.default)
def clamped(step: Step, x: Any, min: Any = None, max: Any = None) -> Any:  # noqa: A002
    found = x.tangent
    for bound, inside in ((min, torch.ge), (max, torch.le)):
        if bound is not None:
            found = found * inside(x.value, bound)
    return found


@rule(aten.hardtanh.default)
def _(step: Step, x: Any, low: float = -1.0, high: float = 1.0) -> Any:
    return clamped(step, x, low, high)


@rule(aten.pow.Tensor_Scalar)
def _(step: Step, x: Any, exponent: float) -> Any:
    return x.tangent * exponent * x.value ** (exponent - 1)


# Two arguments that broadcast


@rule(aten.add.Tensor, aten.add.Scalar)
def add_rule(step: Step, x: Any, other: Any, *, alpha: float = 1) -> Any:
    terms = [raised(x, step.like.dim())] if moves(x) else []
    if moves(other):
        terms.append(raised(other, step.like.dim()) * alpha)
    whole = any(moves(a) and a.like.shape == step.like.shape for a in (x, other))
    return total(terms) if whole else step.full(total(terms))


@rule(aten.sub.Tensor, aten.sub.Scalar)
def _(step: Step, x: Any, other: Any, *, alpha: float = 1) -> Any:
    return add_rule(step, x, other, alpha=-alpha)


@rule(aten.rsub.Scalar)
def _(step: Step, x: Any, other: Any, alpha: float = 1) -> Any:
    return x.tangent * -alpha


@rule(aten.mul.Tensor, aten.mul.Scalar)
def _(step: Step, x: Any, other: Any) -> Any:
    pairs = ((x, other), (other, x))
    return total([raised(a, step.like.dim()) * value(b) for a, b in pairs if moves(a)])


@rule(aten.div.Tensor, aten.div.Scalar)
def _(step: Step, x: Any, other: Any) -> Any:
    terms = [raised(x, step.like.dim()) / value(other)] if moves(x) else []
    if moves(other):
        terms.append(-raised(other, step.like.dim()) * (step.out / other.value))
    return total(terms)


@rule(aten.where.self)
def _(step: Step, condition: Any, x: Any, other: Any) -> Any:
    return torch.where(condition.value, *_either(step, x, other))


@rule(aten.maximum.default)
def _(step: Step, x: Any, other: Any) -> Any:
    return _chosen(step, x, other, torch.gt)


@rule(aten.minimum.default)
def _(step: Step, x: Any, other: Any) -> Any:
    return _chosen(step, x, other, torch.lt)


def _either(step: Step, x: Any, other: Any) -> list[Any]:
    return [raised(a, step.like.dim()) if moves(a) else 0.0 for a in (x, other)]


def _chosen(step: Step, x: Any, other: Any, wins: Callable[[Any, Any], Any]) -> Any:
    """The derivative of the chosen one; of both in halves where they are equal."""
    one, two = _either(step, x, other)
    equal = (one + two) * 0.5
    rest = torch.where(wins(value(x), value(other)), one, two)
    return torch.where(value(x) == value(other), equal, rest)


@rule(aten.masked_fill.Scalar)
def _(step: Step, x: Any, mask: Any, fill: float) -> Any:
    return torch.where(mask.value, 0.0, x.tangent)


# Products


@rule(aten.mm.default, aten.bmm.default)
def multiplied(step: Step, x: Any, other: Any) -> Any:
    terms = [x.tangent @ other.value] if moves(x) else []
    if moves(other):
        terms.append(x.value @ other.tangent)
    return total(terms)


@rule(aten.addmm.default)
def _(step: Step, bias: Any, x: Any, other: Any, *, beta: float = 1, alpha: float = 1) -> Any:
    terms = [multiplied(step, x, other) * alpha] if moves(x) or moves(other) else []
    if moves(bias):
        terms.append(raised(bias, 2) * beta)
    return total(terms) if len(terms) > 1 or not moves(bias) else step.full(terms[0])


@rule(aten.linear.default)
def _(step: Step, x: Any, weight: Any, bias: Any = None) -> Any:
    """x δWᵀ of all directions is one product with [S O, D]."""
    terms = [F.linear(laid_out(x.tangent, only_moved=True), weight.value)] if moves(x) else []
    if moves(weight):
        together = F.linear(x.value, weight.tangent.flatten(0, 1))  # […, S O]
        terms.append(laid_out(together.unflatten(-1, (step.count, -1)).movedim(-2, 0)))
    if moves(bias):
        terms.append(raised(bias, step.like.dim()))
    return total(terms) if moves(x) or moves(weight) else step.full(total(terms))


@rule(aten.convolution.default)
def _(
    step: Step,
    x: Any,
    weight: Any,
    bias: Any,
    stride: Any,
    padding: Any,
    dilation: Any,
    transposed: bool,
    output_padding: Any,
    groups: int,
) -> Any:
    """The input's directions are more examples; those of the weights more output channels."""
    options = (stride, padding, dilation, transposed, output_padding, groups)

    def convolved(inputs: Any, kernel: Any) -> Any:
        return aten.convolution.default(inputs, kernel, None, *options)

    terms = [step.split(convolved(step.merged(x.tangent), weight.value))] if moves(x) else []
    if moves(weight):
        kernel = weight.tangent  # [S, O, D / groups, …], transposed [S, D, O / groups, …]
        if transposed:
            kernel = kernel.unflatten(1, (groups, -1)).movedim(0, 2).flatten(2, 3).flatten(0, 1)
        else:
            kernel = kernel.unflatten(1, (groups, -1)).movedim(0, 1).flatten(0, 2)
        found = convolved(x.value, kernel).unflatten(1, (groups, step.count, -1))  # [N, groups, S, O / groups, …]
        terms.append(laid_out(found.movedim(2, 0)).flatten(2, 3))
    if moves(bias):
        shaped = bias.tangent.unsqueeze(1)  # [S, 1, O, 1, …]
        for _ in range(step.like.dim() - 2):
            shaped = shaped.unsqueeze(-1)
        terms.append(shaped)
    return total(terms) if moves(x) or moves(weight) else step.full(total(terms))


@rule(aten.embedding.default)
def _(step: Step, weight: Any, indices: Any, padding_idx: int = -1, *_: Any) -> Any:
    """The padding has no derivative, as in a backward pass."""
    found = aten.index.Tensor(weight.tangent, [None, indices.value])
    return found if padding_idx < 0 else torch.where((indices.value == padding_idx).unsqueeze(-1), 0.0, found)
