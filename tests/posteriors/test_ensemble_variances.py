"""Variances of weighted mixtures are exact."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from whence.errors import NotDefined
from whence.posteriors.ensembles import ensemble, laplace_ensemble
from whence.posteriors.laplace.front import laplace


def small(out: int = 3) -> nn.Sequential:
    return nn.Sequential(nn.Linear(4, 6), nn.Tanh(), nn.Linear(6, out)).double()


def labelled(size: int = 48) -> tuple[Tensor, Tensor]:
    x = torch.randn(size, 4, dtype=torch.float64, generator=torch.Generator().manual_seed(5))
    return x, (x[:, 0] > 0).long() + (x[:, 1] > 0.5).long()


WEIGHTS = [0.123456789, 0.5, 0.0031, 0.37]


@pytest.mark.parametrize("kind", ["classification", "binary"])
def test_the_variances_of_a_weighted_ensemble_are_exact(kind: str) -> None:
    torch.manual_seed(0)
    models, x = [small() for _ in WEIGHTS], 3 * torch.randn(7, 4, dtype=torch.float64)
    prediction = ensemble(models, likelihood=kind, weights=WEIGHTS).predict(x)
    w = torch.tensor(WEIGHTS, dtype=torch.float64)
    w = (w / w.sum()).reshape(-1, 1, 1)
    outputs = torch.stack([m(x) for m in models]).detach()
    probs = outputs.softmax(-1) if kind == "classification" else outputs.sigmoid()
    mean = (w * probs).sum(0)
    total, aleatoric, epistemic = prediction.variance_split()
    torch.testing.assert_close(total, prediction.probs * (1 - prediction.probs), rtol=0, atol=1e-12)
    torch.testing.assert_close(aleatoric, (w * probs * (1 - probs)).sum(0), rtol=0, atol=1e-12)
    torch.testing.assert_close(epistemic, (w * (probs - mean).square()).sum(0), rtol=0, atol=1e-12)
    torch.testing.assert_close(total, aleatoric + epistemic, rtol=0, atol=1e-12)
    if kind == "binary":
        with pytest.raises(NotDefined):
            prediction.variance_split(full=True)
        return
    full = prediction.variance_split(full=True)
    torch.testing.assert_close(full.total, full.aleatoric + full.epistemic, rtol=0, atol=1e-12)
    for matrix, diagonal in zip(full, (total, aleatoric, epistemic), strict=True):
        torch.testing.assert_close(matrix.diagonal(dim1=1, dim2=2), diagonal, rtol=0, atol=1e-12)


def test_and_those_of_a_weighted_laplace_ensemble() -> None:
    torch.manual_seed(0)
    x, y = labelled()
    mixed = laplace_ensemble([small(), small()], (x, y), likelihood="classification", weights="equal")
    mixed = mixed.with_weights([0.123457, 0.876543])
    prediction = mixed.predict(x[:5], num_samples=30, generator=torch.Generator().manual_seed(0))
    total, aleatoric, epistemic = prediction.variance_split()
    torch.testing.assert_close(total, prediction.probs * (1 - prediction.probs), rtol=0, atol=1e-6)
    torch.testing.assert_close(total, aleatoric + epistemic, rtol=0, atol=1e-6)
    assert bool((epistemic > 0).all())
    with pytest.raises(NotDefined):
        mixed.predict(x[:5], link="probit").variance_split()
    alone = laplace(small(), (x, y), likelihood="classification").predict(x[:5])
    assert type(alone) is type(prediction)  # metrics hold them against each other
