"""J v one direction at a time, by torch's own forward mode."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor, nn
from torch.func import functional_call
from torch.nn.attention import SDPBackend, sdpa_kernel


def moved(module: nn.Module, x: Tensor, directions: Mapping[str, Tensor]) -> tuple[Tensor, Tensor]:
    """f(x), and J(x) v for directions [S, *shape] by parameter, [S, N, …]."""
    params = {n: p.detach() for n, p in module.named_parameters()}
    fast, found = torch.backends.mha.get_fastpath_enabled(), []
    torch.backends.mha.set_fastpath_enabled(False)  # torch's fused encoder has no forward mode
    for s in range(len(next(iter(directions.values())))):
        at = {n: params[n] for n in directions}
        along = {n: v[s] for n, v in directions.items()}
        with sdpa_kernel(SDPBackend.MATH):
            _, one = torch.func.jvp(lambda p: functional_call(module, {**params, **p}, (x,)), (at,), (along,))
        found.append(one)
    torch.backends.mha.set_fastpath_enabled(fast)
    return module(x).detach(), torch.stack(found)
