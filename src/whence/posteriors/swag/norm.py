"""Batch-normalisation statistics for other weights: made anew by a pass over inputs that were kept for it."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from whence.batches import Inputs, concatenate, size_of, take
from whence.copies import copy_module
from whence.functional import Network, arguments, call_with
from whence.randomness import derived_seed

KEPT = 2048  # inputs
BATCH = 256


def norm_layers(module: nn.Module) -> list[str]:
    """Names of the layers with running statistics."""
    found = []
    for name, part in module.named_modules():
        if isinstance(part, nn.modules.batchnorm._NormBase) and part.running_mean is not None:
            found.append(name)
    return found


def kept_inputs(data: Any, network: Network, seed: int, most: int = KEPT) -> Inputs:
    """At most ``most`` inputs of the data, each equally likely to be among them."""
    generator = torch.Generator().manual_seed(derived_seed(seed, "kept inputs"))
    kept: Inputs = None
    keys = torch.zeros(0)
    for batch in network.read(data):
        new = torch.rand(size_of(batch.inputs), generator=generator)
        keys = torch.cat([keys, new])
        kept = batch.inputs if kept is None else concatenate([kept, batch.inputs])
        if len(keys) > most:
            keys, rows = keys.topk(most)
            kept = take(kept, rows.to(network.device))
    return kept


def renewed(network: Network, params: dict[str, Tensor], inputs: Inputs) -> dict[str, Tensor]:
    """Running means and variances by name, for draws of the parameters [S, *shape]: [S, C].

    As ``torch.optim.swa_utils.update_bn``: the average over batches of their statistics, with everything else (dropout)
    in evaluation mode.
    """
    layers = norm_layers(network.module)
    worker = copy_module(network.module).eval()
    parts = dict(worker.named_modules())
    for name in layers:
        parts[name].train()
        parts[name].momentum = None  # type: ignore[assignment]
    count = len(next(iter(params.values())))
    pieces = torch.arange(size_of(inputs), device=network.device).tensor_split(-(-size_of(inputs) // BATCH))
    batches = [take(inputs, rows) for rows in pieces]
    found: list[dict[str, Tensor]] = []
    with torch.no_grad():
        for s in range(count):
            buffers = {n: b.clone() for n, b in _statistics(worker, layers).items()}
            for name, buffer in buffers.items():
                buffer.fill_(1 if name.endswith("running_var") else 0)
            for batch in batches:
                args, kwargs = arguments(batch)
                call_with(worker, {n: p[s] for n, p in params.items()} | buffers, args, kwargs)
            found.append({n: b for n, b in buffers.items() if not n.endswith("num_batches_tracked")})
    return {n: torch.stack([f[n] for f in found]) for n in found[0]}


def _statistics(module: nn.Module, layers: list[str]) -> dict[str, Tensor]:
    """The running buffers of some layers, by dotted name."""
    names = ("running_mean", "running_var", "num_batches_tracked")
    wanted = {f"{layer}.{n}".lstrip(".") for layer in layers for n in names}
    return {n: b for n, b in module.named_buffers() if n in wanted}
