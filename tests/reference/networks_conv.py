"""Convolutional test networks.

Index legend: N examples, C outputs, P parameters, S samples, T shared positions, D layer inputs,
O layer outputs.
"""

import torch
from torch import Tensor, nn

from .cases import Case, classify, normal, register

N = 4
PADDING_MODES = ("zeros", "reflect", "circular", "replicate")


def pooled(layer: nn.Module, in_shape: tuple[int, ...]) -> Case:
    """A classification case on Pooled(layer); in_shape leaves out the example dimension."""
    return classify(Pooled(layer), normal(N, *in_shape), N)


class Pooled(nn.Module):
    """A convolution with a position-dependent pooling and a head."""

    def __init__(self, layer: nn.Module) -> None:
        super().__init__()
        self.layer = layer
        self.head = nn.Linear(layer.out_channels, 3)

    def forward(self, x: Tensor) -> Tensor:
        """head(sum_t ramp_t tanh(layer(x)_t))."""
        h = torch.tanh(self.layer(x)).flatten(2)
        ramp = torch.linspace(-1.0, 2.0, h.shape[-1], dtype=h.dtype, device=h.device)
        return self.head((h * ramp).mean(dim=-1))


@register("conv2d")
def conv2d() -> Case:
    """Two convolutions in a plain chain."""
    model = nn.Sequential(
        nn.Conv2d(2, 3, 3, padding=1), nn.ReLU(), nn.Conv2d(3, 2, 2), nn.ReLU(), nn.Flatten(), nn.Linear(8, 3)
    )
    return classify(model, normal(N, 2, 3, 3), N)


@register("conv2d_general")
def conv2d_general() -> Case:
    """Unequal kernel, stride, padding and dilation per axis, and groups."""
    layer = nn.Conv2d(4, 6, (3, 2), stride=(2, 1), padding=(2, 1), dilation=(1, 2), groups=2)
    return pooled(layer, (4, 5, 4))


@register("conv2d_no_bias")
def conv2d_no_bias() -> Case:
    """Groups without a bias."""
    return pooled(nn.Conv2d(4, 4, 2, stride=2, groups=2, bias=False), (4, 4, 4))


@register("conv2d_depthwise")
def conv2d_depthwise() -> Case:
    """groups = channels, two outputs per input channel."""
    return pooled(nn.Conv2d(3, 6, 3, padding=1, groups=3), (3, 3, 3))


@register("conv2d_same")
def conv2d_same() -> Case:
    """padding='same' with an even kernel and dilation: more zeros on the right."""
    return pooled(nn.Conv2d(2, 3, (2, 3), padding="same", dilation=(3, 1)), (2, 4, 4))


@register("conv2d_same_circular")
def conv2d_same_circular() -> Case:
    """padding='same' with wrapping."""
    return pooled(nn.Conv2d(2, 3, (2, 4), padding="same", padding_mode="circular"), (2, 4, 5))


@register("conv2d_valid")
def conv2d_valid() -> Case:
    """padding='valid'."""
    return pooled(nn.Conv2d(2, 3, 2, padding="valid"), (2, 3, 3))


def padded(mode: str) -> None:
    """Register a convolution with this padding mode, unequal padding and a stride."""

    @register(f"conv2d_padding_{mode}")
    def build() -> Case:
        layer = nn.Conv2d(2, 3, 3, stride=(1, 2), padding=(2, 1), padding_mode=mode)
        return pooled(layer, (2, 4, 4))


for _mode in PADDING_MODES:
    padded(_mode)


@register("conv1d")
def conv1d() -> Case:
    """One space dimension with stride, padding, dilation and groups."""
    return pooled(nn.Conv1d(4, 4, 3, stride=2, padding=2, dilation=2, groups=2), (4, 7))


@register("conv3d")
def conv3d() -> Case:
    """Three space dimensions with unequal settings per axis."""
    layer = nn.Conv3d(2, 3, (2, 1, 3), stride=(1, 2, 1), padding=(1, 0, 1), dilation=(2, 1, 1))
    return pooled(layer, (2, 3, 3, 3))


@register("conv_transpose1d")
def conv_transpose1d() -> Case:
    """Stride, padding, output padding, dilation and groups in one dimension."""
    layer = nn.ConvTranspose1d(4, 6, 3, stride=2, padding=1, output_padding=1, groups=2, dilation=2)
    return pooled(layer, (4, 4))


@register("conv_transpose2d")
def conv_transpose2d() -> Case:
    """Unequal settings per axis and groups in two dimensions."""
    layer = nn.ConvTranspose2d(
        4, 4, (3, 2), stride=(2, 3), padding=(1, 0), output_padding=(1, 2), groups=2, dilation=(1, 2)
    )
    return pooled(layer, (4, 2, 3))


@register("conv_transpose2d_no_bias")
def conv_transpose2d_no_bias() -> Case:
    """No bias, no groups."""
    return pooled(nn.ConvTranspose2d(2, 3, 2, stride=2, bias=False), (2, 2, 2))


@register("conv_transpose3d")
def conv_transpose3d() -> Case:
    """Unequal settings per axis in three dimensions."""
    layer = nn.ConvTranspose3d(
        2,
        4,
        (2, 1, 3),
        stride=(1, 2, 2),
        padding=(0, 0, 1),
        output_padding=(0, 1, 0),
        dilation=(2, 1, 1),
        groups=2,
    )
    return pooled(layer, (2, 2, 2, 2))


class TwoScales(nn.Module):
    """One convolution called on an image and on a smaller copy of it."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(2, 3, 2)
        self.head = nn.Linear(6, 3)

    def forward(self, x: Tensor) -> Tensor:
        """head(mean of tanh(conv(x)), mean of tanh(conv(every second pixel)))."""
        large, small = torch.tanh(self.conv(x)), torch.tanh(self.conv(x[..., ::2, ::2]))
        return self.head(torch.cat([large.mean(dim=(2, 3)), small.mean(dim=(2, 3))], dim=1))


@register("conv_called_twice")
def conv_called_twice() -> Case:
    """The two calls have different numbers of positions."""
    return classify(TwoScales(), normal(N, 2, 4, 4), N)


class Frames(nn.Module):
    """A convolution on frames folded into the batch dimension."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(2, 3, 2)
        self.head = nn.Linear(3, 3)

    def forward(self, x: Tensor) -> Tensor:
        """[N, T, C, H, W] -> mean over frames and space -> head."""
        n, t = x.shape[:2]
        h = torch.tanh(self.conv(x.flatten(0, 1))).mean(dim=(2, 3))
        return self.head(h.reshape(n, t, -1).mean(dim=1))


@register("conv_frames")
def conv_frames() -> Case:
    """The convolution sees N * T images."""
    return classify(Frames(), normal(N, 2, 2, 3, 3), N)
