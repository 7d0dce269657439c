"""Fitting the curvature: inspect the first batch, partition the parameters into blocks, sum the curvature by block."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol

from torch import Tensor

from whence.curvature import hessian, kfra, lowrank, needs
from whence.curvature.dense import DenseSums
from whence.curvature.diagonals import DiagonalSums
from whence.curvature.ekfac import EkfacSums, eigenvectors
from whence.curvature.kfac import KroneckerSums
from whence.curvature.options import CurvatureKind, FitOptions, Sharing
from whence.curvature.result import Curvature, Fit, FitRecord, say_fallbacks
from whence.curvature.signals import SignalCollector, Signals
from whence.curvature.sums import CurvatureSums
from whence.curvature.sweep import sum_over_data
from whence.engine.batches import Batch, Data, size_of, take, to_device
from whence.engine.distributed_data import part_of
from whence.engine.files import digest
from whence.engine.passes import Passes
from whence.engine.ranks import EXAMPLES, Ranks
from whence.engine.stages import VALUES, FitCheckpoint, digest_of_batch
from whence.errors import BadData, BadFile, EmptyData, NothingSelected, UnsupportedLayer, notice
from whence.functional import Network, refuse_batch_statistics
from whence.labels import say_if_unshifted
from whence.likelihoods import Gaussian, Likelihood
from whence.linalg.dense import widened
from whence.linalg.structures import BlockStructure, Kronecker, Structure, StructureKind
from whence.recording.blocks import Block, assign
from whence.recording.independence import check_independent, first_outputs
from whence.recording.plan import Plan
from whence.recording.selection import Selection

PROBE = 256  # training examples that a posterior keeps


class HasRatio(Protocol):
    """The part of a prior's interface that a fit uses."""

    def of(self, blocks: Sequence[Block]) -> Any: ...


PriorOf = Callable[[Plan, Signals], HasRatio]  # the prior of a plan's blocks, from the statistics of their inputs


def fit(
    network: Network,
    data: Data,
    likelihood: Likelihood,
    selection: Selection,
    options: FitOptions,
    *,
    seed: Callable[[], int],
    prior: PriorOf,
    ranks: Ranks,
    checkpoint: FitCheckpoint | None = None,
) -> Fit:
    """The curvature of ``network`` on ``data``, summed over the ``ranks`` of a process group.

    ``seed`` is called only if labels are drawn, ``prior`` only for structures that are computed relative to it.
    """
    source, outputs = _open(network, data, likelihood, options, ranks, checkpoint)
    _check_first_outputs(network, likelihood, source.first, outputs)
    options = source.options.resolved(likelihood, outputs)
    if options.draws_labels(likelihood):
        options = replace(options, draws=replace(options.draws, seed=_common_seed(seed(), ranks, checkpoint)))
    values = _values(likelihood, outputs, source)
    del outputs  # those of a language model take gigabytes
    plan = _plan(network, selection, source.first, likelihood, options)
    say_fallbacks(plan.blocks, options, plan.inspection.unused)
    keep = selection.keep(network, plan.blocks)
    curvature = _finished(_curvature(plan, source, likelihood, options, keep, ranks, values, prior), source)
    if options.estimate_noise:
        likelihood, curvature = _with_estimated_noise(curvature)
    return Fit(curvature, plan, likelihood, source.probe())


def fit_more(
    network: Network,
    data: Data,
    likelihood: Likelihood,
    selection: Selection,
    options: FitOptions,
    *,
    ranks: Ranks,
    checkpoint: FitCheckpoint | None = None,
) -> Curvature:
    """The curvature of more data, with the options and seed of an earlier fit. Notices are not repeated."""
    source, outputs = _open(network, data, likelihood, options, ranks, checkpoint)
    values = _values(likelihood, outputs, source)
    options = source.options.resolved(likelihood, outputs)
    del outputs
    plan = _plan(network, selection, source.first, likelihood, options)
    keep = selection.keep(network, plan.blocks)
    return _finished(_curvature(plan, source, likelihood, options, keep, ranks, values), source)


# The first batch


@dataclass(frozen=True)
class Source:
    """Data whose first batch has been read."""

    batches: Passes
    mine: Batch  # this rank's first batch
    first: Batch  # rank 0's first batch, on which decisions are made
    asked: FitOptions
    options: FitOptions  # the options of this rank

    def probe(self) -> tuple[Any, Tensor]:
        """A few training examples."""
        few = slice(0, min(PROBE, size_of(self.first.inputs)))
        return take(self.first.inputs, few), self.first.targets[few]


def _open(
    network: Network,
    data: Data,
    likelihood: Likelihood,
    options: FitOptions,
    ranks: Ranks,
    checkpoint: FitCheckpoint | None,
) -> tuple[Source, Tensor]:
    """Read the first batch and compute its outputs."""
    asked, part = options, part_of(data.source, ranks)
    if part is None:
        options = replace(options, first=options.first + ranks.rank * EXAMPLES)
    options = replace(options, progress=options.progress and ranks.rank == 0)
    data.require_passes(options.structure.passes, f"structure={options.structure!r}")
    data.require_passes(options.passes, f"passes={options.passes}")
    data.counts = likelihood.counts
    batches = Passes(data, part, checkpoint)
    mine, first = _first_batch(batches, ranks)
    refuse_batch_statistics(network)
    try:
        network.find_caches(take(first.inputs, slice(0, 2)))
    except Exception as error:
        if isinstance(error, UnsupportedLayer):
            raise  # others are raised and explained by first_outputs
    return Source(batches, mine, first, asked, options), first_outputs(network, first.inputs)


def _first_batch(batches: Passes, ranks: Ranks) -> tuple[Batch, Batch]:
    """This rank's first batch, and rank 0's (its first examples only, if there are other ranks)."""
    try:
        mine: Batch | None = batches.peek()
    except EmptyData:
        if ranks.alone:
            raise
        mine = None
    seen = ranks.synchronise("reading the first batch", mine is not None)
    empty = [rank for rank, some in enumerate(seen) if not some]
    if empty or mine is None:
        ranks.over = True
        raise EmptyData(
            f"rank {empty[0]} got no data (of {ranks.size} ranks, {len(empty)} got none). Give every rank some "
            "examples: use fewer processes, or split the data with torch.utils.data.DistributedSampler."
        )
    if ranks.alone:
        return mine, mine
    few = slice(0, PROBE)
    inputs, targets = ranks.from_first((take(mine.inputs, few), mine.targets[few]))
    device = mine.targets.device
    return mine, replace(mine, inputs=to_device(inputs, device), targets=targets.to(device), counted=None)


def _check_first_outputs(network: Network, likelihood: Likelihood, first: Batch, outputs: Tensor) -> None:
    """Check the first outputs: raise errors and give notices."""
    if odd := likelihood.looks_like_probabilities(outputs):
        notice(odd)
    check_independent(network, first.inputs, outputs)
    say_if_unshifted(take(first.inputs, slice(0, len(outputs))), first.targets[: len(outputs)], outputs)


def _values(likelihood: Likelihood, outputs: Tensor, source: Source) -> dict[str, list[float]]:
    """Values that distinguish the likelihood from others with the same name, for a checkpoint."""
    if source.batches.checkpoint is None:
        return {}
    return likelihood.fingerprint(widened(outputs), source.first.targets[: len(outputs)])


def _common_seed(drawn: int, ranks: Ranks, checkpoint: FitCheckpoint | None) -> int:
    """One seed for all ranks: rank 0's, or the seed of the fit that is resumed."""
    if checkpoint is None:
        return int(ranks.synchronise("agreeing on the seed", drawn)[0])
    known = (checkpoint.known_seed, drawn, checkpoint.seed_given)
    try:
        return checkpoint.common_seed(ranks.synchronise("agreeing on the seed", known))
    except BadFile:
        ranks.over = True  # every rank raises this
        raise


def _plan(network: Network, selection: Selection, first: Batch, likelihood: Likelihood, options: FitOptions) -> Plan:
    """Partition the selected parameters into blocks, each with its structure."""
    names = selection.resolve(network, first.inputs)
    network.select(names)
    plan = Plan.make(network, names, first.inputs, likelihood.shift_invariant)
    if plan.inspection.unused >= set(names):
        raise NothingSelected(
            f"none of the {len(names)} selected parameters reaches the output with a gradient. Does the forward pass "
            "run under torch.no_grad(), detach, or return something that is not computed from them?"
        )
    return replace(plan, blocks=tuple(assign(plan.blocks, options.structure, options.max_factor)))


# The sums


def _curvature(
    plan: Plan,
    source: Source,
    likelihood: Likelihood,
    options: FitOptions,
    keep: Tensor | None,
    ranks: Ranks,
    values: dict[str, list[float]],
    prior: PriorOf | None = None,
) -> Curvature:
    """Sum the curvature over the data of all ranks, resuming from a checkpoint if there is one."""
    decisions = _decisions(plan, options, keep)
    ranks.agree(decisions, "looking at the first batch")
    checkpoint, data = source.batches.checkpoint, source.batches.data
    if checkpoint is not None:
        signature = {
            **decisions,
            "network": plan.network.hash,
            "dtype": str(plan.network.dtype),
            "autocast": str(plan.network.autocast),
            "likelihood": likelihood.spec(),
            "label_draws": likelihood.fisher_draws,
            "batches": data.length(),
            "rank": f"{ranks.rank} of {ranks.size}",
            "batch_size": size_of(source.mine.inputs),
            "first_batch": digest_of_batch(source.mine),
            **_options_of_sums(options),
        }
        checkpoint.belongs(signature | ({VALUES: values} if values else {}), data.source)
    start = time.perf_counter()
    found = _Computed(plan, source.batches, likelihood, options, keep, ranks, prior).run()
    return replace(found, seconds={"curvature": time.perf_counter() - start})


def _decisions(plan: Plan, options: FitOptions, keep: Tensor | None) -> dict[str, Any]:
    """Everything that depends on the first batch and must be the same on all ranks."""
    return {
        "curvature": options.curvature,
        "the choice of weights": {p.name: list(p.shape) for b in plan.blocks for p in b.params},
        "the mask of weights": None if keep is None else digest([keep]),
        "the structure": {b.name: f"{b.structure} ({b.reason or b.source})" for b in plan.blocks},
    }


def _options_of_sums(options: FitOptions) -> dict[str, Any]:
    """Options on which the sums of a fit depend."""
    plain = {k: v for k, v in options.to_dict().items() if k not in ("progress", "offload", "cuda_graphs")}
    return {**plain, "draws": options.draws.count}


@dataclass(frozen=True)
class _Computed:
    """Computes the curvature by structure and kind."""

    plan: Plan
    batches: Passes
    likelihood: Likelihood
    options: FitOptions
    keep: Tensor | None
    ranks: Ranks
    prior: PriorOf | None

    def run(self) -> Curvature:
        plan, options, like = self.plan, self.options, self.plan.network.like
        joint = options.structure.joint or self.keep is not None
        needs.check(plan.blocks, options, self._dense_size(), max(like.element_size(), 4), like.device)
        has_factors = options.structure.factored and options.sharing is Sharing.EXPAND
        signals = SignalCollector(plan, has_factors)
        if options.curvature is CurvatureKind.HESSIAN:
            structures, record = hessian.compute(plan, self.batches, self.likelihood, options, self.keep, signals.sums)
            structures = self._over_ranks(structures)
            seen = signals.totals(structures, self.ranks)
        elif options.curvature is CurvatureKind.KFRA:
            structures, record = kfra.compute(plan, self.batches, self.likelihood, options)
            structures = self._over_ranks(structures)
            seen = signals.totals(structures, self.ranks)
        elif options.structure is StructureKind.LOWRANK:
            structures, record, seen = self._low_rank(signals)
        else:
            sums = self._sums(like)
            record = sum_over_data(
                plan, self.batches, self.likelihood, options, sums, "curvature", signals=signals.sums
            )
            structures = self._over_ranks([s.result() for s in sums])
            seen = signals.totals(structures, self.ranks)
            if options.structure is StructureKind.EKFAC:
                structures = self._with_exact_eigenvalues(structures, record, seen)
        self.ranks.synchronise("adding up the record")
        record = record.summed(self.ranks, like.device)
        if options.execution.offload:
            structures = [s.to("cpu") for s in structures]
        return Curvature(plan.blocks, tuple(structures), record, options, joint, self.keep, signals=seen)

    def _dense_size(self) -> int | None:
        """Rows of the dense matrix over all blocks; None if there is no such matrix."""
        if self.keep is not None:
            return len(self.keep)
        return sum(b.size for b in self.plan.blocks) if self.options.structure is StructureKind.FULL else None

    def _over_ranks(self, structures: Sequence[Structure]) -> list[Structure]:
        self.ranks.synchronise("adding up the curvature")
        return [s.map_sums(self.ranks.summed) for s in structures]

    def _sums(self, like: Tensor) -> list[CurvatureSums]:
        blocks = list(self.plan.blocks)
        if self.options.structure is StructureKind.FULL or self.keep is not None:
            return [DenseSums(blocks, like, self.keep)]
        made: list[CurvatureSums] = []
        for block in blocks:
            if block.structure in (BlockStructure.KRON, BlockStructure.EKFAC):
                made.append(KroneckerSums(block, self.options.sharing is Sharing.REDUCE, like))
            elif block.structure is BlockStructure.DENSE:
                made.append(DenseSums([block], like))
            else:
                made.append(DiagonalSums(block, like))
        return made

    def _low_rank(self, signals: SignalCollector) -> tuple[list[Structure], FitRecord, Signals]:
        """Eigenpairs relative to the prior, whose input statistics are summed in a pass before."""
        given = (self.plan, self.batches, self.likelihood, self.options)
        first = sum_over_data(*given, [], "signals", signals=signals.sums)
        self.batches.same_data(first.loss, StructureKind.LOWRANK)
        seen = signals.totals([], self.ranks)
        ratio = None if self.prior is None else self.prior(self.plan, seen).of(self.plan.blocks).ratio
        structures, record = lowrank.compute(*given, self.ranks, ratio)
        return structures, record, seen

    def _with_exact_eigenvalues(self, structures: list[Structure], first: FitRecord, seen: Signals) -> list[Structure]:
        """The second pass of EKFAC, in the eigenvectors of the factors relative to the prior."""
        prior = None if self.prior is None else self.prior(self.plan, seen)
        factors: dict[int, tuple[str, Kronecker, Any]] = {}
        for i, (block, structure) in enumerate(zip(self.plan.blocks, structures, strict=True)):
            if isinstance(structure, Kronecker) and block.structure is BlockStructure.EKFAC:
                ratio, like = None if prior is None else prior.of([block]).ratio, structure.grads
                factors[i] = block.name, structure, None if ratio is None else ratio.to(like.device, like.dtype)
        vectors = eigenvectors(list(factors.values()), self.ranks)
        sums = {
            i: EkfacSums(self.plan.blocks[i], left, right, factors[i][2])
            for i, (left, right) in zip(factors, vectors, strict=True)
        }
        basis = "" if self.batches.checkpoint is None else digest(q for pair in vectors for q in pair)
        given = (self.plan, self.batches, self.likelihood, self.options)
        again = sum_over_data(*given, list(sums.values()), "eigenvalues", basis)
        for record in (first, again):
            self.batches.same_data(record.loss, StructureKind.EKFAC)
        exact = self._over_ranks([s.result() for s in sums.values()])
        return [dict(zip(sums, exact, strict=True)).get(i, s) for i, s in enumerate(structures)]


# After the sums


def _finished(curvature: Curvature, source: Source) -> Curvature:
    """Scale to the requested data size, and restore the options as given on all ranks."""
    record, options = curvature.record, curvature.options
    if not record.targets:
        raise BadData("the data contain no valid target: every label is ignore_index.")
    if options.data_size is not None or options.passes > 1:
        size = options.data_size or record.seen / options.passes
        curvature = curvature.scaled(size / record.seen)
    same = replace(options, first=source.asked.first, progress=source.asked.progress)
    return replace(curvature, options=same)


def _with_estimated_noise(curvature: Curvature) -> tuple[Gaussian, Curvature]:
    """The noise is the root mean square of the training residuals."""
    record = curvature.record
    noise = math.sqrt(record.squares / record.targets)
    if not noise > 1e-12:
        raise BadData(
            f"the training residuals are {noise:g}, so the noise cannot be estimated from them: the network fits its "
            "data exactly. Pass likelihood=whence.Gaussian(noise=…)."
        )
    return Gaussian(noise), curvature.with_noise(noise)
