from __future__ import annotations

import io
from typing import Any

import pytest

pytest.importorskip("rich")

from rich.console import Console

from tests.cli.fakes import record
from tests.report import sample_comparison, sample_record
from tests.report.typed import typed
from whence.report import terminal
from whence.report.record.common import Estimate
from whence.report.terminal.tables import bar, estimate

SECTIONS = ("quality", "deferral", "layers", "profile", "novelty", "answers")


def drawn(found: dict[str, Any], width: int) -> str:
    out = io.StringIO()
    terminal.show_record(typed(found), Console(file=out, width=width, highlight=False))
    return out.getvalue()


@pytest.mark.parametrize("width", [80, 120, 200])
def test_everything_that_is_in_the_record_is_shown(width: int) -> None:
    text = drawn(record(), width)
    wanted = [
        "Net [v2] on digits", "mostly right", "It sees [nothing] new.", "Negative log likelihood (nats) ↓",
        "−0.100 [−0.110, −0.090]",
        "error ≤ 5%, 95% sure", "answer 50%", "always", "4.0% [3.0, 5.0]", "75.0%", "Most of it comes from first.",
        "whence novelty", "Which layer is least certain?", "pruning: no test data", "a note from within",
    ]  # fmt: skip
    for words in wanted:
        assert words in text, words
    assert max(map(len, text.splitlines())) <= min(width, 120)


@pytest.mark.parametrize("section", SECTIONS)
def test_any_section_may_be_missing(section: str) -> None:
    assert "Net [v2]" in drawn(record(**{section: None}), 80)


def test_points_that_were_not_judged_have_their_reason() -> None:
    found = record()
    found["verdict"] = {**found["verdict"], "not_judged": ["“Generalises”: predicted numbers have no accuracy."]}
    assert "Not judged. “Generalises”: predicted numbers have no accuracy." in drawn(found, 120)


def test_a_posterior_of_another_kind() -> None:
    found = record()
    found["run"]["posterior"] |= {"kind": "Dropout", "describe": "Dropout(1 site)", "structure": None}
    assert "Dropout(1 site)" in drawn(found, 80) and "data scale" not in drawn(found, 80)


def test_layers_without_inputs_and_interruption() -> None:
    found = record()
    for row in found["layers"]:
        row["test"] = row["ood"] = None
    found["run"]["interrupted"] = "quality"
    text = drawn(found, 80)
    assert "identified" in text and "share" not in text and "during quality; finished parts are shown" in text


def test_long_names_fold_and_numbers_stay_whole() -> None:
    found = record()
    found["layers"][0]["name"] = "encoder.layers.11.self_attention.output.dense"
    text = drawn(found, 80)
    assert "█" in text and " 75.0%" in text and "…" not in text


def test_errors_other_than_rates_are_plain_numbers() -> None:
    found = record()
    found["deferral"]["error"] = "root mean squared error"
    text = drawn(found, 80)
    assert "error ≤ 0.05, 95% sure" in text and "error: root mean squared error" in text


def test_numbers() -> None:
    assert estimate(None) == "–"
    assert estimate(Estimate(0.5, 0.4, 0.6, 0.95, 9)) == "0.500 [0.400, 0.600]"
    assert estimate(Estimate(0.5, 0.4, 0.6, 0.95, 9), "percent", False) == "50.0%"
    assert estimate(Estimate(0.031, 0.0, 0.05, 0.95, 9), "points") == "3.1 [0.0, 5.0]"


def test_bars() -> None:
    assert bar(None, 8).plain == "–"
    assert bar(1.0, 8).plain == "████████   100%"
    assert bar(0.5 + 1 / 16, 8).plain.startswith("████▌")
    assert bar(-0.1, 8).plain.strip() == "−10.0%"


@pytest.mark.parametrize("width", [80, 120, 200])
def test_a_comparison(width: int) -> None:
    text = drawn(sample_comparison.methods(), width)
    wanted = [
        "Five methods on digits", "test 540, ood 300", "NLL: best are Deep ensemble and HMC.", "Methods on test data",
        "12 ms", "12.3 MB", "67.3 ± 0.4%", "disagreement", "no common weight coordinates", "−0.15 (30%)",
        "Distance from HMC", "the reference", "0.120 [0.110, 0.129]", "memory of HMC: it was not measured",
    ]  # fmt: skip
    flat = " ".join(text.split())
    for words in wanted:
        assert words in flat, words
    assert ("0.121 [0.106, 0.134] *" if width >= 110 else "0.121 *") in text
    assert max(map(len, text.splitlines())) <= min(width, 120)


@pytest.mark.parametrize("section", [*sample_comparison.SECTIONS, "metrics", "words"])
def test_any_section_of_a_comparison_may_be_missing(section: str) -> None:
    empty = None if section in sample_comparison.SECTIONS else []
    assert "Five methods" in drawn({**sample_comparison.methods(), section: empty}, 80)


@pytest.mark.parametrize("width", [80, 120])
def test_many_methods_and_hostile_names(width: int) -> None:
    for found in (sample_comparison.many(), sample_comparison.hostile(), sample_comparison.bare()):
        assert max(map(len, drawn(found, width).splitlines())) <= width


def test_an_audit_shows_its_comparison() -> None:
    text = drawn(record(comparison=sample_comparison.inside()), 80)
    assert text.index("Quality on test data") < text.index("Methods on test data") < text.index("Deferral to a person")
    assert "Methods on test data" not in drawn(record(comparison=None), 80)


def test_names_of_classes_are_kept_and_what_is_counted_is_named() -> None:
    found = sample_record.people(3)
    found["data"]["elements"] = "pixels"
    for row, name in zip(found["quality"]["classes"], ("background", "disc", "healthy tissue"), strict=True):
        row |= {"name": name, "count": 92_785}
        row["recall"] |= {"value": 0.99804, "low": 0.99764, "high": 0.99839}
    text = drawn(found, 80)
    table = text[text.index("By class") : text.index("Most frequent confusions")]
    assert all(name in table for name in ("background", "disc", "healthy tissue")) and "of the pixels" in table
    confusions = text[text.index("Most frequent confusions") :][:200]
    assert "pixels" in confusions and "inputs" not in confusions
    assert max(map(len, text.splitlines())) <= 80


def test_ranges_contain_their_share() -> None:
    found = record()
    found["layers"][0]["test"] |= {"variance_share": 0.0147, "share_low": 0.0146, "share_high": 0.015}
    assert "1.5–1.5%" in drawn(found, 80)
