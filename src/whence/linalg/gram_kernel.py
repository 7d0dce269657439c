"""Gram matrices of a few long rows in one pass over them, by Triton kernels; by torch's products where they cannot run.

cuBLAS has no kernel for [K, P] × [P, K] with K around 10 and P in the millions that comes near the memory's speed. Here
every program reads one chunk of the rows once, and adds up their Gram matrices with and without weights, or only the
diagonals of these.

Index legend: N examples, K rows of each, P entries of a row, M chunks, B entries of a chunk.
"""

from __future__ import annotations

import importlib
from dataclasses import dataclass

import torch
from torch import Tensor

from whence.linalg.dense import long_product
from whence.linalg.kernels import trusted

MOST = 32  # rows that one program holds
CHUNK = 4096  # entries of a row that one program reads
AGREE = 1e-5  # tolerated relative difference from torch's products


@dataclass(frozen=True)
class Shape:
    """How a kernel is compiled, as measured on an H200."""

    block: int  # entries of a row that are read at a time
    warps: int
    stages: int
    precision: str = "tf32x3"  # of products, exact to 1e-6


WEIGHTED, WIDE, INDEXED = Shape(128, 1, 4), Shape(64, 4, 3), Shape(64, 1, 3)
DIAGONALS = Shape(256, 4, 2)


@dataclass(frozen=True)
class Chunks:
    """Entries of rows in an order of their own, in chunks; -1 where a chunk is not full. Both tensors are [M, B]."""

    index: Tensor  # int32
    weights: Tensor


def weighted_gram(rows: Tensor, weights: Tensor) -> Tensor:
    """rows diag(weights) rowsᵀ for rows [N, K, P]: [N, K, K]."""
    weights = weights.reshape(-1)
    return launch(rows, weights).sum(1) if applies(rows) else long_product(rows * weights, rows)


def chunk_grams(rows: Tensor, chunks: Chunks) -> tuple[Tensor, Tensor]:
    """The same of each chunk, with the weights of its entries, [N, M, K, K] each."""
    if applies(rows):
        weighted, plain = launch(rows, chunks.weights, chunks.index).unbind(2)
        return weighted, plain
    taken = (rows[..., chunks.index.clamp(min=0).long()] * (chunks.index >= 0)).transpose(1, 2)  # [N, M, K, B]
    return (taken * chunks.weights.unsqueeze(1)) @ taken.mT, taken @ taken.mT


def two_diagonals(rows: Tensor, weights: Tensor, others: Tensor | None, centred: bool) -> tuple[Tensor, Tensor]:
    """Σ_p w_p r_kp² and Σ_p v_p r_kp² (v = 1 if ``others`` is None) of rows [N, K, P], [N, K] each.

    ``centred``: of the rows minus their mean over k.
    """
    weights = weights.reshape(-1)
    others = None if others is None else others.reshape(-1)
    if applies(rows):
        own, alone = launch_diagonals(rows, weights, others, centred).sum(1).unbind(1)
        return own, alone
    squares = (rows - rows.mean(1, keepdim=True) if centred else rows).square()
    return squares @ weights, squares.sum(-1) if others is None else squares @ others


def applies(rows: Tensor) -> bool:
    """Whether the kernels are used for such rows."""
    able = (
        rows.device.type == "cuda"
        and rows.dtype == torch.float32
        and rows.shape[-2] <= MOST
        and rows.shape[-1] >= CHUNK
        and rows.stride(-1) == 1
        and not (torch.is_grad_enabled() and rows.requires_grad)
    )
    width = _width(rows.shape[-2])
    return able and trusted(("grams", width), rows.device, lambda: _compared(width, rows.device))


def launch(rows: Tensor, weights: Tensor, index: Tensor | None = None) -> Tensor:
    """By the kernel, [N, M, K, K]; with an ``index`` also without weights, [N, M, 2, K, K]."""
    size, count, length = rows.shape
    programs, chunk = (-(-length // CHUNK), CHUNK) if index is None else index.shape
    shape = INDEXED if index is not None else WIDE if count > 16 else WEIGHTED
    found = rows.new_empty(size, programs, *(() if index is None else (2,)), count, count)
    kernel = importlib.import_module("whence.linalg.triton_grams").grams
    with torch.cuda.device(rows.device):
        kernel[(programs, size)](
            rows, rows if index is None else index, weights, found, count, length, rows.stride(0), rows.stride(1),
            chunk=chunk, block=min(chunk, shape.block), width=_width(count), indexed=index is not None,
            precision=shape.precision, num_warps=shape.warps, num_stages=shape.stages,
        )  # fmt: skip
    return found


def launch_diagonals(rows: Tensor, weights: Tensor, others: Tensor | None, centred: bool) -> Tensor:
    """By the kernel, [N, M, 2, K]."""
    size, count, length = rows.shape
    programs = -(-length // CHUNK)
    found = rows.new_empty(size, programs, 2, count)
    kernel = importlib.import_module("whence.linalg.triton_grams").diagonals
    with torch.cuda.device(rows.device):
        kernel[(programs, size)](
            rows, weights, weights if others is None else others, found, count, length, rows.stride(0), rows.stride(1),
            chunk=CHUNK, block=DIAGONALS.block, width=_width(count), centred=centred, unweighted=others is None,
            num_warps=DIAGONALS.warps, num_stages=DIAGONALS.stages,
        )  # fmt: skip
    return found


def _width(count: int) -> int:
    return 16 if count <= 16 else MOST


@torch.no_grad()
def _compared(width: int, device: torch.device) -> bool:
    generator = torch.Generator(device).manual_seed(0)
    rows = torch.randn(2, width - 3, 2 * CHUNK + 17, device=device, generator=generator)
    weights = torch.rand(rows.shape[-1], device=device, generator=generator)
    index = torch.randperm(rows.shape[-1], device=device, generator=generator).int()[:2560].reshape(10, 256)
    index[3, 40:] = -1
    chunks = Chunks(index, weights[:2560].reshape(10, 256))
    wide, own = rows.double(), chunks.weights.double()
    taken = (wide[..., index.clamp(min=0).long()] * (index >= 0)).transpose(1, 2)
    pairs = [
        (launch(rows, weights).sum(1), (wide * weights) @ wide.mT),
        (launch(rows, chunks.weights, index)[:, :, 0], (taken * own.unsqueeze(1)) @ taken.mT),
        (launch(rows, chunks.weights, index)[:, :, 1], taken @ taken.mT),
    ]
    centred = wide - wide.mean(1, keepdim=True)
    for others, some in ((None, wide), (weights.flip(0), centred)):
        found = launch_diagonals(rows, weights, others, some is centred).sum(1).unbind(1)
        v = torch.ones_like(weights) if others is None else others
        pairs += zip(found, (some.square() @ weights.double(), some.square() @ v.double()), strict=True)
    return all(bool((found - wanted).norm() <= AGREE * wanted.norm()) for found, wanted in pairs)
