"""Gram matrices and eigendecompositions of symmetric positive semi-definite matrices."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from whence.engine.memory import sizes
from whence.errors import NotConverged, NotPositiveDefinite, is_out_of_memory
from whence.linalg import split

Eigen = tuple[Tensor, Tensor]  # λ [..., n] and Q [..., n, n]

CUDA_BATCHED = 512  # size up to which matrices of one shape go into one call on a GPU
NEGATIVE = {torch.float64: 1e-6, torch.float32: 1e-4}  # tolerated −λ_min / λ_max
NOT_FINITE = "the curvature contains NaN or infinite values; are the network's outputs finite?"
NEGATIVE_VALUE = (
    "the curvature has a negative eigenvalue, {:.3g} times its largest. Use float64, or curvature='ggn', which is "
    "positive semi-definite."
)
SPLIT = 384  # only the upper triangle of a wider Gram matrix is computed


def matmul(x: Tensor, y: Tensor) -> Tensor:
    """x y for x [B, M, R] and y [B, R, N], with broadcasting over B; by split products where a GPU gains from them."""
    if not split.product_pays(x, y):
        return x @ y
    batch = max(len(x), len(y))
    return split.product(x.expand(batch, -1, -1), y.expand(batch, -1, -1))


def is_narrow(t: Tensor) -> bool:
    """Whether a tensor is in half precision."""
    return t.dtype in (torch.float16, torch.bfloat16)


def widened(t: Tensor) -> Tensor:
    """The tensor in at least float32."""
    return t.float() if is_narrow(t) else t


def accumulation_dtype(dtype: torch.dtype) -> torch.dtype:
    """The dtype of sums over data: at least float32."""
    return torch.float64 if dtype == torch.float64 else torch.float32


def gram(x: Tensor, coarse: bool = False) -> Tensor:
    """xᵀ x for x [..., R, D]. Wide products are split, so that only the upper triangle is computed.

    Long products are summed in pieces: on the CPU a float32 sum over millions of rows loses three digits. ``coarse``
    numbers come from TF32 convolutions; a GPU has faster products for them.
    """
    if is_narrow(x):
        return _narrow_gram(x)
    if x.dim() == 3 and len(x) == 1:
        return gram(x[0], coarse).unsqueeze(0)  # torch splits a single product over its rows, but not a batched one
    if coarse and x.dim() == 2 and split.gram_pays(x, *x.shape):
        return split.gram(x)
    if x.device.type != "cpu" or x.dim() > 2:
        return x.mT @ x
    out = x.new_zeros(x.shape[-1], x.shape[-1])
    add_upper_gram(x, out)
    return mirrored(out)


def add_upper_gram(x: Tensor, out: Tensor) -> None:
    """Add xᵀ x to ``out`` [D, D], perhaps a view of a larger matrix; entries below the diagonal are not valid."""
    width, most = x.shape[-1], sizes().rows
    if len(x) > most:  # sum each piece separately: a float32 sum over millions of rows loses three digits
        pieces = [torch.zeros_like(out) for _ in range(0, len(x), most)]
        for piece, part in zip(x.split(most), pieces, strict=True):
            add_upper_gram(piece, part)
        out += torch.stack(pieces).sum(0)
    elif width <= SPLIT or len(x) < 8:
        out.addmm_(x.mT, x)
    else:
        half = width // 2
        left, right = x[:, :half], x[:, half:]
        out[:half, half:].addmm_(left.mT, right)
        add_upper_gram(left, out[:half, :half])
        add_upper_gram(right, out[half:, half:])


def mirrored(upper: Tensor) -> Tensor:
    """The symmetric matrices [..., D, D] with these upper triangles, in the same memory."""
    width = upper.shape[-1]
    if width <= SPLIT:
        return upper.copy_(upper.triu() + upper.triu(1).mT)
    half = width // 2
    upper[..., half:, :half] = upper[..., :half, half:].mT
    mirrored(upper[..., :half, :half])
    mirrored(upper[..., half:, half:])
    return upper


def _narrow_gram(x: Tensor) -> Tensor:
    """xᵀ x of half-precision numbers in float32, where their products are exact."""
    if x.is_cuda:
        try:
            flat = x.reshape(-1, *x.shape[-2:])
            if len(flat) == 1:
                return torch.mm(flat[0].mT, flat[0], out_dtype=torch.float32).reshape(*x.shape[:-2], -1, x.shape[-1])
            return torch.bmm(flat.mT, flat, out_dtype=torch.float32).reshape(*x.shape[:-2], -1, x.shape[-1])
        except (TypeError, RuntimeError) as error:  # torch before 2.8, or a GPU that does not support it
            if is_out_of_memory(error):
                raise
    return gram(x.float())


def eigh_psd(matrix: Tensor, what: str) -> Eigen:
    """(λ ≥ 0, Q) with matrix = Q diag(λ) Qᵀ, batched; in float64 if it is small or float32 fails."""
    return eigh_many([matrix], [what])[0]


def eigh_many(matrices: Sequence[Tensor], names: Sequence[str]) -> list[Eigen]:
    """:func:`eigh_psd` of several [..., n, n]; on a GPU small ones of the same shape are batched."""
    found: list[Eigen | None] = [None] * len(matrices)
    groups: dict[Any, list[int]] = {}
    for i, matrix in enumerate(matrices):
        alone = not matrix.is_cuda or matrix.shape[-1] > CUDA_BATCHED
        groups.setdefault(i if alone else (matrix.shape[-1], matrix.device, matrix.dtype), []).append(i)
    for members in groups.values():
        for some in _memory_groups(members, matrices):
            each = [matrices[i].reshape(-1, *matrices[i].shape[-2:]) for i in some]
            stacked = each[0] if len(each) == 1 else torch.cat(each)
            counts = [matrices[i].shape[:-2].numel() for i in some]
            values, vectors = _eigen(stacked, [names[i] for i in some], counts)
            pieces = zip(some, values.split(counts), vectors.split(counts), strict=True)
            for i, value, vector in pieces:
                shape = matrices[i].shape
                found[i] = (value.reshape(shape[:-1]), vector.reshape(shape))
    return [f for f in found if f is not None]


def _memory_groups(members: list[int], matrices: Sequence[Tensor]) -> list[list[int]]:
    """Split them into groups that fit the memory budget."""
    pieces: list[list[int]] = []
    room = 0
    for i in members:
        size = matrices[i].numel() * 8
        if not pieces or size > room:
            pieces.append([])
            room = sizes().decomposition
        pieces[-1].append(i)
        room -= size
    return pieces


def _eigen(matrix: Tensor, names: list[str], counts: list[int]) -> Eigen:
    """Decompose one batch [B, n, n]; ``counts`` matrices in turn belong to each name."""
    owner = [name for name, count in zip(names, counts, strict=True) for _ in range(count)]
    _require(_finite(matrix), owner, NOT_FINITE)
    size, limit = matrix.shape[-1], sizes()
    work = matrix.cpu() if matrix.is_cuda and size <= limit.on_cpu else matrix
    double = matrix.dtype == torch.float64 or size <= (limit.cuda_double if work.is_cuda else limit.double)
    try:
        values, vectors = _decomposed(work, double, owner)
    except RuntimeError as error:
        if not work.is_cuda or not is_out_of_memory(error):
            raise
        values, vectors = _decomposed(work.cpu(), double, owner)  # slower, but there is enough memory
    tolerated = NEGATIVE.get(matrix.dtype, 1e-4)
    # Gradients that vanish underflow, and the smallest numbers have no digits left.
    least = size * torch.finfo(matrix.dtype).tiny / tolerated
    top = values.abs().amax(-1, keepdim=True).clamp(min=least)
    lowest = (values / top).amin(-1)
    worst = float(lowest.min())
    _require(lowest >= -tolerated, owner, NEGATIVE_VALUE.format(worst))
    # Directions without curvature have λ = ±ε λ_max by rounding; set them to zero.
    noise = torch.finfo(matrix.dtype).eps * size * top
    values = torch.where(values > noise * 1e-2, values, values.clamp(min=0))
    return values.to(matrix), vectors.to(matrix).contiguous()


def _finite(matrix: Tensor) -> Tensor:
    """Whether all entries of each matrix are finite, [B], from the extremes, which propagate NaN."""
    return torch.isfinite(matrix.amin((1, 2))) & torch.isfinite(matrix.amax((1, 2)))


def _require(fine: Tensor, owner: list[str], what: str) -> None:
    """Raise an error for the first matrix that fails the check."""
    if not bool(fine.all()):
        raise NotPositiveDefinite(f"{owner[int((~fine).nonzero()[0])]}: {what}")


def _decomposed(matrix: Tensor, double: bool, owner: list[str]) -> Eigen:
    single = None if double else _single(matrix.float())
    return _double(matrix, owner) if single is None else single


def _single(matrix: Tensor) -> Eigen | None:
    """Decompose in float32; None if that did not converge (Σ λ must equal the trace)."""
    try:
        values, vectors = torch.linalg.eigh(matrix)
    except RuntimeError as error:
        if is_out_of_memory(error):
            raise
        return None
    off = (values.sum(-1) - matrix.diagonal(dim1=-2, dim2=-1).sum(-1)).abs()
    fine = _finite(vectors).all() & (off <= 1e-3 * values.abs().sum(-1)).all()
    return (values, vectors) if bool(fine) else None


def _double(matrix: Tensor, owner: list[str]) -> Eigen:
    try:
        values, vectors = torch.linalg.eigh(matrix.double())
    except RuntimeError as error:
        if is_out_of_memory(error):
            raise
        raise NotConverged(f"{owner[0]}: the eigendecomposition did not converge ({error}).") from error
    return values, vectors


def psd_root(matrix: Tensor) -> Tensor:
    """L with L Lᵀ = matrix up to a jitter far below rounding error; differentiable, batched.

    Every matrix has the least jitter that it needs, whatever the others of its batch need.
    """
    if not bool(torch.isfinite(matrix).all()):
        return torch.full_like(matrix, torch.nan)
    scale = matrix.diagonal(dim1=-2, dim2=-1).mean(-1).clamp(min=torch.finfo(matrix.dtype).tiny)
    eye = torch.eye(matrix.shape[-1], device=matrix.device, dtype=matrix.dtype)
    least, *more = (1e-7, 1e-6, 1e-5, 1e-4) if matrix.dtype != torch.float64 else (1e-13, 1e-11, 1e-9, 1e-6)
    jitter = torch.full_like(scale, least)
    for power in (*more, None):
        root, info = torch.linalg.cholesky_ex(matrix + (jitter * scale)[..., None, None] * eye)
        failed = info > 0
        if not bool(failed.any()):
            break
        if power is None:
            values, vectors = torch.linalg.eigh(matrix)
            other = vectors * values.clamp(min=0).sqrt().unsqueeze(-2)
            return torch.where(failed[..., None, None], other, root)
        jitter = torch.where(failed, power, jitter)
    return root


def long_product(a: Tensor, b: Tensor) -> Tensor:
    """a bᵀ for [N, K, P] each, with P much larger than K."""
    step = sizes().summed_together(a.device)
    whole = a.shape[-1] // step * step if step else 0
    if whole <= step:
        return a @ b.mT
    left, right = (t[..., :whole].unflatten(-1, (-1, step)).transpose(1, 2) for t in (a, b))  # [N, P / step, K, step]
    found = (left @ right.mT).sum(1)
    return found if whole == a.shape[-1] else found + a[..., whole:] @ b[..., whole:].mT
