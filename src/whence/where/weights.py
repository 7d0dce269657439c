"""Tables of a layer's weights and units.

Index legend: P weights of a block, U units.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor

from whence.curvature.blocks import Block
from whence.curvature.units import units_of
from whence.where.shares import UnitShares
from whence.where.tabular import Table

if TYPE_CHECKING:
    from whence.posteriors.block import BlockGaussian
    from whence.posteriors.laplace import Laplace


def identified_of(posterior: Laplace, block: Block) -> Tensor:
    """1 − posterior variance / prior variance of each weight, [P] in float64 on the CPU."""
    if posterior.curvature.joint:
        return 1 - variance_of(posterior, block) * posterior.prior.flat(list(block.params)).double().cpu()
    return block.to_flat(_gaussian_of(posterior, block).identified()).double().cpu()


def thinned(values: Tensor, limit: int) -> Tensor:
    """At most ``limit`` of the values, evenly spaced."""
    return values[:: -(-len(values) // limit)]


def variance_of(posterior: Laplace, block: Block) -> Tensor:
    """Posterior variance of each weight, [P] in float64 on the CPU."""
    if posterior.curvature.joint:
        return block.gather(posterior.variance()).double().cpu()
    return block.to_flat(_gaussian_of(posterior, block).variance()).double().cpu()


def curvature_of(posterior: Laplace, block: Block) -> Tensor:
    """diag(H) / N of each weight, [P] in float64 on the CPU: the curvature of one example's loss, without any prior."""
    noise = posterior.scale / posterior.data_scale  # a noise that was tuned changes the loss
    factor = noise / max(posterior.curvature.record.data_size, 1e-300)
    return factor * block.gather(curvature_diagonal(posterior)).double().cpu()


def curvature_diagonal(posterior: Laplace) -> dict[str, Tensor]:
    """diag(H) by parameter, as its structure has it."""
    found: dict[str, Tensor] = {}
    for structure, blocks in zip(posterior.curvature.structures, posterior.groups(), strict=True):
        native = structure.diagonal()
        flat = blocks[0].to_flat(native) if len(blocks) == 1 else native
        for block, piece in zip(blocks, flat.split([b.size for b in blocks]), strict=True):
            found.update(block.scatter(piece))
    return found


def _gaussian_of(posterior: Laplace, block: Block) -> BlockGaussian:
    return next(g for g, blocks in posterior.gaussians() if blocks[0].name == block.name)


def weight_table(posterior: Laplace, block: Block, variance: Tensor) -> Table:
    """One row for each weight, in the block's order."""
    mean = block.gather(posterior.mean()).double().cpu()
    curvature = curvature_of(posterior, block)
    units = units_of(posterior.network, block)
    names, places = [], []
    for p in block.params:
        names += [p.name] * p.numel
        places += [tuple(i) for i in torch.cartesian_prod(*map(torch.arange, p.shape)).reshape(p.numel, -1).tolist()]
    return Table(
        {
            "parameter": names,
            "index": places,
            "unit": units.of_weight,
            "weight": mean,
            "std": variance.sqrt(),
            "identified": identified_of(posterior, block),
            "signal_to_noise": mean.abs() / variance.sqrt(),
            "curvature": curvature,
            "relative_curvature": mean.square() * curvature,
        }
    )


def unit_table(
    posterior: Laplace,
    block: Block,
    variance: Tensor,
    found: UnitShares | None = None,
    total: float = 0.0,
    prior_total: float = 0.0,
) -> Table:
    """One row for each unit; with shares of the network's whole variance if they are given."""
    mean = block.gather(posterior.network.params).detach().double().cpu()
    curvature = curvature_of(posterior, block)
    units = units_of(posterior.network, block)
    counts = units.total(torch.ones_like(variance))
    identified = units.total(identified_of(posterior, block))
    columns = {
        "unit": torch.arange(units.count),
        "weights": counts.long(),
        "std": (units.total(variance) / counts).sqrt(),
        "identified": identified / counts,
        "effective_parameters": identified,
        "signal_to_noise": (units.total(mean.square() / variance) / counts).sqrt(),
        "curvature": units.total(curvature) / counts,
        "relative_curvature": units.total(mean.square() * curvature) / counts,
    }
    if found is not None:
        tiny = torch.finfo(torch.float64).tiny
        columns["variance_share"] = found.variance / max(total, tiny)
        columns["prior_share"] = found.prior / max(prior_total, tiny)
        known = 1 - found.variance / found.prior.clamp(min=tiny)
        reaches = found.prior > 1e-14 * prior_total  # a unit that reaches nothing explains nothing
        columns["explained"] = torch.where(reaches, known, 0.0)
    return Table(columns, f"a unit is a {units.kind} of {block.name}")
