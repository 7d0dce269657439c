"""Pruning everything whose score is at most a threshold."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import whence
from tests.extras.pruning.cases import fitted, masks, mlp
from whence import zoo
from whence.errors import BadOption, NothingSelected
from whence.extras.pruning.masks import prune


@pytest.mark.parametrize("by", ["magnitude", "snr", "saliency"])
def test_what_scores_at_most_the_threshold_is_pruned(by: Any) -> None:
    model = mlp()
    posterior = fitted(model, "diag")
    variance, weight = posterior.variance(), dict(model.named_parameters())
    for name, stays in masks(prune(posterior, threshold=0.1, by=by)).items():
        w, v = weight[name.removesuffix("_mask")], variance[name.removesuffix("_mask")]
        curvature = 1 / v - posterior.prior_variance()[name.removesuffix("_mask")].reciprocal()
        score = {"magnitude": w.abs(), "snr": w.abs() / v.sqrt(), "saliency": 0.5 * w**2 * curvature}[by]
        assert torch.equal(stays.bool(), score > 0.1)


def test_a_threshold_equals_the_fraction_that_it_prunes() -> None:
    posterior = fitted(mlp())
    weights = torch.cat([v.abs().flatten() for n, v in posterior.mean().items() if n.endswith("weight")])
    middle = float(weights.sort().values[len(weights) // 2 - 1])
    mine, other = prune(posterior, threshold=middle, by="magnitude"), prune(posterior, 0.5, by="magnitude")
    for name, stays in masks(mine).items():
        assert torch.equal(stays, masks(other)[name])


def test_every_layer_keeps_its_best_unit() -> None:
    posterior = fitted(mlp())
    found = masks(prune(posterior, threshold=1e9, by="magnitude", units=True))
    for name, stays in found.items():
        if name.endswith("weight_mask"):
            assert int(stays.flatten(1).any(1).sum()) == 1


def test_what_l1_leaves_is_found_by_a_threshold() -> None:
    """Inputs that say nothing lose their weights under the penalty, and only those go."""
    torch.manual_seed(0)
    x = torch.randn(300, 6)
    y = (x[:, 0] - x[:, 1] > 0).long()
    network = torch.nn.Sequential(torch.nn.Linear(6, 2))
    zoo.train(network, (x, y), epochs=150, batch_size=300, lr=0.5, l1=0.02, schedule="cosine", progress=False)
    posterior = whence.laplace(network, (x, y), likelihood="classification", progress=False)
    stays = masks(prune(posterior, threshold=0.02, by="magnitude"))["0.weight_mask"]
    assert stays[:, :2].all() and not stays[:, 2:].any()


def test_nonsense_is_refused() -> None:
    posterior = fitted(mlp())
    for options in ({}, {"fraction": 0.5, "threshold": 0.1}, {"threshold": float("nan")}, {"threshold": "small"}):
        with pytest.raises(BadOption, match="threshold"):
            prune(posterior, **options)
    with pytest.raises(BadOption, match="per_layer"):
        prune(posterior, threshold=0.1, per_layer=True)
    with pytest.raises(NothingSelected, match="no score is above"):
        prune(posterior, threshold=1e9, by="magnitude")
