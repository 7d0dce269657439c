"""Covariances for many priors at once, beside one prior after the other."""

from __future__ import annotations

import copy
import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import whence
from tests.comparison import assert_close
from whence.engine.batches import Data
from whence.linalg.dense import long_product
from whence.linalg.gaussian import BlockGaussian
from whence.linalg.spectral import DiagonalSpectral
from whence.posteriors.laplace.search import ScaleSearch, Search
from whence.posteriors.laplace.validation import projected
from whence.predictive.dispatch import Method
from whence.predictive.lattice_rows import EigenvalueLattice, LatticeRows
from whence.predictive.linearised import differentiate
from whence.predictive.project import project
from whence.predictive.projection import Rows, Unshared, weights_of
from whence.predictive.separable import Lattice, Pairs, Priors, weighted_linear

DELTAS = [10.0**e for e in (-9, -3, 0, 0.37, 2, 5, 9, 1.1, -1.7)]


def spectrum(size: int, power: int, top: float, rank: int, seed: int) -> torch.Tensor:
    values = torch.rand(size, dtype=torch.float64, generator=torch.Generator().manual_seed(seed)).pow(power) * top
    values[rank:] = 0
    return values.sort().values


def weighted_priors(a2: Tensor, g: Tensor, gammas: Tensor, alphas: Tensor, scale: float, **block: Any) -> Tensor:
    return weighted_linear(a2, g, Lattice(gammas, alphas, scale, DELTAS, **block), Pairs(g.device))


@pytest.mark.parametrize("rank", [30, 11, 1, 0])
@pytest.mark.parametrize("scale", [1.0, 300.0])
def test_interpolation_is_exact_to_rounding(rank: int, scale: float) -> None:
    generator = torch.Generator().manual_seed(rank)
    a2 = torch.rand(7, 30, dtype=torch.float64, generator=generator)
    g = torch.randn(7, 4, 300, dtype=torch.float64, generator=generator)
    alphas, gammas = spectrum(30, 8, 50.0, rank, 1), spectrum(300, 12, 1e4, 250, 2)
    found = weighted_priors(a2, g, gammas, alphas, scale)
    for delta, ours in zip(DELTAS, found, strict=True):
        weights = a2 @ (1 / (scale * gammas.unsqueeze(1) * alphas + delta)).mT
        assert_close(ours, (g * weights.unsqueeze(1)) @ g.mT, 1e-7)


def test_pieces_of_the_inputs_agree(set_sizes: Any) -> None:
    a2, g = torch.rand(9, 5, dtype=torch.float64), torch.randn(9, 3, 6, dtype=torch.float64)
    gammas, alphas = spectrum(6, 2, 3.0, 6, 1), spectrum(5, 2, 2.0, 5, 2)
    whole = weighted_priors(a2, g, gammas, alphas, 1.0)
    set_sizes(priors=80)
    assert_close(weighted_priors(a2, g, gammas, alphas, 1.0, block=(2, 4)), whole, 1e-12)


def test_tap_by_tap_is_the_same_as_by_products() -> None:
    a2 = torch.rand(9, 5, dtype=torch.float64)
    gammas, alphas = spectrum(300, 2, 3.0, 280, 1), spectrum(5, 2, 2.0, 4, 2)
    lattice = Lattice(gammas, alphas, 2.0, DELTAS)
    for which in (slice(0, 9), slice(2, 5)):
        table = lattice.table(a2)[which]
        assert_close(lattice._by_taps(table), lattice._by_products(table), 1e-12)
        assert_close(lattice._by_taps(table), lattice.weights(table), 1e-12)
        whole = lattice._interpolation_matrix(lattice.kernel.shape[1])
        assert_close((table @ whole).unflatten(1, lattice.shape), lattice.weights(table), 1e-12)


def test_the_lattice_covers_what_is_asked() -> None:
    lattice = Lattice(torch.tensor([0.0, 1e-30, 5.0]), torch.tensor([0.0, 1.0, 4.0]), 1.0, [1e-12, 1e12])
    assert all(0 <= points.start < points.stop <= lattice.kernel.shape[1] for _, _, points, _ in lattice.blocks)


@pytest.mark.parametrize("prior", [1.0, whence.Prior(weight=2.0, bias=0.3)], ids=["one", "two"])
def test_a_float32_posterior_takes_it(prior: float | whence.Prior) -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(5, 40), nn.Tanh(), nn.Linear(40, 6))
    x, y = torch.randn(60, 5), torch.randint(6, (60,))
    posterior = whence.laplace(model, (x, y), likelihood="classification", prior_precision=prior)
    _, found = projected(posterior, x[:20])
    for (gaussian, _), projection in zip(posterior.gaussians(), found, strict=True):
        assert isinstance(projection, Unshared)
        assert projection.spectrum is not None
        moved = at(gaussian, (-9, -4, -1, 0, 0.5, 3, 8))
        exact = projection.weighted_many(m.weights() for m in moved)
        found = projection.weighted_priors(Priors(moved))
        for ours, wanted in zip(found, exact, strict=True):
            assert_close(ours, wanted, 2e-6)
        assert not torch.equal(found[3], exact[3])  # it was interpolated


def at(gaussian: BlockGaussian, rs: Sequence[float]) -> list[BlockGaussian]:
    return [replace(gaussian, delta=gaussian.delta * math.exp(r)) for r in rs]


@pytest.mark.parametrize("structure", ["kron", "diag", "full", "lowrank", "ekfac"])
@pytest.mark.parametrize("together", [2**40, 2000])
def test_rows_under_many_priors_are_those_under_each(structure: str, together: int, set_sizes: Any) -> None:
    set_sizes(priors=together)
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv2d(2, 3, 3), nn.Tanh(), nn.Flatten(), nn.Linear(27, 4)).double()
    x, y = torch.randn(20, 2, 5, 5, dtype=torch.float64), torch.randint(4, (20,))
    posterior = whence.laplace(model, (x, y), likelihood="classification", structure=structure)
    _, found = projected(posterior, x[:6])
    seen = 0
    for (gaussian, _), projection in zip(posterior.gaussians(), found, strict=True):
        if isinstance(projection, Rows):
            seen += 1
            moved = at(gaussian, (-9, -4, -1, 0, 0.5, 3, 8))
            exact = torch.stack(projection.weighted_many(m.weights() for m in moved))
            assert_close(projection.weighted_priors(Priors(moved)), exact, 1e-10)
    assert seen


@pytest.mark.parametrize("structure", ["kron", "diag", "block", "lowrank", "ekfac"])
@pytest.mark.parametrize("together", [2**40, 2000])
def test_a_lattice_stands_for_rows_in_single_precision(structure: str, together: int, set_sizes: Any) -> None:
    set_sizes(priors=together)
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv2d(2, 3, 3), nn.ReLU(), nn.Conv2d(3, 8, 2), nn.ReLU(), nn.Flatten(), nn.Linear(32, 4))
    with torch.no_grad():
        model[2].weight[3] = 0  # a unit that reaches nothing, and eigenvalues of 0
        model[2].bias[3] = -1
    x, y = torch.randn(30, 2, 5, 5), torch.randint(4, (30,))
    posterior = whence.laplace(model, (x, y), likelihood="classification", structure=structure, rank=5)
    _, found = projected(posterior, x[:6])
    _, grads = differentiate(posterior, x[:6])
    seen = 0
    for (gaussian, blocks), lattice in zip(posterior.gaussians(), found, strict=True):
        if isinstance(lattice, LatticeRows):
            seen += 1
            moved = at(gaussian, (-20, -9, -4, -1, 0, 0.5, 3, 8, 20))
            rows = project(gaussian, blocks, grads, None)
            assert isinstance(rows, Rows)
            exact = rows.weighted_many(map(weights_of, moved))
            by_chunks = replace(lattice, sums=lattice.lattice.chunks.sums(rows.rotated))
            for values, tolerance in ((lattice, 3e-6), (by_chunks, 2e-5)):
                for ours, wanted in zip(values.weighted_priors(Priors(moved)), exact, strict=True):
                    assert_close(ours, wanted, tolerance, tolerance * float(wanted.abs().max()))
    assert seen


@pytest.mark.parametrize("size", [3, 7, 8, 24, 25])
def test_long_sums_in_pieces_are_those_at_once(size: int, set_sizes: Any) -> None:
    a, b = torch.randn(2, 5, 3, size, dtype=torch.float64)
    wanted = a @ b.mT
    set_sizes(reduction=8)
    assert_close(long_product(a, b), wanted, 1e-12, 1e-12)


def test_a_lattice_needs_single_precision_and_no_negative_eigenvalue() -> None:
    values = torch.tensor([0.0, 1.0, 4.0])
    given = [values, values.double(), values - 0.5]
    found = [EigenvalueLattice.applies(BlockGaussian("a", DiagonalSpectral(v), 1.0, 1.0), 3) for v in given]
    assert found == [True, False, False]
    assert not EigenvalueLattice.applies(BlockGaussian("a", DiagonalSpectral(values), 1.0, 1.0), 1_000)


def test_a_prior_that_is_too_small_for_the_curvature_gives_nan_and_no_other_does() -> None:
    torch.manual_seed(0)
    rows = Rows(torch.randn(5, 3, 4))
    gaussian = BlockGaussian("a", DiagonalSpectral(torch.tensor([-1.0, 0.0, 2.0, 3.0])), 1.5, 1.0)
    found = rows.weighted_priors(Priors([replace(gaussian, delta=d) for d in (0.1, 0.5, 1.5, 2.0, 3.0, 4.0)]))
    assert found[:2].isnan().all()
    assert found[2:].isfinite().all()


def test_scores_in_single_and_double_precision_agree() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(5, 40), nn.Tanh(), nn.Linear(40, 6))
    x, y = torch.randn(300, 5), torch.randint(6, (300,))
    data, validation = (x[:200], y[:200]), (x[200:], y[200:])
    found = []
    for network in (model, copy.deepcopy(model).double()):
        posterior = whence.laplace(network, data, likelihood="classification")
        loader = Data(validation, posterior.network.device, posterior.network.dtype)
        search = Search(posterior, loader, Method.LINEARISED, ScaleSearch.FIXED, None, None, None, False)
        search._score(posterior, {0.5 * k: [0.0] for k in range(-16, 17)})
        found.append(search.scores)
    assert found[0] == pytest.approx(found[1], rel=1e-4)
