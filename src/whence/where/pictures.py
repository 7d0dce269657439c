"""Tables behind two pictures: the covariance of a whole network, block by block, and one input's way through it.

Index legend: S draws, K weights that are shown, P weights of a Gaussian, F features of a layer's output.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

import torch
from torch import Tensor, nn

from whence.engine.batches import take
from whence.errors import BadOption, NotDefined, one_of, whole_number
from whence.functional import arguments, call_with
from whence.linalg.gaussian import BlockGaussian
from whence.linalg.structures import Kronecker, Structure
from whence.recording.blocks import Block, owner_of
from whence.where.activations import layer_outputs

if TYPE_CHECKING:
    from whence.posteriors.base import Posterior

PictureOf = Literal["covariance", "curvature"]


@dataclass(frozen=True)
class BlockPicture:
    """One layer: some of its weights against each other, in [−1, 1]; the incoming ones of several units."""

    name: str
    kind: str
    parameters: int
    matrix: Tensor  # [K, K]
    factors: tuple[Tensor, Tensor] | None = None  # G and A of a Kronecker block, of some rows, in [−1, 1]


@dataclass(frozen=True, repr=False)
class NetworkPicture:
    """The matrix over all weights of a network, as far as it is not zero by construction."""

    of: PictureOf
    structure: str
    blocks: tuple[BlockPicture, ...]
    across: Tensor | None = None  # [Σ K, Σ K], where layers are correlated

    def __repr__(self) -> str:
        return f"NetworkPicture(of {self.of}, {self.structure}, {len(self.blocks)} layers)"


def network_picture(posterior: Posterior, of: PictureOf = "covariance", weights: int = 36) -> NetworkPicture:
    """Correlations of some weights of each layer: under the posterior, or of its curvature without the prior.

    About so many ``weights`` of each layer: neighbouring inputs of several units. The entries are exact; those between
    layers that the structure treats as independent are left out.
    """
    one_of(of, ("covariance", "curvature"), "of")
    whole_number(weights, "weights", 4)
    fitted = posterior.as_laplace("the picture of a network")
    if fitted.curvature.keep is not None:
        raise NotDefined("the picture of a subnetwork mask is not defined; fit a posterior without a mask.")
    pictures: list[BlockPicture] = []
    across = None
    for (gaussian, blocks), structure in zip(fitted.gaussians(), fitted.curvature.structures, strict=True):
        shown = [chosen(block, weights) for block in blocks]
        starts = [sum(b.size for b in blocks[:i]) for i in range(len(blocks))]
        places = torch.cat([start + own for start, own in zip(starts, shown, strict=True)])
        found = normalised(_entries(gaussian, blocks, places, of))
        if len(blocks) > 1:
            across = found
        ends = torch.tensor([len(own) for own in shown]).cumsum(0).tolist()
        for block, own, end in zip(blocks, shown, ends, strict=True):
            part = found[end - len(own) : end, end - len(own) : end]
            pictures.append(BlockPicture(block.name, block.kind, block.size, part, factors_of(structure, weights)))
    return NetworkPicture(of, str(fitted.curvature.options.structure), tuple(pictures), across)


def spaced(count: int, most: int) -> Tensor:
    """At most ``most`` of so many places, evenly spaced."""
    return torch.linspace(0, count - 1, min(count, most), dtype=torch.float64).round().long()


def chosen(block: Block, count: int) -> Tensor:
    """Places of about so many weights in a block's flat order: neighbouring inputs of evenly spaced units."""
    side = math.isqrt(count)
    if block.form is None:
        return middle(block.size, count)
    native = block.form.pack(torch.arange(block.size))[0]  # [O, D]
    units, inputs = spaced(native.shape[0], side), middle(native.shape[1], -(-count // min(side, native.shape[0])))
    return native[units][:, inputs].flatten()


def middle(count: int, most: int) -> Tensor:
    """At most ``most`` of so many places, in a row about the middle."""
    start = max(0, (count - most) // 2)
    return torch.arange(start, min(count, start + most))


def normalised(matrix: Tensor) -> Tensor:
    """M_ij / √(M_ii M_jj); 0 where the diagonal vanishes."""
    scale = matrix.diagonal().clamp(min=0).sqrt()
    inverse = torch.where(scale > 0, 1 / scale.clamp(min=1e-150), 0.0)
    return (matrix * inverse * inverse.unsqueeze(1)).clamp(-1, 1)


def factors_of(structure: Structure, most: int) -> tuple[Tensor, Tensor] | None:
    """G and A of the first pair of a Kronecker block."""
    if not isinstance(structure, Kronecker):
        return None
    g, a = (_some_rows(factor, most) for factor in (structure.grads, structure.mean_input))
    return g, a


def _some_rows(factor: Tensor, most: int) -> Tensor:
    """A factor [E, n, n], or its diagonal [E, n]: some of the rows and columns of the first pair."""
    which = spaced(factor.shape[1], most).to(factor.device)
    if factor.dim() == 2:
        return torch.eye(len(which), dtype=torch.float64)
    return normalised(factor[0][which][:, which].double().cpu())


def _entries(gaussian: BlockGaussian, blocks: Sequence[Block], places: Tensor, of: PictureOf) -> Tensor:
    """Entries of Σ or H at these places of the blocks' joint vector, [K, K] in float64."""
    act = gaussian.solve if of == "covariance" else curvature_product(gaussian)
    to_native: Callable[[Tensor], Tensor] = blocks[0].to_native if len(blocks) == 1 else lambda flat: flat
    to_flat: Callable[[Tensor], Tensor] = blocks[0].to_flat if len(blocks) == 1 else lambda native: native
    like = gaussian.spectral.values
    where = places.to(like.device)
    rows = []
    for place in where:  # one at a time: a column has as many entries as there are weights
        unit = like.new_zeros(gaussian.spectral.size)
        unit[place] = 1
        rows.append(to_flat(act(to_native(unit)))[where])
    found = torch.stack(rows).double().cpu()
    return (found + found.T) / 2


def curvature_product(gaussian: BlockGaussian) -> Callable[[Tensor], Tensor]:
    """v → H v: with B diag(1 / (λ + δ)) Bᵀ = (H + δ D)⁻¹, H = D B diag(λ) Bᵀ D."""
    spectral = gaussian.spectral
    ratio = None if spectral.ratio is None else spectral.ratio.dense()
    none = torch.zeros((), dtype=spectral.values.dtype, device=spectral.values.device)

    def product(v: Tensor) -> Tensor:
        inner = spectral.apply(gaussian.scale * spectral.values, v if ratio is None else ratio * v, none)
        return inner if ratio is None else ratio * inner

    return product


# One input


@dataclass(frozen=True)
class FeatureMap:
    """A layer's output for one input: mean and standard deviation over draws of the weights."""

    name: str
    kind: str
    mean: Tensor  # [F, …]: channels by height by width of a convolution, units of a linear layer
    std: Tensor


def feature_maps(
    posterior: Posterior, x: Any, index: int = 0, num_samples: int = 30, generator: torch.Generator | None = None
) -> list[FeatureMap]:
    """What every layer with weights returns for one of the inputs, and how much that varies under draws.

    Draws change all layers together, so the variation of a layer includes that of earlier ones. Layers are those that
    are called as modules, in the order of their calls.
    """
    whole_number(num_samples, "num_samples", 2)
    network = posterior.snapshots[0]
    if posterior.no_weights and not posterior.over_weights:
        raise NotDefined(f"feature maps need units that the draws have in common. {posterior.no_weights}")
    inputs = next(iter(network.pieces(x, index + 1)))
    try:
        one = take(inputs, slice(index, index + 1))
    except IndexError as error:
        raise BadOption(f"index={index} is not one of the inputs.") from error
    args, kwargs = arguments(one)
    owners = [name for name in dict.fromkeys(owner_of(n) for n in posterior.as_weights("feature maps").names()) if name]
    modules: dict[str, nn.Module] = {name: network.module.get_submodule(name) for name in owners}
    generator = torch.Generator().manual_seed(0) if generator is None else generator
    drawn = posterior.as_weights("feature maps").sample(num_samples, generator=generator)
    found: dict[str, list[Tensor]] = {}
    for s in range(num_samples):
        with torch.no_grad(), layer_outputs(modules) as outputs:
            call_with(network.module, {name: values[s] for name, values in drawn.items()}, args, kwargs)
        for name, value in outputs.items():
            if len(value) == 1:
                found.setdefault(name, []).append(value[0].double().cpu())
    if not found:
        raise BadOption(f"index={index}: no layer returned the features of one input.")
    return [_map(name, modules[name], torch.stack(values)) for name, values in found.items()]


def _map(name: str, module: nn.Module, values: Tensor) -> FeatureMap:
    return FeatureMap(name, type(module).__name__, values.mean(0), values.std(0))
