"""Batch-normalisation statistics for new weights, from a pass over some inputs."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from whence.copies import copy_module
from whence.engine.batches import Inputs, concatenate, size_of, take
from whence.engine.randomness import derived_seed
from whence.functional import Network, arguments, call_with

MOST = 2048  # inputs
BATCH = 256
BUFFERS = ("running_mean", "running_var", "num_batches_tracked")


def batch_norm_layers(module: nn.Module) -> list[str]:
    """Names of the layers with running statistics."""
    kind = nn.modules.batchnorm._NormBase
    return [n for n, part in module.named_modules() if isinstance(part, kind) and part.running_mean is not None]


def random_inputs(data: Any, network: Network, seed: int, most: int = MOST) -> Inputs:
    """A random subset of at most ``most`` inputs of the data."""
    generator = torch.Generator().manual_seed(derived_seed(seed, "kept inputs"))
    chosen: Inputs = None
    keys = torch.zeros(0)
    for batch in network.read(data):
        keys = torch.cat([keys, torch.rand(size_of(batch.inputs), generator=generator)])
        chosen = batch.inputs if chosen is None else concatenate([chosen, batch.inputs])
        if len(keys) > most:
            keys, rows = keys.topk(most)
            chosen = take(chosen, rows.to(network.device))
    return chosen


@torch.no_grad()
def batch_norm_statistics(
    network: Network, params: dict[str, Tensor], inputs: Inputs, size: int = BATCH
) -> dict[str, Tensor]:
    """Running means and variances by name, for draws of the parameters [S, *shape]: [S, C].

    As ``torch.optim.swa_utils.update_bn``: the average of batch statistics, with everything else (dropout)
    in evaluation mode.
    """
    worker = copy_module(network.module).eval()
    parts, layers = dict(worker.named_modules()), batch_norm_layers(worker)
    for name in layers:
        parts[name].train()
        parts[name].momentum = None  # type: ignore[assignment]
    names = {f"{layer}.{buffer}".lstrip(".") for layer in layers for buffer in BUFFERS}
    statistics = {n: b for n, b in worker.named_buffers() if n in names}
    pieces = torch.arange(size_of(inputs), device=network.device).tensor_split(-(-size_of(inputs) // size))
    batches = [take(inputs, rows) for rows in pieces]
    found: list[dict[str, Tensor]] = []
    for s in range(len(next(iter(params.values())))):
        buffers = {n: torch.full_like(b, n.endswith("running_var")) for n, b in statistics.items()}
        for batch in batches:
            args, kwargs = arguments(batch)
            call_with(worker, {n: p[s] for n, p in params.items()} | buffers, args, kwargs)
        found.append({n: b for n, b in buffers.items() if not n.endswith("num_batches_tracked")})
    return {n: torch.stack([f[n] for f in found]) for n in found[0]}


def set_batch_norm_statistics(network: Network, inputs: Inputs) -> None:
    """Recompute the statistics for the network's own weights, in place."""
    own = {n: p.detach().unsqueeze(0) for n, p in network.params.items()}
    buffers = dict(network.module.named_buffers())
    for name, value in batch_norm_statistics(network, own, inputs).items():
        buffers[name].copy_(value[0])
