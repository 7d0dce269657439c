"""What the comparisons against the slow twins share."""

from __future__ import annotations

import warnings
from typing import Any

import torch
from torch import Tensor

import whence
from tests.reference import curvature as slow
from tests.reference import likelihoods as slow_likelihoods
from tests.reference.cases import Case

NOISE = 0.7


def likelihood_of(case: Case) -> whence.Likelihood:
    kinds: dict[str, whence.Likelihood] = {
        "classification": whence.Categorical(),
        "binary": whence.Bernoulli(),
        "regression": whence.Gaussian(NOISE),
        "poisson": whence.Poisson(),
        "heteroscedastic": whence.HeteroscedasticGaussian(),
    }
    return kinds[case.likelihood]


def fitted(case: Case, **options: Any) -> whence.Laplace:
    """A fit under an isotropic prior, unless another one is given."""
    options.setdefault("prior_precision", 1.0)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", whence.errors.Notice)
        return whence.laplace(case.model, (case.x, case.y), likelihood=likelihood_of(case), **options)


def bayesian(case: Case) -> dict[str, torch.nn.Parameter]:
    return slow.trainable(case.model)


def output_hessian(case: Case) -> Tensor:
    return slow_likelihoods.hessian_for(case.likelihood, slow.outputs(case.model, case.x), NOISE)


def assert_close(got: Tensor, wanted: Tensor, tolerance: float = 1e-8, floor: float = 1e-300) -> None:
    """Relative to the size of what is wanted."""
    assert got.shape == wanted.shape, f"{tuple(got.shape)} is not {tuple(wanted.shape)}"
    error = float((got - wanted).norm())
    scale = float(wanted.norm())
    assert error <= tolerance * scale + floor, f"relative error {error / max(scale, 1e-300):.3g}"
