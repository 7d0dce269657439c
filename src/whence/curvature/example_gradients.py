"""``whence.per_example_gradients``: the gradient of every example's loss in every parameter.

One forward and one backward pass over the outputs of layers; a gradient is the product of what a layer got and what
came back, for each example.

Index legend: N examples, P parameters of a block.
"""

from __future__ import annotations

import math
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from whence.curvature.columns import columns_for
from whence.curvature.options import CurvatureKind, LabelDraws
from whence.engine.batches import Batch, Inputs, size_of, take
from whence.engine.contexts import full_precision
from whence.engine.memory import ChunkLimits, in_parts_that_fit, readable, sizes
from whence.engine.progress import progress_bar
from whence.errors import BadData, BadOption, TooLarge, explains_keywords
from whence.functional import Network, refuse_batch_statistics
from whence.likelihoods import Gaussian, Likelihood, LikelihoodName, resolve
from whence.linalg.dense import widened
from whence.recording.independence import check_independent, first_outputs
from whence.recording.plan import Plan
from whence.recording.selection import Layers, Mask, selection

NO_DRAWS = LabelDraws(0, 1)
Part = tuple[Inputs, Tensor]  # some examples of a batch


@explains_keywords
@torch.inference_mode(False)
@full_precision()
def per_example_gradients(
    model: nn.Module,
    data: Any,
    likelihood: Likelihood | LikelihoodName,
    *,
    layers: Layers = None,
    device: torch.device | str | None = None,
    progress: bool = True,
) -> dict[str, Tensor]:
    """The gradient of each example's negative log likelihood in each parameter: name → [N, *shape].

    Their sum over N is the gradient of the summed loss. The network runs in evaluation mode and is not changed. Where
    no rule of the recorder explains a parameter, examples are differentiated one by one.

    Args:
        model: any trained ``nn.Module``.
        data: a ``DataLoader``, a re-iterable of batches, or a pair of tensors; rows are in their order.
        likelihood: as for :func:`whence.laplace`; ``"regression"`` takes its noise from the residuals.
        layers: which parameters: ``None`` all, ``"last"``, patterns on module names, or a predicate.
        device: where to compute; by default where the model is.
        progress: whether a pass of more than some seconds shows a progress bar.
    """
    resolved, estimate = resolve(likelihood)
    network = Network.snapshot(model)
    network = network if device is None else network.to(device)
    chosen = selection(layers, network)
    if isinstance(chosen, Mask):
        raise BadOption("gradients are of whole parameters: pass layers as patterns or a predicate, not as a mask.")
    refuse_batch_statistics(network)
    loader = network.read(data)
    work: _Work | None = None
    for batch in progress_bar(loader, label="gradients", unit="batch", total=loader.length(), shown=progress):
        if work is None:
            work = _Work.started(network, batch, chosen.resolve(network, batch.inputs), resolved)
        work.add(batch)
    assert work is not None  # data without examples are refused where they are read
    found = {name: torch.cat(parts) for name, parts in work.parts.items()}
    return _with_noise(found, work) if estimate else found


class _Work:
    """A network on its first batch, and the gradients so far."""

    def __init__(self, plan: Plan, likelihood: Likelihood, names: list[str]) -> None:
        self.plan, self.likelihood = plan, likelihood
        self.parts: dict[str, list[Tensor]] = {name: [] for name in names}
        self.limits, self.bytes = ChunkLimits(), 0
        self.squares, self.targets = 0.0, 0  # of the residuals

    @classmethod
    def started(cls, network: Network, first: Batch, names: list[str], likelihood: Likelihood) -> _Work:
        network.find_caches(take(first.inputs, slice(0, 2)))
        check_independent(network, first.inputs, first_outputs(network, first.inputs))
        network.select(names)
        return cls(Plan.make(network, names, first.inputs, likelihood.shift_invariant), likelihood, names)

    def add(self, batch: Batch) -> None:
        if batch.index == 1:
            self.plan.confirm(batch.inputs)
        elements = sum(self.plan.network.params[name].numel() for name in self.parts)
        self.bytes += elements * size_of(batch.inputs) * max(self.plan.network.dtype.itemsize, 4)
        if self.bytes > sizes().dense_curvature:
            raise TooLarge(
                f"gradients of {elements:,} parameters for each of so many examples need more than "
                f"{readable(sizes().dense_curvature)}. Choose layers=…, or pass fewer examples at a time."
            )
        whole = batch.inputs, batch.targets
        for found in in_parts_that_fit(
            whole, partial(self._computed, index=batch.index), limits=self.limits, size=lambda part: len(part[1]),
            split=_split, device=self.plan.network.device, too_large=lambda _: "one example does not fit into memory.",
        ):  # fmt: skip
            for name, values in found.items():
                self.parts[name].append(values)

    def _computed(self, part: Part, index: int) -> dict[str, Tensor]:
        """The gradients of some examples."""
        inputs, targets = part
        size = size_of(inputs)
        recording = self.plan.record(inputs, size)
        outputs = widened(recording.outputs.detach())
        targets = self.likelihood.check(outputs, targets, index)
        columns = columns_for(CurvatureKind.EMPIRICAL, self.likelihood, outputs, targets, NO_DRAWS, torch.arange(size))
        grads = recording.differentiate(columns.chunk(0, 1).to(recording.outputs.dtype))
        found: dict[str, Tensor] = {}
        for block in self.plan.blocks:
            rows = torch.cat([grads.rows(block, which)[0] for which in grads.row_chunks(block)])  # [N, P]
            found |= {name: value.detach() for name, value in block.scatter(rows).items()}
        if isinstance(self.likelihood, Gaussian):
            off = self.likelihood.flatten(outputs) - self.likelihood.flatten(targets)
            self.squares, self.targets = self.squares + float(off.double().square().sum()), self.targets + off.numel()
        params = self.plan.network.params  # those that no output depends on have no block
        return {n: found[n] if n in found else outputs.new_zeros(size, *params[n].shape) for n in self.parts}


def _split(part: Part, count: int) -> list[Part]:
    inputs, targets = part
    ranges = [slice(i, i + count) for i in range(0, len(targets), count)]
    return [(take(inputs, which), targets[which]) for which in ranges]


def _with_noise(found: dict[str, Tensor], work: _Work) -> dict[str, Tensor]:
    """Gradients of a Gaussian whose noise is the root mean square of the residuals, from those with noise 1."""
    noise = math.sqrt(work.squares / max(work.targets, 1))
    if not noise > 1e-12:
        raise BadData(
            f"the residuals are {noise:g}, so the noise cannot be estimated from them. Pass whence.Gaussian(noise=…)."
        )
    return {name: value / noise**2 for name, value in found.items()}
