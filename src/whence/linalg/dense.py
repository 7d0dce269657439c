"""Gram matrices and eigendecompositions of symmetric positive semi-definite matrices."""

from __future__ import annotations

import torch
from torch import Tensor

from whence.errors import NotConverged, NotPositiveDefinite

SMALL = 2048  # decomposed in float64 up to here on the CPU
NEGATIVE = {torch.float64: 1e-6, torch.float32: 1e-4}  # tolerated −λ_min / λ_max
LONG = 32768  # rows that go into one product
SPLIT = 384  # a Gram matrix wider than this is computed by its upper triangle


def gram(x: Tensor) -> Tensor:
    """xᵀ x for x [..., R, D]. Wide ones by halves, so that only the upper triangle is multiplied.

    Very long ones in pieces: on the CPU a float32 product over millions of rows loses three digits.
    """
    if x.shape[-2] > LONG and x.device.type == "cpu":
        return torch.stack([gram(piece) for piece in x.split(LONG, dim=-2)]).sum(0)
    width = x.shape[-1]
    if width <= SPLIT or x.device.type != "cpu" or x.shape[-2] < 8:
        return x.mT @ x
    half = width // 2
    left, right = x[..., :half], x[..., half:]
    corner = left.mT @ right
    out = x.new_empty(*x.shape[:-2], width, width)
    out[..., :half, :half] = gram(left)
    out[..., half:, half:] = gram(right)
    out[..., :half, half:] = corner
    out[..., half:, :half] = corner.mT
    return out


def eigh_psd(matrix: Tensor, what: str) -> tuple[Tensor, Tensor]:
    """(λ ≥ 0, Q) with matrix = Q diag(λ) Qᵀ, batched; in float64 where it is small or float32 fails."""
    if not bool(torch.isfinite(matrix).all()):
        raise NotPositiveDefinite(
            f"{what}: the curvature holds NaN or infinite values; was the network's output finite?"
        )
    double = matrix.shape[-1] <= SMALL and matrix.device.type == "cpu"
    work = (matrix + matrix.mT) / 2
    if double or matrix.dtype == torch.float64:
        values, vectors = _eigh(work.double(), what)
    else:
        try:
            values, vectors = torch.linalg.eigh(work.float())
            if not bool(torch.isfinite(vectors).all()):
                raise NotConverged(what)
        except (RuntimeError, NotConverged):
            values, vectors = _eigh(work.double(), what)
    top = values.abs().amax(-1, keepdim=True).clamp(min=torch.finfo(values.dtype).tiny)
    lowest = float((values / top).min())
    if lowest < -NEGATIVE.get(matrix.dtype, 1e-4):
        raise NotPositiveDefinite(
            f"{what}: the curvature has a negative eigenvalue, {lowest:.3g} of its largest. "
            "Use float64, or curvature='ggn', which is positive semi-definite."
        )
    # Rounding leaves directions without curvature at ±ε λ_max; they are zero.
    noise = torch.finfo(matrix.dtype).eps * matrix.shape[-1] * top
    values = torch.where(values > noise * 1e-2, values, values.clamp(min=0))
    return values.to(matrix.dtype), vectors.to(matrix.dtype).contiguous()


def _eigh(matrix: Tensor, what: str) -> tuple[Tensor, Tensor]:
    try:
        values, vectors = torch.linalg.eigh(matrix)
    except RuntimeError as error:
        raise NotConverged(f"{what}: the eigendecomposition did not converge ({error}).") from error
    return values, vectors


def psd_root(matrix: Tensor) -> Tensor:
    """L with L Lᵀ = matrix up to a jitter far below rounding's reach; differentiable, batched."""
    if not bool(torch.isfinite(matrix).all()):
        return torch.full_like(matrix, torch.nan)
    scale = matrix.diagonal(dim1=-2, dim2=-1).mean(-1).clamp(min=torch.finfo(matrix.dtype).tiny)
    eye = torch.eye(matrix.shape[-1], device=matrix.device, dtype=matrix.dtype)
    for power in (1e-7, 1e-6, 1e-5, 1e-4) if matrix.dtype != torch.float64 else (1e-13, 1e-11, 1e-9, 1e-6):
        root, info = torch.linalg.cholesky_ex(matrix + (power * scale)[..., None, None] * eye)
        if not bool(info.any()):
            return root
    values, vectors = torch.linalg.eigh(matrix)
    return vectors * values.clamp(min=0).sqrt().unsqueeze(-2)
