"""Dropout with fixed masks as plain modules, that can be scripted and exported."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from whence.copies import copy_module
from whence.functional import Network
from whence.posteriors.dropout.mode import FEATURES, Call, Masks, dropped
from whence.posteriors.dropout.sites import Found, Site
from whence.predictive.serving import Logits


class FixedMask(nn.Module):
    """x ↦ x · scale + shift, the same for every input."""

    def __init__(self, scale: Tensor, shift: Tensor) -> None:
        super().__init__()
        self.scale: Tensor
        self.shift: Tensor
        self.register_buffer("scale", scale)
        self.register_buffer("shift", shift)

    def forward(self, x: Tensor) -> Tensor:
        return x * self.scale + self.shift


def can_be_fixed(found: Found) -> bool:
    """Whether every site is a module that is called once and whose mask fits inputs of any size."""
    names = found.names()
    twice = {name.partition("#")[0] for name in names if "#" in name}
    return all(_fits(site) and site.name not in twice for site in found.sites)


def _fits(site: Site) -> bool:
    return site.module and site.dim == 0 and site.shape[0] == 2 and (len(site.shape) == 2 or site.kind in FEATURES)


def fixed(network: Network, found: Found, seed: int, draw: int, active: list[bool]) -> nn.Module:
    """The network with the masks of one draw in the place of its dropout modules."""
    module = copy_module(network.module)
    masks = Masks(seed, torch.tensor([draw], device=network.device), 1)
    for index, site in enumerate(found.sites):
        scale = torch.ones((), device=network.device, dtype=network.dtype)
        shift = torch.zeros_like(scale)
        if active[index]:
            inner = list(site.shape[1:2]) + [1] * (len(site.shape) - 2)
            keep = masks.keep(index, 1, inner, site.rate, True).reshape(1, *inner).to(network.dtype)
            call = Call(site.kind, site.rate)
            shift = dropped(torch.zeros_like(keep), keep, call)
            scale = dropped(torch.ones_like(keep), keep, call) - shift
        module.set_submodule(site.name, FixedMask(scale, shift))
    module.requires_grad_(False).eval()
    return Logits(module).eval() if network.returns_object else module
