"""Weights under a Laplace posterior: their variances, draws, and the covariance of all as one dense matrix."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from whence.engine.memory import readable, sizes
from whence.errors import BadOption, TooLarge
from whence.linalg.spectral import dense
from whence.recording.blocks import Block

if TYPE_CHECKING:
    from whence.posteriors.laplace.posterior import Laplace


def variances(posterior: Laplace) -> dict[str, Tensor]:
    """Marginal variance of every weight, by parameter."""
    found: dict[str, Tensor] = {}
    for gaussian, blocks in posterior.gaussians():
        found |= {n: v.contiguous() for n, v in by_parameter(gaussian.variance(), blocks, posterior.keep).items()}
    return {n: found[n] for n in posterior.names()}


def deviations(posterior: Laplace, num_samples: int, generator: torch.Generator | None) -> dict[str, Tensor]:
    """Draws minus the mean, by parameter, [S, *shape]."""
    if num_samples < 1:
        raise BadOption(f"num_samples={num_samples} is not positive.")
    found: dict[str, Tensor] = {}
    for gaussian, blocks in posterior.gaussians():
        found.update(by_parameter(gaussian.draw(num_samples, generator), blocks, posterior.keep))
    params = posterior.network.params
    return {n: found[n].to(params[n].dtype) for n in posterior.names()}


def refuse_dense(size: int) -> None:
    """Refuse a dense covariance that would be too large."""
    needed, limit = size * size * 8, sizes().dense_covariance
    if needed > limit:
        raise TooLarge(
            f"the dense covariance of {size:,} weights needs {readable(needed)} (limit {readable(limit)}). Use "
            "variance(), sample() or predict(), which never form it."
        )


def covariance(posterior: Laplace) -> Tensor:
    """Σ [P, P], in the order of the network's parameters; zero between blocks, and outside a mask."""
    size = sum(b.size for b in posterior.blocks)
    refuse_dense(size)
    like = posterior.network.like
    total = torch.zeros(size, size, dtype=like.dtype, device=like.device)
    start = 0
    for gaussian, blocks in posterior.gaussians():
        cov = dense(gaussian.spectral, 1 / gaussian.precision, 1 / gaussian.null_precision)
        if posterior.curvature.keep is not None:
            index = posterior.curvature.keep
            total[index.unsqueeze(1), index] = cov.to(total.dtype)
            continue
        if len(blocks) == 1:
            order = blocks[0].to_flat(torch.arange(blocks[0].size, device=cov.device).reshape(blocks[0].native))
            cov = cov[order][:, order]
        stop = start + len(cov)
        total[start:stop, start:stop] = cov.to(total.dtype)
        start = stop
    order = network_order(posterior)
    return total[order][:, order]


def network_order(posterior: Laplace) -> Tensor:
    """Positions in the blocks' concatenated vector, in the order of the network's parameters."""
    starts: dict[str, tuple[int, int]] = {}
    at = 0
    for block in posterior.blocks:
        for p in block.params:
            starts[p.name] = (at, p.numel)
            at += p.numel
    device = posterior.network.device
    return torch.cat([torch.arange(s, s + n, device=device) for s, n in (starts[x] for x in posterior.names())])


def by_parameter(native: Tensor, blocks: Sequence[Block], keep: Tensor | None) -> dict[str, Tensor]:
    """A native vector [..., *native] of several blocks as parameters [..., *shape]; zero outside a mask."""
    if len(blocks) == 1 and keep is None:
        return blocks[0].to_parameters(native)
    flat = native
    if keep is not None:
        flat = native.new_zeros(*native.shape[:-1], sum(b.size for b in blocks))
        flat[..., keep] = native
    pieces = flat.split([b.size for b in blocks], dim=-1)
    return {n: v for b, piece in zip(blocks, pieces, strict=True) for n, v in b.scatter(piece).items()}
