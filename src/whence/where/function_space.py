"""The layer table of a Gaussian process over functions: its kernel is a sum over layers, so shares are exact."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from whence.posteriors.function_space.moments import shares
from whence.where.layer_rows import LayerRow
from whence.where.where import Where

if TYPE_CHECKING:
    from whence.posteriors.function_space import FunctionSpace


@torch.inference_mode(False)
@torch.no_grad()
def where_function_space(posterior: FunctionSpace, x: Any) -> Where:
    """Covariance shares of the layers, which may be negative; their prior shares, and what is explained."""
    variances = posterior.variance()
    columns: list[dict[str, float]] = [{} for _ in posterior.plan.blocks]
    if x is not None:
        own, alone = (part.sum(0) for part in shares(posterior, posterior.network.only_inputs(x)))
        explained = torch.where(alone > 0, 1 - own / alone, 0.0)
        parts = {"variance_share": own / own.sum(), "prior_share": alone / alone.sum(), "explained": explained}
        columns = [{name: float(part[i]) for name, part in parts.items()} for i in range(len(columns))]
    rows = []
    for block, scaling, of_inputs in zip(posterior.plan.blocks, posterior.linear.scalings, columns, strict=True):
        variance, weights = (block.gather(v).detach().double() for v in (variances, posterior.network.params))
        identified = 1 - variance / scaling.flat.square()
        rows.append(
            LayerRow(
                block.name,
                block.kind,
                block.size,
                std=float(variance.mean().sqrt()),
                identified=float(identified.mean()),
                effective_parameters=float(identified.sum()),
                signal_to_noise=float((weights.square() / variance).mean().sqrt()),
                **of_inputs,
            )
        )
    return Where(rows, posterior, x)
