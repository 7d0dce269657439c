"""One pass over inputs that answers several questions: shares under several priors, units, moments of the outputs.

Every piece of the inputs is recorded and differentiated once, and every block is projected once for each shape of
prior; another prior of the same shape is another set of weights.

Index legend: N inputs, B blocks, K columns, C outputs, U units, P weights, G groups of inputs.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Generic, TypeVar

import torch
from torch import Tensor

from whence.curvature.columns import identity_columns
from whence.engine.batches import Inputs, check_finite, size_of, take
from whence.engine.checks import DeferredChecks
from whence.engine.padding import counted_positions
from whence.errors import BadOption, EmptyData, NotDefined
from whence.linalg.dense import widened
from whence.linalg.gaussian import BlockGaussian
from whence.linalg.spectral import Spectral
from whence.predictive import linearised
from whence.predictive.linearised import Moments, Weights
from whence.predictive.project import project
from whence.predictive.projection import Projection
from whence.recording.blocks import Block
from whence.recording.calls import Recording
from whence.recording.gradients import Gradients
from whence.recording.units import Units, units_of
from whence.where.question import Question
from whence.where.shares import TINY, ProbeSpread, Shares, UnitShares

if TYPE_CHECKING:
    from whence.posteriors.laplace.posterior import Laplace

T = TypeVar("T")
K = TypeVar("K", bound=Hashable)


@dataclass(frozen=True)
class Asked(Generic[K]):
    """What one pass answers, for posteriors of one curvature that differ in their priors."""

    shares: Mapping[K, Laplace]
    units: K | None = None  # of which posterior of ``shares``
    groups: Tensor | None = None  # sums of units over groups of inputs too: which inputs are in each, bool [N, G]
    moments: Mapping[Any, Laplace] = field(default_factory=dict)  # mean and covariance of the outputs under these

    @property
    def first(self) -> Laplace:
        return next(iter(self.shares.values()))


def shares(posterior: Laplace, x: Any, question: Question | None = None, units: bool = False) -> Shares:
    """The part of every block, input by input; with ``units`` also of all their units, over all inputs."""
    return examine(x, Asked({"": posterior}, units="" if units else None), question)[""]


@torch.inference_mode(False)
def examine(
    x: Any,
    asked: Asked[K],
    question: Question | None = None,
    on_moments: Callable[[Any, Moments], None] | None = None,
) -> dict[K, Shares]:
    """The shares under every prior.

    ``on_moments`` is called with the key and the moments of every piece, in order; not at all where random columns are
    used.
    """
    over = ColumnPass(asked.first, question or Question(), "where()", whole=bool(asked.moments))
    examiner = _Examiner(asked, over)
    collected = {name: _Collected() for name in asked.shares}
    outputs = []
    with DeferredChecks():  # no piece waits for the check of its outputs
        for mean, moments, found in over.over(x, examiner.examine):
            outputs.append(mean)
            for key, piece in moments.items() if on_moments is not None else ():
                on_moments(key, piece)  # type: ignore[misc]
            for name, parts in found.items():
                collected[name].add(parts, over.question)
    joined = torch.cat(outputs) if outputs[0].dim() == 2 else None
    names = tuple(b.name for b in asked.first.blocks)
    return {
        name: one.shares(names, joined, examiner.units if name == asked.units else {}, over.question)
        for name, one in collected.items()
    }


def decided(posterior: Laplace, inputs: Inputs, question: Question, what: str) -> Question:
    """The question with the number of columns chosen by cost."""
    first = next(posterior.network.pieces(inputs, 1))
    one = posterior.plan.record(take(first, slice(0, 1)), 1)
    return _decided(posterior, one, size_of(inputs), question, what)


def _decided(posterior: Laplace, one: Recording, inputs: int, question: Question, what: str) -> Question:
    def memory(columns: int) -> int:
        return linearised.bytes_of_one(posterior, one, columns=columns)

    return question.decided(posterior.likelihood, one, inputs, what, memory)


class ColumnPass:
    """One pass over the inputs; the first of them decide whether the answer is exact or uses random columns."""

    def __init__(self, posterior: Laplace, question: Question, what: str, whole: bool = False) -> None:
        """``whole``: send all outputs backward, where the answer is exact and about all of them.

        They are not centred, because predictions need them so; projections are centred afterwards for shares.
        """
        if posterior.curvature.keep is not None:
            raise NotDefined("the shares of a subnetwork mask are not defined; use variance().")
        self.posterior, self.question, self.what, self._whole = posterior, question, what, whole

    @property
    def whole(self) -> bool:
        """Whether the columns are the outputs themselves."""
        return self._whole and self.question.is_whole

    def over(self, x: Any, compute: Callable[[Tensor, Gradients, int], T]) -> Iterator[T]:
        """Yield ``compute(outputs, gradients, number of the first input)`` for batches that fit into memory."""
        posterior, done, masks = self.posterior, 0, None

        def one(inputs: Inputs) -> tuple[int, T]:
            nonlocal masks
            size = size_of(inputs)
            recording = posterior.plan.record(inputs, size)
            outputs = recording.outputs.detach()
            check_finite(outputs, "the outputs of the network", 0)
            masks = self.question.masks(posterior.likelihood, outputs)
            if self.whole:
                columns = identity_columns(recording.outputs)
            else:
                columns = self.question.columns(posterior.likelihood, outputs, done, counted_positions(inputs))
            return size, compute(widened(outputs), recording.differentiate(columns), done)

        for piece in linearised.pieces(posterior, x, columns=self._decide, label=self.what.removesuffix("()")):
            for size, found in linearised.fitting(posterior, one, piece, self.what):
                done += size
                yield found
        if not done:
            raise EmptyData("there are no inputs.")
        if masks not in (None, done):
            raise BadOption(f"at= has {masks} masks for {done} inputs.")

    def _decide(self, one: Recording, inputs: int) -> int:
        """Columns of each input."""
        self.question = _decided(self.posterior, one, inputs, self.question, self.what)
        return self.question.random_columns or self.question.exact_count(self.posterior.likelihood, one.outputs)


@dataclass(frozen=True)
class _Parts:
    """Of one batch and the b blocks of one Gaussian, by random column; summed over columns (K = 1) where exact."""

    variance: Tensor  # [N, b, K]
    prior: Tensor  # [N, b, K]
    units: dict[str, Tensor]  # [K, 2, U] by block: posterior, prior
    by_group: dict[str, Tensor]  # [G, 2, U]


@dataclass(frozen=True)
class _Under:
    """One block, or all of them jointly, under one of the priors."""

    spectral: Spectral  # as the posterior stores it, to recognise an equal basis
    gaussian: BlockGaussian
    blocks: Sequence[Block]
    inner: Tensor  # weights of rows under the posterior
    outer: Tensor  # and under the prior alone

    @property
    def weights(self) -> tuple[Tensor, Tensor]:
        return self.inner, self.outer


class _Examiner(Generic[K]):
    """Answers the questions for one piece of the inputs after another."""

    def __init__(self, asked: Asked[K], over: ColumnPass) -> None:
        self.asked, self.over = asked, over
        self.joint = asked.first.curvature.joint
        network = asked.first.network
        self.units = {b.name: units_of(network, b) for b in asked.first.blocks} if asked.units is not None else {}
        self._units = {name: units.to(network.device) for name, units in self.units.items()}
        self._weights = {name: (posterior, Weights(posterior)) for name, posterior in asked.shares.items()}
        self._moments = {key: (posterior, Weights(posterior)) for key, posterior in asked.moments.items()}

    def examine(
        self, outputs: Tensor, grads: Gradients, first: int
    ) -> tuple[Tensor, dict[Any, Moments], dict[K, list[_Parts]]]:
        """Outputs, their moments under each posterior that is asked for them, and the parts by prior."""
        groups = self.asked.groups
        members = None if groups is None else groups[first : first + grads.recording.size].to(outputs.device).double()
        names = list(self._weights)
        found: dict[K, list[_Parts]] = {name: [] for name in names}
        whole = {key: _unders(*own) for key, own in self._moments.items()} if self.over.whole else {}
        covariances: dict[Any, list[Tensor]] = {key: [] for key in whole}
        for unders in zip(*(_unders(*self._weights[name]) for name in names), strict=True):
            seen = _Projections(grads, self.over.whole and self.over.posterior.likelihood.shift_invariant)
            for key, own in whole.items():
                block = next(own)
                covariances[key].append(seen.projection(block).weighted(*block.weights))
            for name, under in zip(names, unders, strict=True):
                units = self._units if name == self.asked.units else {}
                found[name].append(self._parts(under, seen, units, members))
        moments = {key: Moments(outputs, sum(parts[1:], parts[0]), parts) for key, parts in covariances.items()}
        return outputs, moments, found

    def _parts(self, under: _Under, seen: _Projections, units: Mapping[str, Units], members: Tensor | None) -> _Parts:
        each = self.over.question.random_columns is not None
        of_units = self._joint if self.joint else self._separate
        variance, prior, by_unit = of_units(under, seen, units, each)
        grouped = {}
        if members is not None:
            grouped = {name: torch.einsum("kinu,ng->giu", values, members) for name, values in by_unit.items()}
        return _Parts(variance, prior, {name: values.sum(2) for name, values in by_unit.items()}, grouped)

    def _separate(
        self, under: _Under, seen: _Projections, units: Mapping[str, Units], each: bool
    ) -> tuple[Tensor, Tensor, dict[str, Tensor]]:
        """Variance and prior [N, 1, K], and those of units [K, 2, N, U], of one block."""
        (block,) = under.blocks
        projection = seen.centred(under)
        if block.name in units:
            found = projection.units(*under.weights, units[block.name], each)
            variance, prior = found.sum(-1).permute(1, 2, 0).unsqueeze(2)  # units add up to their block
            return variance, prior, {block.name: found}
        variance, prior = (v.double().unsqueeze(1) for v in projection.diagonals(*under.weights))
        if not each:
            variance, prior = variance.sum(-1, keepdim=True), prior.sum(-1, keepdim=True)
        return variance, prior, {}

    def _joint(
        self, under: _Under, seen: _Projections, units: Mapping[str, Units], each: bool
    ) -> tuple[Tensor, Tensor, dict[str, Tensor]]:
        """The same, [N, B, K], of blocks that are correlated."""
        sizes, by_unit = [b.size for b in under.blocks], {}
        parts = per_weight(under.gaussian, under.blocks, seen.grads, each, seen.centre)
        own, alone = (part.split(sizes, -1) for part in parts)  # [K, N, P] each
        for block, *both in zip(under.blocks, own, alone, strict=True):
            if block.name in units:
                by_unit[block.name] = torch.stack([units[block.name].total(part) for part in both], 1)
        variance, prior = (torch.stack([part.sum(2).mT for part in parts], 1) for parts in (own, alone))
        return variance, prior, by_unit


class _Projections:
    """The projections of one block, one for each basis."""

    def __init__(self, grads: Gradients, centre: bool) -> None:
        self.grads, self.centre = grads, centre  # whether the columns are still to be centred
        self._known: dict[int, Projection] = {}
        self._centred: dict[int, Projection] = {}

    def projection(self, under: _Under) -> Projection:
        key = id(under.spectral)
        if key not in self._known:
            self._known[key] = project(under.gaussian, under.blocks, self.grads, None)
        return self._known[key]

    def centred(self, under: _Under) -> Projection:
        if not self.centre:
            return self.projection(under)
        key = id(under.spectral)
        if key not in self._centred:
            self._centred[key] = self.projection(under).centred()
        return self._centred[key]


def _unders(posterior: Laplace, weights: Weights) -> Iterator[_Under]:
    """Every block under a posterior's prior."""
    for spectral, (gaussian, blocks, inner, outer) in zip(posterior.spectra, weights, strict=True):
        yield _Under(spectral, gaussian, blocks, inner, outer)


def per_weight(
    gaussian: BlockGaussian, blocks: Sequence[Block], grads: Gradients, each: bool = False, centre: bool = False
) -> tuple[Tensor, Tensor]:
    """J_p (Σ Jᵀ)_p of every weight, under posterior and prior, [K, N, P] each; [1, N, P] unless by ``each`` column."""
    every = slice(0, grads.recording.size)
    rows = torch.cat([grads.rows(b, every) for b in blocks], dim=-1)  # [K, N, P]
    if centre:
        rows = rows - rows.mean(0)
    both = ((rows * gaussian.solve(rows)).double(), (rows * (rows * gaussian.prior_variance())).double())
    return both if each else (both[0].sum(0, keepdim=True), both[1].sum(0, keepdim=True))


@dataclass
class _Collected:
    """Parts under one prior, from piece to piece."""

    variance: list[Tensor] = field(default_factory=list)
    prior: list[Tensor] = field(default_factory=list)
    spreads: list[ProbeSpread] = field(default_factory=list)
    totals: Tensor | float = 0.0  # of each column, [K]
    units: dict[str, Tensor] = field(default_factory=dict)  # [K, 2, U]; K = 1 where exact
    by_group: dict[str, Tensor] = field(default_factory=dict)  # [G, 2, U]

    def add(self, parts: list[_Parts], question: Question) -> None:
        own, alone = (torch.cat([getattr(p, name) for p in parts], 1) for name in ("variance", "prior"))  # [N, B, K]
        self.variance.append(own.sum(-1))
        self.prior.append(alone.sum(-1))
        if own.shape[-1] > 1 and not question.same_columns:
            self.spreads.append(ProbeSpread.of(own, alone))
            self.totals = self.totals + own.sum((0, 1))
        for part in parts:
            for sums, new in ((self.units, part.units), (self.by_group, part.by_group)):
                for name, values in new.items():
                    sums[name] = sums[name] + values if name in sums else values

    def shares(
        self, names: tuple[str, ...], outputs: Tensor | None, units: Mapping[str, Units], question: Question
    ) -> Shares:
        return Shares(
            names,
            torch.cat(self.variance).cpu(),
            torch.cat(self.prior).cpu(),
            outputs,
            {name: self._unit_shares(name, found) for name, found in units.items()},
            question,
            ProbeSpread.joined(self.spreads) if self.spreads else None,
        )

    def _unit_shares(self, name: str, units: Units) -> UnitShares:
        by_column, by_group = self.units[name].cpu(), self.by_group.get(name)  # [K, 2, U], [G, 2, U]
        by_group = None if by_group is None else by_group.cpu()
        variance, prior = by_column.sum(0)
        if not isinstance(self.totals, Tensor):
            return UnitShares(units, variance, prior, None, by_group)
        totals = self.totals.cpu()
        count, whole = len(totals), totals.sum().clamp(min=TINY)
        e = by_column[:, 0] - (variance / whole) * totals.unsqueeze(1)  # [K, U]
        error = (count / (count - 1) * (e - e.mean(0)).square().sum(0)).sqrt() / whole
        return UnitShares(units, variance, prior, error, by_group)
