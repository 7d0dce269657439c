"""Where a network drops out: the calls, found on two small batches, and the example dimension of each."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from whence.batches import Inputs, take
from whence.errors import BadData, UnsupportedLayer
from whence.functional import Network, fused_attention_off
from whence.posteriors.dropout.mode import Call, DropoutMode

LOOKED_FOR = (
    "nn.Dropout and its kin, F.dropout and its kin in a forward pass, attention with dropout and recurrent layers "
    "with dropout between them, at a rate above 0"
)


@dataclass(frozen=True)
class Site:
    """One call that drops something out."""

    name: str  # the module's dotted name; for a function, that of the module whose forward calls it and the function's
    kind: str  # function that is called
    rate: float  # as the network has it
    dim: int | None  # that counts examples; None for what all examples share (a weight, a position table)
    shape: tuple[int, ...]  # of what it saw for two examples
    module: bool  # whether it is a dropout module, called for the first time in its pass


@dataclass(frozen=True)
class Found:
    """What two small batches showed."""

    sites: tuple[Site, ...]
    output_shape: tuple[int, ...]

    def names(self) -> list[str]:
        return [s.name for s in self.sites]


class _Watch(DropoutMode):
    """Notes the calls, and lets the network be as in evaluation mode."""

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
    """The dotted names of the modules that are being called, while inside."""
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


def find(network: Network, inputs: Inputs, p: float | None) -> Found:
    """Run the first example two and three times side by side; the dimension that grows counts examples."""
    modules = dict(network.module.named_modules())
    runs: list[_Watch] = []
    outputs = torch.zeros(0)
    with torch.no_grad():
        network(take(inputs, torch.zeros(2, dtype=torch.long)))  # says so where the inputs do not fit
    with _stacked(modules) as stack, torch.no_grad(), fused_attention_off:
        for size in (2, 3):
            watch = _Watch(p, stack, modules)
            stack.clear()
            with watch:
                outputs = network.functional({}, take(inputs, torch.zeros(size, dtype=torch.long)))
            runs.append(watch)
    two, three = runs[0].seen, runs[1].seen
    if not two:
        raise BadData(f"the network drops nothing out, so it has no masks to draw. Looked for: {LOOKED_FOR}.")
    if [(c, n) for c, n, _ in two] != [(c, n) for c, n, _ in three]:
        raise UnsupportedLayer("the network calls dropout in another order for three inputs than for two.")
    sites, times = [], dict[str, int]()
    for (call, name, small), (_, _, large) in zip(two, three, strict=True):
        times[name] = times.get(name, 0) + 1
        unique = name if times[name] == 1 else f"{name}#{times[name]}"
        own = times[name] == 1 and isinstance(modules.get(name), nn.modules.dropout._DropoutNd)
        sites.append(Site(unique, call.kind, call.rate, _example_dim(unique, small, large), small, own))
    return Found(tuple(sites), tuple(outputs.shape[1:]))


def _example_dim(name: str, small: tuple[int, ...], large: tuple[int, ...]) -> int | None:
    if len(small) != len(large):
        raise UnsupportedLayer(f"the dropout {name!r} sees {len(small)} or {len(large)} dimensions, by the batch size.")
    grown = [d for d, (a, b) in enumerate(zip(small, large, strict=True)) if a != b]
    if len(grown) > 1 or any(3 * small[d] != 2 * large[d] for d in grown):
        raise UnsupportedLayer(
            f"the dropout {name!r} sees {list(small)} for two inputs and {list(large)} for three; no dimension of it "
            "counts examples."
        )
    return grown[0] if grown else None


def certainly_none(module: nn.Module, p: float | None) -> bool:
    """Whether the network is made of torch's own modules only, and none of them drops out."""
    for part in module.modules():
        if not type(part).__module__.startswith("torch.nn.modules"):
            return False
        if isinstance(part, nn.modules.dropout._DropoutNd) and (part.p > 0 or p is not None):
            return False
        if isinstance(part, (nn.MultiheadAttention, nn.RNNBase)) and part.dropout > 0:
            return False
    return True
