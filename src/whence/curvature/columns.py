"""Root columns R for the backward pass, with Σ_k r_k r_kᵀ = Λ (exactly, on average, or empirically).

Index legend: K columns, N examples, M output positions, C outputs.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from whence.curvature.options import CurvatureKind, LabelDraws
from whence.engine.randomness import example_uniform
from whence.likelihoods import Likelihood


class Columns:
    """Root columns of one batch, made in chunks. ``exact`` is [N, M, C, k], or ``given`` [K, N, M, C]."""

    def __init__(self, likelihood: Likelihood, outputs: Tensor, exact: Tensor | None, given: Tensor | None) -> None:
        self.likelihood, self.outputs, self.exact, self.given = likelihood, outputs, exact, given
        if exact is not None:
            self.total = exact.shape[1] * exact.shape[3]
        else:
            assert given is not None
            self.total = len(given)

    def chunk(self, start: int, stop: int) -> Tensor:
        """Columns start to stop, in the shape of the outputs: [K, *outputs.shape]."""
        if self.given is not None:
            return self.likelihood.unflatten(self.given[start:stop], self.outputs)
        assert self.exact is not None
        positions, each = self.exact.shape[1], self.exact.shape[3]
        if positions == 1:
            flat = self.exact[..., start:stop].movedim(-1, 0)
            return self.likelihood.unflatten(flat, self.outputs)
        flat = self.exact.new_zeros(stop - start, *self.exact.shape[:3])
        for i, column in enumerate(range(start, stop)):
            m, k = divmod(column, each)
            flat[i, :, m] = self.exact[:, m, :, k]
        return self.likelihood.unflatten(flat, self.outputs)


def columns_for(
    curvature: CurvatureKind,
    likelihood: Likelihood,
    outputs: Tensor,
    targets: Tensor,
    draws: LabelDraws,
    rows: Tensor,
) -> Columns:
    """The root columns of a batch; ``rows`` are the indices of its examples in the data."""
    outputs = outputs.detach()
    if curvature is CurvatureKind.GGN and likelihood.fisher_draws:
        draws = LabelDraws(draws.seed, likelihood.fisher_draws)
    elif curvature is CurvatureKind.GGN:
        return Columns(likelihood, outputs, likelihood.root(outputs, targets), None)
    if curvature is CurvatureKind.EMPIRICAL:
        return Columns(likelihood, outputs, None, likelihood.gradient(outputs, targets).unsqueeze(0))
    shape = tuple(likelihood.flatten(outputs).shape)
    drawn = []
    for draw in range(draws.count):
        uniform = example_uniform(draws.seed, draw, rows, shape, likelihood.uniforms)
        drawn.append(likelihood.drawn_gradient(outputs, targets, uniform))
    if len(drawn) == 1:
        return Columns(likelihood, outputs, None, drawn[0].unsqueeze(0))
    return Columns(likelihood, outputs, None, torch.stack(drawn) / math.sqrt(draws.count))


def identity_columns(outputs: Tensor) -> Tensor:
    """One column for each output of [N, C]: [C, N, C]."""
    size, classes = outputs.shape
    eye = torch.eye(classes, dtype=outputs.dtype, device=outputs.device)
    return eye.unsqueeze(1).expand(classes, size, classes)
