"""The curvature itself: eigenvalues of a block beside its prior, and its factors as matrices to look at."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from whence.curvature.blocks import Block
from whence.errors import TooLarge
from whence.linalg.spectral import dense
from whence.linalg.structures import Diagonal, Kronecker
from whence.posteriors.block import BlockGaussian
from whence.where.tabular import Table

if TYPE_CHECKING:
    from whence.posteriors.laplace import Laplace

LARGEST = 4096  # rows of a matrix that is written out


def gaussian_of(posterior: Laplace, layer: str) -> tuple[BlockGaussian, list[Block]]:
    """The Gaussian that a layer belongs to: its own, or that of all layers where they are correlated."""
    return next((g, blocks) for g, blocks in posterior.gaussians() if layer in [b.name for b in blocks])


def spectrum(posterior: Laplace, layer: str) -> Table:
    """Eigenvalues of the curvature from the largest on, and what of each direction the data have determined.

    ``curvature`` is s λ, ``determined`` s λ / (s λ + δ); the sum of the latter is γ. Directions that the structure does
    not store have curvature 0 and are left out.
    """
    gaussian, blocks = gaussian_of(posterior, layer)
    values = (gaussian.scale * gaussian.spectral.values).flatten().double().cpu().sort(descending=True).values
    note = f"prior precision {gaussian.delta:.4g}"
    if len(blocks) > 1:
        note += "; all layers together, since this posterior correlates them"
    return Table(
        {
            "rank": torch.arange(1, len(values) + 1),
            "curvature": values,
            "determined": values / (values + gaussian.delta),
        },
        note,
    )


def spectra(posterior: Laplace) -> Table:
    """The spectra of all layers one under the other; of long ones all ranks up to 100, then evenly in the logarithm."""
    columns: dict[str, list[Any]] = {key: [] for key in ("name", "rank", "curvature", "determined")}
    for _, blocks in posterior.gaussians():
        found = spectrum(posterior, blocks[0].name)
        kept = _ranks(len(found))
        columns["name"] += [blocks[0].name if len(blocks) == 1 else "all layers"] * len(kept)
        for key in ("rank", "curvature", "determined"):
            columns[key] += found[key][kept - 1].tolist()
    return Table(columns)


def _ranks(count: int) -> Tensor:
    first = torch.arange(1, min(count, 100) + 1)
    if count <= 100:
        return first
    return torch.cat([first, torch.logspace(2, math.log10(count), 400, dtype=torch.float64).round().long()]).unique()


def curvature_maps(posterior: Laplace, layer: str) -> dict[str, Tensor]:
    """Matrices to look at: Kronecker factors ``G`` [E, O, O] and ``A`` [E, D, D], or the block ``H`` [P, P].

    Of a diagonal block ``diagonal`` [P]. They hold no prior.
    """
    structures = zip(posterior.curvature.structures, posterior.groups(), strict=True)
    structure, blocks = next((s, blocks) for s, blocks in structures if layer in [b.name for b in blocks])
    if isinstance(structure, Kronecker):
        return {"G": _matrix(structure.grads), "A": _matrix(structure.mean_input)}
    if isinstance(structure, Diagonal):
        return {"diagonal": structure.values.cpu()}
    size = sum(b.size for b in blocks)
    if size > LARGEST:
        raise TooLarge(f"a matrix of {size} × {size} is not written out (limit {LARGEST}).")
    spectral = gaussian_of(posterior, layer)[0].spectral
    whole = dense(spectral, spectral.values, torch.zeros((), dtype=spectral.values.dtype))  # B diag(λ) Bᵀ
    ratio = None if spectral.ratio is None else spectral.ratio.dense().flatten()
    return {"H": (whole if ratio is None else ratio.unsqueeze(1) * whole * ratio).cpu()}


def _matrix(factor: Tensor) -> Tensor:
    """A Kronecker factor [E, n, n], of which perhaps the diagonal [E, n] is kept."""
    if factor.dim() == 3:
        return factor.cpu()
    if factor.shape[-1] > LARGEST:
        raise TooLarge(f"a matrix of {factor.shape[-1]} × {factor.shape[-1]} is not written out (limit {LARGEST}).")
    return torch.diag_embed(factor).cpu()
