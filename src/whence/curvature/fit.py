"""The loop over the data: forward once, backward in chunks of root columns, add up by block."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor

from whence.batches import Batch, Data, Inputs, size_of, take
from whence.curvature import hessian, kfra, lowrank
from whence.curvature.accumulate import (
    Accumulator,
    DenseAccumulator,
    DiagonalAccumulator,
    EkfacAccumulator,
    KroneckerAccumulator,
)
from whence.curvature.blocks import Block, assign
from whence.curvature.columns import Draws, columns_for
from whence.curvature.distributed import first_example, summed_record, summed_structure
from whence.curvature.jacobian import Plan, Recording, budget
from whence.curvature.passes import Passes
from whence.curvature.record import FitRecord, Recorder, warn_if_probabilities
from whence.curvature.selection import Selection
from whence.errors import BadData, BadOption, NothingSelected, TooLarge, notice
from whence.functional import Network, differentiable, refuse_batch_statistics
from whence.likelihoods import Gaussian, Likelihood
from whence.linalg.structures import Kronecker, Structure

DENSE_LIMIT = 6 * 2**30  # bytes that dense curvature may take
SUPPORTED = {
    "full": ("ggn", "mc", "empirical", "hessian"),
    "block": ("ggn", "mc", "empirical", "hessian"),
    "diag": ("ggn", "mc", "empirical", "hessian"),
    "kron": ("ggn", "mc", "empirical", "kfra"),
    "ekfac": ("ggn", "mc", "empirical"),
    "lowrank": ("ggn", "empirical"),
}
CPU_COLUMNS = 32 * 2**20  # bytes of gradients that go backward together; more would leave the cache
AUTO_OUTPUTS = 100  # exact over the outputs up to here


@dataclass(frozen=True)
class Options:
    """How a curvature is computed."""

    structure: str = "kron"
    curvature: str = "auto"
    sharing: str = "expand"
    draws: Draws = field(default_factory=Draws)
    rank: int = 64
    passes: int = 1
    data_size: float | None = None
    progress: bool = True
    estimate_noise: bool = False  # of a Gaussian, from the training residuals
    first: int = 0  # number of the first example, for its randomness


@dataclass(frozen=True)
class Curvature:
    """Curvature of a network by block: sums over the data, without any prior."""

    blocks: list[Block]
    structures: list[Structure]
    record: FitRecord
    options: Options
    joint: bool = False  # one structure over all blocks together
    keep: Tensor | None = None  # entries of the joined vector that are Bayesian (a subnetwork)
    seconds: dict[str, float] = field(default_factory=dict)

    def scaled(self, factor: float) -> Curvature:
        """factor · H; the record counts accordingly."""
        return replace(self, structures=[s.scaled(factor) for s in self.structures], record=self.record.scaled(factor))

    def with_noise(self, noise: float) -> Curvature:
        """Under a Gaussian with another standard deviation: H ∝ 1/σ² (the empirical Fisher ∝ 1/σ⁴)."""
        assert self.record.noise is not None
        power = 4 if self.options.curvature == "empirical" else 2
        factor = (self.record.noise / noise) ** power
        return replace(
            self, structures=[s.reweighted(factor) for s in self.structures], record=self.record.with_noise(noise)
        )

    def merged(self, other: Curvature) -> Curvature:
        """Curvature on both data sets together."""
        mine = [(b.name, b.structure, b.params) for b in self.blocks]
        same_entries = (self.keep is None) == (other.keep is None) and (
            self.keep is None or other.keep is None or torch.equal(self.keep, other.keep)
        )
        theirs = [(b.name, b.structure, b.params) for b in other.blocks]
        if mine != theirs or self.joint != other.joint or not same_entries:
            raise BadOption("the two curvatures are not of the same network with the same selection and structure.")
        structures = [a.merged(b) for a, b in zip(self.structures, other.structures, strict=True)]
        return replace(self, structures=structures, record=self.record.merged(other.record))


@dataclass(frozen=True)
class Fit:
    """A curvature with what else the pass over the data gave."""

    curvature: Curvature
    plan: Plan
    likelihood: Likelihood
    probe: tuple[Inputs, Tensor]  # a few training examples


def fit(
    network: Network,
    data: Data,
    likelihood: Likelihood,
    selection: Selection,
    options: Options,
    seed: Callable[[], int] | None = None,
    group: Any = None,
) -> Fit:
    """Compute the curvature of ``network`` on ``data``, summed over the ranks of a process ``group``.

    ``seed`` is asked for only if something is drawn.
    """
    options = replace(options, first=options.first + first_example(group))
    data.require_passes(2 if options.structure in ("ekfac", "lowrank") else 1, f"structure={options.structure!r}")
    data.require_passes(options.passes, f"passes={options.passes}")
    batches = Passes(data)
    first = batches.peek()
    refuse_batch_statistics(network)
    with differentiable(network), torch.no_grad():
        outputs = network(take(first.inputs, slice(0, 64)))
    warn_if_probabilities(likelihood, outputs)
    options = settle(options, likelihood, outputs)
    if seed is not None and (options.curvature == "mc" or likelihood.fisher_draws):
        options = replace(options, draws=replace(options.draws, seed=seed()))
    names = selection.resolve(network, first.inputs)
    network.select(names)
    plan = Plan.make(network, names, first.inputs)
    if plan.inspection.unused >= set(names):
        raise NothingSelected(
            f"none of the {len(names)} selected parameters reaches the output with a gradient. Does the forward pass "
            "run under torch.no_grad(), detach, or return something that is not computed from them?"
        )
    plan.blocks[:] = assign(plan.blocks, options.structure)
    _say_fallbacks(plan.blocks, options)
    keep = selection.keep(network, plan.blocks)
    curvature = _compute(plan, batches, likelihood, options, keep, group)
    if not curvature.record.targets:
        raise BadData("the data hold no target that counts: every label is ignore_index.")
    if options.data_size is not None or options.passes > 1:
        size = options.data_size or curvature.record.seen / options.passes
        curvature = curvature.scaled(size / curvature.record.seen)
    if options.estimate_noise and seed is not None:
        likelihood, curvature = _estimated(curvature)
    few = slice(0, min(256, size_of(first.inputs)))
    return Fit(curvature, plan, likelihood, (take(first.inputs, few), first.targets[few]))


def settle(options: Options, likelihood: Likelihood, outputs: Tensor) -> Options:
    """Turn ``curvature="auto"`` into a choice, and refuse what does not go together."""
    curvature = options.curvature
    if curvature == "auto":
        width = likelihood.flatten(outputs)[0].numel()
        curvature = "ggn" if width <= AUTO_OUTPUTS or options.structure == "lowrank" else "mc"
        if curvature == "mc":
            notice(
                f"the network has {width} outputs for each example, so the curvature is the sampled Fisher "
                f"({options.draws.count} draw for each example; curvature='ggn' is exact and costs {width} backward "
                "passes)."
            )
    allowed = SUPPORTED[options.structure]
    if curvature not in allowed:
        fits = [s for s, c in SUPPORTED.items() if curvature in c]
        raise BadOption(
            f"structure={options.structure!r} does not go with curvature={curvature!r}. It goes with "
            f"{', '.join(map(repr, allowed))}; {curvature!r} goes with {', '.join(map(repr, fits))}."
        )
    return replace(options, curvature=curvature)


def _compute(
    plan: Plan, batches: Passes, likelihood: Likelihood, options: Options, keep: Tensor | None, group: Any
) -> Curvature:
    start = time.perf_counter()
    like = next(iter(plan.network.params.values()))
    joint = options.structure in ("full", "lowrank") or keep is not None
    check_memory(plan.blocks, options, keep, like)
    if options.curvature == "hessian":
        structures, record = hessian.compute(plan, batches, likelihood, options, keep)
    elif options.structure == "lowrank":
        structures, record = lowrank.compute(plan, batches, likelihood, options, group)
    elif options.curvature == "kfra":
        structures, record = kfra.compute(plan, batches, likelihood, options)
    else:
        accumulators = _accumulators(plan.blocks, options, like, keep)
        record = run(plan, batches, likelihood, options, accumulators, "curvature")
        structures = [a.result() for a in accumulators]
        if options.structure == "ekfac":
            structures = [summed_structure(s, group) for s in structures]
            structures = _corrected(plan, batches, likelihood, options, structures, record, group)
    if options.structure not in ("ekfac", "lowrank"):
        structures = [summed_structure(s, group) for s in structures]
    record = summed_record(record, group, like.device)
    seconds = {"curvature": time.perf_counter() - start}
    return Curvature(plan.blocks, structures, record, options, joint, keep, seconds)


def run(
    plan: Plan,
    batches: Passes,
    likelihood: Likelihood,
    options: Options,
    accumulators: list[Accumulator],
    label: str,
) -> FitRecord:
    """One or several passes over the data into the accumulators."""
    recorder = Recorder(likelihood)
    for batch in batches.passes(options.passes, options.progress, label):
        batch, rows = relevant(batch, likelihood)
        if not len(rows):
            continue
        recording = plan.record(batch.inputs, len(rows))
        targets = likelihood.check(recording.outputs, batch.targets, batch.index)
        recorder.add(recording.outputs, targets, batch.index)
        if not recording.outputs.requires_grad:
            continue
        for accumulator in accumulators:
            accumulator.inputs(recording)
        rows = rows + options.first
        columns = columns_for(options.curvature, likelihood, recording.outputs, targets, options.draws, rows)
        for piece in column_chunks(recording, columns.total):
            grads = recording.differentiate(columns.chunk(piece.start, piece.stop))
            for accumulator in accumulators:
                accumulator.gradients(grads)
    return recorder.record


def relevant(batch: Batch, likelihood: Likelihood) -> tuple[Batch, Tensor]:
    """The examples that the likelihood counts, and their numbers in the data."""
    rows = batch.offset + torch.arange(size_of(batch.inputs), device=batch.targets.device)
    counted = likelihood.counts(batch.targets)
    if counted is None or len(counted) != len(rows) or bool(counted.all()):
        return batch, rows
    which = counted.nonzero().squeeze(1)
    return replace(batch, inputs=take(batch.inputs, which), targets=batch.targets[which]), rows[which]


def column_chunks(recording: Recording, total: int) -> Iterator[slice]:
    """Pieces of the root columns whose gradients fit the memory budget."""
    device = recording.outputs.device
    room = budget(device) * 4 if device.type == "cuda" else CPU_COLUMNS
    step = max(1, int(room // max(recording.bytes_per_column(), 1)))
    for start in range(0, total, step):
        yield slice(start, min(start + step, total))


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
    group: Any,
) -> list[Structure]:
    """The second pass of EKFAC."""
    exact = [
        (i, EkfacAccumulator(block, s))
        for i, (block, s) in enumerate(zip(plan.blocks, structures, strict=True))
        if isinstance(s, Kronecker)
    ]
    again = run(plan, batches, likelihood, options, [a for _, a in exact], "eigenvalues")
    batches.same_data(first.loss, "ekfac")
    batches.same_data(again.loss, "ekfac")
    done = list(structures)
    for i, accumulator in exact:
        done[i] = summed_structure(accumulator.result(), group)
    return done


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


def check_memory(blocks: list[Block], options: Options, keep: Tensor | None, like: Tensor) -> None:
    """Refuse dense curvature that would not fit."""
    sizes = [b.size for b in blocks if b.structure == "dense"]
    if options.structure == "full" or keep is not None:
        sizes = [sum(b.size for b in blocks) if keep is None else len(keep)]
    needed = sum(3 * n * n for n in sizes) * max(like.element_size(), 4)
    if needed > DENSE_LIMIT:
        biggest = max(sizes)
        raise TooLarge(
            f"structure={options.structure!r} with {biggest:,} parameters in one block would need about "
            f"{needed / 2**30:.1f} GiB (limit {DENSE_LIMIT / 2**30:.0f} GiB). Use structure='kron' (default), "
            "'diag' or 'lowrank', or select fewer weights with layers='last' or a subnetwork."
        )


def _say_fallbacks(blocks: list[Block], options: Options) -> None:
    """One line on what did not get the structure that was asked for."""
    fallen = [b for b in blocks if b.source == "example" and b.reason != "it does not reach the output"]
    tied = [b for b in blocks if b.source == "rows" and b.structure == "diag" and options.structure != "diag"]
    if options.structure in ("kron", "ekfac") and fallen + tied:
        names = ", ".join(f"{b.name} ({b.kind})" for b in (fallen + tied)[:4])
        more = f" and {len(fallen + tied) - 4} more" if len(fallen + tied) > 4 else ""
        notice(
            f"no Kronecker rule for {names}{more}: an exact diagonal, computed per example, is used there "
            "(see posterior.structures)."
        )
    unused = [b.name for b in blocks if b.reason == "it does not reach the output"]
    if unused:
        notice(f"{', '.join(unused[:4])} does not reach the output; its posterior is its prior.")
