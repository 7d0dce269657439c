"""Gram matrices of a few long rows in one pass over them, by a Triton kernel; by torch's products where it cannot run.

cuBLAS has no kernel for [K, P] × [P, K] with K around 10 and P in the millions that comes near the memory's speed. Here
every program reads one chunk of the rows once, and adds up their Gram matrices with and without weights.

Index legend: N examples, K rows of each, P entries of a row, M chunks, B entries of a chunk.
"""

from __future__ import annotations

import contextlib
import importlib
from dataclasses import dataclass

import torch
from torch import Tensor

from whence.engine.contexts import capturing
from whence.errors import is_out_of_memory
from whence.linalg.dense import long_product

MOST = 32  # rows that one program holds
CHUNK = 4096  # entries of a row that one program reads
BLOCK = 64  # of them at a time
AGREE = 1e-5  # tolerated relative difference from torch's products
PRECISION = {False: "tf32x3", True: "ieee"}  # of products, by whether entries are indexed; both to 1e-6
_trusted: dict[tuple[int, int], bool] = {}  # by number of rows and device: whether the kernel agrees with torch


@dataclass(frozen=True)
class Chunks:
    """Entries of rows in an order of their own, in chunks; -1 where a chunk is not full. Both tensors are [M, B]."""

    index: Tensor  # int32
    weights: Tensor


def weighted_gram(rows: Tensor, weights: Tensor) -> Tensor:
    """rows diag(weights) rowsᵀ for rows [N, K, P]: [N, K, K]."""
    weights = weights.reshape(-1)
    return launch(rows, weights, plain=False)[:, :, 0].sum(1) if applies(rows) else long_product(rows * weights, rows)


def two_grams(rows: Tensor, weights: Tensor) -> tuple[Tensor, Tensor]:
    """rows diag(weights) rowsᵀ and rows rowsᵀ for rows [N, K, P]: [N, K, K] each."""
    weights = weights.reshape(-1)
    if not applies(rows):
        return long_product(rows * weights, rows), long_product(rows, rows)
    weighted, plain = launch(rows, weights).sum(1).unbind(1)
    return weighted, plain


def chunk_grams(rows: Tensor, chunks: Chunks) -> tuple[Tensor, Tensor]:
    """The same of each chunk, with the weights of its entries, [N, M, K, K] each."""
    if applies(rows):
        weighted, plain = launch(rows, chunks.weights, chunks.index).unbind(2)
        return weighted, plain
    taken = (rows[..., chunks.index.clamp(min=0).long()] * (chunks.index >= 0)).transpose(1, 2)  # [N, M, K, B]
    return (taken * chunks.weights.unsqueeze(1)) @ taken.mT, taken @ taken.mT


def applies(rows: Tensor) -> bool:
    """Whether the kernel is used for such rows."""
    able = (
        rows.device.type == "cuda"
        and rows.dtype == torch.float32
        and rows.shape[-2] <= MOST
        and rows.shape[-1] >= CHUNK
        and rows.stride(-1) == 1
        and not (torch.is_grad_enabled() and rows.requires_grad)
    )
    return able and _agrees(_width(rows.shape[-2]), rows.device)


def launch(rows: Tensor, weights: Tensor, index: Tensor | None = None, plain: bool = True) -> Tensor:
    """By the kernel, [N, M, 2, K, K]; [N, M, 1, K, K] without the ``plain`` Gram matrices."""
    size, count, length = rows.shape
    programs, chunk = (-(-length // CHUNK), CHUNK) if index is None else index.shape
    found = rows.new_empty(size, programs, 2 if plain else 1, count, count)
    kernel = importlib.import_module("whence.linalg.triton_grams").grams
    with torch.cuda.device(rows.device) if rows.is_cuda else contextlib.nullcontext():
        kernel[(programs, size)](
            rows, rows if index is None else index, weights, found, count, length, rows.stride(0), rows.stride(1),
            chunk=chunk, block=min(chunk, BLOCK), width=_width(count), indexed=index is not None, plain=plain,
            precision=PRECISION[index is not None],
        )  # fmt: skip
    return found


def _width(count: int) -> int:
    return 16 if count <= 16 else MOST


def _agrees(width: int, device: torch.device) -> bool:
    """Whether the kernel compiles here and agrees with torch's products; looked at once."""
    key = width, device.index or 0
    if key not in _trusted:
        if capturing():  # nothing may be compiled or read now
            return False
        try:
            _trusted[key] = _compared(width, device)
        except Exception as error:  # no Triton, no C compiler, a device that it does not know
            if is_out_of_memory(error):
                raise
            _trusted[key] = False
    return _trusted[key]


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
        (launch(rows, weights, plain=False)[:, :, 0].sum(1), (wide * weights) @ wide.mT),
        (launch(rows, weights)[:, :, 1].sum(1), wide @ wide.mT),
        (launch(rows, chunks.weights, index)[:, :, 0], (taken * own.unsqueeze(1)) @ taken.mT),
        (launch(rows, chunks.weights, index)[:, :, 1], taken @ taken.mT),
    ]
    return all(bool((found - wanted).norm() <= AGREE * wanted.norm()) for found, wanted in pairs)
