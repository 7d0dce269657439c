"""Gram matrices of long rows. The kernels run on a GPU (tests/test_on_gpu.py); here stand-ins are used."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

import whence
from tests.comparison import assert_close
from whence.linalg import gram_kernel
from whence.linalg.gram_kernel import Chunks, chunk_grams, two_diagonals, weighted_gram
from whence.where.one_pass import shares


def slow_launch(rows: Tensor, weights: Tensor, index: Tensor | None = None) -> Tensor:
    """What the kernel gives, entry by entry."""
    chunks = torch.arange(rows.shape[-1]).split(5) if index is None else [row[row >= 0].long() for row in index]
    found = rows.new_zeros(len(rows), len(chunks), 2, rows.shape[1], rows.shape[1])
    for m, own in enumerate(chunks):
        for place, p in enumerate(own):
            w = weights[p] if index is None else weights[m, place]
            for n, row in enumerate(rows):
                outer = torch.outer(row[:, p], row[:, p])
                found[n, m, 0] += w * outer
                found[n, m, 1] += outer
    return found[:, :, 0] if index is None else found


def slow_diagonals(rows: Tensor, weights: Tensor, others: Tensor | None, centred: bool) -> Tensor:
    """What the kernel of diagonals gives, in one chunk."""
    found = rows.new_zeros(len(rows), 1, 2, rows.shape[1])
    for n, row in enumerate(rows):
        for k, values in enumerate(row):
            for p, value in enumerate(values):
                square = (value - (row[:, p].sum() / len(row) if centred else 0)) ** 2
                found[n, 0, 0, k] += weights[p] * square
                found[n, 0, 1, k] += square if others is None else others[p] * square
    return found


@pytest.fixture
def by_kernel(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The stand-ins are used wherever the kernels would be; how long the rows were that they saw."""
    seen: list[int] = []

    def noting(slow: Any) -> Any:
        def launch(rows: Tensor, *rest: Any) -> Tensor:
            seen.append(rows.shape[-1])
            found: Tensor = slow(rows, *rest)
            return found

        return launch

    monkeypatch.setattr(gram_kernel, "applies", lambda rows: not rows.requires_grad)
    monkeypatch.setattr(gram_kernel, "launch", noting(slow_launch))
    monkeypatch.setattr(gram_kernel, "launch_diagonals", noting(slow_diagonals))
    return seen


def test_products_without_the_kernel() -> None:
    rows, weights = torch.randn(3, 4, 13).double(), torch.rand(13).double()
    assert_close(weighted_gram(rows, weights), slow_launch(rows, weights).sum(1), 1e-12)


@pytest.mark.parametrize("centred", [False, True])
@pytest.mark.parametrize("others", [None, torch.rand(13).double()], ids=["alone", "weighted"])
def test_diagonals_without_the_kernel(centred: bool, others: Tensor | None) -> None:
    rows, weights = torch.randn(3, 4, 13).double(), torch.rand(13).double()
    wanted = slow_diagonals(rows, weights, others, centred)[:, 0].unbind(1)
    for found, one in zip(two_diagonals(rows, weights, others, centred), wanted, strict=True):
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
