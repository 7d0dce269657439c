"""A fit: what is asked for is settled, the network inspected, and its curvature summed by block."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from whence.batches import Data, size_of, take
from whence.curvature import hessian, kfra, lowrank
from whence.curvature.accumulate import (
    Accumulator,
    DenseAccumulator,
    DiagonalAccumulator,
    EkfacAccumulator,
    KroneckerAccumulator,
)
from whence.curvature.blocks import Block, assign
from whence.curvature.distributed import first_example, summed_record, summed_structure
from whence.curvature.jacobian import Plan
from whence.curvature.options import Options, settle
from whence.curvature.passes import Passes
from whence.curvature.record import FitRecord, warn_if_probabilities
from whence.curvature.result import Curvature, Fit
from whence.curvature.selection import Selection
from whence.curvature.sweep import run
from whence.errors import BadData, NothingSelected, TooLarge, notice
from whence.functional import Network, differentiable, refuse_batch_statistics
from whence.likelihoods import Gaussian, Likelihood
from whence.linalg.structures import Kronecker, Structure

DENSE_LIMIT = 6 * 2**30  # bytes that dense curvature may take


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
