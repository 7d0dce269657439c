"""The front door of the function-space posterior: reads the data, and the roots of their loss curvature."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from whence.curvature.columns import columns_for
from whence.curvature.options import CurvatureKind, LabelDraws
from whence.engine.batches import Data, Inputs, concatenate, counted_examples, size_of, take
from whence.engine.progress import progress_bar
from whence.engine.randomness import seed_from
from whence.errors import BadData, BadOption, NotDefined
from whence.functional import Network
from whence.likelihoods import Likelihood
from whence.linalg.dense import widened
from whence.linalg.gaussian import Damping
from whence.posteriors.function_space.posterior import Fit, FunctionSpace
from whence.posteriors.laplace.evidence import scatter
from whence.posteriors.unstructured.front import REFINED
from whence.posteriors.unstructured.posterior import exact
from whence.recording.plan import Plan

if TYPE_CHECKING:
    from whence.posteriors.laplace.posterior import Laplace


@torch.inference_mode(False)
@torch.no_grad()
def function_space(
    posterior: Laplace, data: Any, examples: int | None, generator: torch.Generator | None, progress: bool
) -> FunctionSpace:
    """See :meth:`whence.Laplace.function_space`."""
    if posterior.curvature.keep is not None:
        raise NotDefined("the kernel inside a subnetwork mask is not defined; fit without layers=mask.")
    if posterior.network.shift is not None:
        raise NotDefined(REFINED.format("functions"))
    if posterior.damping is Damping.FACTORED:
        raise BadOption("the prior enters the kernel exactly; call with_damping('exact') first.")
    if examples is not None and (isinstance(examples, bool) or not isinstance(examples, int) or examples < 1):
        raise BadOption(f"examples={examples!r} must be a whole number, at least 1, or None for all.")
    network = exact(posterior.network)
    same = network is posterior.network
    plan = posterior.plan if same else _again(posterior.plan, network)
    loader, likelihood = network.read(data), posterior.likelihood
    chosen = _chosen(loader, likelihood, examples, generator)
    inputs, columns = _read(loader, network, likelihood, chosen, progress)
    count = size_of(inputs)
    scale = posterior.data_scale * posterior.record.data_size / count
    fit = Fit(
        examples=count,
        data_size=posterior.record.data_size,
        loss=posterior.record.loss * posterior.data_scale,
        squares=scatter(posterior, posterior.blocks),
        data_scale=posterior.data_scale,
    )
    return FunctionSpace.of(plan, likelihood, posterior.prior, inputs, math.sqrt(scale) * columns, fit)


def _again(plan: Plan, network: Network) -> Plan:
    return Plan(network, plan.blocks, plan.inspection, plan.descriptions)


def _chosen(
    loader: Data, likelihood: Likelihood, examples: int | None, generator: torch.Generator | None
) -> Tensor | None:
    """Which examples with a valid target are taken, in order; None for all."""
    if examples is None:
        return None
    loader.require_passes(2, "choosing examples")
    total = sum(len(counted_examples(batch, likelihood.counts)[1]) for batch in loader)
    if examples >= total:
        return None
    order = torch.randperm(total, generator=torch.Generator().manual_seed(seed_from(generator)))
    return order[:examples].sort().values


def _read(
    loader: Data, network: Network, likelihood: Likelihood, chosen: Tensor | None, progress: bool
) -> tuple[Inputs, Tensor]:
    """Inputs, and the roots of their curvature [K, M, *outputs]."""
    inputs, columns, seen = [], [], 0
    for batch in progress_bar(loader, label="examples", total=loader.length(), unit="batch", shown=progress):
        batch, numbers = counted_examples(batch, likelihood.counts)
        first, seen = seen, seen + len(numbers)
        if chosen is not None:
            which = chosen[(chosen >= first) & (chosen < seen)] - first
            which = which.to(batch.targets.device)
            batch = replace(batch, inputs=take(batch.inputs, which), targets=batch.targets[which])
            numbers = numbers[which.to(numbers.device)]
        if not len(numbers):
            continue
        outputs = network(batch.inputs).detach()
        targets = likelihood.check(outputs, batch.targets, batch.index)
        found = columns_for(CurvatureKind.GGN, likelihood, widened(outputs), targets, LabelDraws(), numbers)
        columns.append(found.chunk(0, found.total))
        inputs.append(batch.inputs)
    if not inputs:
        raise BadData("the data contain no valid target: every label is ignore_index.")
    return concatenate(inputs), torch.cat(columns, 1)
