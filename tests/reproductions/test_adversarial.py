"""Adversarial inputs, small; and verdicts that follow the numbers."""

from __future__ import annotations

import copy
from pathlib import Path

import pytest
from PIL import Image

from reproductions.ritter2018.adversarial import EXPERIMENT
from reproductions.ritter2018.adversarial.check import BINARISED, GREY, half
from reproductions.ritter2018.adversarial.curves import Along, away, fooled, names, plain_methods, seeds
from reproductions.ritter2018.mnist import KRONECKER, METHODS
from reproductions.store import Values, read, values
from tests.reproductions import laws

COMPUTED = [f"0/untargeted/{METHODS[0]}", f"0/untargeted/{KRONECKER}", f"0/targeted/{KRONECKER}", "0/check"]


@pytest.fixture(scope="module", params=laws.KEPT)
def folder(tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest) -> Path:
    """All units are computed in ``make test-all``; otherwise a few, and the others were kept."""
    found = tmp_path_factory.mktemp("adversarial")
    if request.param == "fresh":
        return laws.quick("adversarial", found)
    return laws.kept("adversarial", found, COMPUTED)


@pytest.fixture(scope="module")
def units(folder: Path) -> Values:
    return values(read(folder / "results.json"))


def test_every_unit_is_there_and_none_is_done_twice(folder: Path) -> None:
    laws.complete_and_done_once("adversarial", folder)


def test_attacks_do_what_they_are_for(units: Values) -> None:
    for seed in seeds(units):
        for name in names(units):
            untargeted, targeted = (units[f"{seed}/{attack}/{name}"]["curves"] for attack in ("untargeted", "targeted"))
            assert untargeted["accuracy"][-1] < untargeted["accuracy"][0]
            assert targeted["target"][0] == 0 < targeted["target"][-1]
            assert all(0 <= value <= 2.303 for value in (*untargeted["entropy"], *targeted["entropy"]))


def test_variants_are_other_posteriors(units: Values) -> None:
    found = {name: away(units, name, "entropy") for name in names(units) if name.startswith(KRONECKER)}
    assert len(found) == 4 and len({tuple(values) for values in found.values()}) == 4
    assert set(METHODS) < set(names(units))


def test_figures_are_drawn(folder: Path) -> None:
    for number in (3, 4, 6, 7):
        with Image.open(folder / f"figure{number}.png") as image:
            low, high = image.convert("L").getextrema()
        assert low < 100 and high == 255


def with_entropy(units: Values, name: str, value: float) -> Values:
    """The same with another entropy of one method under the untargeted attack; seeds differ a little."""
    changed = copy.deepcopy(units)
    for i, seed in enumerate(seeds(units)):
        curves = changed[f"{seed}/untargeted/{name}"]["curves"]
        curves["entropy"] = [value + 1e-3 * i] * len(curves["entropy"])
    return changed


@pytest.mark.parametrize(("value", "verdict"), [(9.0, "holds"), (-9.0, "does not hold")])
def test_verdicts_follow_the_numbers(units: Values, value: float, verdict: str) -> None:
    claim = EXPERIMENT.claims(with_entropy(units, KRONECKER, value))[0]
    assert claim.claim.startswith("Untargeted: the Kronecker") and claim.verdict == verdict


def test_where_curves_cross_it_cannot_be_told(units: Values) -> None:
    changed = with_entropy(units, KRONECKER, 9.0)
    for seed in seeds(units):
        changed[f"{seed}/untargeted/{KRONECKER}"]["curves"]["entropy"][-1] = -9.0
    found = Along(changed, KRONECKER, METHODS[0], "entropy")
    assert found.verdict == "cannot be told"
    assert "above at 0.1, below at 0.3" in found.text()


def test_a_method_that_is_never_fooled_is_fooled_last(units: Values) -> None:
    def verdict(mine: list[float], others: list[float]) -> str:
        changed = copy.deepcopy(units)
        for key, unit in changed.items():
            if "/targeted/" in key:
                unit["curves"]["target"] = mine if key.endswith(f"/{KRONECKER}") else others
        return next(c.verdict for c in EXPERIMENT.claims(changed) if "all images are taken for the target" in c.claim)

    never, late, early = [0.0] * 7, [0.0] * 6 + [1.0], [0.0] * 3 + [1.0] * 4
    assert verdict(never, late) == verdict(late, early) == "holds"
    assert verdict(late, never) == verdict(early, late) == "does not hold"
    assert verdict(never, never) == "cannot be told"
    assert fooled({"0/targeted/x": {"curves": {"step": [0, 1], "target": [0.0, 1.0]}}}, "x") == [1]


def test_the_plain_gradient_is_tried_on_the_papers_methods(units: Values) -> None:
    assert plain_methods(units) == list(METHODS[:4])
    assert any("single precision" in claim.claim for claim in EXPERIMENT.claims(units))
    for key, unit in units.items():
        if "/plain gradient/" in key:
            seed, _, name = key.split("/", 2)
            stable = units[f"{seed}/untargeted/{name}"]["curves"]
            assert unit["curves"]["accuracy"][0] == pytest.approx(stable["accuracy"][0], abs=0.02)
            assert unit["curves"]["entropy"][0] == pytest.approx(stable["entropy"][0], abs=0.02)


def test_the_attack_by_hand_agrees_and_its_verdict_follows_the_numbers(units: Values) -> None:
    def verdict(found: Values) -> str:
        return next(c.verdict for c in EXPERIMENT.claims(found) if c.claim.startswith("In plain torch"))

    for seed in seeds(units):
        for kind in (GREY, BINARISED):
            check = units[f"{seed}/check"][kind]
            assert check["by_hand"] == pytest.approx(check["library"], abs=0.25)  # ten draws each, 40 images
            assert check["half_by_hand"] == pytest.approx(half(check["by_hand"]), rel=1e-4)
    changed = copy.deepcopy(units)
    for seed in seeds(units):
        for kind, at in ((GREY, 5.0), (BINARISED, 3.0)):
            changed[f"{seed}/check"][kind] |= {"half_by_hand": at, "half_library": at + 0.5}
    assert verdict(changed) == "holds"
    changed["0/check"][GREY]["half_by_hand"] = 2.9
    assert verdict(changed) == "does not hold"
    changed["0/check"][GREY] |= {"half_by_hand": 5.0, "half_library": None}
    assert verdict(changed) == "does not hold"


def test_half_is_found_between_updates() -> None:
    assert half([1.0, 0.9, 0.4]) == pytest.approx(1.8)
    assert half([1.0, 0.9, 0.6]) is None


def test_the_table_has_a_row_for_each_method(units: Values) -> None:
    text = EXPERIMENT.tables(units)
    assert all(f"| {name} |" in text for name in names(units))
