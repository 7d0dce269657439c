"""Pairs of images, the network, and how good a reconstruction is."""

from __future__ import annotations

import math
from collections import OrderedDict

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from reproductions.bayesian_cnn.data import load
from reproductions.bayesian_cnn.superresolution.config import Task

Pair = tuple[Tensor, Tensor]  # low and high resolution in [0, 1], [N, C, H, W] each


def pairs(task: Task, seed: int, validation: int, test: int, device: str) -> dict[str, Pair]:
    """``train``, ``validation`` and ``test``; low resolution is the mean over squares."""
    data = load(task.data, seed, device, task.side, novel=0)
    parts = {"train": (data.train, task.train), "validation": (data.validation, validation), "test": (data.test, test)}
    found = {}
    for name, (part, count) in parts.items():
        high = part.raw[:count].float() / part.scale
        found[name] = (F.avg_pool2d(high, task.factor), high)
    return found


def espcn(task: Task, width: tuple[int, int], dropout: float = 0.0) -> nn.Sequential:
    """Convolutions on the small image, and a sub-pixel convolution at the end (Shi et al. 2016)."""
    first, second = width
    layers: OrderedDict[str, nn.Module] = OrderedDict(
        conv1=nn.Conv2d(task.channels, first, 5, padding=2), act1=nn.ReLU()
    )
    layers |= {"drop1": nn.Dropout(dropout)} if dropout else {}
    layers |= {"conv2": nn.Conv2d(first, second, 3, padding=1), "act2": nn.ReLU()}
    layers |= {"drop2": nn.Dropout(dropout)} if dropout else {}
    layers["conv3"] = nn.Conv2d(second, task.channels * task.factor**2, 3, padding=1)
    layers["shuffle"] = nn.PixelShuffle(task.factor)
    return nn.Sequential(layers)


def bicubic(low: Tensor, factor: int) -> Tensor:
    return F.interpolate(low, scale_factor=factor, mode="bicubic", align_corners=False)


def psnr(mean: Tensor, high: Tensor) -> float:
    """Mean over images of 10 log₁₀ (1 / MSE), dB."""
    errors = (mean.clamp(0, 1) - high).double().square().flatten(1).mean(1).clamp(min=1e-10)
    return float((-10 * errors.log10()).mean())


def ssim(mean: Tensor, high: Tensor, size: int = 11, sigma: float = 1.5) -> float:
    """Structural similarity (Wang et al. 2004) with a Gaussian window, for values in [0, 1]; edges are mirrored."""
    x, y = mean.clamp(0, 1).double(), high.double()
    at = torch.arange(size, dtype=torch.float64, device=x.device) - size // 2
    line = (-0.5 * (at / sigma).square()).exp()
    window = torch.outer(line, line) / line.sum().square()
    kernel = window.expand(x.shape[1], 1, size, size)

    def blurred(images: Tensor) -> Tensor:
        return F.conv2d(F.pad(images, (size // 2,) * 4, mode="reflect"), kernel, groups=x.shape[1])

    mx, my = blurred(x), blurred(y)
    vx, vy, both = blurred(x * x) - mx * mx, blurred(y * y) - my * my, blurred(x * y) - mx * my
    c1, c2 = 0.01**2, 0.03**2
    index = ((2 * mx * my + c1) * (2 * both + c2)) / ((mx**2 + my**2 + c1) * (vx + vy + c2))
    return float(index.mean())


def slope(image: Tensor) -> Tensor:
    """Size of the gradient of an image by differences: what knows where edges are, and nothing else."""
    padded = F.pad(image, (1, 1, 1, 1), mode="replicate")
    down = padded[..., 2:, 1:-1] - padded[..., :-2, 1:-1]
    across = padded[..., 1:-1, 2:] - padded[..., 1:-1, :-2]
    return (down.square() + across.square()).sqrt()


# Error against uncertainty


def ranks(values: Tensor) -> Tensor:
    """Ranks from 0 to 1; ties by their order."""
    order = values.argsort(stable=True)
    found = torch.empty(len(values), dtype=torch.float64)
    found[order] = torch.arange(len(values), dtype=torch.float64) / max(len(values) - 1, 1)
    return found


def correlation(one: Tensor, other: Tensor) -> float:
    """Spearman's."""
    return float(torch.corrcoef(torch.stack([ranks(one.flatten().cpu()), ranks(other.flatten().cpu())]))[0, 1])


def sparsification(error: Tensor, uncertainty: Tensor, steps: int = 20) -> list[float]:
    """RMSE of the pixels left after the most uncertain k/steps are taken away, relative to the RMSE of all."""
    squares = error.flatten().double().square().cpu()
    ordered = squares[uncertainty.flatten().cpu().argsort(stable=True)]  # the most certain first
    left = [max(1, len(ordered) - round(len(ordered) * k / steps)) for k in range(steps)]
    sums = ordered.cumsum(0)
    whole = float(squares.mean().sqrt())
    return [math.sqrt(float(sums[n - 1]) / n) / max(whole, 1e-12) for n in left]


def ause(error: Tensor, uncertainty: Tensor, steps: int = 20) -> float:
    """Area between the sparsification curve and that of an oracle, which knows the errors (Ilg et al. 2018)."""
    own, oracle = sparsification(error, uncertainty, steps), sparsification(error, error.abs(), steps)
    return sum(a - b for a, b in zip(own, oracle, strict=True)) / steps
