"""A fit: what is asked for is settled, the network inspected, and its curvature summed by block."""

from __future__ import annotations

import contextlib
import math
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, Protocol

import torch
from torch import Tensor

from whence.batches import Batch, Data, size_of, take, to_device
from whence.curvature import hessian, kfra, lowrank, memory
from whence.curvature.accumulate import (
    Accumulator,
    DenseAccumulator,
    DiagonalAccumulator,
    EkfacAccumulator,
    KroneckerAccumulator,
)
from whence.curvature.blocks import Block, assign
from whence.curvature.checkpoint import VALUES, Checkpoint, digest_of_batch, signature_of
from whence.curvature.distributed import EXAMPLES, Ranks
from whence.curvature.distributed_data import part_of
from whence.curvature.fallbacks import say_fallbacks
from whence.curvature.independence import check_independent, first_outputs
from whence.curvature.jacobian import widened
from whence.curvature.options import Options, say_unused_draws, settle
from whence.curvature.passes import Passes
from whence.curvature.plan import Plan
from whence.curvature.record import FitRecord, warn_if_probabilities
from whence.curvature.result import Curvature, Fit
from whence.curvature.selection import Selection
from whence.curvature.signals import Signals, from_kronecker, without_sums
from whence.curvature.signals import accumulators as accumulators_of_signals
from whence.curvature.sweep import run
from whence.engine.files import digest
from whence.errors import BadData, BadFile, EmptyData, NothingSelected
from whence.functional import Network, refuse_batch_statistics
from whence.labels import say_if_unshifted
from whence.likelihoods import Gaussian, Likelihood
from whence.linalg.ratios import Ratio
from whence.linalg.structures import Kronecker, Structure


class HasRatio(Protocol):
    """A prior, as far as a fit has to know it."""

    def of(self, blocks: Sequence[Block]) -> Any: ...


PriorOf = Callable[[Plan, Signals], HasRatio]  # the prior of a plan's blocks, from what they saw over the data
PROBE = 256  # of the first examples that a posterior keeps


def fit(
    network: Network,
    data: Data,
    likelihood: Likelihood,
    selection: Selection,
    options: Options,
    seed: Callable[[], int] | None = None,
    ranks: Ranks | None = None,
    checkpoint: Checkpoint | None = None,
    prior: PriorOf | None = None,
) -> Fit:
    """Compute the curvature of ``network`` on ``data``, summed over the ``ranks`` of a process group.

    ``seed`` is asked for only if something is drawn; ``prior`` only by structures that are computed relative to it.
    """
    ranks, asked = ranks or Ranks(), options
    part = part_of(data.source, ranks)
    if part is None:
        options = replace(options, first=options.first + ranks.rank * EXAMPLES)
    options = replace(options, progress=options.progress and ranks.rank == 0)
    data.require_passes(2 if options.structure in ("ekfac", "lowrank") else 1, f"structure={options.structure!r}")
    data.require_passes(options.passes, f"passes={options.passes}")
    data.counts = likelihood.counts
    batches = Passes(data, part, checkpoint)
    mine, first = first_of_all(batches, ranks)
    refuse_batch_statistics(network)
    with contextlib.suppress(Exception):  # a network that fails says so next
        network.find_caches(take(first.inputs, slice(0, 2)))
    outputs = first_outputs(network, first.inputs)
    if seed is not None:  # more data for a fit that has said it
        warn_if_probabilities(likelihood, outputs)
        check_independent(network, first.inputs, outputs)
        say_if_unshifted(take(first.inputs, slice(0, len(outputs))), first.targets[: len(outputs)], outputs)
    options = settle(options, likelihood, outputs)
    if seed is not None:
        say_unused_draws(options, likelihood)
    if seed is not None and (options.curvature == "mc" or likelihood.fisher_draws):
        options = replace(options, draws=replace(options.draws, seed=_seed(seed(), ranks, checkpoint)))
    names = selection.resolve(network, first.inputs)
    network.select(names)
    plan = Plan.make(network, names, first.inputs, likelihood.task == "classification")
    if plan.inspection.unused >= set(names):
        raise NothingSelected(
            f"none of the {len(names)} selected parameters reaches the output with a gradient. Does the forward pass "
            "run under torch.no_grad(), detach, or return something that is not computed from them?"
        )
    plan.blocks[:] = assign(plan.blocks, options.structure, options.max_factor)
    if seed is not None:
        say_fallbacks(plan.blocks, options, plan.inspection.unused)
    keep = selection.keep(network, plan.blocks)
    ranks.agree(_decisions(plan, options, keep), "looking at the first batch")
    if checkpoint is not None:
        values = likelihood.fingerprint(widened(outputs), first.targets[: len(outputs)])
        signature = _signature(plan, data, likelihood, options, keep, mine, ranks)
        checkpoint.belongs(signature | ({VALUES: values} if values else {}), data.source)
    del outputs  # those of a language model take gigabytes
    curvature = _compute(plan, batches, likelihood, options, keep, ranks, prior)
    if not curvature.record.targets:
        raise BadData("the data hold no target that counts: every label is ignore_index.")
    if options.data_size is not None or options.passes > 1:
        size = options.data_size or curvature.record.seen / options.passes
        curvature = curvature.scaled(size / curvature.record.seen)
    if options.estimate_noise and seed is not None:
        likelihood, curvature = _estimated(curvature)
    same = replace(curvature.options, first=asked.first, progress=asked.progress)  # on all ranks
    curvature = replace(curvature, options=same)
    few = slice(0, min(PROBE, size_of(first.inputs)))
    return Fit(curvature, plan, likelihood, (take(first.inputs, few), first.targets[few]))


def first_of_all(batches: Passes, ranks: Ranks) -> tuple[Batch, Batch]:
    """This rank's first batch, and what decisions are made on: rank 0's, in part where there are others."""
    try:
        mine: Batch | None = batches.peek()
    except EmptyData:
        if ranks.alone:
            raise
        mine = None
    empty = [rank for rank, some in enumerate(ranks.meet("reading the first batch", mine is not None)) if not some]
    if empty or mine is None:
        ranks.over = True
        raise EmptyData(
            f"rank {empty[0]} got no data (of {ranks.size} ranks, {len(empty)} got none). Give every rank some "
            "examples: use fewer processes, or deal the data out with torch.utils.data.DistributedSampler."
        )
    if ranks.alone:
        return mine, mine
    few = slice(0, PROBE)
    inputs, targets = ranks.from_first((take(mine.inputs, few), mine.targets[few]))
    device = mine.targets.device
    return mine, replace(mine, inputs=to_device(inputs, device), targets=targets.to(device), counted=None)


def _seed(drawn: int, ranks: Ranks, checkpoint: Checkpoint | None) -> int:
    """One seed for all ranks: rank 0's, or that of the fit which goes on."""
    if checkpoint is None:
        return int(ranks.meet("settling the seed", (None, drawn, False))[0][1])
    try:
        return checkpoint.seeded(ranks.meet("settling the seed", (checkpoint.known_seed, drawn, checkpoint.seed_given)))
    except BadFile:
        ranks.over = True  # all of them see it
        raise


def _decisions(plan: Plan, options: Options, keep: Tensor | None) -> dict[str, Any]:
    """What the first batch decides; it must be the same on all ranks."""
    return {
        "curvature": options.curvature,
        "the choice of weights": {p.name: list(p.shape) for b in plan.blocks for p in b.params},
        "the mask of weights": None if keep is None else digest([keep]),
        "the structure": {b.name: f"{b.structure} ({b.reason or b.source})" for b in plan.blocks},
    }


def _signature(
    plan: Plan,
    data: Data,
    likelihood: Likelihood,
    options: Options,
    keep: Tensor | None,
    first: Batch,
    ranks: Ranks,
) -> dict[str, Any]:
    """What a checkpoint must be of."""
    like = plan.network.like
    return signature_of(
        options,
        **_decisions(plan, options, keep),
        network=plan.network.hash,
        dtype=str(like.dtype),
        autocast=str(plan.network.autocast),
        likelihood=likelihood.spec(),
        label_draws=likelihood.fisher_draws,
        batches=data.length(),
        rank=f"{ranks.rank} of {ranks.size}",
        batch_size=size_of(first.inputs),
        first_batch=digest_of_batch(first),
    )


def _compute(
    plan: Plan,
    batches: Passes,
    likelihood: Likelihood,
    options: Options,
    keep: Tensor | None,
    ranks: Ranks,
    prior: PriorOf | None,
) -> Curvature:
    start = time.perf_counter()
    like = plan.network.like
    joint = options.structure in ("full", "lowrank") or keep is not None
    whole = sum(b.size for b in plan.blocks) if keep is None else len(keep)
    dense = whole if options.structure == "full" or keep is not None else None
    memory.check(plan.blocks, options, dense, max(like.element_size(), 4), like.device)
    found = Seen(plan, options, ranks)
    if options.curvature == "hessian":
        structures, record = hessian.compute(plan, batches, likelihood, options, keep, found.sums)
    elif options.structure == "lowrank":
        seen = run(plan, batches, likelihood, options, [], "signals", signals=found.sums)
        batches.same_data(seen.loss, "lowrank")
        signals = found.added_up([])
        ratio = None if prior is None else prior(plan, signals).of(plan.blocks).ratio
        structures, record = lowrank.compute(plan, batches, likelihood, options, ranks, ratio)
    elif options.curvature == "kfra":
        structures, record = kfra.compute(plan, batches, likelihood, options)
    else:
        accumulators = _accumulators(plan.blocks, options, like, keep)
        plan.fused = options.curvature in ("mc", "empirical") and options.draws.count == 1
        record = run(plan, batches, likelihood, options, accumulators, "curvature", signals=found.sums)
        structures = [a.result() for a in accumulators]
    if options.structure == "ekfac":
        ranks.meet("adding up the factors")
        structures = [ranks.summed_structure(s) for s in structures]
        signals = found.added_up(structures)
        relative = None if prior is None else prior(plan, signals)
        structures = _corrected(plan, batches, likelihood, options, structures, record, ranks, relative)
    plan.fused = False
    ranks.meet("adding up the curvature")
    if options.structure not in ("ekfac", "lowrank"):
        structures = [ranks.summed_structure(s) for s in structures]
        signals = found.added_up(structures)
    record = ranks.summed_record(record, like.device)
    if options.offload:
        structures = [s.to("cpu") for s in structures]
    seconds = {"curvature": time.perf_counter() - start}
    return Curvature(plan.blocks, structures, record, options, joint, keep, seconds, signals)


class Seen:
    """What the blocks saw over the data: in sums of their own, or in those of their Kronecker factors."""

    def __init__(self, plan: Plan, options: Options, ranks: Ranks) -> None:
        self.plan, self.ranks = plan, ranks
        expanded = options.structure in ("kron", "ekfac") and options.sharing == "expand"
        kinds = {name: d.kind for name, d in plan.descriptions.items()}
        self.factored = [b.name for b in plan.blocks if expanded and b.matrix_structured and kinds[b.name] == "matrix"]
        self.sums = accumulators_of_signals(plan.blocks, plan.descriptions, plan.network, self.factored)

    def added_up(self, structures: list[Structure]) -> Signals:
        """By block, over all ranks; the structures must be so already."""
        self.ranks.meet("adding up what the layers saw")
        found = {s.name: self.ranks.summed_signal(s.signal()) for s in self.sums}
        for block, structure in zip(self.plan.blocks, structures, strict=True) if self.factored else []:
            if block.name in self.factored:
                assert isinstance(structure, Kronecker)
                found[block.name] = from_kronecker(block, self.plan.descriptions[block.name], structure)
        for block in self.plan.blocks:
            if block.name not in found:
                found[block.name] = without_sums(block, self.plan.descriptions[block.name], self.plan.network.device)
        return {block.name: found[block.name] for block in self.plan.blocks}


def _accumulators(blocks: list[Block], options: Options, like: Tensor, keep: Tensor | None) -> list[Accumulator]:
    if options.structure == "full" or keep is not None:
        return [DenseAccumulator(blocks, like, keep)]
    made: list[Accumulator] = []
    for block in blocks:
        if block.structure in ("kron", "ekfac"):
            made.append(KroneckerAccumulator(block, options.sharing, like))
        elif block.structure == "dense":
            made.append(DenseAccumulator([block], like))
        else:
            made.append(DiagonalAccumulator(block, like))
    return made


def _corrected(
    plan: Plan,
    batches: Passes,
    likelihood: Likelihood,
    options: Options,
    structures: list[Structure],
    first: FitRecord,
    ranks: Ranks,
    prior: HasRatio | None,
) -> list[Structure]:
    """The second pass of EKFAC, in the eigenvectors of the factors relative to the prior."""
    factors = {
        i: s
        for i, (block, s) in enumerate(zip(plan.blocks, structures, strict=True))
        if isinstance(s, Kronecker) and block.structure == "ekfac"
    }
    ratios = {i: None if prior is None else prior.of([plan.blocks[i]]).ratio for i in factors}
    alike = {i: None if r is None else r.to(factors[i].grads.device, factors[i].grads.dtype) for i, r in ratios.items()}
    vectors = _eigenvectors([(plan.blocks[i].name, s, alike[i]) for i, s in factors.items()], ranks)
    bases = zip(factors, vectors, strict=True)
    exact = [(i, EkfacAccumulator(plan.blocks[i], left, right, alike[i])) for i, (left, right) in bases]
    basis = "" if batches.checkpoint is None else digest(q for pair in vectors for q in pair)
    again = run(plan, batches, likelihood, options, [a for _, a in exact], "eigenvalues", basis)
    batches.same_data(first.loss, "ekfac")
    batches.same_data(again.loss, "ekfac")
    done = list(structures)
    ranks.meet("adding up the eigenvalues")
    for i, accumulator in exact:
        done[i] = ranks.summed_structure(accumulator.result())
    return done


def _eigenvectors(factors: list[tuple[str, Kronecker, Ratio | None]], ranks: Ranks) -> list[list[Tensor]]:
    """B_G and B_A of each block; several ranks find some each, and all of them have the same bits."""
    share = ranks.share()
    owners = [0] * len(factors)
    if share is not None:
        owners = share.assign([float(f.grads.shape[-1] ** 3 + f.inputs.shape[-1] ** 3) for _, f, _ in factors])
    found = []
    for owner, (name, f, ratio) in zip(owners, factors, strict=True):
        if owner == ranks.rank:
            spectral: Any = f.spectral(ratio, name)
            found.append([spectral.left, spectral.right])
        else:
            found.append([torch.empty_like(f.grads), torch.empty_like(f.inputs)])
    return found if share is None else [share.exchange(o, pair) for o, pair in zip(owners, found, strict=True)]


def _estimated(curvature: Curvature) -> tuple[Gaussian, Curvature]:
    """Noise = root mean square of the training residuals."""
    record = curvature.record
    noise = math.sqrt(record.squares / record.targets)
    if not noise > 1e-12:
        raise BadData(
            f"the training residuals are {noise:g}, so the noise cannot be estimated from them: the network fits its "
            "data exactly. Pass likelihood=whence.Gaussian(noise=…)."
        )
    return Gaussian(noise), curvature.with_noise(noise)
