"""The wide residual network of section 5.4, small; and verdicts that follow the numbers."""

from __future__ import annotations

import copy
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from PIL import Image

from reproductions import readme
from reproductions.experiment import Context
from reproductions.ritter2018 import COLLECTION
from reproductions.ritter2018.mnist import DETERMINISTIC, DIAGONAL, DROPOUT, KRONECKER, LINEARISED
from reproductions.ritter2018.wrn import EXPERIMENT, measure, prepare
from reproductions.ritter2018.wrn.claims import claims
from reproductions.ritter2018.wrn.config import QUICK, methods, units
from reproductions.ritter2018.wrn.subject import Subject
from reproductions.store import read, values
from tests.reproductions import laws

COMMITTED = COLLECTION.home / "wrn" / "results.json"


COMPUTED = [name for name in units(QUICK) if name.startswith("plain/0")]
COMPUTED += [f"dropout/0/{name}" for name in ("train", f"measure/{DROPOUT}")]


@pytest.fixture(scope="module", params=laws.KEPT)
def folder(tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest) -> Path:
    """All units are computed in ``make test-all``; otherwise a few, and the others were kept."""
    found = tmp_path_factory.mktemp("wrn")
    return laws.quick("wrn", found) if request.param == "fresh" else laws.kept("wrn", found, COMPUTED)


def test_every_unit_is_there_and_makes_sense(folder: Path) -> None:
    found = values(read(folder / "results.json"))
    assert set(found) == set(units(QUICK))
    for dropout, name in ((0.3, "dropout"), (0.0, "plain")):
        for seed in QUICK.seeds:
            for method in methods(dropout):
                value = found[f"{name}/{seed}/measure/{method}"]
                inside, outside = value["inside"], value["outside"]
                assert 0.4 < inside["accuracy"]["value"] < 1
                assert inside["accuracy"]["low"] <= inside["accuracy"]["value"] <= inside["accuracy"]["high"]
                assert inside["entropy_correct"]["value"] < inside["entropy_wrong"]["value"]
                assert inside["curve_wrong"][0] == 1
                assert inside["curve_wrong"] == sorted(inside["curve_wrong"], reverse=True)
                assert inside["doubt"][-1] == outside["doubt"][-1] == 1
                assert inside["doubt"] == sorted(inside["doubt"])
                assert 0 <= outside["sure"]["value"] <= outside["confidence"]["value"] <= 1
            assert found[f"{name}/{seed}/measure/{DETERMINISTIC}"]["inside"]["total_variation"]["value"] < 1e-6
            kinds = found[f"{name}/{seed}/fit/kron"]["structures"]
            assert kinds == {"Conv2d": {"kron": 10}, "BatchNorm2d": {"dense": 7}, "Linear": {"kron": 1}}
            assert found[f"{name}/{seed}/fit/kron"]["data_size"] == found[f"{name}/{seed}/train"]["examples"]
            assert found[f"{name}/{seed}/tune/{KRONECKER}"]["prior_precision"] > 0
        surest = found[f"{name}/0/surest"]
        assert surest["confidence"][DETERMINISTIC] == sorted(surest["confidence"][DETERMINISTIC], reverse=True)
        assert measure.unpacked(surest["images"][0], surest["shape"]).shape == (1, 8, 8)


def test_a_second_run_computes_nothing(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before = (folder / "results.json").read_bytes()
    monkeypatch.setattr(Subject, "__getattribute__", _refuse)
    with laws.without_figures():
        laws.quick("wrn", folder)
    assert (folder / "results.json").read_bytes() == before


def _refuse(subject: Subject, name: str) -> Any:
    if name in ("network", "training", "data", "method", "fitted", "tuned"):
        raise AssertionError(f"{name} was asked for")
    return object.__getattribute__(subject, name)


def test_figures_are_pictures(folder: Path) -> None:
    for name in ("figure5.png", "overconfidence.png"):
        with Image.open(folder / name) as picture:
            assert min(picture.size) > 300
            assert len(set(picture.convert("L").resize((64, 64)).tobytes())) > 20


def test_what_was_kept_is_found_again(folder: Path) -> None:
    subject = Subject(QUICK, 0, 0.0, Context("cpu", folder / "cache", progress=False))
    assert subject.training.from_cache
    kept = sorted((folder / "cache").iterdir())
    x = subject.test.inputs[:5]
    for name in (DIAGONAL, KRONECKER, LINEARISED):
        probs = subject.method(name).predict(x, 5).probs
        assert torch.allclose(probs.sum(1), torch.ones(5), atol=1e-4)
    assert sorted((folder / "cache").iterdir()) == kept
    assert subject.laplace("kron", damping="factored", tuned="sampled").damping == "factored"


def test_networks_are_prepared_for_the_run(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = [
        "--quick",
        "--device",
        "cpu",
        "--seed",
        "0",
        "--dropout",
        "1",
        "--fit",
        "--cache",
        str(folder / "cache"),
    ]
    assert prepare.main(arguments) == 0
    said = capsys.readouterr().out
    assert "read from the cache" in said
    assert "Laplace(kron, mc" in said


def test_halves_of_the_test_images_do_not_meet() -> None:
    full = EXPERIMENT.config(False)
    for config in (full, QUICK):
        assert config.validation[1] <= config.reported[0]
        assert config.tuning_images <= config.validation[1] - config.validation[0]
    assert (full.validation, full.reported) == ((0, 5000), (5000, 10000))


# Verdicts


def _number(value: float) -> dict[str, float]:
    return {"value": value, "low": value, "high": value}


def made_up() -> dict[str, Any]:
    """Units under which every claim holds."""
    found: dict[str, Any] = {}
    for network in ("dropout", "plain"):
        for seed in range(3):
            for i, method in enumerate(methods(0.3 if network == "dropout" else 0.0)):
                base = method == DETERMINISTIC
                kept = method in (DETERMINISTIC, DIAGONAL)
                inside = {
                    "accuracy": 0.95 + 1e-4 * seed, "nll": 0.2 if base else 0.18, "ece": 0.03 if base else 0.01,
                    "aurc": 0.006 if base else 0.005, "auroc_wrong": 0.93, "entropy": 0.1,
                    "entropy_correct": (0.1 if kept else 0.15) + 1e-3 * seed, "entropy_wrong": (0.6 if kept else 0.7),
                    "total_variation": 0.0 if base else 0.001 if method == DIAGONAL else 0.02,
                }  # fmt: skip
                outside = {
                    "sure": 0.3 if base else 0.2, "auroc": 0.93 if base else 0.95, "confidence": 0.8, "fpr95": 0.3,
                    "entropy": 0.5,
                }  # fmt: skip
                curves = {"curve_wrong": [1.0, 0.5, 0.1], "curve_correct": [0.9, 0.2, 0.0]}
                doubt = {"doubt": [0.3 + 0.01 * i] * measure.DOUBTS}
                found[f"{network}/{seed}/measure/{method}"] = {
                    "inside": {k: _number(v) for k, v in inside.items()} | curves | doubt,
                    "outside": {k: _number(v) for k, v in outside.items()} | doubt,
                }
            for method in (DIAGONAL, KRONECKER, LINEARISED):
                found[f"{network}/{seed}/tune/{method}"] = {
                    "prior_precision": 5e4, "data_scale": 1.0, "per_example": 1.0, "nll": 0.2,
                    "nll_of_strongest_prior": 0.21, "edge": False,
                }  # fmt: skip
            keys = ("auroc", "fpr95", "flagged_inside", "flagged_outside")
            found[f"{network}/{seed}/novelty"] = {key: _number(0.97) for key in keys}
            found[f"{network}/{seed}/train"] = {"examples": 50_000, "epochs": 40, "weights": 10}
            found[f"{network}/{seed}/fit/kron"] = {
                "structures": {"Conv2d": {"kron": 3}}, "accuracy": 0.99, "mean_confidence": 0.98
            }  # fmt: skip
    return found


MLP = {f"{seed}/regularisation": {KRONECKER: {"prior_precision": 55.0, "data_scale": 1.0}} for seed in range(3)}


def _put(part: str, what: str, value: float, *, of: tuple[str, ...]) -> Callable[[dict[str, Any]], None]:
    def change(found: dict[str, Any]) -> None:
        for name, unit in found.items():
            if "/measure/" in name and name.rsplit("/", 1)[1] in of:
                unit[part][what] = _number(value)

    return change


def _tune(found: dict[str, Any]) -> None:
    for name, unit in found.items():
        if "/tune/" in name:
            unit["per_example"] = 1e-6


def _familiar(found: dict[str, Any]) -> None:
    for name, unit in found.items():
        if name.endswith("/novelty"):
            unit["auroc"] = _number(0.5)


BOTH = (KRONECKER, LINEARISED)
CHANGES = {
    "accuracy of the prediction methods": _put("inside", "accuracy", 0.9, of=(KRONECKER,)),
    "more uncertain on its misclassifications": _put("inside", "entropy_wrong", 0.01, of=(DETERMINISTIC,)),
    "Both dropout and Laplace increase": _put("inside", "entropy_wrong", 0.5, of=(KRONECKER,)),
    "similar uncertainty as dropout": _put("inside", "entropy_correct", 0.9, of=(KRONECKER,)),
    "becoming deterministic": _put("inside", "total_variation", 0.3, of=(DIAGONAL,)),
    "approximation has not": _put("inside", "total_variation", 1e-5, of=(KRONECKER,)),
    "much stronger regularisation": _tune,
    "sure of what it sees": _put("outside", "sure", 0.01, of=(DETERMINISTIC,)),
    "lower NLL": _put("inside", "nll", 0.5, of=BOTH),
    "lower ECE": _put("inside", "ece", 0.5, of=BOTH),
    "lower AURC": _put("inside", "aurc", 0.5, of=BOTH),
    "fewer SVHN images": _put("outside", "sure", 0.9, of=BOTH),
    "tells SVHN better by its entropy": _put("outside", "auroc", 0.6, of=BOTH),
    "Novelty tells SVHN better": _familiar,
}


def test_every_claim_can_hold() -> None:
    found = claims(made_up(), MLP)
    assert [c.claim for c in found if c.verdict != "holds"] == []
    assert all(any(text in c.claim for text in CHANGES) for c in found)


@pytest.mark.parametrize("text", CHANGES)
def test_a_verdict_follows_the_numbers(text: str) -> None:
    changed = copy.deepcopy(made_up())
    CHANGES[text](changed)
    about = [c for c in claims(changed, MLP) if text in c.claim]
    assert about
    assert {c.verdict for c in about} == {"does not hold"}


def test_without_the_other_experiment_regularisation_cannot_be_compared() -> None:
    (claim,) = (c for c in claims(made_up(), {}) if "much stronger regularisation" in c.claim)
    assert claim.verdict == "cannot be told"


def test_tables_name_every_method() -> None:
    text = EXPERIMENT.tables(made_up())
    for name in (DETERMINISTIC, DROPOUT, DIAGONAL, KRONECKER, LINEARISED):
        assert f"| {name} |" in text
    assert "79.36 %" in text


@pytest.mark.skipif(not COMMITTED.exists(), reason="not run yet")
def test_the_readme_says_what_the_results_say() -> None:
    content = read(COMMITTED)
    assert set(values(content)) == set(units(EXPERIMENT.config(False)))
    expected = readme.expected(COLLECTION.home / "wrn", readme.section(EXPERIMENT, content))
    assert (COLLECTION.home / "wrn" / "README.md").read_text() == expected
