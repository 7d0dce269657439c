"""Negative log likelihoods: the loss, its Hessian in the outputs with a root, and drawn labels.

Index legend: N examples, M positions per example (dense outputs), C outputs, K root columns.
Outputs are brought to the layout ``[N, M, C]``; the Hessian Λ is block-diagonal over (n, m), and a root is
``[N, M, C, K]`` with Λ = R Rᵀ. No likelihood divides by N: curvature is a sum over the data.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, Literal

from whence.errors import BadOption, one_of
from whence.likelihoods.base import Likelihood, Task, TaskKind
from whence.likelihoods.categorical import Categorical
from whence.likelihoods.custom import Custom
from whence.likelihoods.independent import (
    Bernoulli,
    Gaussian,
    HeteroscedasticGaussian,
    Poisson,
    poisson_quantile,
)
from whence.vocabulary import LOSSES

__all__ = [
    "Bernoulli", "Categorical", "Custom", "Gaussian", "HeteroscedasticGaussian", "Likelihood", "LikelihoodName",
    "Poisson", "Task", "TaskKind", "from_spec", "poisson_quantile", "resolve", "standard",
]  # fmt: skip

LikelihoodName = Literal["classification", "binary", "regression", "heteroscedastic", "poisson"]
BY_NAME: dict[str, Callable[[], Likelihood]] = {
    "classification": Categorical,
    "binary": Bernoulli,
    "regression": Gaussian,
    "heteroscedastic": HeteroscedasticGaussian,
    "poisson": Poisson,
}
GAUSSIAN = "gaussian"  # with its noise, "gaussian:0.3"
BY_TASK: dict[TaskKind, type[Likelihood]] = {
    TaskKind.CLASSIFICATION: Categorical,
    TaskKind.BINARY: Bernoulli,
    TaskKind.COUNT: Poisson,
}
KINDS: dict[str, type[Likelihood]] = {
    c.__name__: c for c in (Categorical, Bernoulli, Gaussian, HeteroscedasticGaussian, Poisson)
}


def resolve(likelihood: Likelihood | str) -> tuple[Likelihood, bool]:
    """The likelihood object, and whether its noise is to be estimated from the training residuals."""
    if isinstance(likelihood, Likelihood):
        return likelihood, False
    if isinstance(likelihood, type) and issubclass(likelihood, Likelihood):
        raise BadOption(f"likelihood is the class {likelihood.__name__}; pass an instance: {likelihood.__name__}(...).")
    if not isinstance(likelihood, str):
        kind = getattr(likelihood, "__name__", type(likelihood).__name__)
        hint = f" For {kind} pass {LOSSES[kind]!r}." if kind in LOSSES else ""
        raise BadOption(f"likelihood must be a whence.Likelihood or a name, not {kind}.{hint}")
    name, colon, noise = likelihood.strip().partition(":")
    if name == GAUSSIAN and colon:
        return Gaussian(noise=_noise(noise, likelihood)), False
    name = one_of(likelihood.strip(), BY_NAME, "likelihood")
    return BY_NAME[name](), BY_NAME[name] is Gaussian


def _noise(word: str, given: str) -> float:
    try:
        value = float(word)
    except ValueError:
        value = math.nan
    if not 0 < value < math.inf:
        raise BadOption(
            f"likelihood {given!r}: expected gaussian:NOISE with a standard deviation above 0, such as gaussian:0.3; "
            "'regression' estimates the noise from the training data."
        )
    return value


def standard(likelihood: Likelihood) -> Likelihood | None:
    """The likelihood whose outputs mean the same as those of a user's own class, by the ``task`` that it declares."""
    kind = BY_TASK.get(likelihood.task_kind)
    return None if kind is None or isinstance(likelihood, tuple(KINDS.values())) else kind()


def from_spec(spec: dict[str, Any]) -> Likelihood | None:
    """Rebuild a likelihood from its spec; None for one that the user must pass again."""
    kind = KINDS.get(spec["name"])
    return None if kind is None else kind(**{k: v for k, v in spec.items() if k != "name"})
