"""The covariance of all weights as one dense matrix."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor

from whence.errors import TooLarge
from whence.linalg.spectral import dense

if TYPE_CHECKING:
    from whence.posteriors.laplace import Laplace

LIMIT = 2 * 2**30  # bytes


def refuse_dense(size: int) -> None:
    """A matrix of so many weights squared must not be too large."""
    if (needed := size * size * 8) > LIMIT:
        raise TooLarge(
            f"the dense covariance of {size:,} weights needs {needed / 2**30:.1f} GiB (limit {LIMIT / 2**30:.0f} GiB). "
            "Use variance(), sample() or predict(), which never form it."
        )


def covariance(posterior: Laplace) -> Tensor:
    """Σ [P, P], in the order of the network's parameters; zero between blocks, and outside a mask."""
    size = sum(b.size for b in posterior.blocks)
    refuse_dense(size)
    like = posterior.network.like
    total = torch.zeros(size, size, dtype=like.dtype, device=like.device)
    start = 0
    for gaussian, blocks in posterior.gaussians():
        cov = dense(gaussian.spectral, 1 / gaussian.precision, 1 / gaussian.rest)
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
    """Positions in the blocks' joined vector, in the order of the network's parameters."""
    starts: dict[str, tuple[int, int]] = {}
    at = 0
    for block in posterior.blocks:
        for p in block.params:
            starts[p.name] = (at, p.numel)
            at += p.numel
    device = posterior.network.device
    return torch.cat([torch.arange(s, s + n, device=device) for s, n in (starts[x] for x in posterior.names())])
