"""Randomness inside one forward pass of the user's network, which runs as it stands.

Bayesian parameters are recognised where functions take them (a ``TorchFunctionMode``), so that padding modes, groups,
tying, attention and functional weights need no treatment of their own. Matrix products and convolutions get the
estimator; whatever else is done with a parameter is done with the pass's one draw of it.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from typing import Any, Literal

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.nn import functional as F
from torch.overrides import TorchFunctionMode

from whence.curvature.attention import attention
from whence.posteriors.variational.blocks import OnePass, normal

EstimatorName = Literal["local", "flipout", "weights"]
Estimator = Callable[
    ["Substitution", Any, Tensor, "Operand", "Operand | None", tuple[Any, ...], dict[str, Any]], Tensor
]
VAR_FLOOR = 1e-20  # below it an output has no noise worth a gradient

PRODUCTS = {
    F.linear, F.conv1d, F.conv2d, F.conv3d, F.conv_transpose1d, F.conv_transpose2d, F.conv_transpose3d,
}  # fmt: skip
_PROPERTIES = (
    "shape", "dtype", "device", "ndim", "layout", "requires_grad", "is_cuda", "is_leaf", "is_sparse", "is_quantized",
)  # fmt: skip
_METHODS = ("dim", "size", "numel", "stride", "is_floating_point", "is_contiguous", "element_size", "__len__")
QUESTIONS = {getattr(Tensor, name).__get__ for name in _PROPERTIES} | {getattr(Tensor, name) for name in _METHODS}


class Operand:
    """Mean, standard deviation and variance of a weight or bias in a product; None where it is not random."""

    def __init__(self, mean: Tensor, std: Tensor | None, var: Tensor | None) -> None:
        self.mean, self.std, self.var = mean, std, var


class Substitution(TorchFunctionMode):
    """Stands between the network and its parameters for one forward pass."""

    def __init__(
        self,
        holders: Mapping[int, str],
        passes: Mapping[str, OnePass],
        estimator: Estimator | None,
        generator: torch.Generator | None,
    ) -> None:
        super().__init__()
        self.holders, self.passes, self.estimator, self.generator = holders, passes, estimator, generator
        self.met: set[str] = set()

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if func in QUESTIONS:
            return func(*args, **kwargs)
        if func is F.multi_head_attention_forward:
            with self:
                return attention(*args, **kwargs)
        if self.estimator is not None and (func in PRODUCTS or func is torch.addmm):
            out = self._product(func, args, kwargs)
            if out is not None:
                return out
        return func(*self._drawn(args), **self._drawn(kwargs))

    def _drawn(self, value: Any) -> Any:
        """``value`` with the pass's draw in the place of every Bayesian parameter."""
        if isinstance(value, Tensor):
            name = self.holders.get(id(value))
            if name is None:
                return value
            self.met.add(name)
            return self.passes[name].weight(name)
        if isinstance(value, (tuple, list)):
            new = [self._drawn(item) for item in value]
            if all(a is b for a, b in zip(new, value, strict=True)):
                return value
            return type(value)(*new) if hasattr(value, "_fields") else type(value)(new)
        if isinstance(value, dict):
            return {key: self._drawn(item) for key, item in value.items()}
        return value

    def _product(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Tensor | None:
        """The estimator's output where the weight is Bayesian and its entries (given the pass) are independent."""
        call = _addmm(args, kwargs) if func is torch.addmm else _bound(args, kwargs)
        if call is None:
            return None
        x, weight, bias, rest, options = call
        name = self.holders.get(id(weight))
        if name is None or id(x) in self.holders:
            return None
        bias_name = None if bias is None else self.holders.get(id(bias))
        if func is F.linear and (bias is None) == (bias_name is None):
            out = self.passes[name].linear(name, x, bias_name)
            if out is not None:
                self.met.update({name, bias_name} - {None})  # type: ignore[arg-type]
                return out
        moments = self.passes[name].moments(name)
        if moments is None:
            return None
        self.met.add(name)
        second = None if bias is None else self._operand(bias, bias_name)
        assert self.estimator is not None
        random = Operand(*moments, self.passes[name].variance(name))
        return self.estimator(self, func, x, random, second, rest, options)

    def _operand(self, bias: Tensor, name: str | None) -> Operand:
        if name is None:
            return Operand(bias, None, None)
        self.met.add(name)
        moments = self.passes[name].moments(name)
        if moments is None:
            return Operand(self.passes[name].weight(name), None, None)
        return Operand(*moments, self.passes[name].variance(name))


def _bound(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """(x, weight, bias, further arguments) of F.linear and the convolutions, which all begin alike."""
    rest = dict(kwargs)
    first = [*args[:3]]
    for key in ("input", "weight", "bias")[len(first) :]:
        first.append(rest.pop(key, None))
    return *first, args[3:], rest


def _addmm(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """bias + x W, as Hugging Face's Conv1D has it; other uses of addmm are left alone."""
    if len(args) != 3 or kwargs or args[0].dim() != 1:
        return None
    return args[1], args[2], args[0], (), {}


def _apply(func: Any, x: Tensor, weight: Tensor, bias: Tensor | None, rest: Any, options: Any) -> Tensor:
    if func is torch.addmm:
        return x @ weight if bias is None else torch.addmm(bias, x, weight)
    out: Tensor = func(x, weight, bias, *rest, **options)
    return out


def half_normal(like: Tensor, generator: torch.Generator | None) -> Tensor:
    """ε / 2 in the shape of ``like``. On the CPU large float32 tensors take quantiles from a table: twice as fast."""
    count = like.numel()
    if like.dtype != torch.float32 or like.device.type != "cpu" or count < 4096:
        return normal(like.shape, like, generator).mul_(0.5)
    bits = torch.randint(-(2**63), 2**63 - 1, (-(-count // 4),), generator=generator).view(torch.int16)
    return _half_quantiles().index_select(0, bits[:count].int().add_(2**15)).view(like.shape)


@functools.cache
def _half_quantiles() -> Tensor:
    """Half the normal quantiles at 65,536 equal steps, with mean 0 and variance ¼ exactly, [2¹⁶]."""
    levels = (torch.arange(2**16, dtype=torch.float64) + 0.5) / 2**16
    values = torch.special.ndtri(levels)
    return (0.5 * values / values.square().mean().sqrt()).float()


class Noised(torch.autograd.Function):
    """mean + √var ε, in the memory of ``mean`` and ``var``, which nobody else needs; ``half`` is ε / 2."""

    @staticmethod
    def forward(ctx: Any, mean: Tensor, var: Tensor, half: Tensor) -> Tensor:
        std = var.detach().clamp_min_(VAR_FLOOR).sqrt_()
        mean.addcmul_(std, half, value=2)
        ctx.mark_dirty(mean)
        ctx.save_for_backward(half.div_(std))
        return mean

    @staticmethod
    @once_differentiable  # type: ignore[untyped-decorator]
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, Tensor, None]:
        (slope,) = ctx.saved_tensors
        return grad, grad * slope, None


class Square(torch.autograd.Function):
    """x² with a backward pass of one product."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.save_for_backward(x)
        return x * x

    @staticmethod
    @once_differentiable  # type: ignore[untyped-decorator]
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        (x,) = ctx.saved_tensors
        return (grad * x).mul_(2)


def local(
    mode: Substitution, func: Any, x: Tensor, weight: Operand, bias: Operand | None, rest: Any, options: Any
) -> Tensor:
    """Local reparameterisation (Kingma et al. 2015, eq. 6): outputs drawn from their own mean and variance."""
    assert weight.var is not None
    b_mean, b_var = (None, None) if bias is None else (bias.mean, bias.var)
    mean = _apply(func, x, weight.mean, b_mean, rest, options)
    var = _apply(func, Square.apply(x), weight.var, b_var, rest, options)  # type: ignore[no-untyped-call]
    half = half_normal(mean, mode.generator)
    out: Tensor = Noised.apply(mean, var, half)  # type: ignore[no-untyped-call]
    return out


def flipout(
    mode: Substitution, func: Any, x: Tensor, weight: Operand, bias: Operand | None, rest: Any, options: Any
) -> Tensor:
    """Flipout (Wen et al. 2018, eq. 4): one perturbation ΔW of mean zero, with signs of its own for each example.

    y = W̄ x + s ∘ ΔW (r ∘ x): the mean is added once. Signs are shared by the positions of an example.
    """
    assert weight.std is not None
    b_mean = None if bias is None else bias.mean
    mean = _apply(func, x, weight.mean, b_mean, rest, options)
    delta = weight.std * normal(weight.mean.shape, mean, mode.generator)
    b_delta = None
    if bias is not None and bias.std is not None:
        b_delta = bias.std * normal(bias.mean.shape, mean, mode.generator)
    channel = -1 if func in (F.linear, torch.addmm) else -(weight.mean.dim() - 1)
    turned = _apply(func, x * _signs(x, channel, mode.generator), delta, b_delta, rest, options)
    return mean + turned * _signs(mean, channel, mode.generator)


def _signs(like: Tensor, channel: int, generator: torch.Generator | None) -> Tensor:
    """±1 for each example and channel; examples lie along the first dimension, if it is not the channel itself."""
    shape = [1] * like.dim()
    shape[channel] = like.shape[channel]
    if channel % like.dim() != 0:
        shape[0] = like.shape[0]
    device = like.device if generator is None else generator.device
    bits = torch.randint(0, 2, shape, generator=generator, device=device).to(like.device, like.dtype)
    return bits * 2 - 1


ESTIMATORS: dict[str, Estimator | None] = {"local": local, "flipout": flipout, "weights": None}
