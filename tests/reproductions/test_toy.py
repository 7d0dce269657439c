"""The toy regression: its quick version, its claims, and the README that is made from them."""

from __future__ import annotations

import copy
import json
from pathlib import Path
from typing import Any

import pytest
import torch

from reproductions import readme
from reproductions.ritter2018 import COLLECTION
from reproductions.ritter2018.__main__ import main
from reproductions.ritter2018.toy import EXPERIMENT, methods, reference
from reproductions.ritter2018.toy.claims import judged
from reproductions.ritter2018.toy.config import config
from reproductions.ritter2018.toy.names import DETERMINISTIC, DIAGONAL, FULL, HMC, KRONECKER, PAPER
from reproductions.ritter2018.toy.problem import Problem, mode
from reproductions.ritter2018.toy.run import Subject
from reproductions.ritter2018.toy.views import View
from reproductions.store import read, values
from tests.reproductions import laws

COMMITTED = COLLECTION.home / "toy" / "results.json"
SEEDS = ("0", "1", "2")


COMPUTED = [f"relu/0/{name}" for name in ("network", HMC, "HMC from the prior", DETERMINISTIC, KRONECKER, "check")]
COMPUTED += [f"tanh/1/{name}" for name in ("network", HMC, DIAGONAL, "diagonal, sampled Fisher")]


@pytest.fixture(scope="module", params=laws.KEPT)
def folder(tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest) -> Path:
    """All units are computed in ``make test-all``; otherwise a few, and the others were kept."""
    found = tmp_path_factory.mktemp("toy")
    if request.param == "fresh":
        return laws.in_order("toy", laws.quick("toy", found))
    return laws.kept("toy", found, COMPUTED)


def test_the_quick_run_is_complete_and_sane(folder: Path) -> None:
    content = read(folder / "results.json")
    assert sorted(content["units"]) == sorted(EXPERIMENT.units(config(True)))
    units = values(content)
    for activation in config(True).seeds:
        view = View(units, activation)
        assert view.seeds == ["0", "1"]
        for seed in view.seeds:
            assert view.unit(seed, "network")["weights"] == 78
            assert 0 < view.unit(seed, "network")["train_rmse"] < 30
            assert view.unit(seed, HMC)["draws"] in (120, 80)
            assert view.methods == list(config(True).methods)
            for method in view.methods:
                for case in view.unit(seed, method).values():
                    assert 0 <= case["total_variation"]["all"] <= 1 and case["wasserstein"]["all"] >= 0
                    assert case["precision"] > 0 and ("std" in case) == ((activation, seed) == ("relu", "0"))


def test_the_quick_run_agrees_with_plain_torch(folder: Path) -> None:
    """Also where the network is far from a mode."""
    for name, found in values(read(folder / "results.json")).items():
        if name.endswith("/check"):
            assert set(found) == {f"{tuning} {method}" for tuning in ("untuned", "tuned") for method in PAPER}
            for case in found.values():
                assert case["covariance"] < 1e-5 and case["linearised"] < 1e-5


def test_a_second_run_computes_nothing(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before = (folder / "results.json").read_bytes()
    monkeypatch.setattr(Subject, "unit", lambda *_: pytest.fail("computed again"))
    with laws.without_figures():
        laws.quick("toy", folder)
    assert (folder / "results.json").read_bytes() == before


def test_a_run_that_was_cut_off_goes_on(folder: Path, tmp_path: Path) -> None:
    """What is missing is computed from the chains that were kept, and comes out the same."""
    content = read(folder / "results.json")
    cut = copy.deepcopy(content)
    name = f"tanh/1/{DIAGONAL}"
    del cut["units"][name]
    (tmp_path / "results.json").write_text(json.dumps(cut))
    cache = ["--cache", str(folder / "cache")]
    with laws.without_figures():
        assert main(["toy", "--quick", "--device", "cpu", "--no-progress", "--out", str(tmp_path), *cache]) == 0
    again = read(tmp_path / "results.json")
    assert again["units"][name]["value"] == content["units"][name]["value"]


def test_figures_show_something(folder: Path) -> None:
    image = pytest.importorskip("PIL.Image")
    for name in ("figure1", "figure8", "linearised", "distances"):
        with image.open(folder / f"{name}.png") as found:
            assert min(found.size) > 300
            assert len(found.convert("RGB").getcolors(2**24)) > 50


def test_tables_name_every_method(folder: Path) -> None:
    found = EXPERIMENT.tables(values(read(folder / "results.json")))
    assert all(f"| {method} |" in found for method in config(True).methods)


def test_the_sampled_predictive_is_that_of_plain_torch() -> None:
    """With enough draws; the quick run has too few."""
    problem = Problem(config(True), "tanh", 3)
    net = mode(problem).net
    object.__setattr__(problem, "config", type(problem.config)(draws=4000, grid=13, starts=1))
    for method in PAPER:
        posterior = methods.fitted(problem, net, method)
        found = reference.compared(problem, net, method, posterior)
        assert found["sampled"] < 2 * found["of_draws"]


def test_the_most_probable_weights_of_a_smooth_network_are_a_mode() -> None:
    problem = Problem(type(config(True))(starts=1, steps=500), "tanh", 0)
    assert mode(problem).gradient < 1e-3


def test_seeds_change_the_data() -> None:
    first, second = (Problem(config(True), "relu", seed) for seed in (0, 1))
    assert not torch.equal(first.train[0], second.train[0])
    assert not torch.equal(first.train[0], first.validation[0])


# Claims, from numbers that are made up


def _case(**changes: float) -> dict[str, Any]:
    """A prediction that is as the paper says of a tuned posterior."""
    found = {"inside": 5.0, "outside": 20.0, "wasserstein": 3.0, "rmse": 2.0, "weight_std": 0.1} | changes
    spread = {
        "inside": found["inside"],
        "outside": found["outside"],
        "all": (2 * found["inside"] + found["outside"]) / 3,
    }
    wasserstein = dict.fromkeys(("all", "inside", "outside"), found["wasserstein"])
    return {"spread": spread, "wasserstein": wasserstein, "rmse": found["rmse"], "weight_std": found["weight_std"]}


def _as_in_the_paper() -> dict[str, Any]:
    """Units in which every claim holds, with a little scatter over seeds."""
    units: dict[str, Any] = {}
    for place, seed in enumerate(SEEDS):
        s = 1 + 0.01 * place
        hmc = _case(inside=4 * s, outside=40.0) | {"target_std": dict.fromkeys(("all",), 20 * s)}
        raw = {KRONECKER: 60 * s, DIAGONAL: 80 * s, FULL: 200 * s}
        units[f"relu/{seed}/{HMC}"] = hmc
        units[f"relu/{seed}/{DETERMINISTIC}"] = _case()
        for method in PAPER:
            units[f"relu/{seed}/{method}"] = {
                "untuned sampled": _case(
                    inside=raw[method], outside=3 * raw[method], wasserstein=raw[method], rmse=raw[method],
                    weight_std={KRONECKER: 0.5, DIAGONAL: 0.7, FULL: 0.9}[method],
                ),
                "tuned sampled": _case(wasserstein=(3.0 if method == KRONECKER else 5.0) * s, outside=10.0),
                "untuned linearised": _case(wasserstein=1.0 * s),
                "tuned linearised": _case(wasserstein=1.0 * s),
            }  # fmt: skip
    return units


def _verdicts(units: dict[str, Any]) -> dict[str, str]:
    return {claim.claim: claim.verdict for claim in judged(View(units, "relu"))}


def test_every_claim_can_hold() -> None:
    assert set(_verdicts(_as_in_the_paper()).values()) == {"holds"}


# Which claim fails when numbers of a method are changed: its words, the method, the case, and the numbers.
CHANGES = [
    ("good fit to HMC", DIAGONAL, "tuned sampled", {"wasserstein": 15.0}),
    ("slightly higher", FULL, "tuned sampled", {"inside": 2.0}),
    ("increases more slowly", KRONECKER, "tuned sampled", {"outside": 90.0}),
    ("underestimates", DIAGONAL, "tuned sampled", {"outside": 90.0}),
    ("need stronger regularisation", FULL, "untuned sampled", {"weight_std": 0.2}),
    ("higher uncertainty than the Kron", DIAGONAL, "untuned sampled", {"inside": 20.0, "outside": 60.0}),
    ("overestimate the uncertainty", KRONECKER, "untuned sampled", {"inside": 1.0, "outside": 5.0}),
    ("increasingly uncertain", KRONECKER, "untuned sampled", {"outside": 10.0}),
    ("vastly overestimates", FULL, "untuned sampled", {"inside": 10.0, "outside": 30.0}),
    ("bad predictive mean", FULL, "untuned sampled", {"rmse": 1.0}),
    ("smaller variance than the full", KRONECKER, "untuned sampled", {"inside": 900.0, "outside": 999.0}),
    ("Tuning makes", KRONECKER, "untuned sampled", {"wasserstein": 1.0}),
    ("closer to HMC than the diagonal", KRONECKER, "tuned sampled", {"wasserstein": 8.0}),
    ("Restricting the structure", FULL, "tuned sampled", {"wasserstein": 1.0}),
    ("Untuned, the linearised", DIAGONAL, "untuned linearised", {"wasserstein": 999.0}),
    ("Tuned, the linearised", DIAGONAL, "tuned linearised", {"wasserstein": 999.0}),
    ("not tuned at all", FULL, "untuned linearised", {"wasserstein": 4.0}),
]


def test_every_claim_is_tried() -> None:
    names = list(_verdicts(_as_in_the_paper()))
    assert all(sum(words in name for name in names) == 1 for words, *_ in CHANGES)
    assert all(any(words in name for words, *_ in CHANGES) for name in names)


@pytest.mark.parametrize(("words", "method", "case", "numbers"), CHANGES, ids=[c[0] for c in CHANGES])
def test_verdicts_follow_the_numbers(words: str, method: str, case: str, numbers: dict[str, float]) -> None:
    units = _as_in_the_paper()
    for place, seed in enumerate(SEEDS):
        kept = units[f"relu/{seed}/{method}"][case]
        old = {"inside": kept["spread"]["inside"], "outside": kept["spread"]["outside"]}
        old |= {"wasserstein": kept["wasserstein"]["all"], "rmse": kept["rmse"], "weight_std": kept["weight_std"]}
        changed = {name: value * (1 + 0.01 * place) for name, value in numbers.items()}
        units[f"relu/{seed}/{method}"][case] = _case(**(old | changed))
    found = {name: verdict for name, verdict in _verdicts(units).items() if words in name}
    assert list(found.values()) == ["does not hold"]


def test_scatter_over_seeds_leaves_it_open() -> None:
    units = _as_in_the_paper()
    for seed, wasserstein in zip(SEEDS, (1.0, 9.0, 5.0), strict=True):
        units[f"relu/{seed}/{KRONECKER}"]["tuned sampled"] = _case(wasserstein=wasserstein, outside=10.0)
    found = next(v for name, v in _verdicts(units).items() if "closer to HMC than the diagonal" in name)
    assert found == "cannot be told"


# What is committed


@pytest.mark.skipif(not COMMITTED.exists(), reason="no results yet")
def test_the_readme_says_what_the_results_say() -> None:
    content = read(COMMITTED)
    assert not content["quick"] and content["config"] == json.loads(json.dumps(vars(config(False))))
    assert sorted(content["units"]) == sorted(EXPERIMENT.units(config(False)))
    text = (COMMITTED.parent / "README.md").read_text()
    assert text == readme.expected(COMMITTED.parent, readme.section(EXPERIMENT, content))


@pytest.mark.skipif(not COMMITTED.exists(), reason="no results yet")
def test_the_reference_can_be_trusted() -> None:
    units = values(read(COMMITTED))
    for name, found in units.items():
        if name.rpartition("/")[2].startswith("HMC"):
            assert found["rhat"] < 1.02 and found["ess_bulk"] > 1000 and found["ess_tail"] > 1000, name
        if name.endswith("/check"):
            assert all(c["covariance"] < 1e-5 and c["sampled"] < 2 * c["of_draws"] for c in found.values()), name
    assert units[f"relu/0/{HMC}"]["draws"] >= 50_000


@pytest.mark.skipif(not COMMITTED.exists(), reason="no results yet")
def test_figures_are_committed() -> None:
    for name in ("figure1", "figure8", "linearised", "distances"):
        assert (COMMITTED.parent / f"{name}.png").stat().st_size > 10_000
