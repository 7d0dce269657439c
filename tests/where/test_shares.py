"""Shares against brute force: J_b Σ_b J_bᵀ by block, J_u (Σ Jᵀ)_u by unit, in float64."""

from __future__ import annotations

import copy
import warnings
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import whence
from tests.comparison import assert_close, bayesian, fitted, output_hessian
from tests.covering import covering
from tests.reference import curvature as slow
from tests.reference.cases import Case
from tests.reference.networks import ALL
from whence import zoo
from whence.errors import BadData, BadOption, NotDefined
from whence.predictive.linearised import differentiate
from whence.predictive.project import project
from whence.predictive.projection import Rows
from whence.recording.units import units_of
from whence.where.connections import connection_shares, connections_of
from whence.where.weights import identified_of

STRUCTURES = ["kron", "ekfac", "diag", "block", "full", "lowrank"]


def centred(jac: Tensor, posterior: whence.Laplace) -> Tensor:
    return jac - jac.mean(1, keepdim=True) if posterior.likelihood.task == "classification" else jac


def weight_places(posterior: whence.Laplace) -> dict[str, Tensor]:
    """Where each block's weights stand in the order of parameters_to_vector, in the block's own order."""
    starts, at = {}, 0
    for name in posterior.names():
        starts[name] = at
        at += posterior.network.params[name].numel()
    return {
        b.name: torch.cat([torch.arange(starts[p.name], starts[p.name] + p.numel) for p in b.params])
        for b in posterior.blocks
    }


def by_weight(posterior: whence.Laplace, case: Case) -> Tensor:
    """Σ_k J_p (Σ Jᵀ)_p of every input and weight, [N, P]."""
    jac = centred(slow.jacobian(case.model, bayesian(case), case.x), posterior)  # [N, C, P]
    return (jac * (jac @ posterior.covariance())).sum(1)


@pytest.mark.parametrize(
    ("name", "structure"), covering(list(ALL), STRUCTURES, always=lambda name, structure: structure == "kron")
)
def test_blocks_and_units_are_those_of_brute_force(name: str, structure: str) -> None:
    case = ALL[name](1)
    posterior = fitted(case, structure=structure, rank=6)
    if len(posterior.record.output_shape) != 1:
        with pytest.raises(NotDefined):
            posterior.where(case.x)
        return
    where = posterior.where(case.x)
    wanted = by_weight(posterior, case)
    places = weight_places(posterior)
    total = float(wanted.sum())
    for index, block in enumerate(posterior.blocks):
        own = wanted[:, places[block.name]]
        assert_close(where.shares.variance[:, index], own.sum(1), 1e-8, 1e-10 * total)
        units = units_of(posterior.network, block)
        expected = torch.zeros(units.count, dtype=torch.float64).index_add(0, units.of_weight, own.sum(0))
        assert_close(torch.as_tensor(where.units(block.name)["variance_share"]) * total, expected, 1e-8, 1e-10 * total)
    assert where.residual < 1e-9
    assert sum(row.variance_share for row in where.layers) == pytest.approx(1, abs=1e-9)
    assert sum(row.prior_share for row in where.layers) == pytest.approx(1, abs=1e-9)


@pytest.mark.parametrize(
    ("structure", "prior"),
    [(s, p) for s in ("kron", "ekfac") for p in (0.7, whence.Relative(2.0))]
    + [("kron", whence.Prior(weight=2.0, bias=0.1))],
)
@pytest.mark.parametrize("groups", [1, 2])
def test_units_from_few_positions_are_those_of_brute_force(structure: str, prior: Any, groups: int) -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv2d(2, 24, 3, groups=groups), nn.ReLU(), nn.Flatten(), nn.Linear(96, 3)).double()
    case = Case(model, torch.randn(9, 2, 4, 4).double(), torch.randint(3, (9,)), "classification")
    posterior = whence.laplace(
        model, (case.x, case.y), likelihood="classification", structure=structure, prior_precision=prior, progress=False
    )
    gaussian, blocks = next(iter(posterior.gaussians()))
    projection = project(gaussian, blocks, differentiate(posterior, case.x)[1], None)
    assert isinstance(projection, Rows) and projection.few is not None, "this path"
    table, own = posterior.where(case.x).units("0"), by_weight(posterior, case)[:, weight_places(posterior)["0"]]
    units = units_of(posterior.network, posterior.blocks[0])
    total = float(by_weight(posterior, case).sum())
    expected = torch.zeros(units.count, dtype=torch.float64).index_add(0, units.of_weight, own.sum(0))
    assert_close(torch.as_tensor(table["variance_share"]) * total, expected, 1e-8, 1e-10 * total)
    jac = centred(slow.jacobian(model, bayesian(case), case.x), posterior)
    variances = torch.cat([v.flatten() for v in posterior.prior_variance().values()])
    alone = (jac.square() * variances).sum((0, 1))
    prior_units = torch.zeros(units.count, dtype=torch.float64).index_add(
        0, units.of_weight, alone[weight_places(posterior)["0"]]
    )
    assert_close(torch.as_tensor(table["prior_share"]) * float(alone.sum()), prior_units, 1e-8)


FITS: list[tuple[str, float | whence.Prior]] = [(s, 0.7) for s in ("kron", "ekfac", "diag", "full")]
FITS.append(("kron", whence.Prior(weight=2.0, bias=0.1)))


@pytest.mark.parametrize(("name", "fit"), covering(list(ALL), FITS, always=lambda name, fit: fit == FITS[0]))
def test_connections_are_those_of_brute_force(name: str, fit: tuple[str, float | whence.Prior]) -> None:
    case, (structure, prior) = ALL[name](1), fit
    posterior = fitted(case, structure=structure, prior_precision=prior)
    if len(posterior.record.output_shape) != 1:
        return
    wanted, places = by_weight(posterior, case).sum(0), weight_places(posterior)
    for step in (1, 2):
        chosen = {b.name: list(range(0, units_of(posterior.network, b).count, step)) for b in posterior.blocks}
        found = connection_shares(posterior, case.x, chosen)
        for block in posterior.blocks:
            units = units_of(posterior.network, block)
            index = connections_of(block, units)
            if index is None:
                assert block.name not in found
                continue
            cell = units.of_weight * index.count + index.of_weight
            expected = torch.zeros(units.count * index.count, dtype=torch.float64)
            expected = expected.index_add(0, cell, wanted[places[block.name]]).reshape(units.count, -1)[
                chosen[block.name]
            ]
            assert_close(found[block.name].variance, expected, 1e-8, 1e-10 * float(wanted.sum()))


def test_a_connection_is_a_kernel_or_a_weight_or_the_bias() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv2d(2, 3, 3), nn.ReLU(), nn.Flatten(), nn.Linear(12, 3)).double()
    x, y = torch.randn(20, 2, 4, 4).double(), torch.randint(3, (20,))
    where = whence.laplace(model, (x, y), likelihood="classification", progress=False).where(x)
    table = where.connections("0", [1, 2])
    assert list(table["connection"]) == ["channel 0", "channel 1", "bias"] * 2
    assert table["unit"].tolist() == [1] * 3 + [2] * 3
    for unit in (1, 2):
        mine = table["variance_share"][table["unit"] == unit].sum()
        assert float(mine) == pytest.approx(float(where.units("0")["variance_share"][unit]), rel=1e-9)
    assert where.connections("3")["connection"][:13] == [f"input {i}" for i in range(12)] + ["bias"]
    with pytest.raises(BadOption, match=r"0\.\.2"):
        where.connections("0", [3])


@pytest.mark.parametrize("structure", ["kron", "diag", "full"])
@pytest.mark.parametrize("prior", [0.7, whence.Prior(weight=2.0, bias=0.1)], ids=["one", "bias"])
def test_prior_shares_are_those_of_the_prior_alone(structure: str, prior: float | whence.Prior) -> None:
    case = ALL["conv2d"](2)
    posterior = fitted(case, structure=structure, prior_precision=prior)
    where = posterior.where(case.x)
    jac = centred(slow.jacobian(case.model, bayesian(case), case.x), posterior)
    places = weight_places(posterior)
    for index, block in enumerate(posterior.blocks):
        variance = 1 / posterior.prior.flat(list(block.params)).double()
        own = (jac[..., places[block.name]].square() * variance).sum((1, 2))
        assert_close(where.shares.prior[:, index], own)
    explained = torch.tensor([row.explained for row in where.layers], dtype=torch.float64)
    assert_close(1 - where.shares.variance.sum(0) / where.shares.prior.sum(0), explained)


@pytest.mark.parametrize("name", ["mlp", "conv2d"])
def test_information_is_half_the_trace_with_the_output_hessian(name: str) -> None:
    case = ALL[name](3)
    posterior = fitted(case)
    jac = slow.jacobian(case.model, bayesian(case), case.x)
    cov, hessian = posterior.covariance(), output_hessian(case)
    wanted = torch.stack([0.5 * torch.trace(h @ j @ cov @ j.mT) for j, h in zip(jac, hessian, strict=True)])
    assert_close(posterior.where(case.x, measure="information").shares.total, wanted)


def test_the_prior_alone_explains_nothing() -> None:
    case = ALL["mlp"](0)
    posterior = fitted(case).with_data_scale(1e-12)
    where = posterior.where(case.x)
    assert all(abs(row.explained) < 1e-6 for row in where.layers)
    assert where.prior_dominates and "with_prior" in str(where)
    assert not fitted(case, prior_precision=1e-3).where(case.x).prior_dominates


def test_one_example_seen_many_times_is_explained() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 6), nn.Tanh(), nn.Linear(6, 3)).double()
    x, y = torch.randn(1, 4).double(), torch.tensor([1])
    posterior = whence.laplace(
        model, (x, y), likelihood="classification", structure="full", data_size=10**9, progress=False
    )
    there, elsewhere = posterior.where(x).shares, posterior.where(3 * torch.randn(1, 4).double()).shares
    assert float(1 - there.total / there.prior.sum()) > 0.999
    assert float(1 - elsewhere.total / elsewhere.prior.sum()) < 0.9


def test_a_layer_left_out_has_no_share() -> None:
    case = ALL["mlp"](0)
    posterior = fitted(case, layers="last")
    where = posterior.where(case.x)
    assert len(where.layers) == 1 and where.layers[0].variance_share == pytest.approx(1)


def test_a_dead_unit_stays_unidentified() -> None:
    """Its outgoing weights are zero, so that no data speak of its incoming ones."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 6), nn.Tanh(), nn.Linear(6, 3)).double()
    with torch.no_grad():
        model[2].weight[:, 2] = 0
    x, y = torch.randn(200, 4).double(), torch.randint(3, (200,))
    for structure in ("full", "block", "diag", "kron"):
        units = whence.laplace(model, (x, y), likelihood="classification", structure=structure).where(x).units("0")
        identified = torch.as_tensor(units["identified"])
        assert int(identified.argmin()) == 2 and float(identified[2]) < 1e-9
        assert float(units["variance_share"][2]) == pytest.approx(0, abs=1e-12)
        assert float(units["explained"][2]) == 0


@pytest.mark.parametrize("structure", ["kron", "diag", "ekfac", "block", "full", "lowrank"])
@pytest.mark.parametrize("prior", [3.0, whence.Prior(weight=2.0, bias=0.3)], ids=["one", "two"])
def test_identified_is_one_minus_posterior_over_prior_variance(structure: str, prior: float | whence.Prior) -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv2d(1, 2, 3), nn.Tanh(), nn.Flatten(), nn.Linear(18, 4)).double()
    data = (torch.randn(30, 1, 5, 5, dtype=torch.float64), torch.randint(4, (30,)))
    if structure == "ekfac" and isinstance(prior, whence.Prior):
        pytest.skip("an ekfac block takes one prior precision")
    posterior = whence.laplace(model, data, likelihood="classification", structure=structure, prior_precision=prior)
    variants = [posterior] if structure != "kron" else [posterior, posterior.with_damping("factored")]
    for one in variants:
        variance = one.variance()
        for block in one.blocks:
            wanted = 1 - block.gather(variance) * one.prior.flat(list(block.params))
            assert_close(identified_of(one, block), wanted, 1e-10)


def test_what_the_data_hardly_say_is_not_lost_in_rounding() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(40, 60), nn.Tanh(), nn.Linear(60, 4))
    x, y = torch.randn(50, 40), torch.randint(4, (50,))
    found = []
    for network, dtype in ((model, torch.float32), (copy.deepcopy(model).double(), torch.float64)):
        posterior = whence.laplace(network, (x.to(dtype), y), likelihood="classification", prior_precision=1e6)
        found.append(torch.cat([identified_of(posterior, block) for block in posterior.blocks]))
    assert float(found[1].max()) < 1e-3
    assert float(found[1].min()) < 1e-8
    assert float((found[0] / found[1] - 1).abs().max()) < 1e-3


def test_mean_identified_is_mackays() -> None:
    case = ALL["conv2d"](0)
    for structure in ("kron", "full", "diag"):
        posterior = fitted(case, structure=structure)
        rows = posterior.where().layers
        gamma = sum(float(g.effective_parameters()) for g, _ in posterior.gaussians())
        assert sum(row.identified * row.parameters for row in rows) == pytest.approx(gamma, rel=1e-9)


def test_attention_has_heads() -> None:
    torch.manual_seed(0)
    network = zoo.transformer((1, 8, 8), 3, patch=4, units=8, heads=4, depth=1).double().eval()
    x, y = torch.randn(5, 1, 8, 8).double(), torch.randint(3, (5,))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", whence.errors.Notice)
        posterior = whence.laplace(network, (x, y), likelihood="classification", structure="diag")
    where = posterior.where(x)
    block = next(b for b in posterior.blocks if any("in_proj" in p.name for p in b.params))
    heads = where.units(block.name)
    assert len(heads) == 4 and "head" in heads.note
    index = units_of(posterior.network, block).of_row
    assert index is not None and torch.equal(index, torch.arange(24) % 8 // 2)


def test_by_input_and_by_class_are_ratios_of_the_same_sums() -> None:
    case = ALL["mlp"](4)
    posterior = fitted(case)
    where = posterior.where(case.x)
    inputs, found = where.by_input(), where.shares
    one = [row for row in inputs.rows() if row["input"] == 2]
    assert sum(row["variance_share"] for row in one) == pytest.approx(1)
    assert [row["variance"] for row in one] == pytest.approx(found.variance[2].tolist())
    classes = where.by_class(case.y)
    label = int(case.y[0])
    mine = found.variance[case.y == label].sum(0)
    rows = [row for row in classes.rows() if row["class"] == label]
    assert [row["variance_share"] for row in rows] == pytest.approx((mine / mine.sum()).tolist())
    assert rows[0]["inputs"] == int((case.y == label).sum())
    predicted = where.by_class()
    assert {row["class"] for row in predicted.rows()} == set(found.outputs.argmax(1).tolist())


def test_sensitivity_is_that_of_other_priors() -> None:
    case = ALL["mlp"](0)
    posterior = fitted(case, prior_precision=2.0)
    rows = list(posterior.where(case.x).sensitivity((0.5, 3.0)).rows())
    for factor in (0.5, 3.0):
        direct = posterior.with_prior(2.0 * factor).where(case.x).layers
        mine = [row for row in rows if row["factor"] == factor]
        assert [row["explained"] for row in mine] == pytest.approx([row.explained for row in direct])
        assert [row["variance_share"] for row in mine] == pytest.approx([row.variance_share for row in direct])


def test_weights_have_their_places() -> None:
    case = ALL["conv2d"](0)
    posterior = fitted(case)
    table = posterior.where().weights(posterior.blocks[0].name)
    variance, mean = posterior.variance(), posterior.mean()
    for row in list(table.rows())[:: max(1, len(table) // 20)]:
        assert row["std"] ** 2 == pytest.approx(float(variance[row["parameter"]][row["index"]]))
        assert row["weight"] == pytest.approx(float(mean[row["parameter"]][row["index"]]))
        assert row["signal_to_noise"] == pytest.approx(abs(row["weight"]) / row["std"])
    pytest.importorskip("pandas")
    frame = posterior.where(case.x).units(posterior.blocks[0].name).to_pandas()
    assert next(iter(frame.columns)) == "unit" and "variance_share" in frame.columns


def test_a_loader_is_read_once_and_asked_often() -> None:
    case = ALL["mlp"](0)
    posterior = fitted(case)
    whole = posterior.where(case.x)
    pieces = posterior.where((case.x[i : i + 2], case.y[i : i + 2]) for i in range(0, len(case.y), 2))
    assert_close(pieces.shares.variance, whole.shares.variance)
    assert_close(pieces.by_input()["explained"], whole.by_input()["explained"])


def test_refuses_in_words() -> None:
    case = ALL["mlp"](0)
    posterior = fitted(case)
    where = posterior.where()
    with pytest.raises(BadOption, match="call posterior"):
        where.by_input()
    with pytest.raises(BadOption, match="unknown layer"):
        where.units("nope")
    with pytest.raises(BadOption, match="'information'"):
        posterior.where(case.x, measure="infomation")
    with pytest.raises(BadData, match="one per input"):
        posterior.where(case.x).by_class([0, 1])
    with pytest.raises(BadOption, match="positive"):
        posterior.where(case.x).sensitivity((0.0,))
    x = torch.randn(9, 2)
    regression = whence.laplace(nn.Linear(2, 1), (x, x[:, :1]), likelihood="regression")
    with pytest.raises(NotDefined, match="pass labels"):
        regression.where(x).by_class()
