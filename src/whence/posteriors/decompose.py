"""Decompositions of all blocks: those of one shape together, shared out over ranks, moved to where they are fast."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import fields, replace
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from whence.linalg.dense import TOGETHER, Eigen, eigh_many
from whence.linalg.ratios import Ratio, as_separable
from whence.linalg.spectral import DiagonalSpectral, Spectral
from whence.linalg.structures import Ekfac, Kronecker, Structure

if TYPE_CHECKING:
    from whence.curvature.distributed import Share
    from whence.posteriors.laplace import Laplace

Ratios = Sequence[Ratio | None]
Key = tuple[int, str | None]  # number of the structure, digest of the ratio


def decomposed(posterior: Laplace, share: Share | None = None) -> tuple[list[str], list[Key]]:
    """Decompose what a posterior has not yet, all at once; the name and key of each of its structures."""
    groups, known = posterior.groups(), posterior._decompositions
    ratios = [posterior.block_prior(blocks).ratio for blocks in groups]
    names = [blocks[0].name if len(blocks) == 1 else "all layers together" for blocks in groups]
    keys = [(i, None if ratio is None else ratio.key) for i, ratio in enumerate(ratios)]
    missing = [i for i, key in enumerate(keys) if key not in known]
    if missing:
        structures = [posterior.curvature.structures[i] for i in missing]
        device = posterior.network.device if posterior.curvature.options.offload else None
        alike = [native_ratio(posterior, i) for i in missing]
        found = decompose(structures, alike, [names[i] for i in missing], share, device)
        known.update(zip((keys[i] for i in missing), found, strict=True))
    return names, keys


def native_ratio(posterior: Laplace, index: int) -> Ratio | None:
    """The ratio D of a structure's prior, where the structure lies and in its type."""
    blocks, structure = posterior.groups()[index], posterior.curvature.structures[index]
    ratio, like = posterior.block_prior(blocks).ratio, next(iter(structure.tensors().values()))
    if ratio is None:
        return None
    native = as_separable(ratio, blocks[0].name) if isinstance(structure, (Kronecker, Ekfac)) else ratio
    return native.to(like.device, like.dtype)


def decompose(
    structures: Sequence[Structure],
    ratios: Ratios,
    names: Sequence[str],
    share: Share | None = None,
    device: torch.device | None = None,
) -> list[Spectral]:
    """The decomposition of each structure under the ratios of its prior precisions (None for one number).

    With a ``share`` each rank decomposes some of them, and all end with the same bits. With a ``device`` they are
    computed there, a few at a time, and come back to where the structure lies.
    """
    found: list[Spectral | None] = [None] * len(structures)
    owners = [0] * len(structures) if share is None else share.assign([cost(s) for s in structures])
    eigens: dict[int, list[Eigen]] = {}
    for some in _portions(structures, [i for i, o in enumerate(owners) if share is None or o == share.rank]):
        for i, eigen in zip(some, _eigen(some, structures, ratios, names, device), strict=True):
            if share is None:
                found[i] = _assembled(i, structures, ratios, names, eigen, device)
            else:
                eigens[i] = eigen
    if share is not None:
        for i in range(len(structures)):
            eigen = eigens.pop(i) if i in eigens else _empty(structures[i], device)
            spectral = _assembled(i, structures, ratios, names, _exchanged(share, owners[i], eigen), device)
            if not eigen and not isinstance(spectral, DiagonalSpectral):
                spectral = _from_first(share, spectral, device)
            found[i] = spectral
    return [s for s in found if s is not None]


def cost(structure: Structure) -> float:
    """n³ over its matrices."""
    return float(sum(size**3 * count for size, count in _sides(structure)))


def _sides(structure: Structure) -> list[tuple[int, int]]:
    """Rows of each matrix to decompose, and how many of them there are."""
    return [(s[-1], s[:-2].numel()) for s in structure.factor_shapes()]


def _portions(structures: Sequence[Structure], mine: list[int]) -> Iterator[list[int]]:
    """Equal shapes next to each other, as many at a time as the memory bound allows."""
    room, portion = TOGETHER, list[int]()
    for i in sorted(mine, key=lambda i: (_sides(structures[i]), i)):
        size = sum(8 * n * n * count for n, count in _sides(structures[i]))
        if portion and size > room:
            yield portion
            room, portion = TOGETHER, []
        portion.append(i)
        room -= size
    if portion:
        yield portion


def _eigen(
    some: list[int], structures: Sequence[Structure], ratios: Ratios, names: Sequence[str], device: torch.device | None
) -> list[list[Eigen]]:
    """The factors' decompositions, by structure; those of one shape in one call."""
    factors = []
    for i in some:
        structure, ratio = _there(structures[i], ratios[i], device)
        factors.append(structure.factors(ratio, names[i]))
    flat = [factor for group in factors for factor in group]
    found = iter(eigh_many([matrix for matrix, _ in flat], [name for _, name in flat]))
    return [[next(found) for _ in group] for group in factors]


def _there(structure: Structure, ratio: Ratio | None, device: torch.device | None) -> tuple[Structure, Ratio | None]:
    if device is None:
        return structure, ratio
    return structure.to(device), None if ratio is None else ratio.to(device)


def _assembled(
    i: int,
    structures: Sequence[Structure],
    ratios: Ratios,
    names: Sequence[str],
    eigen: list[Eigen],
    device: torch.device | None,
) -> Spectral:
    home = next(iter(structures[i].tensors().values())).device
    structure, ratio = _there(structures[i], ratios[i], device)
    return structure.assembled(ratio, eigen, names[i]).to(home)


def _empty(structure: Structure, device: torch.device | None) -> list[Eigen]:
    """Of the shapes that another rank will send."""
    like = next(iter(structure.tensors().values()))
    like = like if device is None else like.new_empty(0, device=device)
    return [(like.new_empty(shape[:-1]), like.new_empty(shape)) for shape in structure.factor_shapes()]


def _exchanged(share: Share, owner: int, eigen: list[Eigen]) -> list[Eigen]:
    if not eigen:
        return []
    flat = share.exchange(owner, [tensor for pair in eigen for tensor in pair])
    return list(zip(flat[::2], flat[1::2], strict=True))


def _from_first(share: Share, spectral: Spectral, device: torch.device | None) -> Spectral:
    """What every rank found for itself, as the first one did."""
    home = spectral.values.device
    moved = spectral if device is None else spectral.to(device)
    held = {f.name: getattr(moved, f.name) for f in fields(moved)}  # type: ignore[arg-type]
    tensors = {name: value for name, value in held.items() if isinstance(value, Tensor)}
    sent = share.exchange(0, list(tensors.values()))
    return replace(moved, **dict(zip(tensors, sent, strict=True))).to(home)  # type: ignore[type-var]
