"""The layer table: its columns, and those that need no inputs."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from whence.engine.memory import remembered
from whence.recording.blocks import Block
from whence.where.weights import curvature_of, identified_of, thinned, weights_of

if TYPE_CHECKING:
    from whence.posteriors.laplace.posterior import Laplace

MEASURED = (
    "std", "identified", "identified_q05", "identified_q50", "identified_q95", "effective_parameters",
    "signal_to_noise", "curvature", "relative_curvature",
)  # columns of the layer table that need no inputs  # fmt: skip
QUANTILES_OF = 100_000  # weights: enough for the quantiles of a table


@dataclass(frozen=True)
class LayerRow:
    """One layer, or one dropout site. None: not defined for the posterior, or only with inputs."""

    name: str
    kind: str
    parameters: int | None = None
    std: float | None = None  # root mean square posterior standard deviation
    identified: float | None = None  # mean of 1 − posterior variance / prior variance over its weights
    identified_q05: float | None = None
    identified_q50: float | None = None
    identified_q95: float | None = None
    effective_parameters: float | None = None  # γ
    signal_to_noise: float | None = None  # root mean square of weight / standard deviation
    curvature: float | None = None  # mean of diag(H) / N, without any prior
    relative_curvature: float | None = None  # mean of w² diag(H) / N: does not depend on how the network is scaled
    variance_share: float | None = None  # part of the output variance that it causes
    variance_share_error: float | None = None  # its Monte Carlo standard error, with draws or random columns
    prior_share: float | None = None  # the same under the prior alone
    explained: float | None = None  # 1 − variance / variance under the prior
    explained_error: float | None = None  # its Monte Carlo standard error
    disagreement: float | None = None  # of the layer's outputs between members


@remembered
def layer_rows(posterior: Laplace) -> tuple[LayerRow, ...]:
    """What does not depend on inputs."""
    every = posterior.variance()
    return tuple(_layer_row(posterior, block, block.gather(every).double()) for block in posterior.blocks)


def _layer_row(posterior: Laplace, block: Block, variance: Tensor) -> LayerRow:
    device = posterior.network.device
    identified, weights, curvature = (of(posterior, block, device) for of in (identified_of, weights_of, curvature_of))
    variance = variance.to(device)
    at = torch.tensor([0.05, 0.5, 0.95], dtype=torch.float64, device=device)
    numbers = torch.stack(
        [
            variance.mean().sqrt(),
            identified.mean(),
            *torch.quantile(thinned(identified, QUANTILES_OF), at),
            identified.sum(),
            (weights.square() / variance).mean().sqrt(),
            curvature.mean(),
            (weights.square() * curvature).mean(),
        ]
    ).tolist()  # one transfer for all
    return LayerRow(block.name, block.kind, block.size, **dict(zip(MEASURED, numbers, strict=True)))
