"""Every Laplace posterior of the toy regression: how it is fitted, tuned and asked."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

import whence
from reproductions.ritter2018.toy.names import DIAGONAL, DIAGONAL_FISHER, EXACT, FULL, FULL_FISHER, KRONECKER
from reproductions.ritter2018.toy.problem import Problem

# Options of whence.laplace. The paper's Kronecker posterior is eq. 9's; its diagonal and full ones are of a Fisher
# with one label drawn for each point.
OPTIONS: dict[str, dict[str, Any]] = {
    KRONECKER: {"structure": "kron", "damping": "factored"},
    DIAGONAL: {"structure": "diag"},
    FULL: {"structure": "full"},
    EXACT: {"structure": "kron"},
    DIAGONAL_FISHER: {"structure": "diag", "curvature": "mc"},
    FULL_FISHER: {"structure": "full", "curvature": "mc"},
}


def fitted(problem: Problem, net: nn.Module, method: str) -> whence.Laplace:
    """Under the prior that the network was trained with."""
    options = {"curvature": "ggn"} | OPTIONS[method]
    return whence.laplace(
        net, problem.train, likelihood=problem.likelihood, prior_precision=problem.config.prior_precision,
        generator=torch.Generator().manual_seed(problem.seed), progress=False, **options,
    )  # fmt: skip


def tuned(problem: Problem, posterior: whence.Laplace, way: str) -> whence.Laplace:
    """τ and N of eq. 9 by the likelihood of the validation points, for the way in which it will predict."""
    if way == "linearised":
        return posterior.tune(problem.validation, data_scale=True, progress=False)
    return posterior.tune(
        problem.validation, method="sampled", data_scale=True, num_samples=problem.config.tuning_draws,
        generator=torch.Generator().manual_seed(problem.seed), progress=False,
    )  # fmt: skip


def predicted(
    problem: Problem, posterior: whence.Posterior, x: Any, way: str = "sampled", draws: int | None = None
) -> Any:
    """By ``draws`` weight draws (``config.draws``), the same ones for the same seed; HMC's are picked evenly."""
    if way == "linearised":
        return posterior.predict(x, method="linearised")
    draws = draws or problem.config.draws
    if isinstance(posterior, whence.Laplace):
        generator = torch.Generator(problem.device).manual_seed(problem.seed)
        return posterior.predict(x, method="sampled", num_samples=draws, generator=generator)
    return posterior.predict(x, num_samples=draws)
