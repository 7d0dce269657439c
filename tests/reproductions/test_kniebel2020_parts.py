"""What the answers of the study are made of: stability, stopping rules, the regression, weights, data."""

from __future__ import annotations

import math
import sys
import time
from fnmatch import fnmatchcase
from itertools import product
from pathlib import Path

import pytest
import torch
from torch import nn

import whence
from reproductions import plan as planning
from reproductions.claims import Interval
from reproductions.kniebel2020 import COLLECTION, data, weights
from reproductions.kniebel2020.grid import regression
from reproductions.kniebel2020.grid.measure import edge
from reproductions.kniebel2020.grid.numbers import line
from reproductions.kniebel2020.grid.tables import STRONG
from reproductions.kniebel2020.members.run import correlation, independent
from reproductions.kniebel2020.plan import COLOUR, PLAN
from reproductions.kniebel2020.pruning.tables import pruned, reach
from reproductions.kniebel2020.separation.run import INSIDE, grid
from reproductions.kniebel2020.stability import CONDITIONS, Stable, over_cells, throughout
from reproductions.kniebel2020.training import rules
from reproductions.kniebel2020.training.rules import Stop
from reproductions.store import read
from whence.engine.files import digest
from whence.errors import BadFile

# Stability


def stable(means: dict[tuple[str, str], float], width: float = 0.1) -> Stable:
    return Stable({c: Interval(m, m - width, m + width) for c, m in means.items()})


def test_what_is_not_stable_is_not_known_and_the_reason_is_said() -> None:
    same = stable(dict.fromkeys(CONDITIONS, 0.5))
    assert (same.above(), same.below(), same.reason(), same.direction()) == ("holds", "does not hold", "", "rises")
    assert stable(dict.fromkeys(CONDITIONS, -0.5)).direction() == "falls"
    assert stable(dict.fromkeys(CONDITIONS, 0.05)).direction() == "not known (seeds)"
    by_structure = stable({(s, f): 0.5 if s == "kron" else -0.5 for s, f in CONDITIONS})
    assert by_structure.direction() == "not known (structure)"
    by_prior = stable({(s, f): 0.5 if f == "1" else -0.5 for s, f in CONDITIONS})
    assert by_prior.direction() == "not known (τ)" and by_prior.above() == "cannot be told"
    assert stable({c: 0.5 if c == ("diag", "10") else -0.5 for c in CONDITIONS}).reason() == "τ and structure"
    assert same.reason(0.5) == "seeds" and same.reason(2.0) == ""
    assert "over priors and structures 0.50 to 0.50" in same.text()
    assert throughout(["holds", "does not hold"]) == "cannot be told"


def test_cells_count_once_however_many_seeds_they_have() -> None:
    cells = {"a": [{"x": 1.0}, {"x": 3.0}], "b": [{"x": 4.0}]}
    found = over_cells(cells, lambda network, _: network["x"], [("kron", "1")])
    assert found.reference.mean == pytest.approx(3.0)
    assert found.reference.low == pytest.approx(3 - 12.706 * 1.0, rel=1e-3)  # two cells: 2 and 4


# Stopping rules


def run(explained: list[float], validation: list[float], test: list[float] | None = None) -> dict:
    """A run whose two layers have the same series."""
    rows = [[v, v] for v in explained]
    keys = (f"{s} {f}" for s, f in CONDITIONS)
    series = {key: {"identified": rows, "explained": rows} for key in keys}
    layers = [{"matrix": True}, {"matrix": True}]
    return {
        "layers": layers,
        "series": series,
        "validation": validation,
        "test": test or validation,
        "train": validation,
    }


CONDITION = ("kron", "1")


def test_a_rule_sees_only_the_past() -> None:
    rise = [0.0, 0.5, 0.9, 0.95, 0.96, 0.96, 0.96, 0.2, 0.9]
    losses = [3.0, 2.0, 1.0, 0.9, 0.95, 1.0, 1.1, 1.2, 1.3]
    members = [rule for family in rules.FAMILIES.values() for _, rule in family]
    for rule in members:
        found = rule(run(rise, losses), CONDITION)
        if found.after == len(rise) - 1:
            continue
        for end in (0.0, 9.0):  # whatever comes later
            later = run(rise[: found.after + 1] + [end] * 3, losses[: found.after + 1] + [end] * 3)
            assert rule(later, CONDITION) == found


def test_rules_stop_where_they_say() -> None:
    found = run([0.0, 0.5, 1.0, 1.0, 1.0, 1.0, 0.9, 0.5], [5.0, 4.0, 3.0, 2.0, 2.5, 2.6, 2.7, 2.8])
    assert rules.when_settled("explained", 0.05, 2)(found, CONDITION) == Stop(4, 4)
    assert rules.when_settled("explained", 0.05, 3)(found, CONDITION) == Stop(5, 5)
    assert rules.past_the_peak("explained", 0.2)(found, CONDITION) == Stop(7, 7)
    assert rules.validation_loss(3)(found, CONDITION) == Stop(6, 3)
    assert rules.fixed(2)(found, CONDITION) == Stop(2, 2) and rules.fixed(50)(found, CONDITION) == Stop(7, 7)
    assert rules.training_loss(0.05, 2)(found, CONDITION) == Stop(5, 5)
    assert rules.optimum(found) == 3 and rules.regret(found, Stop(6, 4)) == pytest.approx(0.5)
    assert rules.settled_at([0.0, 0.5, 1.0, 1.02, 0.98, 1.0]) == 2 and rules.settled_at([1.0, 1.0]) == 0


def test_settings_are_chosen_on_the_other_cells() -> None:
    early, late = [1.0, 0.0, 2.0, 3.0], [3.0, 2.0, 1.0, 0.0]
    runs = {"early": [run([0.1] * 4, early)], "late": [run([0.1] * 4, late)], "later": [run([0.1] * 4, late)]}
    settings, _ = rules.chosen("a fixed number of epochs", runs, "early", CONDITION)
    assert settings == "3"  # the best for the two others
    found = dict(rules.judged("a fixed number of epochs", runs, CONDITION))
    assert found["early"].regrets == [3.0] and found["early"].epochs == [pytest.approx(2 / 3)]


# Regression


def test_the_regression_finds_what_was_put_in() -> None:
    names = [cell for cell, known in regression.KNOWN.items() if known.data == "fashion-mnist"]
    cells = {}
    for i, name in enumerate(names):
        depth = 2 + i % 4
        network = {"depth": depth, "width": 64.0 * (1 + i % 3), "layers": [{"kind": "Linear"}]}
        cells[name] = [{"network": network, "y": 0.3 * math.log2(depth) + 0.01 * s} for s in range(3)]
    found = regression.regress(cells, lambda network, _: network["y"], CONDITION, resamples=100)
    assert found.coefficients["depth"].mean == pytest.approx(0.3, abs=0.01)
    assert found.coefficients["width"].mean == pytest.approx(0.0, abs=0.01)
    assert found.coefficients["batch norm"].mean == 0 and found.determined.mean > 0.99
    assert (found.networks, found.cells) == (3 * len(names), len(names))


def test_the_slope_of_a_line() -> None:
    assert line([0.0, 0.5, 1.0], [1.0, 2.0, 3.0]) == pytest.approx(2.0) and STRONG == 0.14


# Weights


def test_quantities_of_weights_are_those_of_where() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 5), nn.ReLU(), nn.Linear(5, 3)).double()
    x, y = torch.randn(30, 4, dtype=torch.float64), torch.arange(30) % 3
    posterior = whence.laplace(model, (x, y), likelihood="classification", progress=False)
    where = posterior.where()
    for layer, row in zip(weights.layers_of(posterior), where.layers, strict=True):
        table, units = where.weights(layer.name), where.units(layer.name)
        for what, column in (
            ("std", "std"),
            ("identified", "identified"),
            ("size", "weight"),
            ("curvature", "curvature"),
        ):
            assert torch.allclose(layer.of(what), torch.as_tensor(table[column]).abs(), atol=1e-12)
        assert torch.allclose(layer.relative, torch.as_tensor(table["relative_curvature"]))
        assert torch.allclose(layer.by_unit("identified"), torch.as_tensor(units["identified"]))
        assert float(layer.identified.mean()) == pytest.approx(row.identified)
        assert weights.inside(layer, "std") == pytest.approx(
            dict(zip(where.differences.inside["name"], where.differences.inside["epsilon_squared"], strict=True))[
                layer.name
            ]
        )
    assert weights.between(weights.layers_of(posterior), "std") == pytest.approx(where.differences.overall)
    assert len(weights.chosen(50_000).unique()) == weights.COMPARED and len(weights.chosen(10)) == 10


def test_a_dead_unit_is_unidentified() -> None:
    model = nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 2))
    with torch.no_grad():
        model[0].bias[1] = -100.0
    x, y = torch.randn(40, 3), torch.arange(40) % 2
    first, _ = weights.layers_of(whence.laplace(model, (x, y), likelihood="classification", progress=False))
    off, dead = weights.unidentified(first)
    assert off >= dead == 1


# Pruning, members, planes, edges


def test_the_fraction_is_chosen_on_validation_data() -> None:
    curve = {"fraction": [0.2, 0.5, 0.8, 0.9], "sparsity": [0.2, 0.5, 0.8, 0.9], "validation": [0.9, 0.895, 0.6, 0.9]}
    network = {"whole": {"validation": 0.9}, "weights": {"magnitude": curve, "random 0": curve, "random 1": curve}}
    assert reach(network, curve) == 1  # the first loss ends it
    assert reach(network, {"validation": [0.1]}) is None
    assert pruned("weights", "magnitude")(network, CONDITION) == pruned("weights", "random")(network, CONDITION) == 0.5


def test_condorcet_by_counting() -> None:
    p, members = 0.6, 5
    exact = sum(
        math.prod(p if right else 1 - p for right in votes)
        for votes in product((0, 1), repeat=members)
        if sum(votes) > 2
    )
    assert independent(torch.full((members,), p), members) == pytest.approx(exact, rel=1e-6)
    wrong = torch.tensor([[1.0, 0, 1, 0], [1, 0, 1, 0], [0, 1, 0, 1], [0, 0, 0, 0]])
    assert correlation(wrong) == pytest.approx((1 - 1 - 1) / 3)


def test_sets_in_the_plane_have_an_inside() -> None:
    for name, inside in INSIDE.items():
        share = float((inside(grid(81)) > 0).double().mean())
        assert 0.03 < share < 0.6, name
    origin = torch.zeros(1, 2)
    assert INSIDE["convex set"](origin) == pytest.approx(1.2) and INSIDE["half-plane"](origin) == pytest.approx(-0.2)
    assert int(edge((28, 28)).sum()) == 28 * 28 - 20 * 20


# Data


def test_parts_are_carried_and_checked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pool = torch.randint(256, (40, 1, 6, 6), dtype=torch.uint8)
    given = (pool, torch.arange(40) % 3, pool[:8].flip(0), torch.arange(8) % 3)
    data.pack(tmp_path, "mnist", given)
    monkeypatch.setenv("WHENCE_DATA", str(tmp_path))
    read = data.read_part("mnist", digest(given))
    assert all(torch.equal(a, b) for a, b in zip(read, given, strict=True))
    with pytest.raises(BadFile, match="not those of the study"):
        data.read_part("mnist", "0" * 64)


def test_the_seed_divides_the_pool_and_not_the_test_part() -> None:
    pool = torch.randint(256, (40, 1, 6, 6), dtype=torch.uint8)
    given = (pool, torch.arange(40) % 3, pool[:8].flip(0), torch.arange(8) % 3)
    found, other = (data.split(given, "some", seed, 20, 10, 5, {"novel": given}, 4, "cpu") for seed in (0, 1))
    assert (found.train.size, found.validation.size, found.test.size, found.classes) == (20, 10, 5, 3)
    assert not torch.equal(other.train.raw, found.train.raw) and torch.equal(other.test.raw, found.test.raw)
    assert torch.equal(found.novel["novel"], found.test.with_(raw=given[2], targets=given[3]).take(4).inputs)
    with pytest.raises(ValueError, match="40 images"):
        data.split(given, "some", 0, 35, 10, 5, {}, 0, "cpu")


def test_the_plan_knows_every_unit_and_shares_them_out() -> None:
    for name in COLLECTION.names:
        found = COLLECTION.experiment(name)
        units = found.units(found.config(False))
        assert all(any(fnmatchcase(unit, row[0]) for row in PLAN.rows[name]) for unit in units)
        parts = PLAN.shared_out(name, units, 4, "cuda")
        assert sorted(unit for _, own in parts for unit in own) == sorted(units)
        longest = max(PLAN.seconds(name, unit, "cuda") for unit in units)
        assert max(t for t, _ in parts) - min(t for t, _ in parts) <= longest
    assert PLAN.files("grid", "cifar-vgg11/0") == COLOUR


@pytest.mark.slow
def test_processes_run_at_once_and_are_put_together(tmp_path: Path) -> None:
    given = [
        "separation",
        "2",
        "--quick",
        "--device",
        "cpu",
        "--cells",
        "half-plane/one layer/*",
        "--go",
        str(tmp_path),
    ]
    PLAN.main(given)
    found = read(tmp_path / "separation" / "results.json")
    assert list(found["units"]) == ["half-plane/one layer/0", "half-plane/one layer/1"]


def test_a_unit_that_fails_does_not_stop_the_others(tmp_path: Path) -> None:
    """The process ends at unit b; another one goes on behind it."""
    lines = [
        "import sys, json, pathlib",
        "a = sys.argv; folder = pathlib.Path(a[a.index('--out') + 1]); folder.mkdir(exist_ok=True)",
        "file = folder / 'results.json'; content = json.loads(file.read_text()) if file.exists() else {'units': {}}",
        "for unit in a[a.index('--units') + 1:]:",
        "    if unit == 'b': sys.exit(1)",
        "    content['units'][unit] = {}; file.write_text(json.dumps(content))",
    ]
    command = [sys.executable, "-c", "\n".join(lines)]
    planning.followed(command, tmp_path / "own", ["a", "b", "c"], time.monotonic() + 60)
    assert list(read(tmp_path / "own" / "results.json")["units"]) == ["a", "c"]
