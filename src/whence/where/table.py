"""The layer table: what each layer's weights know, and how much of the predictive variance it causes."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, dataclass, fields
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from whence.curvature.blocks import Block
from whence.errors import NotDefined, need
from whence.predictive import linearised
from whence.predictive.projection import project

if TYPE_CHECKING:
    from whence.posteriors.laplace import Laplace


@dataclass(frozen=True)
class LayerRow:
    """One layer. Shares are there only if inputs were given."""

    name: str
    kind: str
    parameters: int
    std: float  # root mean square posterior standard deviation
    identified: float  # mean of 1 − posterior variance / prior variance over its weights
    identified_q05: float
    identified_q50: float
    identified_q95: float
    effective_parameters: float  # γ
    signal_to_noise: float  # root mean square of weight / standard deviation
    variance_share: float | None = None  # part of the output variance that it causes
    prior_share: float | None = None  # the same under the prior alone
    explained: float | None = None  # 1 − variance / variance under the prior


@dataclass(frozen=True)
class Where:
    """Tables of where the uncertainty is; ``layers`` is the first of them."""

    layers: list[LayerRow]

    def to_pandas(self) -> Any:
        """The layer table as a ``pandas.DataFrame``."""
        return need("pandas", "pandas").DataFrame([asdict(row) for row in self.layers])

    def __str__(self) -> str:
        shown = [f.name for f in fields(LayerRow) if any(getattr(r, f.name) is not None for r in self.layers)]
        shown = [name for name in shown if name not in ("identified_q05", "identified_q50", "identified_q95")]
        heads = {"parameters": "weights", "effective_parameters": "effective", "signal_to_noise": "snr"}
        table = [[heads.get(name, name) for name in shown]]
        table += [[_text(getattr(row, name)) for name in shown] for row in self.layers]
        widths = [max(len(line[i]) for line in table) for i in range(len(shown))]
        lines = []
        for line in table:
            cells = [c.ljust(w) if i < 2 else c.rjust(w) for i, (c, w) in enumerate(zip(line, widths, strict=True))]
            lines.append("  ".join(cells).rstrip())
        lines.insert(1, "  ".join("─" * w for w in widths))
        return "\n".join(lines)


def _text(value: Any) -> str:
    if isinstance(value, float):
        return f"{value:.3g}" if abs(value) < 1e4 else f"{value:,.0f}"
    return f"{value:,}" if isinstance(value, int) else str(value)


@torch.inference_mode(False)
def where(posterior: Laplace, x: Any) -> Where:
    """See :meth:`whence.posteriors.laplace.Laplace.where`."""
    if posterior.curvature.keep is not None:
        raise NotDefined("the layer table of a subnetwork mask is not defined; use variance().")
    rows = [row for _, row in _weight_rows(posterior)]
    if x is None:
        return Where(rows)
    traces, prior = shares(posterior, x)
    total, prior_total = float(traces.sum()), float(prior.sum())
    with_shares = []
    for row, v, p in zip(rows, traces.tolist(), prior.tolist(), strict=True):
        values = asdict(row)
        values.update(
            variance_share=v / total if total else 0.0,
            prior_share=p / prior_total if prior_total else 0.0,
            explained=1 - v / p if p else 0.0,
        )
        with_shares.append(LayerRow(**values))
    return Where(with_shares)


def _weight_rows(posterior: Laplace) -> Iterator[tuple[Block, LayerRow]]:
    variance, mean = posterior.variance(), posterior.mean()
    for block in posterior.blocks:
        var = block.gather(variance).double().cpu()
        prior = 1 / posterior.prior.flat(list(block.params))
        identified = 1 - var / prior
        q = torch.quantile(_thinned(identified), torch.tensor([0.05, 0.5, 0.95], dtype=torch.float64))
        weights = block.gather(mean).double().cpu()
        yield (
            block,
            LayerRow(
                name=block.name,
                kind=block.kind,
                parameters=block.size,
                std=float(var.mean().sqrt()),
                identified=float(identified.mean()),
                identified_q05=float(q[0]),
                identified_q50=float(q[1]),
                identified_q95=float(q[2]),
                effective_parameters=float(identified.sum()),
                signal_to_noise=float((weights.square() / var).mean().sqrt()),
            ),
        )


def _thinned(values: Tensor, limit: int = 1_000_000) -> Tensor:
    """At most ``limit`` of the values, evenly spaced (torch.quantile has a size limit)."""
    step = -(-len(values) // limit)
    return values[::step]


def shares(posterior: Laplace, x: Any) -> tuple[Tensor, Tensor]:
    """Σₓ tr V_b by block, under the posterior and under the prior alone; logits are centred first.

    Where blocks are correlated (full, low rank), a block's part is the covariance share tr[J_b (Σ Jᵀ)_b].
    """
    traces = torch.zeros(len(posterior.blocks), dtype=torch.float64)
    prior = torch.zeros_like(traces)
    centred = posterior.likelihood.task == "classification"
    for piece in linearised.pieces(posterior, x):
        _, grads = linearised.differentiate(posterior, piece)
        every = slice(0, grads.recording.size)
        for gaussian, blocks in posterior.gaussians():
            if len(blocks) == 1:
                index = posterior.blocks.index(blocks[0])
                projection = project(gaussian, blocks, grads, None)
                ones = torch.full_like(gaussian.precision, 1 / gaussian.delta)
                traces[index] += _trace(projection.weigh(1 / gaussian.precision, 1 / gaussian.rest), centred)
                prior[index] += _trace(projection.weigh(ones, 1 / gaussian.rest), centred)
                continue
            rows = torch.cat([grads.rows(b, every) for b in blocks], dim=-1).transpose(0, 1)  # [N, C, P]
            rows = rows - rows.mean(1, keepdim=True) if centred else rows
            moved = gaussian.solve(rows)
            alone = rows * gaussian.prior_variance()
            sizes = [b.size for b in blocks]
            traces += torch.stack([p.double().sum() for p in (rows * moved).split(sizes, dim=-1)]).cpu()
            prior += torch.stack([p.double().sum() for p in (rows * alone).split(sizes, dim=-1)]).cpu()
    return traces, prior


def _trace(cov: Tensor, centred: bool) -> float:
    """Σₙ tr V, or of V with the mean over outputs taken out."""
    trace = cov.diagonal(dim1=-2, dim2=-1).double().sum()
    if centred:
        trace = trace - cov.double().sum() / cov.shape[-1]
    return float(trace)
