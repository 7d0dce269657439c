"""One image alone is as one of several: torch 2.13's batch normalisation is wrong for it on a CPU.

Its backward pass of one image reads a gradient in channels-last order as if it were contiguous.
"""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

import whence
from tests.comparison import assert_close


class ImageTokens(nn.Module):
    """The gradient that reaches its batch normalisation is in channels-last order."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.norm = nn.Conv2d(2, 8, 3, padding=1), nn.BatchNorm2d(8)
        self.mix, self.head = nn.Linear(8, 8), nn.Linear(8, 3)

    def forward(self, x: Tensor) -> Tensor:
        tokens = self.norm(self.conv(x)).flatten(2).transpose(1, 2)
        return self.head(self.mix(tokens).tanh().mean(1))


@pytest.mark.parametrize("structure", ["kron", "diag", "full"])
def test_one_image_is_as_one_of_several(structure: str) -> None:
    torch.manual_seed(0)
    model = ImageTokens().double().eval()
    model.norm.running_var.uniform_(0.5, 2)
    x, y = torch.randn(6, 2, 5, 5, dtype=torch.float64), torch.arange(6) % 3
    options = {"likelihood": "classification", "structure": structure, "prior_precision": 1.0, "progress": False}
    together = whence.laplace(model, (x, y), **options)
    alone = whence.laplace(model, [(x[i : i + 1], y[i : i + 1]) for i in range(6)], **options)
    for name, variance in together.variance().items():
        assert_close(alone.variance()[name], variance, 1e-10)
    for i in range(3):
        assert_close(alone.predict(x[i : i + 1]).logit_cov, together.predict(x).logit_cov[i : i + 1], 1e-10)


def test_gradients_of_one_image() -> None:
    torch.manual_seed(0)
    model = ImageTokens().double().eval()
    x, y = torch.randn(4, 2, 5, 5, dtype=torch.float64), torch.arange(4) % 3
    together = whence.per_example_gradients(model, (x, y), "classification")
    alone = whence.per_example_gradients(model, [(x[i : i + 1], y[i : i + 1]) for i in range(4)], "classification")
    for name, gradients in together.items():
        assert_close(alone[name], gradients, 1e-10)
