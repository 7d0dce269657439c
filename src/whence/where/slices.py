"""How Gaussian is it? The true loss along chosen directions of weight space beside the Gaussian's."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from whence.batches import Batch, Data
from whence.curvature.blocks import Block
from whence.errors import BadOption
from whence.posteriors.block import BlockGaussian
from whence.where.tabular import Table

if TYPE_CHECKING:
    from whence.posteriors.laplace import Laplace

STEPS = (-3.0, -2.0, -1.0, -0.5, 0.0, 0.5, 1.0, 2.0, 3.0)


@torch.no_grad()
def slices(posterior: Laplace, data: Any, steps: Sequence[float] = STEPS, seed: int = 0) -> Table:
    """Along the directions of largest, smallest and random curvature of every layer.

    ``step`` is in posterior standard deviations of the direction. ``loss`` is the summed negative log likelihood there
    less that at the trained weights and less its slope there; ``gaussian`` is what the curvature says, ½ t² vᵀ s H v.
    Where the two part inside the range that the posterior thinks plausible, it is not Gaussian.
    """
    network = posterior.network
    loader = network.read(data, "data")
    loader.require_passes(2, "slices")
    if not steps:
        raise BadOption("slices need steps; leave them out for −3 to 3 standard deviations.")
    names = ("name", "direction", "curvature", "step", "loss", "gaussian", "slope")
    rows: dict[str, list[Any]] = {k: [] for k in names}
    start, gradient = _loss(posterior, loader, {}), _gradient(posterior, loader)
    for gaussian, blocks in posterior.gaussians():
        name = blocks[0].name if len(blocks) == 1 else "all layers"
        for kind, curvature, precision, native in _directions(gaussian, seed):
            std = 1 / math.sqrt(precision)
            one = _as_parameters(posterior, blocks, native * std)
            slope = sum(float((gradient[n] * v.double()).sum()) for n, v in one.items())
            for step in steps:
                moved = {n: network.params[n] + step * v.to(network.params[n]) for n, v in one.items()}
                loss = _loss(posterior, loader, moved) - start - step * slope
                values = (name, kind, curvature, float(step), loss, 0.5 * (step * std) ** 2 * curvature, slope)
                for key, value in zip(rows, values, strict=True):
                    rows[key].append(value)
    return Table(rows)


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
    curvature, along = (
        float((noise * spectral.apply_whitened(w, noise, rest)).sum())
        for w, rest in ((gaussian.scale * spectral.values, 0 * gaussian.rest), (precision, gaussian.rest))
    )
    return [*found, ("random", curvature, along, noise if spectral.ratio is None else noise * spectral.ratio.root())]


def _as_parameters(posterior: Laplace, blocks: list[Block], native: Tensor) -> dict[str, Tensor]:
    """A native vector by parameter name."""
    flat = native if posterior.curvature.joint else blocks[0].to_flat(native)
    found: dict[str, Tensor] = {}
    for block, part in zip(blocks, flat.split([b.size for b in blocks]), strict=True):
        found |= block.scatter(part)
    return found


def _loss(posterior: Laplace, loader: Data, moved: dict[str, Tensor]) -> float:
    """Σ −log p(y | θ), counted as often as the posterior counts the data."""
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
    """Of that loss at the trained weights, by parameter name, in float64."""
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
