"""How Gaussian is it? The true loss along chosen directions of weight space beside the Gaussian's."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from whence.batches import Data
from whence.curvature.blocks import Block
from whence.errors import BadOption
from whence.linalg.spectral import DenseSpectral, DiagonalSpectral, KroneckerSpectral, LowRankSpectral
from whence.posteriors.block import BlockGaussian
from whence.where.tabular import Table

if TYPE_CHECKING:
    from whence.posteriors.laplace import Laplace

STEPS = (-3.0, -2.0, -1.0, -0.5, 0.0, 0.5, 1.0, 2.0, 3.0)


@torch.no_grad()
def slices(posterior: Laplace, data: Any, steps: Sequence[float] = STEPS, seed: int = 0) -> Table:
    """Along the directions of largest, smallest and random curvature of every layer.

    ``step`` is in posterior standard deviations of the direction. ``loss`` is the summed negative log joint there less
    that at the trained weights, ``gaussian`` what the posterior says: ½ step². Where the two part, it is not Gaussian.
    """
    network = posterior.network
    loader = Data(data, network.device, network.dtype, "data")
    loader.require_passes(2, "slices")
    if not steps:
        raise BadOption("slices need steps; leave them out for −3 to 3 standard deviations.")
    rows: dict[str, list[Any]] = {k: [] for k in ("name", "direction", "curvature", "step", "loss", "gaussian")}
    start = _joint(posterior, loader, {})
    for gaussian, blocks in posterior.gaussians():
        name = blocks[0].name if len(blocks) == 1 else "all layers"
        for kind, curvature, native in _directions(gaussian, seed):
            flat = gaussian.whiten(native)
            precision = float((native * _precise(gaussian, native)).sum())
            for step in steps:
                moved = _moved(posterior, blocks, flat * (step / math.sqrt(precision)))
                loss = _joint(posterior, loader, moved) - start
                values = (name, kind, curvature, float(step), loss, 0.5 * step**2)
                for key, value in zip(rows, values, strict=True):
                    rows[key].append(value)
    return Table(rows)


def _precise(gaussian: BlockGaussian, native: Tensor) -> Tensor:
    """(s H + δ) v in whitened coordinates."""
    return gaussian.spectral.apply(gaussian.precision, native, gaussian.rest)


def _directions(gaussian: BlockGaussian, seed: int) -> list[tuple[str, float, Tensor]]:
    """(kind, curvature, unit vector in whitened native coordinates)."""
    spectral = gaussian.spectral
    flat = spectral.values.flatten()
    found = []
    for kind, index in (("largest", int(flat.argmax())), ("smallest", int(flat.argmin()))):
        found.append((kind, gaussian.scale * float(flat[index]), _eigenvector(spectral, index)))
    generator = torch.Generator().manual_seed(seed)
    noise = torch.randn(spectral.native, generator=generator, dtype=torch.float64).to(flat)
    noise = noise / noise.norm()
    curvature = float((noise * spectral.apply(gaussian.scale * spectral.values, noise, 0 * gaussian.rest)).sum())
    return [*found, ("random", curvature, noise)]


def _eigenvector(spectral: Any, index: int) -> Tensor:
    if isinstance(spectral, KroneckerSpectral):
        _, outputs, inputs = spectral.native
        e, rest = divmod(index, outputs * inputs)
        o, d = divmod(rest, inputs)
        vector = spectral.values.new_zeros(spectral.native)
        vector[e] = spectral.left[e, :, o, None] * spectral.right[e, None, :, d]
        return vector
    if isinstance(spectral, DiagonalSpectral):
        vector = torch.zeros_like(spectral.values)
        vector[index] = 1
        return vector
    assert isinstance(spectral, (DenseSpectral, LowRankSpectral))
    return spectral.vectors[:, index]


def _moved(posterior: Laplace, blocks: list[Block], native: Tensor) -> dict[str, Tensor]:
    """Trained weights plus a step, by parameter name."""
    single = len(blocks) == 1
    flat = blocks[0].to_flat(native) if single and not posterior.curvature.joint else native
    found: dict[str, Tensor] = {}
    for block, part in zip(blocks, flat.split([b.size for b in blocks]), strict=True):
        for name, step in block.scatter(part).items():
            weight = posterior.network.params[name]
            found[name] = weight + step.to(weight)
    return found


def _joint(posterior: Laplace, loader: Data, moved: dict[str, Tensor]) -> float:
    """−log p(D, θ), up to a constant; the likelihood counted as often as the posterior counts it."""
    network, likelihood = posterior.network, posterior.likelihood
    loss, seen = 0.0, 0
    for batch in loader:
        outputs = network.functional(moved, batch.inputs) if moved else network(batch.inputs)
        targets = likelihood.check(outputs, batch.targets, batch.index)
        loss += float(likelihood.nll(outputs, targets).double().sum())
        seen += len(outputs)
    counted = posterior.data_scale * posterior.record.data_size / seen
    return counted * loss + _penalty(posterior, moved)


def _penalty(posterior: Laplace, moved: dict[str, Tensor]) -> float:
    total = 0.0
    mean = posterior.prior_mean
    for block in posterior.blocks:
        for p in block.params:
            theta = moved.get(p.name, posterior.network.params[p.name]).double()
            centre = mean[p.name].to(theta) if isinstance(mean, dict) else mean
            precision = posterior.prior.flat([p]).double().reshape(p.shape).to(theta.device)
            total += 0.5 * float((precision * (theta - centre).square()).sum())
    return total
