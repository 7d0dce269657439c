"""The curvature itself: eigenvalues of a block beside its prior, and its factors as matrices to look at."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from whence.curvature.blocks import Block
from whence.errors import TooLarge
from whence.linalg.spectral import DiagonalSpectral, KroneckerSpectral, dense
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

    Of a diagonal block ``diagonal`` [P].
    """
    gaussian, _ = gaussian_of(posterior, layer)
    spectral = gaussian.spectral
    if isinstance(spectral, KroneckerSpectral) and spectral.left_values is not None:
        assert spectral.right_values is not None
        return {
            "G": _factor(spectral.left, spectral.left_values),
            "A": _factor(spectral.right, spectral.right_values),
        }
    if isinstance(spectral, DiagonalSpectral):
        return {"diagonal": spectral.values.cpu()}
    if spectral.size > LARGEST:
        raise TooLarge(f"a matrix of {spectral.size} × {spectral.size} is not written out (limit {LARGEST}).")
    return {"H": dense(spectral, spectral.values, torch.zeros((), dtype=spectral.values.dtype)).cpu()}


def _factor(vectors: Tensor | None, values: Tensor) -> Tensor:
    """Q diag(λ) Qᵀ, [E, n, n]; diagonal where there are no eigenvectors."""
    if vectors is not None:
        return ((vectors * values.unsqueeze(1)) @ vectors.mT).cpu()
    if values.shape[-1] > LARGEST:
        raise TooLarge(f"a matrix of {values.shape[-1]} × {values.shape[-1]} is not written out (limit {LARGEST}).")
    return torch.diag_embed(values).cpu()
