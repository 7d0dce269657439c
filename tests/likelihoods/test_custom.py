"""Likelihoods of one's own are told apart by what they compute."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

import whence
from whence.errors import BadOption


def squared(scale: float) -> Callable[[Tensor, Tensor], Tensor]:
    return lambda f, y: scale * (f - y).square().sum(-1)


def test_samplers_and_draws_of_custom_likelihoods_are_told_apart() -> None:
    outputs, targets = torch.randn(20, 3), torch.zeros(20, 3)

    def drawn(scale: float) -> dict[str, list[float]]:
        def sample(f: Tensor, generator: torch.Generator) -> Tensor:
            return f + scale * torch.randn(f.shape, generator=generator)

        return whence.Custom(squared(0.5), sample).fingerprint(outputs, targets)

    assert drawn(1.0) == drawn(1.0) != drawn(2.0)
    assert len(drawn(1.0)["nll"]) == 8
    assert whence.Gaussian(1.0).fingerprint(outputs, targets) == {}


def test_a_task_that_is_not_known_is_refused_by_name() -> None:
    class Misspelt(whence.Categorical):
        task = "clasification"  # type: ignore[assignment]

    data = torch.randn(8, 2), torch.arange(8) % 3
    with pytest.raises(BadOption, match=r"unknown task 'clasification'. Did you mean 'classification'\?"):
        whence.laplace(torch.nn.Linear(2, 3), data, likelihood=Misspelt(), progress=False)
