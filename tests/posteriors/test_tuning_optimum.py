"""Tuning finds the optimum of what it optimises, and says where there is nothing to find."""

from __future__ import annotations

import functools
import itertools
import math
import warnings
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import whence
from tests.comparison import assert_close
from tests.covering import covering
from whence.curvature import lowrank
from whence.errors import Notice
from whence.posteriors.laplace.search import DECADE, ScaleSearch, Search
from whence.predictive.dispatch import Method

PRIORS = [1.0, whence.Relative()]


@functools.cache
def regression(seed: int = 0, count: int = 60) -> tuple[nn.Module, tuple[Tensor, Tensor]]:
    """A tanh network with many more weights than targets."""
    torch.manual_seed(seed)
    x = torch.randn(count, 2, dtype=torch.float64)
    y = x[:, :1].sin() + 0.3 * torch.randn(count, 1, dtype=torch.float64)
    model = nn.Sequential(nn.Linear(2, 50), nn.Tanh(), nn.Linear(50, 50), nn.Tanh(), nn.Linear(50, 1)).double()
    optimiser = torch.optim.Adam(model.parameters(), lr=1e-2)
    for _ in range(300):
        optimiser.zero_grad()
        nn.functional.mse_loss(model(x), y).backward()
        optimiser.step()
    return model, (x, y)


def fit(model: nn.Module, data: Any, likelihood: Any, **options: Any) -> whence.Laplace:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", Notice)
        return whence.laplace(model, data, likelihood=likelihood, progress=False, **options)


@pytest.mark.parametrize("prior", PRIORS, ids=["isotropic", "relative"])
@pytest.mark.parametrize("curvature", ["ggn", "empirical"])
@pytest.mark.parametrize("structure", ["diag", "kron"])
def test_prior_and_noise_by_evidence(structure: str, curvature: str, prior: Any) -> None:
    """No point of a grid over both is better, also where the effective parameters outnumber the targets."""
    model, data = regression()
    posterior = fit(model, data, "regression", structure=structure, curvature=curvature, prior_precision=prior)
    tuned = posterior.tune()
    best = float(tuned.log_evidence())
    assert best >= float(posterior.log_evidence())
    assert best == pytest.approx(tuned.tuning.score)
    assert best >= max(-t.score for t in tuned.tuning.trials) - 1e-9
    for factor, noise in itertools.product(torch.logspace(-3, 3, 13).tolist(), torch.logspace(-1.3, 1.3, 14).tolist()):
        moved = posterior.prior.scaled_by(dict.fromkeys(posterior.names(), factor))
        other = replace(posterior.under(moved), likelihood=whence.Gaussian(noise))
        assert float(other.log_evidence()) <= best + 1e-6


def test_the_noise_is_at_a_root_of_its_derivative() -> None:
    model, data = regression()
    for curvature, power in (("ggn", 1), ("empirical", 2)):
        tuned = fit(model, data, "regression", structure="diag", curvature=curvature).tune()
        gamma = sum(float(g.effective_parameters()) for g, _ in tuned.gaussians())
        record, noise = tuned.record, float(tuned.likelihood.noise)
        assert record.squares / noise**2 - record.targets + power * gamma == pytest.approx(0, abs=1e-3 * record.targets)


@functools.cache
def overfitted(seed: int, widths: tuple[int, ...], count: int, steps: int) -> tuple[nn.Module, Any, Any]:
    generator = torch.Generator().manual_seed(seed)
    centres = 1.2 * torch.randn(3, 4, generator=generator)
    y = torch.arange(count + 180) % 3
    x = centres[y] + torch.randn(count + 180, 4, generator=generator)
    torch.manual_seed(seed)
    layers: list[nn.Module] = []
    for wide, width in itertools.pairwise((4, *widths)):
        layers += [nn.Linear(wide, width), nn.ReLU()]
    model = nn.Sequential(*layers, nn.Linear(widths[-1], 3))
    optimiser = torch.optim.Adam(model.parameters(), lr=1e-2)
    for _ in range(steps):
        optimiser.zero_grad()
        nn.functional.cross_entropy(model(x[:count]), y[:count]).backward()
        optimiser.step()
    return model, (x[:count], y[:count]), (x[count:], y[count:])


CASES = [(0, (20,), 60, 200), (1, (40, 40), 100, 200), (2, (30, 30), 40, 400), (4, (20, 20, 20), 200, 250)]


@pytest.mark.parametrize(("case", "structure", "prior"), covering(CASES, ["kron", "diag"], PRIORS))
def test_prior_and_data_scale_by_validation_data(case: Any, structure: str, prior: Any) -> None:
    """As good as the best point of a plain grid, in steps of 0.2 decades of δ / s and half a decade of s."""
    model, train, validation = overfitted(*case)
    posterior = fit(model, train, "classification", structure=structure, prior_precision=prior)
    free, fixed = (posterior.tune(validation, data_scale=s, progress=False).tuning.score for s in (True, False))
    data = posterior.network.read(validation)
    grid = Search(posterior, data, Method.LINEARISED, ScaleSearch.BEST, None, None, None, False)
    steps = [0.5 * k * DECADE for k in range(-8, 9)]
    grid._score(posterior, {0.2 * k * DECADE: steps for k in range(-30, 31)})
    assert free <= min(grid.scores.values()) + 0.003
    assert fixed <= min(v for (_, s), v in grid.scores.items() if s == 0) + 0.001
    assert free <= fixed + 1e-9


def test_low_rank_where_the_spectrum_is_flat() -> None:
    """The leading eigenpairs of a curvature whose eigenvalues hardly fall."""
    torch.manual_seed(0)
    model = nn.Linear(30, 6).double()
    x = torch.linalg.qr(torch.randn(200, 30, dtype=torch.float64))[0] * 10
    y = torch.randint(6, (200,))
    with torch.no_grad():
        model.weight.mul_(0.01)
    full, low = (
        fit(model, (x, y), "classification", structure=s, rank=40, prior_precision=1.0) for s in ("full", "lowrank")
    )
    values, vectors = torch.linalg.eigh(torch.linalg.inv(full.covariance()) - torch.eye(186, dtype=torch.float64))
    assert float(values[-40] / values[-1]) > 0.4
    assert_close(low.curvature.structures[0].values, values.flip(0)[:40], 1e-6)
    top = vectors[:, -40:]
    wanted = torch.linalg.inv(top @ torch.diag(values[-40:]) @ top.mT + torch.eye(186, dtype=torch.float64))
    jac = torch.func.vmap(torch.func.jacrev(lambda p, one: torch.func.functional_call(model, p, one)), (None, 0))
    parts = jac({n: p.detach() for n, p in model.named_parameters()}, x[:10])
    rows = torch.cat([parts["weight"].flatten(2), parts["bias"]], 2)
    assert_close(low.predict(x[:10]).logit_cov, rows @ wanted @ rows.mT, 1e-4)


def test_low_rank_that_does_not_converge_says_how_far_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lowrank, "compute", functools.partial(lowrank.compute, passes=2))
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(30, 20), nn.Tanh(), nn.Linear(20, 3))
    data = torch.randn(300, 30), torch.randint(3, (300,))
    with pytest.warns(Notice, match=r"\d+ of the leading 20 eigenpairs have converged after 2 passes"):
        whence.laplace(model, data, likelihood="classification", structure="lowrank", rank=20, progress=False)


# What is said


def test_an_untuned_isotropic_prior_that_drowns_the_network_is_said() -> None:
    model, train, validation = overfitted(1, (40, 40), 100, 200)
    posterior = fit(model, train, "classification", prior_precision=1e-3)
    with pytest.warns(Notice, match=r"not tuned, and its prior precision 0.001 makes the network underconfident"):
        posterior.predict(validation[0])
    for quiet in (fit(model, train, "classification", prior_precision=1e5), posterior.tune(validation, progress=False)):
        with warnings.catch_warnings():
            warnings.simplefilter("error", Notice)
            quiet.predict(validation[0])


@pytest.mark.parametrize("method", ["linearised", "sampled"])
def test_tuning_that_leaves_the_plain_network_is_said(method: str) -> None:
    """Validation data on which a network that is too careful is always right want no uncertainty at all."""
    torch.manual_seed(0)
    x = torch.randn(200, 2)
    y = (x[:, 0] > 0).long()
    model = nn.Linear(2, 2)
    with torch.no_grad():
        model.weight.copy_(torch.tensor([[-0.3, 0.0], [0.3, 0.0]]))
        model.bias.zero_()
    posterior = fit(model, (x, y), "classification")
    x = x + torch.sign(x)
    options = {"generator": torch.Generator().manual_seed(0)} if method == "sampled" else {}
    with pytest.warns(Notice, match="very strong prior .*: the posterior predicts the same as the network alone"):
        tuned = posterior.tune((x, (x[:, 0] > 0).long()), method=method, data_scale=False, progress=False, **options)
    assert math.isfinite(tuned.tuning.score)
