"""A direction in output space in which nothing vanishes by chance, for checks on the first batch."""

from __future__ import annotations

import torch
from torch import Tensor

PERIOD = 1_000_003  # entries of a probe before it repeats itself
TOLERANCE = {torch.float64: 1e-8, torch.float32: 1e-3}  # relative error of gradients that rounding may cause


def probe_like(outputs: Tensor) -> Tensor:
    """A fixed, generic direction; made on the device from nothing, so that a CUDA graph may hold it."""
    size = outputs.numel()
    if not size:
        return outputs.detach()
    places = torch.arange(1, min(size, PERIOD) + 1, dtype=torch.float64, device=outputs.device)
    noise = (torch.sin(places * 12.9898) * 43758.5453).frac() * 12**0.5  # spread over (−√12, √12)
    return noise.to(outputs.dtype).repeat(-(-size // len(noise)))[:size].reshape(outputs.shape)
