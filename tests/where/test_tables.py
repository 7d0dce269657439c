"""The tables beside the shares, against slow twins and known cases."""

from __future__ import annotations

import itertools
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import whence
from tests.comparison import assert_close, fitted
from tests.reference.networks import ALL
from whence.errors import BadOption, TooLarge
from whence.where.activations import activations
from whence.where.curvature import curvature_maps, slices, spectra, spectrum
from whence.where.one_pass import shares
from whence.where.weights import average_ranks, cliffs_delta, differences, kruskal, magnitude, spearman


def small(structure: str = "kron", n: int = 60) -> tuple[whence.Laplace, Tensor, Tensor]:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(3, 5), nn.Tanh(), nn.Linear(5, 2)).double()
    x, y = torch.randn(n, 3).double(), torch.randint(2, (n,))
    return whence.laplace(model, (x, y), likelihood="classification", structure=structure, progress=False), x, y


def test_ranks_of_ties_are_their_mean() -> None:
    assert average_ranks(torch.tensor([3.0, 1.0, 3.0, 2.0])).tolist() == [3.5, 1.0, 3.5, 2.0]


def test_rank_statistics_against_their_definitions() -> None:
    generator = torch.Generator().manual_seed(1)
    x = torch.randint(6, (30,), generator=generator).double()
    y = torch.randint(8, (25,), generator=generator).double()
    signs = [float(a > b) - float(a < b) for a, b in itertools.product(x.tolist(), y.tolist())]
    assert cliffs_delta(x, y) == pytest.approx(sum(signs) / len(signs))
    stats = pytest.importorskip("scipy.stats")
    assert spearman(x, x[torch.arange(29, -1, -1)]) == pytest.approx(stats.spearmanr(x, x.flip(0)).statistic, rel=1e-12)
    h, effect = kruskal([x, y, y + 1])
    assert h == pytest.approx(stats.kruskal(x, y, y + 1).statistic)
    assert effect == pytest.approx((h - 2) / (80 - 3))
    assert kruskal([torch.ones(4), torch.ones(5)]) == (0.0, 0.0)


def test_units_take_one_more_pass_when_first_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    posterior, x, _ = small()
    passes: list[bool] = []

    def counted(*given: Any, units: bool = False) -> Any:
        passes.append(units)
        return shares(*given, units=units)

    monkeypatch.setattr("whence.where.where.shares", counted)
    where = posterior.where(x)
    assert passes == [False]
    total = sum(float(where.units(name)["variance_share"].sum()) for name in ("0", "2"))
    assert total == pytest.approx(1, abs=1e-12) and where.residual < 1e-12
    assert passes == [False, True]


def test_layers_that_differ_are_told() -> None:
    """With one prior for each layer and no data to speak of, standard deviations are those of the priors."""
    posterior, _, _ = small("diag")
    apart = posterior.with_data_scale(1e-12).with_prior({"0": 1.0, "2": 100.0})
    found = differences(apart.with_data_scale(1e-12))
    (row,) = found.between.rows()
    assert row["delta"] == pytest.approx(1.0) and row["first_median"] == pytest.approx(1.0, rel=1e-3)
    assert found.overall > 0.5 and "strongly" in str(found)
    same = differences(posterior.with_prior(3.0).with_data_scale(1e-30), of="std")
    assert abs(next(iter(same.between.rows()))["delta"]) < 0.05 or same.overall < 0.05


def test_a_dead_unit_is_a_difference_inside_its_layer() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(40, 4), nn.Tanh(), nn.Linear(4, 3)).double()
    with torch.no_grad():
        model[2].weight[:, :2] = 0
    x, y = torch.randn(300, 40).double(), torch.randint(3, (300,))
    posterior = whence.laplace(
        model, (x, y), likelihood="classification", structure="diag", prior_precision=1.0, progress=False
    )
    inside = {row["name"]: row for row in posterior.where().differences.inside.rows()}
    assert inside["0"]["epsilon_squared"] > 0.5 and inside["0"]["units"] == 4


def test_magnitude_is_spearmans_rho_by_layer_and_overall() -> None:
    stats = pytest.importorskip("scipy.stats")
    posterior, _, _ = small()
    rows = {row["name"]: row for row in magnitude(posterior).rows()}
    assert list(rows) == ["0", "2", "all layers"]
    where = posterior.where().weights("0")
    wanted = stats.spearmanr(where["weight"].abs(), where["std"]).statistic
    assert rows["0"]["rho_std"] == pytest.approx(wanted)
    wanted = stats.spearmanr(where["weight"].abs(), where["identified"]).statistic
    assert rows["0"]["rho_identified"] == pytest.approx(wanted)
    one = magnitude(posterior.with_prior(1.0))
    assert one["rho_identified"][0] == pytest.approx(-one["rho_std"][0]), "one prior: identified falls as std rises"


@pytest.mark.parametrize("structure", ["kron", "full", "block", "diag", "lowrank", "ekfac"])
def test_the_spectrum_adds_up_to_the_effective_parameters(structure: str) -> None:
    posterior, _, _ = small(structure)
    gamma = sum(float(g.effective_parameters()) for g, _ in posterior.gaussians())
    assert float(torch.as_tensor(posterior.where().spectrum["determined"]).sum()) == pytest.approx(gamma)
    first = spectrum(posterior, posterior.blocks[0].name)
    assert bool((first["curvature"].diff() <= 0).all())


def test_long_spectra_are_thinned() -> None:
    torch.manual_seed(0)
    model = nn.Linear(80, 20)
    posterior = whence.laplace(model, (torch.randn(9, 80), torch.randint(20, (9,))), likelihood="classification")
    table = spectra(posterior)
    assert 100 < len(table) < 600 and table["rank"][-1] == 81 * 20


def test_maps_multiply_back_to_the_curvature() -> None:
    posterior = small()[0].with_prior(1.0)
    maps = curvature_maps(posterior, "0")
    block = torch.kron(maps["G"][0], maps["A"][0])
    wanted = torch.linalg.inv(posterior.covariance()[:20, :20]) - torch.eye(20, dtype=torch.float64)
    order = torch.cat([torch.arange(15).reshape(5, 3), torch.arange(15, 20).unsqueeze(1)], 1).flatten()
    assert_close(block, wanted[order][:, order], 1e-8)
    dense = small("block")[0].with_prior(1.0)
    assert_close(
        curvature_maps(dense, "0")["H"], torch.linalg.inv(dense.covariance()[:20, :20]) - torch.eye(20).double()
    )
    data = torch.randn(3, 70), torch.randint(60, (3,))
    big = whence.laplace(nn.Linear(70, 60), data, likelihood="classification", structure="lowrank", rank=2)
    with pytest.raises(TooLarge, match="4,096"):
        curvature_maps(big, big.blocks[0].name)


def test_activations_spread_as_the_weights_do() -> None:
    """A linear layer alone: the spread of its output is √(xᵀ Σ x), here by many draws."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(3, 2)).double()
    x = torch.randn(40, 3).double()
    posterior = whence.laplace(model, (x, torch.randint(2, (40,))), likelihood="classification", progress=False)
    table = activations(posterior, x, 4000, torch.Generator().manual_seed(0))
    wanted = posterior.predict(x).logit_cov.diagonal(dim1=1, dim2=2).mean().sqrt()
    (row,) = table.rows()
    assert row["spread"] == pytest.approx(float(wanted), rel=0.03)
    assert row["ratio"] == pytest.approx(row["spread"] / row["over_inputs"])
    assert not model[0]._forward_hooks and not posterior.network.module[0]._forward_hooks
    with pytest.raises(BadOption, match="two draws"):
        activations(posterior, x, 1)


def test_activations_of_every_layer_once_and_the_same_each_time() -> None:
    case = ALL["conv2d"](0)
    where = fitted(case).where(case.x)
    assert where.activations.to_dict() == fitted(case).where(case.x).activations.to_dict()
    assert {b.name for b in where.posterior.blocks} >= set(where.activations["name"])


@pytest.mark.parametrize("structure", ["kron", "diag", "block", "full", "lowrank"])
def test_slices_of_a_linear_gaussian_model_are_gaussian(structure: str) -> None:
    """One linear layer with squared loss, at weights that are no minimum: less its slope, every slice is quadratic."""
    torch.manual_seed(0)
    x = torch.randn(50, 3).double()
    y = x @ torch.randn(3, 1).double() + 0.3 * torch.randn(50, 1).double()
    model = nn.Linear(3, 1, bias=False).double()
    noise, delta = 0.3, 2.0
    posterior = whence.laplace(
        model, (x, y), likelihood=whence.Gaussian(noise), structure=structure, prior_precision=delta, rank=3
    )
    rows = list(slices(posterior, (x, y)).rows())
    residual = (model(x) - y).detach()
    gradient = (x * residual).sum(0) / noise**2
    assert max(abs(row["slope"]) for row in rows) <= float(gradient.norm()) / delta**0.5 + 1e-9
    assert any(abs(row["slope"]) > 1e-3 for row in rows)
    if structure == "diag":  # not exact, but its own axes are axes of the quadratic
        rows = [row for row in rows if row["direction"] != "random"]
    for row in rows:
        assert row["loss"] == pytest.approx(row["gaussian"], rel=1e-6, abs=1e-8)
        if row["direction"] == "largest":
            wanted = 0.5 * row["step"] ** 2 * row["curvature"] / (row["curvature"] + delta)
            assert row["gaussian"] == pytest.approx(wanted, rel=1e-6)
    assert {row["direction"] for row in rows} >= {"largest", "smallest"}
    curvatures = {row["direction"]: row["curvature"] for row in rows}
    assert curvatures["largest"] >= curvatures["smallest"]


def test_slices_refuse_what_cannot_be_read_twice() -> None:
    posterior, x, y = small()
    with pytest.raises(whence.errors.BadData, match="one-shot"):
        slices(posterior, iter([(x, y)]))
    with pytest.raises(BadOption, match="steps"):
        slices(posterior, (x, y), steps=())
