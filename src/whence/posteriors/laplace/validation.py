"""Validation data for tuning: projected once and cached if memory allows, so a new prior only needs new weights.

Index legend: N examples, C outputs.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, fields, is_dataclass, replace
from typing import TYPE_CHECKING, Any, Protocol

import torch
from torch import Tensor

from whence.engine.batches import Batch, Data, Inputs, counted_examples, size_of
from whence.engine.memory import none_if_out_of_memory, sizes
from whence.engine.progress import progress_bar
from whence.errors import BadData
from whence.likelihoods import Likelihood
from whence.predictive import linearised
from whence.predictive.lattice_rows import FEW_OUTPUTS, EigenvalueLattice
from whence.predictive.linearised import Moments
from whence.predictive.project import project
from whence.predictive.projection import LookedUp, Rows, Unshared
from whence.predictive.separable import Priors

if TYPE_CHECKING:
    from whence.linalg.gaussian import BlockGaussian
    from whence.linalg.spectral import Spectral
    from whence.posteriors.laplace.posterior import Laplace

NO_DATA = {torch.float32: 1e8, torch.float64: 1e12}  # prior precision, relative to which the curvature is nothing


class Tunable(Protocol):
    """The Jacobian of some inputs in a block, in a form that gives their covariance under any prior."""

    def weighted_priors(self, priors: Priors) -> Tensor:
        """J Σ Jᵀ under R priors, [R, N, C, C]."""

    def extended(self, others: Sequence[Any]) -> Tunable:
        """Of the inputs of ``others`` too."""


class ScaledPriors:
    """The Gaussian of each block with its prior precision times e^r, for several r; caches the last ones."""

    def __init__(self, posterior: Laplace) -> None:
        self.posterior = posterior
        self._last: tuple[list[float], list[Priors]] = ([], [])

    def by(self, rs: list[float]) -> Iterable[Priors]:
        if self.posterior.curvature.options.execution.offload:  # one block at a time on the device
            return self._made(rs)
        if self._last[0] != rs:
            self._last = (rs, list(self._made(rs)))
        return self._last[1]

    def _made(self, rs: list[float]) -> Iterator[Priors]:
        return (scaled_priors(gaussian, rs) for gaussian, _ in self.posterior.gaussians())


def scaled_priors(gaussian: BlockGaussian, rs: list[float]) -> Priors:
    return Priors([replace(gaussian, delta=gaussian.delta * math.exp(r)) for r in rs])


@dataclass
class ProjectedExamples:
    """Some validation examples: their outputs, and their Jacobians in the eigenbases of the blocks."""

    mean: Tensor  # [N, C]
    projections: list[Tunable]
    targets: Tensor  # checked
    covariances: dict[float, Tensor] = field(default_factory=dict)  # V(r), by r (rounded)

    def covariance(self, moved: ScaledPriors, rs: list[float]) -> list[Tensor]:
        """V under prior precisions times e^r, for each r, [N, C, C]."""
        rs = [_key(r) for r in rs]
        missing = [r for r in rs if r not in self.covariances]
        if not missing:
            return [self.covariances[r] for r in rs]
        total: Tensor | None = None
        for priors, projection in zip(moved.by(missing), self.projections, strict=True):
            part = projection.weighted_priors(priors)
            total = part if total is None else total.add_(part)
        assert total is not None
        found = self.covariances | dict(zip(missing, total, strict=True))
        return [found[r] for r in rs]

    @property
    def size_of_covariances(self) -> int:
        return sum(cov.numel() * cov.element_size() for cov in self.covariances.values())

    @property
    def bytes(self) -> int:
        return sum(t.numel() * t.element_size() for p in self.projections for t in _tensors(p))


ByLayer = list[tuple[ProjectedExamples, list[Tensor]]]  # for each piece, for each layer: [moves, N, C, C]


class Validation:
    """Passes over validation data; after the first, cached projections replace the network.

    If projections are too large to cache, a pass also computes the covariances expected next.
    """

    def __init__(self, data: Data, progress: bool) -> None:
        self.data, self.progress = data, progress
        self.count = 0  # examples of the last pass
        self._kept: list[ProjectedExamples] | None = None
        self._expected: list[float] = []
        self._covariance = 0  # bytes of one
        self._found: list[ProjectedExamples] = []  # with the covariances of earlier passes, without projections
        self._lattices: Lattices = {}
        self._first: ProjectedExamples | None = None  # some examples, which are always kept
        self._basis: Sequence[Spectral] = ()  # of the kept projections
        self.left_out = False  # whether examples without a valid target were left out
        self._room: float = sizes().cuda_validation if data.device.type == "cuda" else sizes().validation

    def expect(self, rs: list[float]) -> None:
        """Announce the r for which :meth:`covariances` will probably be called."""
        self._expected = list(dict.fromkeys(_key(r) for r in rs))

    def covariances(self, posterior: Laplace, rs: list[float]) -> Iterator[tuple[ProjectedExamples, list[Tensor]]]:
        """Every piece with V(r) for each r, relative to the prior of ``posterior``, which must stay the same."""
        known, moved = self._found[0].covariances if self._found else {}, ScaledPriors(posterior)
        if all(_key(r) in known for r in rs):
            yield from ((piece, piece.covariance(moved, rs)) for piece in self._found)
            return
        every, found = [*rs, *self._ahead(rs)], []
        room = self._room - sum(piece.size_of_covariances for piece in self._found)
        for piece in self.pieces(posterior):
            covs = piece.covariance(moved, every)
            yield piece, covs[: len(rs)]
            if self._kept is not None:
                self._keep_covariances(piece, rs, covs)
                continue
            light = replace(piece, projections=[], covariances=dict(zip(map(_key, every), covs, strict=True)))
            room -= light.size_of_covariances
            found.append(light)
            if room < 0:
                found, room = [], -math.inf
        if found and self._kept is None:
            self._found = [_joined(a, b) for a, b in zip(self._found or found, found, strict=True)]

    def first_covariances(self, posterior: Laplace, rs: list[float]) -> list[Tensor]:
        """V(r) of only the first examples, after a pass."""
        assert self._first is not None
        return self._first.covariance(ScaledPriors(posterior), rs)

    def _ahead(self, rs: list[float]) -> list[float]:
        """The r that a pass computes in advance; none if projections are cached, or if they would not fit."""
        if self._kept is not None or not self.count:
            return []
        asked = {_key(r) for r in rs}
        ahead = [r for r in self._expected if r not in asked]
        return ahead if (len(rs) + len(ahead)) * self.count * self._covariance <= self._room else []

    def by_layer(self, posterior: Laplace, moves: list[float]) -> ByLayer | None:
        """V of each layer with its prior precision times e^m, for each m and piece; None if it would not fit."""
        if len(posterior.curvature.groups) * len(moves) * self.count * self._covariance > self._room:
            return None
        found: ByLayer = []
        moved = ScaledPriors(posterior)
        for piece in self.pieces(posterior):
            each = zip(moved.by(moves), piece.projections, strict=True)
            parts = [projection.weighted_priors(priors) for priors, projection in each]
            found.append((replace(piece, projections=[]), parts))
        return found

    def pieces(self, posterior: Laplace) -> Iterator[ProjectedExamples]:
        """The data in pieces that fit the memory budget. Only the eigenbases of ``posterior`` matter here."""
        if self._kept is not None:
            yield from self._kept
            return
        self.count, used = 0, 0
        kept: list[ProjectedExamples] = []
        for piece in self._projected(posterior):
            self.count += len(piece.mean)
            self._first = self._first or replace(piece, covariances={})
            self._covariance = piece.mean.shape[-1] ** 2 * piece.mean.element_size()
            used += piece.bytes
            if used <= self._room:
                kept.append(piece)
            else:
                kept.clear()
            yield piece
        if used <= self._room:
            self._kept, self._room = self._in_one(kept), self._room - used
            self._basis = posterior.spectra

    def _in_one(self, pieces: list[ProjectedExamples]) -> list[ProjectedExamples]:
        """All pieces as one, on a GPU that has room for it: a trial then costs few calls."""
        if self.data.device.type != "cuda" or len(pieces) < 2 or not _same_positions(pieces):
            return pieces
        found = none_if_out_of_memory(lambda: extended(pieces))
        return pieces if found is None else [found]

    def traces(self, weak: Laplace) -> tuple[Tensor, Tensor] | None:
        """tr V_b, and the same under the prior alone, of every example and block under another prior, [N, B] each.

        From what is kept. None if nothing is, if it is in another basis, if blocks are correlated, or if the outputs
        are so many that random columns would replace them.
        """
        kept = self._kept_in_basis(weak)
        if kept is None or weak.curvature.joint or weak.output_shape[0] > FEW_OUTPUTS:
            return None
        own, alone = torch.cat([_traces(piece, weak) for piece in kept], 1)
        return own, alone

    def moments(self, posterior: Laplace) -> list[Moments] | None:
        """Mean and covariance of the outputs of all examples, from what is kept; None if nothing is."""
        kept = self._kept_in_basis(posterior)
        return None if kept is None else [_moments(piece, posterior) for piece in kept]

    def _kept_in_basis(self, posterior: Laplace) -> list[ProjectedExamples] | None:
        """The projections of all examples, if they are kept and in the eigenbases of ``posterior``."""
        same = len(self._basis) == len(posterior.spectra) and all(
            a is b for a, b in zip(self._basis, posterior.spectra, strict=True)
        )
        return self._kept if same and not self.left_out else None

    def _keep_covariances(self, piece: ProjectedExamples, rs: list[float], found: list[Tensor]) -> None:
        """Keep all covariances of a pass or none, since they are in one tensor."""
        new = {r: cov for r, cov in zip(map(_key, rs), found, strict=True) if r not in piece.covariances}
        size = sum(cov.numel() * cov.element_size() for cov in new.values())
        if size <= self._room:
            piece.covariances |= new
            self._room -= size

    def _projected(self, posterior: Laplace) -> Iterator[ProjectedExamples]:
        for batch in self.batches(posterior.likelihood):
            targets = batch.targets
            likelihood = posterior.likelihood
            for inputs in linearised.pieces(posterior, one(batch.inputs), label=None):
                found = linearised.fitting(
                    posterior, lambda x: projected(posterior, x, self._lattices), inputs, "tuning"
                )
                for mean, projections in found:
                    yield ProjectedExamples(
                        mean, projections, likelihood.check(mean, targets[: len(mean)], batch.index)
                    )
                    targets = targets[len(mean) :]

    def batches(self, likelihood: Likelihood) -> Iterator[Batch]:
        """One pass over the examples with valid targets, with a progress bar if it takes long."""
        total, found = self.data.length(), False
        for batch in progress_bar(self.data, label="tuning", total=total, unit="batch", shown=self.progress):
            counted, rows = counted_examples(batch, likelihood.counts)
            self.left_out |= len(rows) < size_of(batch.inputs)
            if len(rows):
                found = True
                yield counted
        if not found:
            raise BadData("the validation data contain no valid target: every label is ignore_index.")


def _same_positions(pieces: list[ProjectedExamples]) -> bool:
    """Whether sequences are equally long, and targets too."""
    seen = [[p.ids.shape[1] for p in piece.projections if isinstance(p, LookedUp)] for piece in pieces]
    return all(found == seen[0] for found in seen) and len({p.targets.shape[1:] for p in pieces}) == 1


def extended(pieces: list[ProjectedExamples]) -> ProjectedExamples:
    """One piece of all examples."""
    projections = [first.extended(others) for first, *others in zip(*(p.projections for p in pieces), strict=True)]
    rs = set(pieces[0].covariances).intersection(*(p.covariances for p in pieces))
    return ProjectedExamples(
        torch.cat([p.mean for p in pieces]),
        projections,
        torch.cat([p.targets for p in pieces]),
        {r: torch.cat([p.covariances[r] for p in pieces]) for r in rs},
    )


def _traces(piece: ProjectedExamples, posterior: Laplace) -> Tensor:
    """[2, N, B]."""
    found = []
    for (gaussian, _), projection in zip(posterior.gaussians(), piece.projections, strict=True):
        top = float(gaussian.spectral.values.max()) * gaussian.scale
        strong = NO_DATA[gaussian.spectral.values.dtype] * max(gaussian.delta, top)  # V → J D⁻¹ Jᵀ / δ
        both = projection.weighted_priors(Priors([gaussian, replace(gaussian, delta=strong)])).double()
        if posterior.likelihood.shift_invariant:
            both = both - both.mean(-1, keepdim=True)  # on one side, which is enough for the trace
        found.append(both.diagonal(dim1=-2, dim2=-1).sum(-1) * both.new_tensor([[1.0], [strong / gaussian.delta]]))
    return torch.stack(found, 2).cpu()


@torch.no_grad()
def _moments(piece: ProjectedExamples, posterior: Laplace) -> Moments:
    parts = [
        projection.weighted_priors(Priors([gaussian]))[0]
        for (gaussian, _), projection in zip(posterior.gaussians(), piece.projections, strict=True)
    ]
    return Moments(piece.mean, torch.stack(parts).sum(0))


def _joined(one: ProjectedExamples, other: ProjectedExamples) -> ProjectedExamples:
    return replace(other, covariances=one.covariances | other.covariances)


Lattices = dict[int, EigenvalueLattice | None]  # by block; None where rows are kept


def projected(posterior: Laplace, inputs: Inputs, lattices: Lattices | None = None) -> tuple[Tensor, list[Tunable]]:
    """One forward and backward pass, and one rotation into the eigenbasis of each block."""
    mean, grads = linearised.differentiate(posterior, inputs)
    lattices = {} if lattices is None else lattices
    found: list[Tunable] = []
    for i, (gaussian, blocks) in enumerate(posterior.gaussians()):
        projection = project(gaussian, blocks, grads, posterior.curvature.keep)
        if isinstance(projection, Rows):
            if i not in lattices:
                fits = EigenvalueLattice.applies(gaussian, projection.rotated.shape[1])
                lattices[i] = EigenvalueLattice(gaussian) if fits else None
            lattice = lattices[i]
            found.append(projection if lattice is None else lattice.of(projection.plain, projection.outside))
        elif isinstance(projection, Unshared):
            found.append(replace(projection, left=None, unrotated=None))
        else:
            found.append(projection)
    return mean.detach(), found


def _key(r: float) -> float:
    """A key that is the same for values summed in another order."""
    return round(r, 9)


def one(inputs: Any) -> Any:
    """Inputs for ``predict``, which reads a list as a loader."""
    return tuple(inputs) if isinstance(inputs, list) else inputs


def _tensors(projection: Any) -> list[Tensor]:
    """The tensors of a projection."""
    assert is_dataclass(projection)
    values = [getattr(projection, f.name) for f in fields(projection)]
    return [v for v in values if isinstance(v, Tensor)]
