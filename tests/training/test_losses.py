"""The loss that members are trained by, with and without a look at the targets' values."""

from __future__ import annotations

import pytest
import torch

import whence
from whence.training.losses import MeanNegativeLogLikelihood

CASES = {
    "labels": (whence.Categorical(), (6, 3), torch.tensor([0, 1, 2, -100, 1, 0])),
    "labels in a column": (whence.Categorical(), (6, 3), torch.tensor([[0], [1], [2], [1], [1], [0]])),
    "pixels": (whence.Categorical(), (2, 3, 2, 2), torch.randint(3, (2, 2, 2))),
    "binary": (whence.Bernoulli(), (6, 1), torch.tensor([0.0, 1, 0, 1, 1, 0])),
    "numbers": (whence.Gaussian(noise=0.5), (6, 1), torch.randn(6)),
    "noisy numbers": (whence.HeteroscedasticGaussian(), (6, 4), torch.randn(6, 2)),
    "counts": (whence.Poisson(), (6, 2), torch.ones(6, 2)),
}


@pytest.mark.parametrize("name", CASES)
def test_unseen_targets_give_the_same_loss(name: str) -> None:
    likelihood, shape, targets = CASES[name]
    outputs = torch.randn(shape)
    loss = MeanNegativeLogLikelihood(likelihood)
    assert torch.equal(loss.of_checked(outputs, loss._shaped(outputs, targets)), loss(outputs, targets))
