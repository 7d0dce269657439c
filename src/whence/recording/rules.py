"""One small rule for each kind of layer: its inputs and output gradients in a common form.

Index legend: E Kronecker pairs side by side (groups), K root columns, N examples, T positions, D inputs,
O outputs, F features. ``lead`` are the dimensions before the features; one of them (or a
part of one) counts examples; :mod:`whence.recording.layout` finds it.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, ClassVar

import torch
from torch import Tensor
from torch.nn import functional as F

from whence.recording.patches import conv_patches, transposed_patches


@dataclass(frozen=True)
class Rule(ABC):
    """How a call depends on its parameters. ``x`` is the call's input."""

    label: ClassVar[str] = ""
    x: Tensor

    @abstractmethod
    def gradient(self, g: Tensor) -> Tensor:
        """Output gradients [K, *output shape] as [K, (E,) *lead, O]."""


class MatrixRule(Rule):
    """A call that multiplies by a matrix: z = W a at every position."""

    inputs_first: ClassVar[bool] = False  # whether the weight is stored as [D, O, …]

    @abstractmethod
    def features(self) -> Tensor:
        """a, [E, *lead, D]."""

    @property
    def pairs(self) -> int:
        """E."""
        return 1


@dataclass(frozen=True)
class LinearRule(MatrixRule):
    """x Wᵀ, at every position."""

    label: ClassVar[str] = "Linear"

    def features(self) -> Tensor:
        return self.x.unsqueeze(0)

    def gradient(self, g: Tensor) -> Tensor:
        return g.unsqueeze(1)


@dataclass(frozen=True)
class TransposedLinearRule(LinearRule):
    """x W."""

    inputs_first: ClassVar[bool] = True


@dataclass(frozen=True)
class ConvRule(MatrixRule):
    """A convolution in any number of dimensions."""

    label: ClassVar[str] = "Conv"
    kernel: tuple[int, ...]
    options: dict[str, Any] = field(default_factory=dict)

    @property
    def pairs(self) -> int:
        return self.options["groups"]

    def batched(self) -> Tensor:
        """The input with a batch dimension."""
        return self.x if self.x.dim() == len(self.kernel) + 2 else self.x.unsqueeze(0)

    def features(self) -> Tensor:
        return conv_patches(self.batched(), self.kernel, **self.options)

    def patch_bytes(self, positions: int) -> int:
        """Bytes of one example's patches."""
        return positions * self.x.shape[1] * math.prod(self.kernel) * self.x.element_size()

    def gradient(self, g: Tensor) -> Tensor:
        g = g if g.dim() == len(self.kernel) + 3 else g.unsqueeze(1)  # [K, B, O, *space]
        split = g.reshape(*g.shape[:2], self.pairs, g.shape[2] // self.pairs, -1)
        return split.permute(0, 2, 1, 4, 3)  # [K, E, B, T, O]


@dataclass(frozen=True)
class ConvTransposeRule(ConvRule):
    """A transposed convolution in any number of dimensions."""

    label: ClassVar[str] = "ConvTranspose"
    inputs_first: ClassVar[bool] = True

    def features(self) -> Tensor:
        return transposed_patches(self.batched(), self.kernel, **self.options)


class ElementRule(Rule):
    """A call that scales and shifts features one by one: z = γ ⊙ x̂ + β."""

    @abstractmethod
    def features(self) -> Tensor:
        """x̂, [*lead, F]."""


@dataclass(frozen=True)
class ChannelRule(ElementRule):
    """Scale and shift of dimension 1 (batch, group and instance normalisation)."""

    label: ClassVar[str] = "Norm"
    normalise: Callable[[Tensor], Tensor]

    def features(self) -> Tensor:
        return self.normalise(self.x).movedim(1, -1)

    def gradient(self, g: Tensor) -> Tensor:
        return g.movedim(2, -1)


@dataclass(frozen=True)
class TrailingRule(ElementRule):
    """Scale and shift of the last ``dims`` dimensions (layer and root-mean-square normalisation)."""

    label: ClassVar[str] = "Norm"
    normalise: Callable[[Tensor], Tensor]
    dims: int

    def features(self) -> Tensor:
        return self.normalise(self.x).flatten(-self.dims)

    def gradient(self, g: Tensor) -> Tensor:
        return g.flatten(-self.dims)


class SlopeRule(ElementRule):
    """The slopes of PReLU, which multiply negative inputs."""

    label: ClassVar[str] = "PReLU"


@dataclass(frozen=True)
class ChannelSlopeRule(SlopeRule):
    """A slope for each channel."""

    def features(self) -> Tensor:
        return self.x.clamp(max=0).movedim(1, -1)

    def gradient(self, g: Tensor) -> Tensor:
        return g.movedim(2, -1)


@dataclass(frozen=True)
class OneSlopeRule(SlopeRule):
    """One slope for all features."""

    def features(self) -> Tensor:
        return self.x.clamp(max=0).unsqueeze(-1)

    def gradient(self, g: Tensor) -> Tensor:
        return g.unsqueeze(-1)


@dataclass(frozen=True)
class EmbeddingRule(Rule):
    """A lookup of rows in a table; ``x`` contains their indices."""

    label: ClassVar[str] = "Embedding"
    padding_index: int | None

    def gradient(self, g: Tensor) -> Tensor:
        if self.padding_index is None:
            return g
        return g * (self.x != self.padding_index).unsqueeze(-1)


@dataclass(frozen=True)
class RecognisedCall:
    """A recognised function call: its rule, and the tensors that act as weight and bias."""

    rule: Rule
    weight: Tensor | None
    bias: Tensor | None


def _linear(input: Tensor, weight: Tensor, bias: Tensor | None = None) -> RecognisedCall:  # noqa: A002
    return RecognisedCall(LinearRule(input), weight, bias)


def _addmm(
    bias: Tensor,
    input: Tensor,  # noqa: A002
    weight: Tensor,
    *,
    beta: float = 1,
    alpha: float = 1,
) -> RecognisedCall | None:
    """bias + x W with W [D, O], as in Hugging Face's Conv1D."""
    if alpha != 1 or beta != 1 or bias.dim() != 1:
        return None
    return RecognisedCall(TransposedLinearRule(input), weight, bias)


def _matmul(input: Tensor, other: Tensor) -> RecognisedCall | None:  # noqa: A002
    """x W with W [D, O], or x Aᵀ with a parameter A [O, D]."""
    if not isinstance(input, Tensor) or not isinstance(other, Tensor) or other.dim() != 2 or input.dim() < 2:
        return None
    base = other._base
    turned = None if base is None or base.dim() != 2 else base.t()
    if turned is not None and turned.shape == other.shape and turned.stride() == other.stride():
        return RecognisedCall(LinearRule(input), base, None)
    return RecognisedCall(TransposedLinearRule(input), other, None)


def _conv(
    input: Tensor,  # noqa: A002
    weight: Tensor,
    bias: Tensor | None = None,
    stride: Any = 1,
    padding: Any = 0,
    dilation: Any = 1,
    groups: int = 1,
) -> RecognisedCall:
    options = {"stride": stride, "padding": padding, "dilation": dilation, "groups": groups}
    return RecognisedCall(ConvRule(input, tuple(weight.shape[2:]), options), weight, bias)


def _conv_transpose(
    input: Tensor,  # noqa: A002
    weight: Tensor,
    bias: Tensor | None = None,
    stride: Any = 1,
    padding: Any = 0,
    output_padding: Any = 0,
    groups: int = 1,
    dilation: Any = 1,
) -> RecognisedCall:
    options = {
        "stride": stride,
        "padding": padding,
        "output_padding": output_padding,
        "dilation": dilation,
        "groups": groups,
    }
    return RecognisedCall(ConvTransposeRule(input, tuple(weight.shape[2:]), options), weight, bias)


def _batch_norm(
    input: Tensor,  # noqa: A002
    running_mean: Tensor | None,
    running_var: Tensor | None,
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    training: bool = False,
    momentum: float = 0.1,
    eps: float = 1e-5,
) -> RecognisedCall:
    def normalise(x: Tensor) -> Tensor:
        return F.batch_norm(x, running_mean, running_var, None, None, training, momentum, eps)

    return RecognisedCall(ChannelRule(input, normalise), weight, bias)


def _group_norm(
    input: Tensor,  # noqa: A002
    num_groups: int,
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    eps: float = 1e-5,
) -> RecognisedCall:
    return RecognisedCall(ChannelRule(input, lambda x: F.group_norm(x, num_groups, None, None, eps)), weight, bias)


def _instance_norm(
    input: Tensor,  # noqa: A002
    running_mean: Tensor | None = None,
    running_var: Tensor | None = None,
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    use_input_stats: bool = True,
    momentum: float = 0.1,
    eps: float = 1e-5,
) -> RecognisedCall:
    def normalise(x: Tensor) -> Tensor:
        return F.instance_norm(x, running_mean, running_var, None, None, use_input_stats, momentum, eps)

    return RecognisedCall(ChannelRule(input, normalise), weight, bias)


def _layer_norm(
    input: Tensor,  # noqa: A002
    normalized_shape: Any,
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    eps: float = 1e-5,
) -> RecognisedCall:
    shape = tuple(normalized_shape)
    return RecognisedCall(
        TrailingRule(input, lambda x: F.layer_norm(x, shape, None, None, eps), len(shape)), weight, bias
    )


def _rms_norm(
    input: Tensor,  # noqa: A002
    normalized_shape: Any,
    weight: Tensor | None = None,
    eps: float | None = None,
) -> RecognisedCall:
    shape = tuple(normalized_shape)
    return RecognisedCall(TrailingRule(input, lambda x: F.rms_norm(x, shape, None, eps), len(shape)), weight, None)


def _prelu(input: Tensor, weight: Tensor) -> RecognisedCall:  # noqa: A002
    if weight.numel() == 1:
        return RecognisedCall(OneSlopeRule(input), weight, None)
    return RecognisedCall(ChannelSlopeRule(input), weight, None)


def _embedding(
    input: Tensor,  # noqa: A002
    weight: Tensor,
    padding_idx: int | None = None,
    max_norm: float | None = None,
    norm_type: float = 2.0,
    scale_grad_by_freq: bool = False,
    sparse: bool = False,
) -> RecognisedCall | None:
    if max_norm is not None or scale_grad_by_freq or sparse:
        return None
    if padding_idx is not None and padding_idx < 0:
        padding_idx += weight.shape[0]
    return RecognisedCall(EmbeddingRule(input, padding_idx), weight, None)


BINDERS: dict[Any, Callable[..., RecognisedCall | None]] = {
    F.linear: _linear,
    torch.addmm: _addmm,
    torch.matmul: _matmul,
    torch.Tensor.matmul: _matmul,
    torch.Tensor.__matmul__: _matmul,
    torch.mm: _matmul,
    torch.Tensor.mm: _matmul,
    F.conv1d: _conv,
    F.conv2d: _conv,
    F.conv3d: _conv,
    F.conv_transpose1d: _conv_transpose,
    F.conv_transpose2d: _conv_transpose,
    F.conv_transpose3d: _conv_transpose,
    F.batch_norm: _batch_norm,
    F.group_norm: _group_norm,
    F.instance_norm: _instance_norm,
    F.layer_norm: _layer_norm,
    F.rms_norm: _rms_norm,
    F.prelu: _prelu,
    F.embedding: _embedding,
}
