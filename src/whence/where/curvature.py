"""The curvature: its eigenvalues, its factors as matrices, and slices of the true loss against the Gaussian."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from whence.engine.batches import Batch, Data
from whence.errors import BadOption, TooLarge
from whence.linalg.gaussian import BlockGaussian
from whence.linalg.spectral import dense
from whence.linalg.structures import Diagonal, Kronecker
from whence.recording.blocks import Block
from whence.tables import Table
from whence.where.weights import gaussian_of

if TYPE_CHECKING:
    from whence.posteriors.laplace.posterior import Laplace

LARGEST = 4096  # rows of a matrix that is returned
STEPS = (-3.0, -2.0, -1.0, -0.5, 0.0, 0.5, 1.0, 2.0, 3.0)  # steps of slices, in standard deviations


# Eigenvalues


def spectrum(posterior: Laplace, layer: str) -> Table:
    """Eigenvalues of the curvature from the largest on, and how well the data determine each direction.

    ``curvature`` is s λ, ``determined`` s λ / (s λ + δ); the sum of the latter is γ. Directions that the structure does
    not store have curvature 0 and are omitted.
    """
    gaussian, blocks = gaussian_of(posterior, layer)
    values = (gaussian.scale * gaussian.spectral.values).flatten().double().cpu().sort(descending=True).values
    note = f"prior precision {gaussian.delta:.4g}"
    if len(blocks) > 1:
        note += "; all layers together, since this posterior correlates them"
    determined = values / (values + gaussian.delta)
    return Table({"rank": torch.arange(1, len(values) + 1), "curvature": values, "determined": determined}, note)


def spectra(posterior: Laplace) -> Table:
    """The spectra of all layers, concatenated; long ones with ranks up to 100, then evenly spaced in the logarithm."""
    columns: dict[str, list[Any]] = {key: [] for key in ("name", "rank", "curvature", "determined")}
    for _, blocks in posterior.gaussians():
        found = spectrum(posterior, blocks[0].name)
        count = len(found)
        rank = torch.arange(1, min(count, 100) + 1)
        if count > 100:
            far = torch.logspace(2, math.log10(count), 400, dtype=torch.float64).round().long()
            rank = torch.cat([rank, far]).unique()
        columns["name"] += [_name(blocks)] * len(rank)
        for key in ("rank", "curvature", "determined"):
            columns[key] += found[key][rank - 1].tolist()
    return Table(columns)


def _name(blocks: Sequence[Block]) -> str:
    return blocks[0].name if len(blocks) == 1 else "all layers"


# Matrices


def curvature_maps(posterior: Laplace, layer: str) -> dict[str, Tensor]:
    """The curvature as matrices: Kronecker factors ``G`` [E, O, O] and ``A`` [E, D, D], or the block ``H`` [P, P].

    For a diagonal block ``diagonal`` [P]. They do not include the prior.
    """
    structures = zip(posterior.curvature.structures, posterior.curvature.groups, strict=True)
    structure, blocks = next((s, blocks) for s, blocks in structures if layer in [b.name for b in blocks])
    if isinstance(structure, Kronecker):
        return {"G": _matrix(structure.grads), "A": _matrix(structure.mean_input)}
    if isinstance(structure, Diagonal):
        return {"diagonal": structure.values.cpu()}
    _check_size(sum(b.size for b in blocks))
    spectral = gaussian_of(posterior, layer)[0].spectral
    whole = dense(spectral, spectral.values, torch.zeros((), dtype=spectral.values.dtype))  # B diag(λ) Bᵀ
    ratio = None if spectral.ratio is None else spectral.ratio.dense().flatten()
    return {"H": (whole if ratio is None else ratio.unsqueeze(1) * whole * ratio).cpu()}


def _matrix(factor: Tensor) -> Tensor:
    """A Kronecker factor [E, n, n], or its diagonal [E, n]."""
    if factor.dim() == 3:
        return factor.cpu()
    _check_size(factor.shape[-1])
    return torch.diag_embed(factor).cpu()


def _check_size(size: int) -> None:
    if size > LARGEST:
        raise TooLarge(f"a matrix of {size:,} × {size:,} is too large (limit {LARGEST:,}).")


# Slices of the loss


@torch.no_grad()
def slices(posterior: Laplace, data: Any, steps: Sequence[float] = STEPS, seed: int = 0) -> Table:
    """The loss along directions of largest, smallest and random curvature of every layer, to test the Gaussian.

    ``step`` is in posterior standard deviations of the direction. ``loss`` is the summed negative log likelihood there
    minus its value and slope at the trained weights; ``gaussian`` is ½ t² vᵀ s H v, from the curvature. Where
    the two differ within the posterior's range, the posterior is not Gaussian.
    """
    network = posterior.network
    loader = network.read(data, "data")
    loader.require_passes(2, "slices")
    if not steps:
        raise BadOption("slices need steps; omit them for −3 to 3 standard deviations.")
    columns = ("name", "direction", "curvature", "step", "loss", "gaussian", "slope")
    rows: list[tuple[Any, ...]] = []
    start, gradient = _loss(posterior, loader, {}), _gradient(posterior, loader)
    for gaussian, blocks in posterior.gaussians():
        for kind, curvature, precision, native in _directions(gaussian, seed):
            std = 1 / math.sqrt(precision)
            one = _as_parameters(posterior, blocks, native * std)
            slope = sum(float((gradient[n] * v.double()).sum()) for n, v in one.items())
            for step in steps:
                moved = {n: network.params[n] + step * v.to(network.params[n]) for n, v in one.items()}
                loss = _loss(posterior, loader, moved) - start - step * slope
                predicted = 0.5 * (step * std) ** 2 * curvature
                rows.append((_name(blocks), kind, curvature, float(step), loss, predicted, slope))
    return Table(dict(zip(columns, map(list, zip(*rows, strict=True)), strict=True)))


def _directions(gaussian: BlockGaussian, seed: int) -> list[tuple[str, float, float, Tensor]]:
    """(kind, curvature, precision, native vector v with vᵀ D v = 1)."""
    spectral, precision = gaussian.spectral, gaussian.precision
    flat, precise = spectral.values.flatten(), precision.flatten()
    found = []
    for kind, index in (("largest", int(flat.argmax())), ("smallest", int(flat.argmin()))):
        vector = torch.zeros_like(flat)
        vector[index] = 1
        one = spectral.combined(vector.reshape(spectral.values.shape))
        found.append((kind, gaussian.scale * float(flat[index]), float(precise[index]), one))
    generator = torch.Generator().manual_seed(seed)
    noise = torch.randn(spectral.native, generator=generator, dtype=torch.float64).to(flat)
    noise = noise / noise.norm()
    null = gaussian.null_precision
    curvature, along = (
        float((noise * spectral.apply_whitened(w, noise, at_zero)).sum())
        for w, at_zero in ((gaussian.scale * spectral.values, 0 * null), (precision, null))
    )
    return [*found, ("random", curvature, along, noise if spectral.ratio is None else noise * spectral.ratio.root())]


def _as_parameters(posterior: Laplace, blocks: Sequence[Block], native: Tensor) -> dict[str, Tensor]:
    """A native vector by parameter name."""
    flat = native if posterior.curvature.joint else blocks[0].to_flat(native)
    found: dict[str, Tensor] = {}
    for block, part in zip(blocks, flat.split([b.size for b in blocks]), strict=True):
        found |= block.scatter(part)
    return found


def _loss(posterior: Laplace, loader: Data, moved: dict[str, Tensor]) -> float:
    """Σ −log p(y | θ), scaled to the posterior's data size."""
    loss, seen = 0.0, 0
    for batch in loader:
        values = _losses(posterior, batch, moved)
        loss += float(values.double().sum())
        seen += len(values)
    return loss * posterior.data_scale * posterior.record.data_size / seen


def _losses(posterior: Laplace, batch: Batch, params: dict[str, Tensor]) -> Tensor:
    outputs = posterior.network.functional(params, batch.inputs) if params else posterior.network(batch.inputs)
    return posterior.likelihood.nll(outputs, posterior.likelihood.check(outputs, batch.targets, batch.index))


def _gradient(posterior: Laplace, loader: Data) -> dict[str, Tensor]:
    """The gradient of that loss at the trained weights, by parameter name, in float64."""
    leaves = {n: posterior.network.params[n].detach().clone().requires_grad_() for n in posterior.names()}
    total = {n: torch.zeros_like(p, dtype=torch.float64) for n, p in leaves.items()}
    seen = 0
    for batch in loader:
        with torch.enable_grad():
            values = _losses(posterior, batch, leaves)
            found = torch.autograd.grad(values.sum(), list(leaves.values()), allow_unused=True)
        for name, value in zip(leaves, found, strict=True):
            if value is not None:
                total[name] += value.double()
        seen += len(values)
    factor = posterior.data_scale * posterior.record.data_size / seen
    return {n: factor * g for n, g in total.items()}
