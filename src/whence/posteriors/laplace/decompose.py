"""Eigendecompositions of all blocks: batched by shape, shared between ranks, on the faster device."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import fields, replace

import torch
from torch import Tensor

from whence.curvature.result import Curvature
from whence.engine.memory import sizes
from whence.engine.ranks import WorkSharing
from whence.linalg.dense import Eigen, eigh_many
from whence.linalg.ratios import Ratio, as_separable
from whence.linalg.spectral import DiagonalSpectral, Spectral
from whence.linalg.structures import Ekfac, Kronecker, Structure
from whence.priors import PriorPrecision
from whence.recording.blocks import Block

Ratios = Sequence[Ratio | None]


def spectra_of(
    curvature: Curvature,
    prior: PriorPrecision,
    device: torch.device,
    known: Mapping[int, Spectral] | Sequence[Spectral] = (),
    sharing: WorkSharing | None = None,
) -> tuple[Spectral, ...]:
    """Decompose every structure relative to the shape of its prior; ``known`` ones are reused if it is the same."""
    ratios = [native_ratio(curvature, prior, i) for i in range(len(curvature.structures))]
    same = dict(known) if isinstance(known, Mapping) else dict(enumerate(known))
    missing = [i for i, r in enumerate(ratios) if i not in same or _key(same[i].ratio) != _key(r)]
    found = decompose(
        [curvature.structures[i] for i in missing],
        [ratios[i] for i in missing],
        [group_name(curvature.groups[i]) for i in missing],
        sharing,
        device if curvature.options.execution.offload else None,
    )
    same.update(zip(missing, found, strict=True))
    return tuple(same[i] for i in range(len(ratios)))


def belongs_to(spectra: Sequence[Spectral], curvature: Curvature, prior: PriorPrecision) -> bool:
    """Whether decompositions are relative to the shape of this prior."""
    shapes = (prior.of(blocks, curvature.keep).ratio for blocks in curvature.groups)
    return all(_key(s.ratio) == _key(shape) for s, shape in zip(spectra, shapes, strict=True))


def group_name(blocks: Sequence[Block]) -> str:
    return blocks[0].name if len(blocks) == 1 else "all layers together"


def native_ratio(curvature: Curvature, prior: PriorPrecision, index: int) -> Ratio | None:
    """The ratio D of a structure's prior, with the structure's device and dtype."""
    blocks, structure = curvature.groups[index], curvature.structures[index]
    ratio, like = prior.of(blocks, curvature.keep).ratio, next(iter(structure.tensors().values()))
    if ratio is None:
        return None
    native = as_separable(ratio, blocks[0].name) if isinstance(structure, (Kronecker, Ekfac)) else ratio
    return native.to(like.device, like.dtype)


def _key(ratio: Ratio | None) -> str | None:
    return None if ratio is None else ratio.key


def decompose(
    structures: Sequence[Structure],
    ratios: Ratios,
    names: Sequence[str],
    sharing: WorkSharing | None = None,
    device: torch.device | None = None,
) -> list[Spectral]:
    """The decomposition of each structure under the ratios of its prior precisions (None for one number).

    With a ``sharing`` each rank decomposes some of them, and all get bitwise equal results. With a ``device`` they are
    computed there, a few at a time, and moved back to the structure's device.
    """
    found: list[Spectral | None] = [None] * len(structures)
    owners = [0] * len(structures) if sharing is None else sharing.assign([cost(s) for s in structures])
    eigens: dict[int, list[Eigen]] = {}
    for some in _portions(structures, [i for i, o in enumerate(owners) if sharing is None or o == sharing.rank]):
        for i, eigen in zip(some, _eigen(some, structures, ratios, names, device), strict=True):
            if sharing is None:
                found[i] = _assembled(i, structures, ratios, names, eigen, device)
            else:
                eigens[i] = eigen
    if sharing is not None:
        for i in range(len(structures)):
            eigen = eigens.pop(i) if i in eigens else _empty(structures[i], device)
            spectral = _assembled(i, structures, ratios, names, _exchanged(sharing, owners[i], eigen), device)
            if not eigen and not isinstance(spectral, DiagonalSpectral):
                spectral = _from_first(sharing, spectral, device)
            found[i] = spectral
    return [s for s in found if s is not None]


def cost(structure: Structure) -> float:
    """n³ over its matrices."""
    return float(sum(size**3 * count for size, count in _sides(structure)))


def _sides(structure: Structure) -> list[tuple[int, int]]:
    """Size of each matrix to decompose, and their number."""
    return [(s[-1], s[:-2].numel()) for s in structure.factor_shapes()]


def _portions(structures: Sequence[Structure], mine: list[int]) -> Iterator[list[int]]:
    """Groups of equal shapes, as many at a time as the memory limit allows."""
    left, portion = sizes().decomposition, list[int]()
    for i in sorted(mine, key=lambda i: (_sides(structures[i]), i)):
        size = sum(8 * n * n * count for n, count in _sides(structures[i]))
        if portion and size > left:
            yield portion
            left, portion = sizes().decomposition, []
        portion.append(i)
        left -= size
    if portion:
        yield portion


def _eigen(
    some: list[int], structures: Sequence[Structure], ratios: Ratios, names: Sequence[str], device: torch.device | None
) -> list[list[Eigen]]:
    """The factors' decompositions, by structure; those of one shape in one call."""
    factors = []
    for i in some:
        structure, ratio = _on_device(structures[i], ratios[i], device)
        factors.append(structure.factors(ratio, names[i]))
    flat = [factor for group in factors for factor in group]
    found = iter(eigh_many([matrix for matrix, _ in flat], [name for _, name in flat]))
    return [[next(found) for _ in group] for group in factors]


def _on_device(
    structure: Structure, ratio: Ratio | None, device: torch.device | None
) -> tuple[Structure, Ratio | None]:
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
    structure, ratio = _on_device(structures[i], ratios[i], device)
    return structure.assembled(ratio, eigen, names[i]).to(home)


def _empty(structure: Structure, device: torch.device | None) -> list[Eigen]:
    """Empty tensors with the shapes that another rank will send."""
    like = next(iter(structure.tensors().values()))
    like = like if device is None else like.new_empty(0, device=device)
    return [(like.new_empty(shape[:-1]), like.new_empty(shape)) for shape in structure.factor_shapes()]


def _exchanged(sharing: WorkSharing, owner: int, eigen: list[Eigen]) -> list[Eigen]:
    if not eigen:
        return []
    flat = sharing.exchange(owner, [tensor for pair in eigen for tensor in pair])
    return list(zip(flat[::2], flat[1::2], strict=True))


def _from_first(sharing: WorkSharing, spectral: Spectral, device: torch.device | None) -> Spectral:
    """Replace each rank's own result by the first rank's."""
    home = spectral.values.device
    moved = spectral if device is None else spectral.to(device)
    held = {f.name: getattr(moved, f.name) for f in fields(moved)}  # type: ignore[arg-type]
    tensors = {name: value for name, value in held.items() if isinstance(value, Tensor)}
    sent = sharing.exchange(0, list(tensors.values()))
    return replace(moved, **dict(zip(tensors, sent, strict=True))).to(home)  # type: ignore[type-var]
