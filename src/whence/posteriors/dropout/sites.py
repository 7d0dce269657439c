"""Dropout sites of a network: its calls, found on two small batches, with their example dimensions."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn

from whence.copies import copy_module
from whence.engine.batches import Inputs, take
from whence.engine.contexts import fused_attention_off
from whence.errors import BadData, UnsupportedLayer
from whence.functional import Network
from whence.posteriors.dropout.masking import FEATURES, Call, DropoutMode, Function, Masks, dropped
from whence.predictive.serving import Logits

LOOKED_FOR = (
    "nn.Dropout and its variants, F.dropout and its variants in a forward pass, attention and recurrent layers "
    "with dropout, at a rate above 0"
)


@dataclass(frozen=True)
class Site:
    """One dropout call."""

    name: str  # the module's dotted name; for a function, the calling module's and the function's
    kind: Function  # that is called
    rate: float  # rate in the network
    dim: int | None  # example dimension; None for tensors shared by all examples (a weight, a position table)
    shape: tuple[int, ...]  # input shape for two examples
    module: bool  # whether it is a dropout module, called for the first time in its pass


@dataclass(frozen=True)
class DropoutSites:
    """The sites found on two small batches."""

    sites: tuple[Site, ...]
    output_shape: tuple[int, ...]

    def names(self) -> list[str]:
        return [s.name for s in self.sites]


class _CallRecorder(DropoutMode):
    """Records the calls without dropping anything."""

    def __init__(self, p: float | None, stack: list[str], modules: dict[str, nn.Module]) -> None:
        super().__init__(p)
        self.stack, self.modules = stack, modules
        self.seen: list[tuple[Call, str, tuple[int, ...]]] = []

    def drop(self, x: Tensor, call: Call) -> Tensor:
        self.seen.append((call, self._name(call), tuple(x.shape)))
        return x

    def _name(self, call: Call) -> str:
        name = self.stack[-1] if self.stack else ""
        own = isinstance(self.modules[name], (nn.modules.dropout._DropoutNd, nn.MultiheadAttention, nn.RNNBase))
        return name if own and name else ".".join(filter(None, [name, f"F.{call.kind}"]))


@contextmanager
def _stacked(modules: dict[str, nn.Module]) -> Iterator[list[str]]:
    """Tracks the dotted names of the modules being called."""
    stack: list[str] = []
    handles: list[Any] = []
    for name, module in modules.items():
        handles.append(module.register_forward_pre_hook(lambda *_, n=name: stack.append(n)))
        handles.append(module.register_forward_hook(lambda *_: (stack.pop(), None)[1], always_call=True))
    try:
        yield stack
    finally:
        for handle in handles:
            handle.remove()


_known: WeakKeyDictionary[Network, DropoutSites] = WeakKeyDictionary()  # found once for each network


def known_sites(network: Network) -> DropoutSites | None:
    """The sites, if they were found before."""
    return _known.get(network)


def sites_of(network: Network, inputs: Inputs, p: float | None) -> DropoutSites:
    """The sites, found on the network's first inputs."""
    if network not in _known:
        _known[network] = find_sites(network, inputs, p)
    return _known[network]


def with_known_sites(network: Network, copy: Network) -> Network:
    """A copy of a network, with its known sites."""
    if network in _known:
        _known[copy] = _known[network]
    return copy


def find_sites(network: Network, inputs: Inputs, p: float | None) -> DropoutSites:
    """Run batches of two and three copies of the first example; the dimension that grows counts examples."""
    modules = dict(network.module.named_modules())
    runs: list[_CallRecorder] = []
    outputs = torch.zeros(0)
    with torch.no_grad():
        network(take(inputs, torch.zeros(2, dtype=torch.long)))  # raises if the inputs do not match the network
    with _stacked(modules) as stack, torch.no_grad(), fused_attention_off:
        for size in (2, 3):
            recorder = _CallRecorder(p, stack, modules)
            stack.clear()
            with recorder:
                outputs = network.functional({}, take(inputs, torch.zeros(size, dtype=torch.long)))
            runs.append(recorder)
    two, three = runs[0].seen, runs[1].seen
    if not two:
        raise BadData(f"the network has no dropout, so there are no masks to draw. Supported: {LOOKED_FOR}.")
    if [(c, n) for c, n, _ in two] != [(c, n) for c, n, _ in three]:
        raise UnsupportedLayer("the order of dropout calls differs between two and three inputs.")
    sites, times = [], dict[str, int]()
    for (call, name, small), (_, _, large) in zip(two, three, strict=True):
        times[name] = times.get(name, 0) + 1
        unique = name if times[name] == 1 else f"{name}#{times[name]}"
        own = times[name] == 1 and isinstance(modules.get(name), nn.modules.dropout._DropoutNd)
        sites.append(Site(unique, call.kind, call.rate, _example_dim(unique, small, large), small, own))
    return DropoutSites(tuple(sites), tuple(outputs.shape[1:]))


def _example_dim(name: str, small: tuple[int, ...], large: tuple[int, ...]) -> int | None:
    if len(small) != len(large):
        raise UnsupportedLayer(f"the dropout {name!r} gets {len(small)} or {len(large)} dimensions by batch size.")
    grown = [d for d, (a, b) in enumerate(zip(small, large, strict=True)) if a != b]
    if len(grown) > 1 or any(3 * small[d] != 2 * large[d] for d in grown):
        raise UnsupportedLayer(
            f"the dropout {name!r} gets {list(small)} for two inputs and {list(large)} for three; no dimension "
            "counts examples."
        )
    return grown[0] if grown else None


def certainly_none(module: nn.Module, p: float | None) -> bool:
    """Whether the network has only torch's own modules, none of them with dropout."""
    for part in module.modules():
        if not type(part).__module__.startswith("torch.nn.modules"):
            return False
        if isinstance(part, nn.modules.dropout._DropoutNd) and (part.p > 0 or p is not None):
            return False
        if isinstance(part, (nn.MultiheadAttention, nn.RNNBase)) and part.dropout > 0:
            return False
    return True


# Masks as modules that can be scripted and exported


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


def can_be_fixed(found: DropoutSites) -> bool:
    """Whether every site is a module that is called once, with a mask for inputs of any size."""
    names = found.names()
    twice = {name.partition("#")[0] for name in names if "#" in name}
    return all(_fits(site) and site.name not in twice for site in found.sites)


def _fits(site: Site) -> bool:
    return site.module and site.dim == 0 and site.shape[0] == 2 and (len(site.shape) == 2 or site.kind in FEATURES)


def with_fixed_masks(network: Network, found: DropoutSites, seed: int, draw: int, active: list[bool]) -> nn.Module:
    """The network with its dropout modules replaced by the masks of one draw."""
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
