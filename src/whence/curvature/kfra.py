"""KFRA: the pre-activation Gauss–Newton passed back through a chain of Linear layers, for each batch.

Ritter et al. (2018), appendix A, eq. 15 without D (the second derivative of the activation), with the mean
taken over each batch: H̄_λ = E[B W_{λ+1}ᵀ H̄_{λ+1} W_{λ+1} B], B = diag f'(h).
"""

from __future__ import annotations

from functools import partial
from typing import Any

import torch
from torch import Tensor

from whence.curvature.options import FitOptions
from whence.curvature.result import FitRecord, RecordSums
from whence.engine.batches import Batch, counted_examples
from whence.engine.memory import none_if_out_of_memory
from whence.engine.passes import Passes
from whence.engine.stages import NamedSums
from whence.errors import TooLarge, UnsupportedLayer
from whence.functional import differentiable
from whence.likelihoods import Likelihood
from whence.linalg.dense import accumulation_dtype, gram, widened
from whence.linalg.structures import BlockStructure, Kronecker, Structure
from whence.recording.backward import TOLERANCE
from whence.recording.calls import Recording
from whence.recording.plan import Plan
from whence.recording.recorder import probe_like
from whence.recording.rules import LinearRule

REMEDY = "KFRA is defined for feed-forward chains of Linear layers; use curvature='ggn' (exact) or 'mc'."


def compute(
    plan: Plan, batches: Passes, likelihood: Likelihood, options: FitOptions
) -> tuple[list[Structure], FitRecord]:
    """The Kronecker factors of every block, by recursion."""
    record = RecordSums(likelihood)
    running = NamedSums(plan.network.device)
    for batch in batches.passes(options.passes, options.progress, "kfra", [record, running]):
        batch, rows = counted_examples(batch, likelihood.counts)
        if len(rows):
            added = none_if_out_of_memory(partial(_add, plan, batch, len(rows), likelihood, record, running))
            if added is None:
                raise TooLarge(
                    f"a batch of {len(rows)} examples does not fit into the memory of {plan.network.device}. KFRA "
                    "averages over each batch, so splitting the batch would change the result: pass smaller batches."
                )
    return [Kronecker(a, g, count) for a, g, count in _by_block(running.values)], record.record


def _add(plan: Plan, batch: Batch, size: int, likelihood: Likelihood, record: RecordSums, running: NamedSums) -> bool:
    """Add one batch."""
    recording = plan.record(batch.inputs, size)
    outputs = widened(recording.outputs.detach())
    targets = likelihood.check(outputs, batch.targets, batch.index)
    record.add(outputs, targets, batch.index)
    slopes, weights = _chain(recording)
    if not running.values:
        _check(recording, slopes, weights)
        running.values = _empty(plan, recording.outputs)
    sums = _by_block(running.values)
    mean = likelihood.hessian(outputs, targets)[:, 0].mean(0)  # [C, C]
    for i in reversed(range(len(weights))):
        form = plan.blocks[i].form
        assert form is not None
        mean = mean * (slopes[i].mT @ slopes[i] / size)
        a = recording.calls[i].input(form).dense()[0, :, 0]
        sums[i][0][0] += gram(a.to(sums[i][0].dtype)).detach()
        sums[i][1][0] += (size * mean).to(sums[i][1].dtype).detach()
        sums[i][2][0] += size
        mean = weights[i].mT @ mean @ weights[i]
    return True


def _by_block(values: dict[str, Tensor]) -> list[tuple[Tensor, Tensor, Tensor]]:
    """Σ a aᵀ, Σ g gᵀ and the number of terms, of each block."""
    names = ("inputs", "grads", "count")
    return [tuple(values[f"{i}.{n}"] for n in names) for i in range(len(values) // len(names))]  # type: ignore[misc]


def _empty(plan: Plan, like: Tensor) -> dict[str, Tensor]:
    made: dict[str, Tensor] = {}
    for i, block in enumerate(plan.blocks):
        assert block.form is not None
        _, outputs, inputs = block.form.native
        options: dict[str, Any] = {"dtype": accumulation_dtype(like.dtype), "device": like.device}
        made[f"{i}.inputs"] = torch.zeros(1, inputs, inputs, **options)
        made[f"{i}.grads"] = torch.zeros(1, outputs, outputs, **options)
        made[f"{i}.count"] = torch.zeros(1, dtype=torch.float64, device=like.device)
    return made


def _chain(recording: Recording) -> tuple[list[Tensor], list[Tensor]]:
    """f'(h) [N, O] after each layer, and the layers' weights [O, D], from the input to the output."""
    calls, blocks = recording.calls, recording.plan.blocks
    if recording.outputs.dim() != 2:
        raise UnsupportedLayer(f"the outputs have shape {list(recording.outputs.shape)}, not [N, C]. {REMEDY}")
    for block in blocks:
        if block.structure is not BlockStructure.KRON or block.kind not in (
            "Linear",
            "NonDynamicallyQuantizableLinear",
        ):
            raise UnsupportedLayer(f"{block.name} ({block.kind}) is not a Linear layer. {REMEDY}")
    if len(calls) != len(blocks):
        raise UnsupportedLayer(f"a layer is called more than once, or no layer is called. {REMEDY}")
    slopes, weights = [], []
    for i, call in enumerate(calls):
        use = call.use
        if type(use.rule) is not LinearRule or use.weight is None or not use.weight.whole or len(use.shape) != 2:
            raise UnsupportedLayer(f"{blocks[i].name} is not a plain Linear layer with its weight selected. {REMEDY}")
        after = calls[i + 1].use.rule.x if i + 1 < len(calls) else recording.outputs
        with differentiable(recording.plan.network):
            (slope,) = torch.autograd.grad(after.sum(), use.edge, retain_graph=True, allow_unused=True)  # type: ignore[arg-type]
        if slope is None or slope.shape != after.shape:
            raise UnsupportedLayer(f"the layer after {blocks[i].name} has other inputs too. {REMEDY}")
        slopes.append(widened(slope))
        weights.append(widened(recording.plan.network.params[use.weight.name].detach()))
    return slopes, weights


def _check(recording: Recording, slopes: list[Tensor], weights: list[Tensor]) -> None:
    """Check that the gradients of the chain equal the network's."""
    probe = probe_like(recording.outputs)
    true = recording.seen.backward(probe.unsqueeze(0), recording.needed)
    g = probe
    for i in reversed(range(len(weights))):
        g = g * slopes[i]
        error = float((g - true[i][0]).norm() / true[i][0].norm().clamp(min=1e-30))
        if error > TOLERANCE.get(recording.outputs.dtype, 5e-2):
            raise UnsupportedLayer(
                f"what follows {recording.plan.blocks[i].name} is not an elementwise activation and the next layer "
                f"(gradients differ by {error:.2g}). {REMEDY}"
            )
        g = g @ weights[i]
