"""Which weights share a piece of the variational covariance: forms, fixed entries, what is refused.

Index legend: S draws, P weights, E pairs side by side (groups), O outputs, D inputs (and one for the bias), K rank.
"""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from whence.curvature.blocks import Block, MatrixForm, Param, owner_of
from whence.errors import UnsupportedLayer
from whence.functional import Network
from whence.posteriors.variational.priors import ScaleMixture
from whence.priors import PriorPrecision


def inverse_softplus(value: float) -> float:
    """ρ with softplus(ρ) = value."""
    return value + math.log(-math.expm1(-value))


def softplus(rho: Tensor) -> Tensor:
    """σ = log(1 + exp ρ), never zero."""
    return F.softplus(rho)


def normal(shape: Sequence[int], like: Tensor, generator: torch.Generator | None) -> Tensor:
    """Standard normal numbers where ``like`` is, whichever device the generator lives on."""
    device = like.device if generator is None else generator.device
    return torch.randn(tuple(shape), generator=generator, device=device, dtype=like.dtype).to(like.device)


class OnePass:
    """What one forward pass knows of a block: its shared randomness, and one draw of each weight at most."""

    @abstractmethod
    def weight(self, name: str) -> Tensor:
        """The pass's one draw of a parameter."""

    def moments(self, name: str) -> tuple[Tensor, Tensor] | None:
        """Mean and standard deviation, where the pass leaves the entries independent; else None."""
        return None

    def variance(self, name: str) -> Tensor:
        """The square of the standard deviation that :meth:`moments` gives."""
        moments = self.moments(name)
        assert moments is not None
        return moments[1].square()

    def linear(self, name: str, x: Tensor, bias: str | None) -> Tensor | None:
        """A draw of W x (+ b) for each row by itself, where the block has its own way; else None."""
        return None


class VariationalBlock(nn.Module):
    """Parameters that are Gaussian together, and independent of all other blocks."""

    params: tuple[Param, ...]
    structure: str

    def __init__(self, params: Sequence[Param], values: Mapping[str, Tensor]) -> None:
        super().__init__()
        self.params = tuple(params)
        self.locs = nn.ParameterList([nn.Parameter(values[p.name].detach().clone()) for p in params])

    @property
    def names(self) -> list[str]:
        return [p.name for p in self.params]

    def loc(self, name: str) -> nn.Parameter:
        return self.locs[self.names.index(name)]

    @property
    def size(self) -> int:
        return sum(p.numel for p in self.params)

    def mean(self) -> dict[str, Tensor]:
        return dict(zip(self.names, self.locs, strict=True))

    @abstractmethod
    def variance(self) -> dict[str, Tensor]:
        """Marginal variance of every weight."""

    @abstractmethod
    def begin(self, generator: torch.Generator | None) -> OnePass:
        """The randomness of one forward pass."""

    @abstractmethod
    def sample(self, count: int, generator: torch.Generator | None) -> dict[str, Tensor]:
        """[S, *shape] by parameter, differentiable in the variational parameters."""

    @abstractmethod
    def log_prob(self, values: Mapping[str, Tensor]) -> Tensor:
        """log q of draws [S, *shape], [S]."""

    @abstractmethod
    def kl(self, prior: PriorPrecision) -> Tensor:
        """KL(q ‖ p) for the Gaussian prior, summed over weights, in closed form."""

    @abstractmethod
    def covariance(self) -> Tensor:
        """Dense, [P, P], in the order of ``params``."""

    def kl_by_draws(self, prior: ScaleMixture, count: int, generator: torch.Generator | None) -> Tensor:
        """Each draw's log q(w) − log p(w), [S]: their mean estimates the KL (eq. 7 of the slides)."""
        values = self.sample(count, generator)
        log_p = sum(self.free(n, prior.log_prob(v)).flatten(1).sum(1) for n, v in values.items())
        return self.log_prob(values) - log_p

    def free(self, name: str, values: Tensor) -> Tensor:
        """``values`` [..., *shape] with zero at the entries that are held fixed."""
        return values

    def gather(self, values: Mapping[str, Tensor]) -> Tensor:
        """[..., *shape] by parameter → [..., P]."""
        flat = [values[p.name].reshape(*_lead(values[p.name], p), p.numel) for p in self.params]
        return torch.cat(flat, dim=-1)

    def scatter(self, flat: Tensor) -> dict[str, Tensor]:
        """[..., P] → [..., *shape] by parameter."""
        pieces = flat.split([p.numel for p in self.params], dim=-1)
        return {p.name: v.reshape((*flat.shape[:-1], *p.shape)) for p, v in zip(self.params, pieces, strict=True)}


def _lead(value: Tensor, param: Param) -> torch.Size:
    return value.shape[: value.dim() - len(param.shape)]


@dataclass(frozen=True)
class Group:
    """A matrix with its bias, or a parameter by itself."""

    params: tuple[Param, ...]
    form: MatrixForm | None


def groups(network: Network, names: Sequence[str]) -> list[Group]:
    """The parameters, in the network's order; a matrix and its bias are one group."""
    found: list[Group] = []
    taken: set[str] = set()
    for name in names:
        if name in taken:
            continue
        group = _group(network, name, set(names) - taken)
        taken.update(p.name for p in group.params)
        found.append(group)
    return found


def _group(network: Network, name: str, free: set[str]) -> Group:
    module = network.module.get_submodule(owner_of(name))
    weight = network.params[name]
    leaf = name.rpartition(".")[2]
    param = Param(name, tuple(weight.shape))
    known = isinstance(module, (nn.Linear, nn.modules.conv._ConvNd)) and leaf == "weight"
    if not known and not (isinstance(module, nn.MultiheadAttention) and leaf.endswith("_weight")):
        return Group((param,), None)
    other = f"{owner_of(name)}.{leaf.replace('weight', 'bias')}".lstrip(".")
    bias = network.params.get(other) if other in free else None
    form = _form(module, weight, bias is not None)
    if bias is None or tuple(bias.shape) != (form.pairs * form.outputs,):
        return Group((param,), _form(module, weight, False))
    return Group((param, Param(other, tuple(bias.shape))), form)


def _form(module: nn.Module, weight: Tensor, bias: bool) -> MatrixForm:
    if not isinstance(module, nn.modules.conv._ConvNd):
        return MatrixForm(1, weight.shape[0], weight.shape[1], bias)
    kernel, pairs = math.prod(weight.shape[2:]), module.groups
    if module.transposed:
        return MatrixForm(pairs, weight.shape[1], weight.shape[0] // pairs * kernel, bias, True, kernel)
    return MatrixForm(pairs, weight.shape[0] // pairs, weight.shape[1] * kernel, bias, False, kernel)


def layer_of(parameter: str) -> str:
    """The dotted name of the module that holds it; of a bare parameter of the network itself, its own name."""
    return owner_of(parameter) or parameter


def by_layer(network: Network, names: Sequence[str]) -> list[Block]:
    """The Bayesian parameters by layer, in the network's order."""
    layers: dict[str, list[Param]] = {}
    for name in names:
        layers.setdefault(layer_of(name), []).append(Param(name, tuple(network.params[name].shape)))
    kind = {k: type(network.module.get_submodule(owner_of(v[0].name))).__name__ for k, v in layers.items()}
    return [Block(layer, kind[layer], tuple(params), "example") for layer, params in layers.items()]


def fixed_entries(network: Network, names: Sequence[str]) -> dict[str, Tensor]:
    """True where a weight is free: the padding row of a table is no weight, it stays as it is."""
    owners: dict[str, list[nn.Module]] = {}
    for part in network.module.modules():
        for p in part._parameters.values():
            if p is not None and id(p) in network.names_by_id:
                owners.setdefault(network.names_by_id[id(p)], []).append(part)
    masks = {}
    for name in names:
        (owner, *more) = owners[name]
        row = getattr(owner, "padding_idx", None)
        if isinstance(owner, (nn.Embedding, nn.EmbeddingBag)) and row is not None and not more:
            masks[name] = torch.ones(network.params[name].shape, dtype=torch.bool, device=network.device)
            masks[name][row] = False
    return masks


def refuse_unconvertible(network: Network, names: Sequence[str]) -> None:
    """Layers whose forward pass changes its own weights, or hides them."""
    chosen = {id(network.params[n]) for n in names}
    for path, part in network.module.named_modules():
        owned = [p for p in part.parameters(recurse=False) if id(p) in chosen]
        if isinstance(part, torch.jit.ScriptModule) and any(id(p) in chosen for p in part.parameters()):
            raise UnsupportedLayer(
                f"the layer {path!r} is scripted, which hides what it does with its weights; pass the nn.Module that "
                "it was scripted from, or leave it out by layers=."
            )
        if owned and getattr(part, "max_norm", None) is not None:
            raise UnsupportedLayer(
                f"the {type(part).__name__} {path!r} has max_norm, by which it rewrites its weights in every forward "
                "pass; set max_norm=None, or leave the layer out by layers=."
            )
        if owned and getattr(part, "sparse", False) is True:
            raise UnsupportedLayer(
                f"the {type(part).__name__} {path!r} has sparse gradients, which a KL over all rows is not; set "
                "sparse=False, or leave the layer out by layers=."
            )
    for name in names:
        if not network.params[name].is_floating_point():
            raise UnsupportedLayer(f"the parameter {name!r} is {network.params[name].dtype}, not floating-point.")
