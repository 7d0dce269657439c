"""Selection of the Bayesian weights."""

from __future__ import annotations

import difflib
import fnmatch
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Literal

import torch
from torch import Tensor, nn

from whence.engine.batches import Inputs, take
from whence.engine.options import Option
from whence.errors import BadOption, NothingSelected, UnsupportedLayer
from whence.functional import Network
from whence.recording.blocks import Block
from whence.recording.recorder import forward
from whence.recording.rules import MatrixRule
from whence.vocabulary import LAYERS

Layers = None | str | Sequence[str] | Callable[[str, nn.Parameter], bool] | Mapping[str, Tensor] | Tensor


class Selection(ABC):
    """Selects parameters by name, and perhaps single entries."""

    @abstractmethod
    def resolve(self, network: Network, inputs: Inputs) -> list[str]:
        """Names of the parameters with a Bayesian entry, in the network's order."""

    def keep(self, network: Network, blocks: Sequence[Block]) -> Tensor | None:
        """Indices of the Bayesian entries in the blocks' concatenated vector; None for all."""
        return None


def trainable(network: Network) -> list[str]:
    """Parameters that are not frozen, and not complex."""
    names = [n for n, p in network.params.items() if p.requires_grad and p.is_floating_point() and p.numel()]
    if not names:
        refuse_complex(network, network.params)
        raise NothingSelected(
            f"all {len(network.params)} parameters are frozen (requires_grad=False), so none can be Bayesian. "
            "Call requires_grad_(True) on those that should be."
        )
    return names


def refuse_complex(network: Network, names: Iterable[str]) -> None:
    """Refuse complex parameters: the posterior is a Gaussian over real weights."""
    found = [n for n in names if network.params[n].is_complex() and network.params[n].requires_grad]
    if found:
        raise UnsupportedLayer(
            f"the parameter {found[0]!r} is complex ({network.params[found[0]].dtype}), and the posterior is over real "
            "weights. Store its real and imaginary parts as a real parameter and use torch.view_as_complex in "
            "forward, or exclude it with layers=lambda name, p: not p.is_complex()."
        )


class All(Selection):
    """Every parameter that is not frozen."""

    def resolve(self, network: Network, inputs: Inputs) -> list[str]:
        refuse_complex(network, network.params)
        return trainable(network)


class Last(Selection):
    """The last linear or convolutional layer before the output."""

    def resolve(self, network: Network, inputs: Inputs) -> list[str]:
        names = trainable(network)
        network.select(names)
        uses = [u for u in forward(network, take(inputs, slice(0, 2))).uses if isinstance(u.rule, MatrixRule)]
        if not uses:
            raise NothingSelected("no linear or convolutional layer was called; select the last layer by a pattern.")
        chosen = {ref.name for ref in uses[-1].refs}
        return [n for n in names if n in chosen]


class Patterns(Selection):
    """Globs on dotted module names (a module includes all below it) or parameter names."""

    def __init__(self, patterns: Sequence[str]) -> None:
        self.patterns = list(patterns)

    def resolve(self, network: Network, inputs: Inputs) -> list[str]:
        chosen: set[str] = set()
        free = set(trainable(network))
        for pattern in self.patterns:
            matched = {n for n in network.params if any(_matches(a, pattern) for a in network.aliases(n))}
            if not matched:
                modules = [name for name, _ in network.module.named_modules() if name]
                near = difflib.get_close_matches(pattern.strip("*."), modules, n=3, cutoff=0.3) or modules[:6]
                meant = LAYERS.get(pattern, "")
                raise NothingSelected(
                    f"the pattern {pattern!r} matches no module. {meant}Modules of the network include: "
                    f"{', '.join(near)}."
                )
            refuse_complex(network, matched)
            if not matched & free:
                raise NothingSelected(
                    f"the pattern {pattern!r} matches frozen parameters only (such as {sorted(matched)[0]!r}); call "
                    "requires_grad_(True) on them if they should be Bayesian."
                )
            chosen |= matched & free
        return [n for n in network.params if n in chosen]


def _matches(parameter: str, pattern: str) -> bool:
    """Whether the parameter, its module or a module above it matches."""
    parts = parameter.split(".")
    return any(fnmatch.fnmatchcase(".".join(parts[:i]), pattern) for i in range(1, len(parts) + 1))


class Predicate(Selection):
    """``predicate(name, parameter)``."""

    def __init__(self, predicate: Callable[[str, nn.Parameter], bool]) -> None:
        self.predicate = predicate

    def resolve(self, network: Network, inputs: Inputs) -> list[str]:
        names = trainable(network)
        free = {n: p for n, p in network.params.items() if p.requires_grad}
        picked = {n for n, p in free.items() if self.predicate(n, p)}
        refuse_complex(network, picked)
        chosen = [n for n in names if n in picked]
        if not chosen:
            raise NothingSelected(f"the predicate selected none of the {len(names)} parameters that are not frozen.")
        return chosen


class Names(Selection):
    """Exactly these parameters."""

    def __init__(self, names: Iterable[str]) -> None:
        self.names = list(names)

    def resolve(self, network: Network, inputs: Inputs) -> list[str]:
        missing = [n for n in self.names if n not in network.params]
        if missing:
            raise NothingSelected(f"the network has no parameter {missing[0]!r}.")
        refuse_complex(network, self.names)
        return [n for n in network.params if n in set(self.names)]


class Mask(Selection):
    """Single weights, by a boolean tensor per parameter; all others keep their trained values."""

    def __init__(self, masks: Mapping[str, Tensor]) -> None:
        self.masks = {name: mask.bool() for name, mask in masks.items()}

    def resolve(self, network: Network, inputs: Inputs) -> list[str]:
        for name, mask in self.masks.items():
            if name not in network.params:
                raise NothingSelected(f"the mask names {name!r}, which the network does not have.")
            if mask.shape != network.params[name].shape:
                raise BadOption(
                    f"the mask of {name!r} has shape {list(mask.shape)}, the parameter "
                    f"{list(network.params[name].shape)}."
                )
        refuse_complex(network, self.masks)
        chosen = [n for n in network.params if n in self.masks and bool(self.masks[n].any())]
        if not chosen:
            raise NothingSelected("the mask selects no weight.")
        return chosen

    def keep(self, network: Network, blocks: Sequence[Block]) -> Tensor:
        flat = torch.cat([self.masks[p.name].flatten() for b in blocks for p in b.params])
        return flat.nonzero().squeeze(1).to(network.device)


def selection(layers: Layers, network: Network) -> Selection:
    """The selection object for the public option ``layers``."""
    if layers is None:
        return All()
    if isinstance(layers, Tensor):
        return Mask(_split_mask(layers, network))
    wrong = BadOption(
        f"layers is a {type(layers).__name__}: pass None, 'last', patterns on module names, a predicate "
        "(name, parameter) -> bool, or a mask of boolean tensors by parameter name."
    )
    if isinstance(layers, Mapping):
        if not all(isinstance(m, Tensor) for m in layers.values()):
            raise wrong
        return Mask(layers)
    if isinstance(layers, nn.Module):
        raise wrong
    if callable(layers):
        return Predicate(layers)
    if isinstance(layers, str):
        return Last() if layers == "last" else Patterns([layers])
    if not isinstance(layers, Iterable):
        raise wrong
    patterns = list(layers)
    if not all(isinstance(p, str) for p in patterns):
        raise wrong
    if not patterns:
        raise NothingSelected("layers=[] selects nothing; use None for all layers.")
    return Patterns(patterns)


def _split_mask(flat: Tensor, network: Network) -> dict[str, Tensor]:
    names = trainable(network)
    total = sum(network.params[n].numel() for n in names)
    if flat.numel() != total:
        raise BadOption(f"the mask has {flat.numel()} entries; the network has {total} weights that are not frozen.")
    pieces = flat.flatten().split([network.params[n].numel() for n in names])
    return {n: piece.reshape(network.params[n].shape) for n, piece in zip(names, pieces, strict=True)}


class Score(Option):
    """Which weights a subnetwork has."""

    VARIANCE = "variance"
    MAGNITUDE = "magnitude"
    RANDOM = "random"


def subnetwork(
    source: Any,
    count: int,
    *,
    by: Literal["variance", "magnitude", "random"] = "variance",
    generator: torch.Generator | None = None,
) -> dict[str, Tensor]:
    """A mask of ``count`` weights for ``laplace(..., layers=mask, structure="full")``.

    ``by="variance"`` selects those with the largest marginal variance under a posterior (Daxberger et al. 2021);
    ``"magnitude"`` the largest weights, ``"random"`` random weights (of a posterior or a network).
    """
    score = Score.parse(by, "by")
    if score is Score.VARIANCE:
        if isinstance(source, nn.Module):
            raise BadOption("by='variance' needs a posterior, such as laplace(..., structure='diag').")
        scores = source.variance()
    else:
        means = dict(source.named_parameters()) if isinstance(source, nn.Module) else source.mean()
        scores = {n: p.detach().abs() for n, p in means.items()}
        if score is Score.RANDOM:
            scores = {n: torch.rand(s.shape, generator=generator).to(s.device) for n, s in scores.items()}
    flat = torch.cat([s.flatten() for s in scores.values()])
    if not 0 < count <= len(flat):
        raise BadOption(f"count={count} is not between 1 and {len(flat):,}, the number of weights.")
    chosen = torch.zeros(len(flat), dtype=torch.bool, device=flat.device)
    chosen[flat.topk(count).indices] = True
    pieces = chosen.split([s.numel() for s in scores.values()])
    return {n: piece.reshape(s.shape) for (n, s), piece in zip(scores.items(), pieces, strict=True)}
