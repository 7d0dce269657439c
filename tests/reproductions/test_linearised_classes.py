"""UCI classification: choices are those of validation rows, verdicts follow the numbers."""

from __future__ import annotations

import copy
import math
from pathlib import Path

import pytest
import torch
from PIL import Image
from torch import nn
from torch.nn.functional import cross_entropy

from reproductions.linearised import COLLECTION
from reproductions.linearised.classes import EXPERIMENT
from reproductions.linearised.classes.config import QUICK, Config, units
from reproductions.linearised.classes.methods import Scaled, best, held_nll, plain, split_of, temperature, trained
from reproductions.store import Values, read, values
from tests.reproductions import laws


def test_the_choice_is_the_lowest_validation_nll() -> None:
    split = split_of(QUICK, "two-moons", 0)
    candidates = [(p, plain(trained(QUICK, split, 0, p))) for p in (0.01, 100.0)]
    value, predict = best(candidates, split.held)
    assert held_nll(predict, split.held) == min(held_nll(c[1], split.held) for c in candidates)
    assert value == 0.01
    assert held_nll(predict, split.held) == pytest.approx(
        float(cross_entropy(predict(split.held[0]).probs.log(), split.held[1])), rel=1e-4
    )


def test_the_temperature_is_the_best_one() -> None:
    split = split_of(QUICK, "two-moons", 0)
    network = trained(QUICK, split, 0, 0.1)
    found = temperature(network, split.held)
    with torch.no_grad():
        outputs = network(split.held[0])
    lowest = float(cross_entropy(outputs / found, split.held[1]))
    assert all(
        lowest <= float(cross_entropy(outputs / (found * f), split.held[1])) + 1e-6 for f in (0.9, 0.99, 1.01, 1.1)
    )
    scaled = nn.Sequential(network, Scaled(found))
    assert held_nll(plain(scaled), split.held) == pytest.approx(lowest, rel=1e-4)


def test_members_differ_and_parts_are_apart() -> None:
    split = split_of(QUICK, "two-moons", 1)
    one, again, other = (trained(QUICK, split, 0, 0.1, member=m) for m in (0, 0, 1))
    torch.testing.assert_close(one[0].weight, again[0].weight)
    assert not torch.allclose(one[0].weight, other[0].weight)
    rows = [{tuple(row) for row in part[0].tolist()} for part in (split.train, split.held, split.test)]
    assert not rows[0] & rows[1] and not rows[0] & rows[2] and not rows[1] & rows[2]
    assert len(set(units(Config()))) == len(units(Config()))


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = laws.quick("classes", tmp_path_factory.mktemp("classes"), COLLECTION)
    return laws.in_order("classes", folder, COLLECTION)


def test_every_unit_is_there_and_none_is_done_twice(folder: Path) -> None:
    laws.complete_and_done_once("classes", folder, COLLECTION)
    with Image.open(folder / "classes.png") as image:
        assert min(image.size) > 200 and image.convert("L").getextrema()[0] < 100
    found = values(read(folder / "results.json"))
    truth = found.pop("hmc/two-moons")
    assert len(truth["rhat"]) == len(truth["scores"]["nll"]) == QUICK.hmc_seeds
    assert all(0 < nll < 3 for nll in truth["scores"]["nll"]) and all(rhat > 0.9 for rhat in truth["rhat"])
    for unit in found.values():
        assert all(math.isfinite(v) for scores in unit["methods"].values() for v in scores.values())
    text = EXPERIMENT.tables(found | {"hmc/two-moons": truth})
    assert "| two-moons | 2 | HMC |" in text and "| two-moons | 2 | ensemble |" in text


def test_verdicts_follow_the_numbers(folder: Path) -> None:
    found = values(read(folder / "results.json"))

    def verdict(by: float) -> str:
        changed: Values = copy.deepcopy(found)
        for name, unit in changed.items():
            if name.startswith("hmc/"):
                continue
            base = unit["methods"]["plain"]["nll"]
            unit["methods"]["laplace, full"]["nll"] = base + by + 1e-4 * int(name.rsplit("/", 1)[1])
        return laws.verdict(EXPERIMENT, changed, "NLL of “Laplace, full” is lower than of “one network” on")

    assert (verdict(-0.5), verdict(0.5)) == ("holds", "does not hold")
