"""Detectors and their combinations, small; and what pages and the audit say of the committed results."""

from __future__ import annotations

import copy
import json
from dataclasses import asdict
from pathlib import Path

import pytest
import torch
from PIL import Image

from reproductions import readme
from reproductions.claims import difference
from reproductions.own import COLLECTION
from reproductions.own.detectors import EXPERIMENT
from reproductions.own.detectors.choose import areas, average, leave_one_out, mean, regrets
from reproductions.own.detectors.combine import ALL, COMBINATIONS, FEW, OURS, SHOWN, SINGLE, with_combinations
from reproductions.own.detectors.subjects import HELD_OUT, SURROGATES
from reproductions.own.detectors.tables import named
from reproductions.store import Values, read, values
from tests.reproductions import laws
from whence.auditing.detector_choice import BEST_SINGLE, CASES, MEASURED, NETWORKS
from whence.where.combined import PARTS, combine
from whence.where.with_entropy import with_entropy

COMMITTED = COLLECTION.home / "detectors" / "results.json"
committed = pytest.mark.skipif(not COMMITTED.exists(), reason="the full run has not been made")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = laws.quick("detectors", tmp_path_factory.mktemp("detectors"), COLLECTION)
    return laws.in_order("detectors", made, COLLECTION)


@pytest.fixture(scope="module")
def units(folder: Path) -> Values:
    return values(read(folder / "results.json"))


def test_every_unit_is_there_and_none_is_done_twice(folder: Path) -> None:
    laws.complete_and_done_once("detectors", folder, COLLECTION)


def test_every_detector_and_combination_has_a_figure(folder: Path, units: Values) -> None:
    for unit in units.values():
        assert set(unit["sets"]) == {HELD_OUT, "inverted"} and set(unit["surrogates"]) == set(SURROGATES)
        for scores in unit["sets"].values():
            assert set(scores) == {*SINGLE, *COMBINATIONS}
            for name in SHOWN:
                found = scores[name]
                assert 0 <= found["low"] <= found["auroc"] <= found["high"] <= 1 and 0 <= found["fpr95"] <= 1
    with Image.open(folder / "auroc.png") as image:
        assert min(image.size) > 200


def drawn(size: int, seed: int) -> dict[str, torch.Tensor]:
    g = torch.Generator().manual_seed(seed)
    return {name: torch.rand(size, generator=g, dtype=torch.float64) ** 2 for name in SINGLE}


def test_the_combinations_are_those_of_the_library() -> None:
    known, found = drawn(200, 0), drawn(50, 1)
    scores = with_combinations(known, found)
    both = with_entropy(*((s["novelty"], s["plain_entropy"]) for s in (known, found)))
    assert torch.allclose(scores[OURS], both.score)
    assert torch.allclose(scores[ALL], combine(known, found).score)
    few = {name: known[name] for name in PARTS if name != "mahalanobis_layers"}
    assert torch.allclose(scores[FEW], combine(few, found).score)


def invented(**shifts: float) -> Values:
    """Two networks, two sets: novelty sees one set, entropy the other; ``shifts`` change a detector everywhere."""
    sets = {
        HELD_OUT: dict.fromkeys([*SINGLE, *COMBINATIONS], 0.6) | {"entropy": 0.95, "novelty": 0.5, OURS: 0.9, ALL: 0.9},
        "letters": dict.fromkeys([*SINGLE, *COMBINATIONS], 0.6)
        | {"entropy": 0.7, "novelty": 0.99, OURS: 0.97, ALL: 0.9},
    }
    units: Values = {}
    for network in ("mlp", "lenet5"):
        for seed in (0, 1, 2):
            shifted = copy.deepcopy(sets)
            for scores in shifted.values():
                for name, by in shifts.items():
                    scores[name] += by
            found = {s: {d: {"auroc": v + 1e-4 * seed} for d, v in scores.items()} for s, scores in shifted.items()}
            surrogates = {"mixed": {d: v["auroc"] for d, v in found[HELD_OUT].items()}}
            units[f"{network}/{seed}"] = {"sets": found, "surrogates": surrogates, "flagged": 0.01, "accuracy": 0.9}
    return units


def test_a_set_that_is_left_out_does_not_choose() -> None:
    found = areas(invented())
    rows = {row.place: row for row in leave_one_out(found, "single detectors")}
    assert (rows[HELD_OUT].chosen, rows["letters"].chosen) == ("novelty", "entropy")
    assert rows[HELD_OUT].area == pytest.approx(0.5, abs=1e-3) and rows[HELD_OUT].best_single == "entropy"
    combined = {row.place: row for row in leave_one_out(found, "novelty + entropy")}
    assert combined[HELD_OUT].chosen == OURS and combined["letters"].area == pytest.approx(0.97, abs=1e-3)
    assert average(found, "entropy") == pytest.approx((0.95 + 0.7) / 2, abs=1e-3)


def test_regret_is_relative_to_the_best_single_detector_of_each_case() -> None:
    units = invented()
    rows = {row.rule: row for row in regrets(areas(units), areas(units, "surrogates"))}
    row = rows[f"always {OURS}"]
    assert (row.mean, row.worst) == (pytest.approx(0.035, abs=1e-6), pytest.approx(0.05, abs=1e-6))
    assert (row.near, row.count) == (0, 4) and rows["always novelty"].near == 2
    assert rows["best on surrogates (mean of them), single"].worst == pytest.approx(0.29, abs=1e-6)  # takes entropy


def test_verdicts_follow_the_numbers() -> None:
    def verdicts(**shifts: float) -> dict[str, str]:
        return {claim.claim: claim.verdict for claim in EXPERIMENT.claims(invented(**shifts))}

    both = f"digits, MLP: {OURS} serves both kinds of novelty"
    always = f"Always “{OURS}” loses less than always the same single detector"
    assert (verdicts()[both], verdicts()[always]) == ("holds", "cannot be told")
    assert verdicts(**{OURS: 0.2, "novelty": -0.5})[always] == "holds"
    low = verdicts(**{OURS: -0.5})
    assert (low[both], low[always]) == ("does not hold", "does not hold")


@committed
def test_the_pages_say_what_the_results_say() -> None:
    content = read(COMMITTED)
    folder = COMMITTED.parent
    assert (folder / "README.md").read_text() == readme.expected(folder, readme.section(EXPERIMENT, content))
    for path, part in EXPERIMENT.elsewhere:
        assert path.read_text() == readme.filled(path.read_text(), part(values(content)))
    assert content["config"] == json.loads(json.dumps(asdict(EXPERIMENT.config(False))))


@committed
def test_an_audit_says_what_the_results_say() -> None:
    units = values(read(COMMITTED))
    found = areas(units)
    rows = {row.rule: row for row in regrets(found, areas(units, "surrogates"))}
    names = {"combined": ALL, "combined without training data": FEW, "novelty_entropy": OURS, "novelty": "novelty"}
    least = min(SINGLE, key=lambda name: rows[f"always {name}"].mean)
    best = rows[f"always {least}"]
    for key, name in names.items():
        said, unseen = MEASURED[key], [mean(found, network, HELD_OUT, name) for network in found]
        row = rows[f"always {name}"]
        assert (said.behind, said.worst) == (round(row.mean, 3), round(row.worst, 3)) and row.count == CASES
        gain = difference(best.behind, row.behind)
        assert said.gain == (round(gain.mean, 3), round(gain.low, 3), round(gain.high, 3))
        assert said.unseen == (round(min(unseen), 2), round(max(unseen), 2))
        assert said.grey == round(mean(found, "photographs", "grey", name), 2)
        assert said.inverted == round(mean(found, "photographs", "inverted", name), 2)
    assert (named(least), round(best.mean, 3), round(best.worst, 3)) == BEST_SINGLE and len(found) == NETWORKS
