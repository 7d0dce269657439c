"""Random forward passes of the unchanged network.

Bayesian parameters are recognised where functions take them (a ``TorchFunctionMode``), so that padding modes, groups,
tying, attention and functional weights need no special treatment. Matrix products and convolutions use the
estimator; all other operations use one draw of the parameter per pass.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.nn import functional as F
from torch.overrides import TorchFunctionMode

from whence.engine.randomness import normal
from whence.posteriors.variational.blocks import BlockPass
from whence.recording.attention import attention

EstimatorName = Literal["local", "flipout", "weights"]
VAR_FLOOR = 1e-20  # lower bound of output variances, for the gradient of the root

PRODUCTS = {
    F.linear, F.conv1d, F.conv2d, F.conv3d, F.conv_transpose1d, F.conv_transpose2d, F.conv_transpose3d,
}  # fmt: skip
_PROPERTIES = (
    "shape", "dtype", "device", "ndim", "layout", "requires_grad", "is_cuda", "is_leaf", "is_sparse", "is_quantized",
)  # fmt: skip
_METHODS = ("dim", "size", "numel", "stride", "is_floating_point", "is_contiguous", "element_size", "__len__")
QUESTIONS = {getattr(Tensor, name).__get__ for name in _PROPERTIES} | {getattr(Tensor, name) for name in _METHODS}


@dataclass(frozen=True)
class Operand:
    """Mean, standard deviation and variance of a weight or bias in a product; None if it is not random."""

    mean: Tensor
    std: Tensor | None = None
    var: Tensor | None = None


@dataclass(frozen=True)
class Product:
    """A matrix product or convolution y = f(x, weight, bias, …)."""

    function: Any
    x: Tensor
    weight: Tensor
    bias: Tensor | None
    rest: tuple[Any, ...] = ()
    options: Mapping[str, Any] = field(default_factory=dict)

    @classmethod
    def of(cls, function: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Product | None:
        """Recognise F.linear, convolutions, and bias + x W (Hugging Face's Conv1D); None for other uses."""
        if function is torch.addmm:
            plain = len(args) == 3 and not kwargs and args[0].dim() == 1
            return cls(function, args[1], args[2], args[0]) if plain else None
        options = dict(kwargs)
        first = [*args[:3], *(options.pop(key, None) for key in ("input", "weight", "bias")[len(args) :])]
        return cls(function, first[0], first[1], first[2], args[3:], options)

    def at(self, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        """The product with other operands."""
        if self.function is torch.addmm:
            return x @ weight if bias is None else torch.addmm(bias, x, weight)
        out: Tensor = self.function(x, weight, bias, *self.rest, **self.options)
        return out


Estimator = Callable[[Product, Operand, Operand | None, torch.Generator | None], Tensor]


class Substitution(TorchFunctionMode):
    """Replaces the parameters of a network in one forward pass."""

    def __init__(
        self,
        holders: Mapping[int, str],
        passes: Mapping[str, BlockPass],
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
        """``value`` with every Bayesian parameter replaced by its draw."""
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
        """The estimator's output if the weight is Bayesian and its entries are independent given the pass."""
        product = Product.of(func, args, kwargs)
        if product is None:
            return None
        x, weight, bias = product.x, product.weight, product.bias
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
        return self.estimator(product, random, second, self.generator)

    def _operand(self, bias: Tensor, name: str | None) -> Operand:
        if name is None:
            return Operand(bias)
        self.met.add(name)
        moments = self.passes[name].moments(name)
        if moments is None:
            return Operand(self.passes[name].weight(name))
        return Operand(*moments, self.passes[name].variance(name))


def half_normal(like: Tensor, generator: torch.Generator | None) -> Tensor:
    """ε / 2 in the shape of ``like``. On the CPU large float32 tensors use a table, which is twice as fast."""
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
    """mean + √var ε, overwriting ``mean`` and ``var``; ``half`` is ε / 2."""

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


def local(product: Product, weight: Operand, bias: Operand | None, generator: torch.Generator | None) -> Tensor:
    """Local reparameterisation (Kingma et al. 2015, eq. 6): outputs drawn from their own mean and variance."""
    assert weight.var is not None
    b_mean, b_var = (None, None) if bias is None else (bias.mean, bias.var)
    mean = product.at(product.x, weight.mean, b_mean)
    var = product.at(Square.apply(product.x), weight.var, b_var)  # type: ignore[no-untyped-call]
    out: Tensor = Noised.apply(mean, var, half_normal(mean, generator))  # type: ignore[no-untyped-call]
    return out


def flipout(product: Product, weight: Operand, bias: Operand | None, generator: torch.Generator | None) -> Tensor:
    """Flipout (Wen et al. 2018, eq. 4): one perturbation ΔW of mean zero, with separate signs for each example.

    y = W̄ x + s ∘ ΔW (r ∘ x): the mean is added once. Signs are shared by the positions of an example.
    """
    assert weight.std is not None
    x, b_mean = product.x, None if bias is None else bias.mean
    mean = product.at(x, weight.mean, b_mean)
    delta = weight.std * normal(weight.mean.shape, mean, generator)
    b_delta = None
    if bias is not None and bias.std is not None:
        b_delta = bias.std * normal(bias.mean.shape, mean, generator)
    channel = -1 if product.function in (F.linear, torch.addmm) else -(weight.mean.dim() - 1)
    perturbed = product.at(x * _signs(x, channel, generator), delta, b_delta)
    return mean + perturbed * _signs(mean, channel, generator)


def _signs(like: Tensor, channel: int, generator: torch.Generator | None) -> Tensor:
    """±1 for each example and channel; examples are the first dimension, unless it is the channel."""
    shape = [1] * like.dim()
    shape[channel] = like.shape[channel]
    if channel % like.dim() != 0:
        shape[0] = like.shape[0]
    device = like.device if generator is None else generator.device
    bits = torch.randint(0, 2, shape, generator=generator, device=device).to(like.device, like.dtype)
    return bits * 2 - 1


ESTIMATORS: dict[str, Estimator | None] = {"local": local, "flipout": flipout, "weights": None}
