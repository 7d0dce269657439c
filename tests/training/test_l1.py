"""The L1 penalty of ``zoo.train``."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

from whence import zoo
from whence.errors import BadOption

QUIET: dict[str, Any] = {"progress": False, "device": "cpu"}


@pytest.mark.parametrize("settings", [{"lr": 0.1}, {"optimiser": "adam", "lr": 0.02}], ids=str)
def test_the_minimum_is_the_soft_threshold(settings: dict[str, Any]) -> None:
    """The mean of (y − x w)² with XᵀX = N I plus l1 Σ|w| is least at the soft threshold of ŵ at l1 / 2."""
    torch.manual_seed(0)
    n, l1 = 200, 0.4
    x = torch.linalg.qr(torch.randn(n, 6))[0] * n**0.5
    y = (x @ torch.tensor([0.8, -0.5, 0.15, -0.05, 0.3, 0.0]) + 0.1 * torch.randn(n)).unsqueeze(1)
    network = nn.Linear(6, 1, bias=False)
    zoo.train(network, (x, y), epochs=600, batch_size=n, l1=l1, schedule="cosine", **settings, **QUIET)
    free = (x.T @ y / n).squeeze()
    wanted = free.sign() * (free.abs() - l1 / 2).clamp(min=0)
    torch.testing.assert_close(network.weight[0].detach(), wanted, rtol=0, atol=2e-3)


def test_biases_are_free_and_the_loss_is_reported_without_the_penalty() -> None:
    torch.manual_seed(0)
    x = torch.randn(50, 3)
    y = torch.full((50, 1), 2.0)
    network = nn.Linear(3, 1)
    result = zoo.train(network, (x, y), epochs=200, batch_size=50, lr=0.1, l1=10.0, schedule="cosine", **QUIET)
    assert float(network.bias.detach()) == pytest.approx(2.0, abs=0.05)
    assert float(network.weight.detach().abs().max()) < 0.05
    assert result.history[-1].loss < 0.1  # 10 Σ|w| is not in it
    with pytest.raises(BadOption, match="l1"):
        zoo.Settings(l1=-0.1)


def test_a_network_without_a_matrix_has_nothing_to_penalise() -> None:
    data = torch.randn(20, 3), torch.randn(20, 3)
    with pytest.raises(BadOption, match="none of the trained parameters"):
        zoo.train(nn.LayerNorm(3), data, epochs=1, l1=0.1, **QUIET)


def test_recipes_without_a_penalty_keep_their_hash() -> None:
    recipe = zoo.recipe("mnist-lenet5")
    assert recipe.hash(0, "x") != recipe.with_(l1=1e-5).hash(0, "x")
    assert recipe.hash(0, "data") == "250d41d45f11be31"
