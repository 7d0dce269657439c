"""A DCGAN without batch statistics, with noise in its layers where asked for (Radford et al. 2016)."""

from __future__ import annotations

import torch
from torch import Tensor, nn


class Noise(nn.Module):
    """Adds Gaussian noise of a standard deviation relative to that of its input, in training and in evaluation."""

    def __init__(self, scale: float) -> None:
        super().__init__()
        self.scale = scale

    def forward(self, x: Tensor) -> Tensor:
        return x + self.scale * x.detach().std() * torch.randn_like(x)


def _noise(scale: float) -> list[nn.Module]:
    return [Noise(scale)] if scale else []


def generator(latent: int, width: int, side: int, channels: int, noise: float = 0.0) -> nn.Sequential:
    """From [N, latent] to images in [−1, 1]; ``side`` is a multiple of 4."""
    base = side // 4
    layers: list[nn.Module] = [nn.Linear(latent, 2 * width * base**2), nn.Unflatten(1, (2 * width, base, base))]
    layers += [*_noise(noise), nn.GroupNorm(1, 2 * width), nn.ReLU()]
    layers += [nn.ConvTranspose2d(2 * width, width, 4, 2, 1), *_noise(noise), nn.GroupNorm(1, width), nn.ReLU()]
    return nn.Sequential(*layers, nn.ConvTranspose2d(width, channels, 4, 2, 1), nn.Tanh())


def discriminator(width: int, side: int, channels: int, noise: float = 0.0) -> nn.Sequential:
    """From images to one logit of being real."""
    layers: list[nn.Module] = [nn.Conv2d(channels, width, 4, 2, 1), *_noise(noise), nn.LeakyReLU(0.2)]
    layers += [nn.Conv2d(width, 2 * width, 4, 2, 1), *_noise(noise), nn.LeakyReLU(0.2)]
    return nn.Sequential(*layers, nn.Flatten(), nn.Linear(2 * width * (side // 4) ** 2, 1))


def size(*networks: nn.Module) -> int:
    return sum(p.numel() for network in networks for p in network.parameters())


def width_of_size(wanted: int, latent: int, side: int, channels: int, least: int) -> int:
    """The width at which generator and discriminator together come closest to a number of parameters."""

    def away(width: int) -> int:
        return abs(size(generator(latent, width, side, channels), discriminator(width, side, channels)) - wanted)

    return min(range(least, 2 * least + 1), key=away)
