"""Gram matrices of long rows. The kernel itself runs on a GPU (tests/test_on_gpu.py); here a stand-in is used."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

import whence
from tests.comparison import assert_close
from whence.linalg import gram_kernel
from whence.linalg.gram_kernel import Chunks, chunk_grams, two_grams, weighted_gram
from whence.where.one_pass import shares


def slow_launch(rows: Tensor, weights: Tensor, index: Tensor | None = None, plain: bool = True) -> Tensor:
    """What the kernel gives, entry by entry."""
    chunks = torch.arange(rows.shape[-1]).split(5) if index is None else [row[row >= 0].long() for row in index]
    found = rows.new_zeros(len(rows), len(chunks), 2 if plain else 1, rows.shape[1], rows.shape[1])
    for m, own in enumerate(chunks):
        for place, p in enumerate(own):
            w = weights[p] if index is None else weights[m, place]
            for n, row in enumerate(rows):
                outer = torch.outer(row[:, p], row[:, p])
                found[n, m, 0] += w * outer
                if plain:
                    found[n, m, 1] += outer
    return found


@pytest.fixture
def by_kernel(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The stand-in is used wherever the kernel would be; how long the rows were that it saw."""
    seen: list[int] = []

    def launch(rows: Tensor, *rest: Any, **options: Any) -> Tensor:
        seen.append(rows.shape[-1])
        return slow_launch(rows, *rest, **options)

    monkeypatch.setattr(gram_kernel, "applies", lambda rows: not rows.requires_grad)
    monkeypatch.setattr(gram_kernel, "launch", launch)
    return seen


def test_products_without_the_kernel() -> None:
    rows, weights = torch.randn(3, 4, 13).double(), torch.rand(13).double()
    wanted = slow_launch(rows, weights).sum(1)
    assert_close(weighted_gram(rows, weights), wanted[:, 0], 1e-12)
    for found, one in zip(two_grams(rows, weights), wanted.unbind(1), strict=True):
        assert_close(found, one, 1e-12)


def test_chunks_without_the_kernel() -> None:
    rows, index = torch.randn(3, 4, 13).double(), torch.randperm(13)[:12].int().reshape(3, 4)
    index[1, 2:] = -1
    chunks = Chunks(index, torch.rand(3, 4).double())
    for found, wanted in zip(
        chunk_grams(rows, chunks), slow_launch(rows, chunks.weights, index).unbind(2), strict=True
    ):
        assert_close(found, wanted, 1e-12)


def network() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Conv2d(2, 3, 3, padding=1), nn.ReLU(), nn.Conv2d(3, 4, 4), nn.Tanh(), nn.Flatten(), nn.Linear(16, 3)
    ).double()  # fmt: skip


X = torch.randn(9, 2, 5, 5, generator=torch.Generator().manual_seed(1)).double()


@pytest.mark.parametrize("structure", ["kron", "diag", "block", "ekfac", "lowrank"])
@pytest.mark.parametrize("likelihood", ["classification", "gaussian"])
def test_predictions_and_shares_by_the_kernel(structure: Any, likelihood: str, request: pytest.FixtureRequest) -> None:
    y = torch.arange(9) % 3 if likelihood == "classification" else torch.randn(9, 3).double()
    given: Any = likelihood if likelihood == "classification" else whence.Gaussian(noise=0.5)
    options: dict[str, Any] = {"likelihood": given, "structure": structure, "curvature": "ggn", "progress": False}
    posterior = whence.laplace(network(), (X, y), **options, **({"rank": 5} if structure == "lowrank" else {}))

    def answers() -> list[Tensor]:
        prediction: Any = posterior.predict(X[:4])
        covariance = prediction.logit_cov if likelihood == "classification" else prediction.epistemic
        found = shares(posterior, X[:4], units=True)
        by_unit = [part for units in found.units.values() for part in (units.variance, units.prior)]
        return [covariance, found.variance, found.prior, *by_unit]

    wanted = answers()
    seen = request.getfixturevalue("by_kernel")
    for ours, other in zip(answers(), wanted, strict=True):
        assert_close(ours, other, 1e-9, 1e-14)
    assert seen


def test_tuning_by_the_kernel(request: pytest.FixtureRequest) -> None:
    y = torch.arange(9) % 3
    posterior = whence.laplace(network().float(), (X.float(), y), likelihood="classification", progress=False)
    wanted = posterior.tune((X.float(), y), progress=False)
    seen = request.getfixturevalue("by_kernel")
    found = posterior.tune((X.float(), y), progress=False)
    assert seen
    assert found.tuning is not None and wanted.tuning is not None
    assert found.tuning.score == pytest.approx(wanted.tuning.score, rel=1e-4)
