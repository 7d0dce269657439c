"""Selection of the random parameters, their start values, and their blocks.

Index legend: E pairs side by side (groups), O outputs, D inputs (and one for the bias).
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from whence.engine.batches import Inputs
from whence.engine.options import Option
from whence.engine.randomness import seed_from, seeded
from whence.errors import BadOption, UnsupportedLayer
from whence.functional import Network
from whence.posteriors.base import params_of
from whence.posteriors.variational.blocks import Alpha, MeanField, VariationalBlock
from whence.posteriors.variational.correlated import LowRank, MatrixNormal
from whence.recording.blocks import MatrixForm, Param, owner_of
from whence.recording.selection import Last, Layers, Mask, selection


def selected_parameters(network: Network, layers: Layers, inputs: Inputs = None) -> list[str]:
    """The names of the random parameters."""
    chosen = selection(layers, network)
    if isinstance(chosen, Mask):
        raise BadOption("layers is a mask of weights; pass None, patterns on module names, or a predicate.")
    if isinstance(chosen, Last) and inputs is None:
        raise BadOption("layers='last' needs data to find the last layer; name the layer instead.")
    return chosen.resolve(network, inputs)


def refuse_unconvertible(network: Network, names: Sequence[str]) -> None:
    """Refuse layers whose forward pass changes or hides their weights."""
    chosen = {id(network.params[n]) for n in names}
    for path, part in network.module.named_modules():
        owned = [p for p in part.parameters(recurse=False) if id(p) in chosen]
        if isinstance(part, torch.jit.ScriptModule) and any(id(p) in chosen for p in part.parameters()):
            raise UnsupportedLayer(
                f"the layer {path!r} is scripted, which hides the use of its weights; pass the nn.Module that "
                "it was scripted from, or exclude it with layers=."
            )
        if owned and getattr(part, "max_norm", None) is not None:
            raise UnsupportedLayer(
                f"the {type(part).__name__} {path!r} has max_norm, which rewrites its weights in every forward "
                "pass; set max_norm=None, or exclude the layer with layers=."
            )
        if owned and getattr(part, "sparse", False) is True:
            raise UnsupportedLayer(
                f"the {type(part).__name__} {path!r} has sparse gradients, but the KL has one for every row; set "
                "sparse=False, or exclude the layer with layers=."
            )
    for name in names:
        if not network.params[name].is_floating_point():
            raise UnsupportedLayer(f"the parameter {name!r} is {network.params[name].dtype}, not floating-point.")


def reset_parameters(network: Network, names: Sequence[str], generator: torch.Generator | None) -> dict[str, Tensor]:
    """New values by the layers' own ``reset_parameters``; parameters outside such a layer keep theirs."""
    again = network.to(network.device)
    owners = {owner_of(n) for n in names}
    with seeded(seed_from(generator)), torch.no_grad():
        for path, part in again.module.named_modules():
            reset = getattr(part, "reset_parameters", None) or getattr(part, "_reset_parameters", None)
            if path in owners and callable(reset) and not hasattr(part, "parametrizations"):
                reset()
    return {n: again.params[n].detach().clone() for n in names}


class Family(Option):
    """Which Gaussians over the weights."""

    MEAN_FIELD = "mean_field"
    ALPHA = "alpha"
    MATRIX_NORMAL = "matrix_normal"
    LOW_RANK = "low_rank"


def make_blocks(
    network: Network,
    names: Sequence[str],
    values: Mapping[str, Tensor],
    family: Family,
    initial: float,
    rank: int,
    generator: torch.Generator | None,
) -> list[VariationalBlock]:
    """One block for each parameter, for each matrix with its bias, or for all parameters."""
    free, params = free_entries(network, names), params_of(network, names)
    if family is Family.LOW_RANK:
        return [LowRank(params, values, min(rank, sum(p.numel for p in params)), initial, free, generator)]
    if family is Family.MATRIX_NORMAL:
        return [
            MeanField(group.params[0], values, initial, free.get(group.params[0].name))
            if group.form is None
            else MatrixNormal(group.params, values, group.form, initial)
            for group in matrices(network, names)
        ]
    kind = Alpha if family is Family.ALPHA else MeanField
    return [kind(p, values, initial, free.get(p.name)) for p in params]


def free_entries(network: Network, names: Sequence[str]) -> dict[str, Tensor]:
    """True where a weight is free: the padding row of an embedding is fixed, unless the embedding is tied."""
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


@dataclass(frozen=True)
class Matrix:
    """A weight matrix with its bias; or one other parameter, without a form."""

    params: tuple[Param, ...]
    form: MatrixForm | None


def matrices(network: Network, names: Sequence[str]) -> list[Matrix]:
    """The parameters in the network's order, a matrix together with its bias."""
    found: list[Matrix] = []
    taken: set[str] = set()
    for name in names:
        if name not in taken:
            found.append(_matrix(network, name, set(names) - taken))
            taken.update(p.name for p in found[-1].params)
    return found


def _matrix(network: Network, name: str, free: set[str]) -> Matrix:
    module, weight = network.module.get_submodule(owner_of(name)), network.params[name]
    leaf = name.rpartition(".")[2]
    param = Param(name, tuple(weight.shape))
    known = isinstance(module, (nn.Linear, nn.modules.conv._ConvNd)) and leaf == "weight"
    if not known and not (isinstance(module, nn.MultiheadAttention) and leaf.endswith("_weight")):
        return Matrix((param,), None)
    other = f"{owner_of(name)}.{leaf.replace('weight', 'bias')}".lstrip(".")
    bias = network.params.get(other) if other in free else None
    form = _form(module, weight, bias is not None)
    if bias is None or tuple(bias.shape) != (form.pairs * form.outputs,):
        return Matrix((param,), _form(module, weight, False))
    return Matrix((param, Param(other, tuple(bias.shape))), form)


def _form(module: nn.Module, weight: Tensor, bias: bool) -> MatrixForm:
    if not isinstance(module, nn.modules.conv._ConvNd):
        return MatrixForm(1, weight.shape[0], weight.shape[1], bias)
    kernel, pairs = math.prod(weight.shape[2:]), module.groups
    if module.transposed:
        return MatrixForm(pairs, weight.shape[1], weight.shape[0] // pairs * kernel, bias, True, kernel)
    return MatrixForm(pairs, weight.shape[0] // pairs, weight.shape[1] * kernel, bias, False, kernel)
