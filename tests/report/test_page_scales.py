"""Colour scale and words of the profile, groups that are not drawn, the lines and words of other charts and tables."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from typing import Any

import pytest

from tests.report import sample_record
from tests.report.test_page import Outline
from tests.report.typed import audit, nodes, render
from whence.report.page.charts import drawn_bins, drawn_pairs, of_bins, pruning_curve, reliability
from whence.report.page.explained import ExplainedScale, explained_text
from whence.report.page.icicle import STEPS, icicle, negative_units, undrawn
from whence.report.page.people import mean_iou
from whence.report.record.common import PlainAndBayesian, RejectionCurve, ReliabilityBin
from whence.report.record.sections import OneAnswer
from whence.report.uncertainty import quartiles


@pytest.fixture(scope="module")
def images() -> dict[str, Any]:
    return sample_record.images()


def with_explained(images: dict[str, Any], *values: float) -> dict[str, Any]:
    """The record with these values, in turn, for all nodes of the first view."""
    record = json.loads(json.dumps(images))
    view = record["profile"]["views"][0]
    view["explained"] = [values[i % len(values)] for i in range(len(view["explained"]))]
    return record


def test_explained_has_two_digits_of_what_is_left() -> None:
    values = (None, -0.05, 0.42, 0.99, 0.9963, 0.999876, 0.999999, 1.0, 1.00001, 1.05042)
    assert [explained_text(value) for value in values] == [
        "–", "−5.0%", "42.0%", "99.0%", "99.63%", "99.988%", "99.9999%", "100%", ">100%", "105.0%",
    ]  # fmt: skip


def test_the_scale_is_by_what_is_left_where_little_is(images: dict[str, Any]) -> None:
    linear = ExplainedScale.of(audit(with_explained(images, 0.2, 0.5, 0.8)).profile)
    assert linear == ExplainedScale() and [linear.place(v) for v in (-1, 0.3, 2)] == [0, 0.3, 1]
    left = ExplainedScale.of(audit(with_explained(images, 0.95, 0.98, 0.997)).profile)
    assert left.decades == 3
    assert [text for _, text in left.ticks] == ["0%", "90%", "99%", "≥99.9%"]
    assert [left.place(v) for v in (-1, 0, 0.9, 0.99, 0.9999, 1, 1.2)] == pytest.approx([0, 0, 1 / 3, 2 / 3, 1, 1, 1])
    assert ExplainedScale.of(audit(with_explained(images, 1.0)).profile).decades == 4
    for place, text in ExplainedScale(4).ticks:
        assert place == pytest.approx(ExplainedScale(4).place(float(text.strip("≥%")) / 100))


def test_colours_follow_the_marks_of_the_legend(images: dict[str, Any]) -> None:
    record = with_explained(images, 0.9, 0.99, 0.999, 0.97)
    shown = icicle(audit(record).profile)
    steps = {row[1]: row[2] for row in shown["views"]["test"]["customdata"]}
    assert shown["decades"] == 3
    assert steps == {"90.0%": round(STEPS / 3), "99.0%": round(2 * STEPS / 3), "99.90%": STEPS, "97.0%": 51}
    words = Outline(render(record)).words
    assert "From each mark to the next, what is left of the variance falls to a tenth." in words and "≥99.9%" in words
    assert "Each mark leaves" not in Outline(render(with_explained(images, 0.5))).words


def test_note_and_list_agree_about_what_is_not_drawn(images: dict[str, Any]) -> None:
    profile = audit(images).profile
    shown, listed = icicle(profile), negative_units(profile)
    for view in profile.views:
        below = undrawn(view.share, profile.nodes) if view.kind != "difference" else []
        units = sum(node.is_unit for node in below)
        assert len(listed.get(view.key, ())) == units
        said = re.search(r"(\d+) units? (?:and|with)", shown["views"][view.key]["note"])
        assert (int(said[1]) if said else 0) == units
        assert ("not drawn" in shown["views"][view.key]["note"]) == bool(below)
    assert "None is listed" not in Outline(render(images)).words


def test_undrawn_nodes_are_those_below_zero() -> None:
    tree_of = nodes(("n", None), ("a", "n"), ("b", "n"), ("c", "a"))
    assert [node.id for node in undrawn([1.0, 1.1, -0.1, -1e-7], tree_of)] == ["b"]


def test_small_groups_are_in_the_table_only(images: dict[str, Any]) -> None:
    rows = tuple(ReliabilityBin(c, 0.5, 0.1, 0.9, n) for c, n in ((0.3, 1), (0.6, 10), (0.9, 400)))
    assert [one.count for one in drawn_bins(rows)] == [10, 400]
    assert drawn_bins(rows[:1]) == rows[:1], "few inputs altogether"
    record = json.loads(json.dumps(images))
    for bins in record["quality"]["reliability"].values():
        bins[0]["count"] = 9
    outline = Outline(render(record))
    assert "Groups with fewer than 10 inputs are not drawn; the table has them all." in outline.words
    drawn = outline.data["charts"]["reliability"]["data"]
    assert all(len(trace["x"]) == len(bins) - 1 for trace in drawn) and drawn
    assert "are not drawn; the table" not in Outline(render(images)).words
    assert reliability([])["data"] == []


def test_pruning_shows_what_one_answer_would_reach(images: dict[str, Any]) -> None:
    record = audit(images)
    guess = OneAnswer("nothing", 0.758)
    rows = record.pruning.rows  # type: ignore[union-attr]
    last = pruning_curve(rows, None, guess)["data"][-1]
    assert last["y"] == [0.758] * 2 and last["name"] == "always answering “nothing”" and last["line"]["dash"] == "dot"
    assert len(pruning_curve(rows)["data"]) == len(pruning_curve(rows, None, guess)["data"]) - 1


@pytest.mark.parametrize("apart", [0.0, 0.004, 0.05])
def test_curves_that_coincide_are_drawn_once(apart: float) -> None:
    """A difference that cannot be seen makes one line, which says that it is both."""
    bins = tuple(ReliabilityBin(c, c - 0.1, c - 0.2, c, 40) for c in (0.5, 0.7, 0.9))
    other = tuple(replace(one, accuracy=(one.accuracy or 0) + apart) for one in bins)
    traces = reliability(drawn_pairs(PlainAndBayesian(other, bins), of_bins))["data"]
    assert len(traces) == 2 or traces[0]["showlegend"] is True, "a legend of one line has to be asked for"
    names = [trace["name"] for trace in traces]
    assert names == (["Bayesian", "plain network"] if apart > 0.01 else ["plain ≈ Bayesian"])
    curves = (
        RejectionCurve((0.1, 0.5, 1.0), (0.0, 0.1, 0.2)),
        RejectionCurve((0.1, 0.3, 0.5, 1.0), (0, 0.05, 0.1, 0.2 + apart)),
    )
    drawn = drawn_pairs(PlainAndBayesian(*curves), lambda curve: (curve.coverage, curve.error))
    assert len(drawn) == (1 if apart < 0.002 else 2)


def test_the_whole_network_has_no_change(images: dict[str, Any]) -> None:
    record = json.loads(json.dumps(images))
    row = record["pruning"]["rows"][0]
    row |= {"sparsity": 0.0, "change": 0.0, "change_low": -0.0136, "change_high": 0.0136}
    record["pruning"]["rows"] = [row, {**row, "sparsity": 0.5}]
    table = Outline(render(record)).words.partition("Parameters left")[2]
    assert table.count("[−1.4, 1.4]") == 1 and table.startswith(" Accuracy Change (points)")


def test_pixels_have_a_mean_iou() -> None:
    record = sample_record.people(3)
    record["data"]["elements"] = "pixels"
    for row, value in zip(record["quality"]["classes"], (0.9, 0.6, None), strict=True):
        row["iou"] = value and {"value": value, "low": 0.5, "high": 0.95, "level": 0.95, "count": 900}
    assert mean_iou(audit(record).quality.classes or ()) == (pytest.approx(0.75), 2)  # type: ignore[union-attr]
    assert "The mean IoU of the 2 classes is 75.0%." in Outline(render(record)).words
    assert "mean IoU" not in Outline(render(sample_record.people(3))).words


def test_tiny_entropies_are_not_written_as_powers(images: dict[str, Any]) -> None:
    record = json.loads(json.dumps(images))
    for values in record["quality"]["uncertainty"]["test"].values():
        values[:] = [6.11e-10 for _ in values]
    words = Outline(render(record)).words
    assert "<0.0001" in words and "× 10⁻" not in words
    assert quartiles((0.0, 0.02, 0.3, 5.3), False) == ["0.02", "0.30", "5.30"]
    assert quartiles((1e-9, 1e-6, 0.0003, 5.31), False) == ["<0.0001", "0.0003", "5.31"]


def test_predicted_numbers_are_not_explained_by_classes() -> None:
    """What explains one term brings others: of numbers, no temperatures."""
    record = {**sample_record.tabular(), "quality": None}
    record["answers"] = [{"question": "?", "words": "The calibration of the recalibrated network.", "numbers": {}}]
    outline = Outline(render(record))
    terms = {(a.get("id") or "").removeprefix("term-") for tag, a in outline.elements if tag == "dt"}
    assert {"calibration", "recalibrated"} <= terms and "temperature" not in terms
    classes = Outline(render({**record, "task": "classification"}))
    assert "term-temperature" in {a.get("id") for _, a in classes.elements}


def test_names_of_classes_are_whole_in_the_matrix() -> None:
    page = render(sample_record.people(3))
    matrix = page[page.index('aria-label="Confusion matrix"') :].partition("</table>")[0]
    assert 'class="cut"' not in matrix
