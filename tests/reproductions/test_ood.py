"""Section 5.2 in small: complete, resumable, and its verdicts follow from its numbers."""

import copy
import itertools
import math
from dataclasses import replace

import pytest
import torch
from torch import nn

import whence
from reproductions import readme
from reproductions.experiment import Context
from reproductions.ritter2018 import COLLECTION, mnist_prepare
from reproductions.ritter2018.mnist import (
    DETERMINISTIC,
    DIAGONAL,
    DROPOUT,
    FACTORISED,
    KRONECKER,
    LINEARISED,
    METHODS,
    QUICK,
    Subject,
)
from reproductions.ritter2018.ood import EXPERIMENT, check, names
from reproductions.ritter2018.ood.config import MEAN, PRIOR, SLOW
from reproductions.ritter2018.ood.run import detection, evaluate, spread
from reproductions.store import read, values
from tests.reproductions import laws

CONFIG = EXPERIMENT.config(True)


COMPUTED = [f"0/{name}" for name in (DETERMINISTIC, LINEARISED, "detectors", "check")]


@pytest.fixture(scope="module", params=laws.KEPT)
def folder(tmp_path_factory, request):
    """All units are computed in ``make test-all``; otherwise a few, and the others were kept."""
    found = tmp_path_factory.mktemp("ood")
    return laws.quick("ood", found) if request.param == "fresh" else laws.kept("ood", found, COMPUTED)


@pytest.fixture(scope="module")
def found(folder):
    return values(read(folder / "results.json"))


def test_every_unit_is_there(found):
    assert sorted(found) == sorted(EXPERIMENT.units(CONFIG))


def test_methods_know_digits_and_doubt_what_is_none(found):
    for seed in QUICK.seeds:
        for method in METHODS:
            unit = found[f"{seed}/{method}"]
            assert unit["test"]["accuracy"]["value"] > 0.85
            for name in ("accuracy", "nll", "ece", "brier"):
                assert unit["test"][name]["low"] <= unit["test"][name]["high"]
            for name in QUICK.outside:
                outside = unit["outside"][name]
                curve = outside["curve"]
                assert len(curve) == CONFIG.grid and curve[0] == 1 and curve == sorted(curve, reverse=True)
                # The area under the inverse distribution function is the mean.
                area = sum((a + b) / 2 for a, b in itertools.pairwise(curve)) * math.log(10) / (len(curve) - 1)
                assert area == pytest.approx(outside["mean_entropy"], abs=0.05)
                assert ("by_epistemic" in outside) == (method != DETERMINISTIC)
            shuffled = unit["outside"][QUICK.outside[0]]
            assert shuffled["mean_entropy"] > unit["test"]["mean_entropy"]
            assert shuffled["by_entropy"]["auroc"]["value"] > 0.5


def test_plain_torch_agrees_with_the_library(found):
    for seed in QUICK.seeds:
        unit = found[f"{seed}/check"]
        assert max(unit["variance"].values()) < 0.01
        for entropy in unit["entropy"].values():
            assert entropy["library"] == pytest.approx(entropy["by_hand"], abs=max(0.02, 5 * entropy["by_hand_se"]))
            assert entropy["library"] == pytest.approx(entropy["library_by_hand"], abs=1e-4)
            assert entropy["deterministic"] == pytest.approx(entropy["deterministic_library"], abs=1e-4)


def test_hyperparameters_and_readings(found):
    for seed in QUICK.seeds:
        unit = found[f"{seed}/regularisation"]
        assert list(unit) == [DIAGONAL, KRONECKER, LINEARISED]
        for tuned in unit.values():
            assert min(tuned["decades_below"], tuned["decades_above"]) > 0
            assert tuned["std"] > 0 and tuned["untuned_std"] > 0
            assert 0 <= tuned["distance"]["test"]["value"] <= 1
    decays = [found[f"reading/{name}"]["weight_decay"] for name in CONFIG.readings]
    assert decays == sorted(decays, reverse=True) and decays[0] == CONFIG.l2
    assert names.chosen_reading(found) in CONFIG.readings


def test_a_second_run_computes_nothing(folder, monkeypatch, capsys):
    def refuse(*_args, **_more):
        raise AssertionError("computed again")

    before = (folder / "results.json").read_bytes()
    monkeypatch.setattr(Subject, "data", property(refuse))
    with laws.without_figures():
        laws.quick("ood", folder)
    assert (folder / "results.json").read_bytes() == before
    assert "holds" in capsys.readouterr().out


@pytest.mark.parametrize("method", [METHODS[0], *(pytest.param(m, marks=pytest.mark.slow) for m in METHODS[1:])])
def test_methods_from_the_cache_predict_the_same(folder, found, method):
    subject = Subject(QUICK, 1, Context("cpu", folder / "cache", progress=False))
    assert evaluate(subject, method, replace(CONFIG, resamples=10))["test"]["accuracy"]["value"] == pytest.approx(
        found[f"1/{method}"]["test"]["accuracy"]["value"], abs=1e-5
    )


def test_figures_are_pictures(folder):
    from matplotlib.image import imread

    for name in ("figure2.png", "others.png", "detectors.png", "copies.png"):
        picture = imread(folder / name)
        assert min(picture.shape[:2]) > 200 and picture[..., :3].std() > 0.02


def test_tables_tell_every_number(found):
    text = EXPERIMENT.tables(found)
    for part in (*METHODS, *CONFIG.readings, "98.86", "whence.novelty", "grey images"):
        assert part in text


def test_tables_and_figures_of_a_run_that_was_cut_off(found, tmp_path):
    part = {name: value for name, value in found.items() if name.startswith(("0/", "1/")) or name == "copies/0"}
    assert EXPERIMENT.tables(part) and EXPERIMENT.claims(part)
    assert len(EXPERIMENT.figures(part, tmp_path)) == 4
    assert EXPERIMENT.claims({}) == [] and EXPERIMENT.tables({}) == "" and EXPERIMENT.figures({}, tmp_path) == []


# Verdicts


@pytest.fixture(scope="module")
def even(found):
    """All seeds as the first, so that only what is changed decides."""
    first = QUICK.seeds[0]
    return {
        name: found[f"{first}/{name.partition('/')[2]}"] if name.split("/")[0].isdigit() else value
        for name, value in found.items()
    }


def verdict(units, part):
    (claim,) = [c for c in EXPERIMENT.claims(units) if part in c.claim]
    return claim.verdict


def changed(units, method, value, *path):
    """All seeds' figures set to ``value``, a little apart."""
    copied = copy.deepcopy(units)
    for seed in QUICK.seeds:
        item = copied[f"{seed}/{method}"]
        for key in path[:-1]:
            item = item[key]
        moved = value + 1e-5 * seed
        item[path[-1]] = {**item[path[-1]], "value": moved} if isinstance(item[path[-1]], dict) else moved
    return copied


SET = ("outside", QUICK.outside[0])
AUROC = (*SET, "by_entropy", "auroc")
FLIPS = [
    ("Kronecker Laplace is more uncertain on shuffled than MC dropout", KRONECKER, (*SET, "mean_entropy"), 9.0, 0.0),
    ("Kronecker Laplace is more uncertain on shuffled than diagonal", KRONECKER, (*SET, "mean_entropy"), 9.0, 0.0),
    ("Kronecker Laplace is more uncertain on shuffled than a det", KRONECKER, (*SET, "mean_entropy"), 9.0, 0.0),
    ("MC dropout is more uncertain on shuffled than a det", DROPOUT, (*SET, "mean_entropy"), 9.0, 0.0),
    ("still predicted with certainty", DROPOUT, (*SET, "certain"), 0.1, -0.1),
    ("hardly any", KRONECKER, (*SET, "certain"), 0.001, 0.5),
    ("fewer than MC dropout", KRONECKER, (*SET, "certain"), -1.0, 1.0),
    ("assigns high uncertainty", KRONECKER, (*SET, "high"), 0.9, 0.1),
    ("needs stronger regularisation", "regularisation", (DIAGONAL, "std"), 1e-9, 1e9),
    ("towards predicting deterministically", "regularisation", (DIAGONAL, "distance", "shuffled"), -1.0, 1.0),
    ("the deterministic network reaches", DETERMINISTIC, ("test", "accuracy"), 0.99, 0.9),
    ("lower NLL than the deterministic", LINEARISED, ("test", "nll"), 0.0, 9.0),
    ("lower ECE than the deterministic", LINEARISED, ("test", "ece"), -0.1, 0.9),
    ("entropy of “linearised Kronecker” tells", LINEARISED, AUROC, 2.0, 0.0),
    ("variance of the logits of “linearised", "detectors", (QUICK.outside[0], "variance", "auroc"), 2.0, 0.0),
    ("“deep ensemble” tells", "deep ensemble", AUROC, 2.0, 0.0),
    ("“SWAG” tells", "SWAG", AUROC, 2.0, 0.0),
    ("a deep ensemble of 5 has a lower NLL", "deep ensemble", ("test", "nll"), 0.0, 9.0),
    ("edge of what was tried", "regularisation", (DIAGONAL, "decades_below"), 1.0, 0.0),
    ("agrees with one in plain torch", "check", ("variance", "head"), 0.0, 0.5),
]


@pytest.mark.parametrize(("part", "unit", "path", "good", "bad"), FLIPS, ids=[flip[0] for flip in FLIPS])
def test_verdicts_follow_the_numbers(even, part, unit, path, good, bad):
    assert verdict(changed(even, unit, good, *path), part) == "holds"
    assert verdict(changed(even, unit, bad, *path), part) == "does not hold"


def test_verdicts_of_several_numbers_follow_them(even):
    found = even
    same = found
    for method in METHODS:
        same = changed(same, method, 0.99, "test", "accuracy")
    for part in ("Kronecker Laplace are alike", "the factorised Gaussian is as accurate (", "so are the further"):
        assert verdict(same, part) == "holds"
    assert verdict(changed(same, KRONECKER, 0.9, "test", "accuracy"), "Kronecker Laplace are alike") == "does not hold"
    assert verdict(changed(same, FACTORISED, 0.985, "test", "accuracy"), "Gaussian is as accurate (") == "does not hold"
    poor = changed(same, FACTORISED, 0.9, "test", "accuracy")
    assert verdict(poor, "Gaussian is as accurate (") == verdict(poor, "Gaussian has low") == "cannot be told"
    for entropy, wanted in ((0.0, "holds"), (9.0, "does not hold")):
        assert verdict(changed(same, FACTORISED, entropy, *SET, "mean_entropy"), "Gaussian has low") == wanted
    assert verdict(changed(same, "SWAG", 0.9, "test", "accuracy"), "so are the further") == "does not hold"
    alike = changed(changed(found, DIAGONAL, 1.0, *SET, "mean_entropy"), DROPOUT, 1.1, *SET, "mean_entropy")
    assert verdict(alike, "similar to MC dropout") == "holds"
    assert verdict(changed(alike, DROPOUT, 2.0, *SET, "mean_entropy"), "similar to MC dropout") == "does not hold"
    novel = found
    for name in QUICK.outside:
        novel = changed(novel, "detectors", 2.0, name, "novelty", "auroc")
    assert verdict(novel, "whence.novelty") == "holds"
    assert (
        verdict(changed(novel, "detectors", 0.0, QUICK.outside[0], "novelty", "auroc"), "whence.n") == "does not hold"
    )
    for best, wanted in ((PRIOR, "holds"), (MEAN, "does not hold")):
        moved = copy.deepcopy(found)
        moved[f"reading/{best}"]["validation"]["accuracy"] = {"value": 2.0, "low": 2.0, "high": 2.0}
        assert verdict(moved, "read as a prior precision") == wanted
    moved = copy.deepcopy(found)
    moved["copies/1"] = copy.deepcopy(moved["copies/2"])
    assert verdict(moved, "binarised copies are as good") == "holds"
    moved["copies/1"]["outside"]["mean_entropy"] += 0.1
    assert verdict(moved, "binarised copies are as good") == "does not hold"
    for low, wanted in ((0.5, "holds"), (0.99, "does not hold")):
        moved = copy.deepcopy(found)
        moved[f"reading/{MEAN}"]["test"]["accuracy"] = {"value": low, "low": low - 0.001, "high": low + 0.001}
        assert verdict(moved, "read as plain weight decay") == wanted


def test_verdicts_on_the_bound_follow_the_numbers(even):
    plain, used = even["0/deterministic"]["test"]["accuracy"]["value"], QUICK.variational["kl_weight"]

    def moved(unit, value, *path):
        copied = copy.deepcopy(even)
        item = copied[unit]
        for key in path[:-1]:
            item = item[key]
        item[path[-1]] = value
        return copied

    for gap, wanted in ((0.0, "holds"), (0.03, "does not hold")):
        found = moved("divergence/1", plain - gap, "test", "accuracy", "value")
        assert verdict(found, "trained on the variational bound itself") == wanted
    for bound, wanted in ((9.0, "holds"), (-1e9, "does not hold")):
        assert verdict(moved("divergence/1", bound, "bound"), "the bound prefers it") == wanted
    for last, wanted in ((-2.0, "holds"), (50.0, "does not hold")):
        found = moved("divergence/1", 9.0, "bound")
        found["divergence/1"]["bound_by_epoch"] = [-2.0] * 9 + [last]
        assert verdict(found, "longer training would not change that") == wanted
    for nll, wanted in ((0.0, "holds"), (9.0, "does not hold")):
        found = moved(f"divergence/{used:g}", {"value": nll, "low": nll, "high": nll}, "validation", "nll")
        assert verdict(found, "weight of the divergence that is used") == wanted
    for entropy, wanted in ((0.0, "holds"), (9.0, "does not hold")):
        found = moved(SLOW, plain, "test", "accuracy", "value")
        found[SLOW]["outside"]["mean_entropy"] = entropy
        assert verdict(found, "hardly leave their start") == wanted
    for bound, wanted in ((-1e9, "holds"), (9.0, "does not hold")):
        assert verdict(moved(SLOW, bound, "bound"), "far from its optimum") == wanted


@pytest.mark.skipif(not (COLLECTION.home / "ood" / "results.json").exists(), reason="the full run has not been made")
def test_the_readme_says_what_the_results_say():
    folder = COLLECTION.home / "ood"
    part = readme.section(EXPERIMENT, read(folder / "results.json"))
    assert (folder / "README.md").read_text() == readme.expected(folder, part)


# Parts


def test_curves_and_detection_by_hand():
    entropy = torch.tensor([0.0, 0.01, 1.0, 2.0, 2.4])
    found = spread(entropy, CONFIG)
    assert found["certain"] == pytest.approx(0.4) and found["high"] == pytest.approx(0.4)
    assert found["curve"][0] == 1 and found["curve"][-1] == pytest.approx(0.2)
    assert found["mean_entropy"] == pytest.approx(float(entropy.mean()))
    assert detection(torch.tensor([0.1, 0.2]), torch.tensor([0.15, 0.3]), CONFIG)["auroc"]["value"] == 0.75


def test_factors_by_hand_are_those_of_autograd():
    """The recursion against second derivatives of the loss by autograd, for the last two layers of a small network."""
    torch.manual_seed(0)
    network = nn.Sequential(nn.Flatten(), nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 3)).double()
    x = torch.randn(5, 3, dtype=torch.float64)

    class Few:
        seed = 0

        class train:  # noqa: N801
            size, device = 5, "cpu"

            @staticmethod
            def augmented(copies, seed):
                return [(x, None)]

    Few.network = network
    factors = check.by_hand(Few, 1)
    wanted = torch.zeros(4, 4, dtype=torch.float64)
    for row in x:
        hidden = network[1](row).detach()
        outputs = network[3](hidden.relu())
        # The Hessian of log Σ exp in the activation is the Gauss–Newton matrix of the cross-entropy here.
        wanted += torch.autograd.functional.hessian(lambda h: network[3](h.relu()).logsumexp(0), hidden) / 5
        assert outputs.shape == (3,)
    torch.testing.assert_close(factors[0][1], wanted)
    ones = torch.cat([x, torch.ones(5, 1, dtype=torch.float64)], 1)
    torch.testing.assert_close(factors[0][0], ones.mT @ ones / 5)
    q, h = check.covariance_roots(*factors[0], tau=0.3, n=7.0)
    eye = torch.eye(4, dtype=torch.float64)
    torch.testing.assert_close(h @ h.mT, torch.linalg.inv(7**0.5 * wanted + 0.3**0.5 * eye))
    assert q.shape == (4, 4)


def test_preparing_fills_the_cache(tmp_path, capsys):
    cache = tmp_path / "cache"
    arguments = ["--seed", "0", "--quick", "--device", "cpu", "--cache", str(cache), "--what"]
    assert mnist_prepare.main([*arguments, "network", "swag", "kron"]) == 0
    assert "seed 0, swag" in capsys.readouterr().out
    subject = Subject(QUICK, 0, Context("cpu", cache, progress=False))
    kept = {path: path.stat().st_mtime_ns for path in cache.rglob("*.safetensors")}
    assert isinstance(subject.method(KRONECKER).posterior, whence.Laplace) and len(kept) >= 4
    assert {path: path.stat().st_mtime_ns for path in cache.rglob("*.safetensors")} == kept
