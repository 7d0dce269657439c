"""The page of an audit with many layers, deep names, long rows or nothing to draw."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest

from tests.report import sample_comparison, sample_record
from tests.report.test_page import Outline
from tests.report.typed import audit, nodes, render
from whence.report.page.charts import deferral_curve, pruning_curve, sensitivity_curve
from whence.report.page.icicle import fitted, icicle
from whence.report.page.layer_colours import layer_colours
from whence.report.page.names import common_prefix, dotted, without_common
from whence.report.page.weight_maps import weight_map
from whence.report.record.convert import changed, from_json
from whence.report.record.sections import WeightMap

PREFIX = sample_record.DEEP


@pytest.fixture(scope="module")
def deep() -> dict[str, Any]:
    return sample_record.deep()


@pytest.fixture(scope="module")
def page(deep: dict[str, Any]) -> str:
    return render(deep)


@pytest.fixture(scope="module")
def images() -> dict[str, Any]:
    return sample_record.images()


@pytest.mark.parametrize(
    ("names", "prefix"),
    [
        (["a.b.c", "a.b.d.e"], "a.b."),
        (["a.b", "a.b.c"], "a."),
        (["a", "a.b"], ""),
        (["a.b.c"], ""),
        (["a.b.c", "a.b-x.d", "a.b.d"], "a."),
        (["encoder1.x", "encoder2.x"], ""),
        ([], ""),
    ],
)
def test_the_common_beginning_ends_at_a_dot_and_leaves_a_name(names: list[str], prefix: str) -> None:
    assert common_prefix(names) == prefix


def test_names_may_break_after_dots_and_stay_text() -> None:
    assert dotted("a.b<c.dddddd") == "a.<wbr>b&lt;c.<wbr>dddddd"
    assert dotted("down1.0") == "down1.0", "a short one stays whole"


def test_what_all_names_begin_with_is_said_once(page: str) -> None:
    ours = page[page.index("<body>") : page.index("<script>")] + json.dumps(Outline(page).data)
    assert ours.count("backbone_encoder") == 1 and PREFIX not in ours
    assert "All layer names begin with" in ours and "blocks.<wbr>0.<wbr>attn.<wbr>qkv" in ours
    assert "between 'patch_embedding' and 'classifier'" in Outline(page).words


def test_short_names_change_nothing_else(deep: dict[str, Any], images: dict[str, Any]) -> None:
    short = json.loads(json.dumps(deep).replace(PREFIX, ""))
    assert without_common(audit(deep)) == (audit(short), PREFIX)
    assert without_common(audit(images)) == (audit(images), "")


def test_only_names_lose_their_beginning_in_sentences() -> None:
    said = "'a.b' is a. But data.a.b, a.b.c and (a.b)"
    record = sample_record.bare()
    record["answers"] = [{"question": "?", "words": said, "numbers": {"a.b": 1}}]
    record["sensitivity"] = [
        {"factor": 1.0, "name": name, "variance_share": 0.5, "explained": 0.5} for name in ("a.b", "a.c")
    ]
    record["run"]["structures"] = []
    (short,) = without_common(audit(record))[0].answers or ()
    assert (short.words, short.numbers) == ("'b' is a. But data.a.b, b.c and (b)", {"b": 1})


def test_a_comparison_loses_the_common_beginning_too() -> None:
    record = sample_comparison.many()
    record["layers"]["names"] = [f"encoder.{name}" for name in record["layers"]["names"]]
    outline = Outline(render(record))
    assert outline.data["charts"]["compared-activations-chart"]["data"][0]["y"][0] == "0.attention.projection"
    assert outline.words.count("All layer names begin with") == 1


def test_legends_name_the_largest_layers(deep: dict[str, Any], page: str) -> None:
    assert "and 15 more" in Outline(page).words
    found = audit(deep)
    colours = layer_colours(found)
    traces = sensitivity_curve(found.sensitivity, colours)["data"]
    named = [trace for trace in traces if trace.get("showlegend", True)]
    assert len(traces) == 24 and len(named) == 9 and named[-1]["name"] == "and 15 more"
    largest = max(deep["sensitivity"], key=lambda row: row["variance_share"])["name"]
    assert any(largest.endswith(trace["name"].lstrip("…")) for trace in named)
    assert [trace["line"]["color"] for trace in named[:-1]] == list(colours.values())


def test_a_layer_has_one_colour_on_the_whole_page(images: dict[str, Any]) -> None:
    """In the chart of the prior as in the bars of the inputs, whatever the order of either."""
    record = json.loads(json.dumps(images))
    for item in record["inputs"]:
        item["layers"] = item["layers"][::-1]
    rows = [{"factor": f, "name": n, "variance_share": 0.2, "explained": 0.5} for n in ("fc3", "conv1") for f in (1, 2)]
    page = render({**record, "sensitivity": rows})
    drawn = {t["name"]: t["line"]["color"] for t in Outline(page).data["charts"]["sensitivity-curve"]["data"]}
    key = dict(re.findall(r'<li><b class="dot" style="background:(#\w+)"></b> (\w+)</li>', page))
    bars = {(name, colour) for colour, name in re.findall(r'background:(#\w+)" title="(\w+) ', page)}
    assert len(set(key)) == 4 and drawn == {name: colour for colour, name in key.items() if name in drawn}
    assert bars == {(name, colour) for colour, name in key.items()}


@pytest.mark.parametrize("count", [1, 8, 9, 10, 30])
def test_colours_of_layers_can_be_told_apart(count: int) -> None:
    record = sample_record.bare()
    record["sensitivity"] = [
        {"factor": 1.0, "name": f"l{i}", "variance_share": 1 / (i + 2), "explained": 0.5} for i in range(count)
    ]
    found = layer_colours(audit(record))
    assert len(set(found.values())) == len(found) == (count if count <= 9 else 8)
    assert list(found) == [f"l{i}" for i in range(len(found))]


def test_small_layers_are_folded_in_each_view(deep: dict[str, Any], images: dict[str, Any]) -> None:
    found = icicle(audit(deep).profile)
    for view in deep["profile"]["views"]:
        pairs = zip(deep["profile"]["nodes"], view["share"], strict=True)
        small = [i for i, (node, share) in enumerate(pairs) if node["level"] == "layer" and abs(share) < 0.005]
        assert found["views"][view["key"]]["small"] == small
    assert len(found["views"]["test"]["small"]) > 5
    assert not any(view["small"] for view in icicle(audit(images).profile)["views"].values())


def test_rounded_shares_are_not_called_negative() -> None:
    tree_of = nodes(("n", None), ("a", "n"), ("b", "n"), ("c", "n"))
    assert fitted([1.0, 0.333334, 0.333334, 0.333334], tree_of)[1] == []
    assert fitted([1.0, 0.6, 0.45, 0.0], tree_of)[1] == [], "too much, but none is negative"
    assert fitted([1.0, 0.500001, 0.500001, -0.000002], tree_of)[1] == []
    assert fitted([1.0, 0.55, 0.451, -0.001], tree_of)[1] == [0]


def test_the_prior_alone_has_no_negative_shares(images: dict[str, Any]) -> None:
    rounded = changed(audit(images).profile, {float: lambda share: round(share, 6)})
    views = icicle(rounded)["views"]
    assert "negative share" not in views["prior"]["note"] and "negative share" in views["test"]["note"]


@pytest.mark.parametrize(
    ("kind", "shape", "count", "most"),
    [
        ("matrix", (48, 16), 1, 600),
        ("matrix", (48, 64), 1, 600),
        ("matrix", (1, 64), 1, 200),
        ("pixels", (28, 28), 16, 900),
        ("pixels", (84, 28), 16, 900),
        ("filters", (3, 63), 16, 900),
        ("filters", (3, 3), 4, 520),
    ],
)
def test_weight_maps_stay_low(kind: str, shape: tuple[int, int], count: int, most: int) -> None:
    zeros = [[0.1] * shape[1]] * shape[0]
    grids = {"weight": zeros, "std": zeros, "identified": zeros}
    tiles = [{"label": f"unit {i}", "unit": i, **grids} for i in range(count)]
    given = {"layer": "a", "parameter": "a.weight", "kind": kind, "height": shape[0], "width": shape[1], "note": ""}
    made = weight_map(from_json(WeightMap, {**given, "tiles": tiles}))
    for key, width in (("wide", 880), ("narrow", 350)):
        one = made[key]
        assert 120 < min(width * one["ratio"], one["most"]) + one["more"] <= most, key
        square = [axis.get("scaleanchor") for name, axis in one["layout"].items() if name.startswith("yaxis")]
        assert len(square) == count and all(bool(anchor) == (kind != "matrix") for anchor in square)


def test_long_rows_are_folded_and_what_cannot_be_shown_is_said(page: str) -> None:
    record = sample_record.tabular()
    record["inputs"][0]["row"] = [[f"feature {i}", i] for i in range(20)]
    record["inputs"][0]["row"][3][1] = None
    short, long = (part.count("<details><summary>14 more") for part in render(record).split('class="inputs"'))
    assert (short, long) == (0, 1)
    words = Outline(render(record)).words
    assert "feature 19" in words and "feature 3 –" in words and "cannot be shown" not in words
    assert Outline(page).words.count("This input cannot be shown.") == 3


def test_long_names_of_classes_are_whole_in_their_title(deep: dict[str, Any], page: str) -> None:
    cut = [a["title"] for _, a in Outline(page).elements if (a.get("class") or "") in ("cut", "name") and "title" in a]
    assert deep["classes"][1] in cut


def test_a_network_without_errors_has_a_sentence_and_no_curve(images: dict[str, Any]) -> None:
    deferral = json.loads(json.dumps(images["deferral"]))
    assert deferral_curve(audit(images).deferral)["data"]
    for curve in deferral["curve"].values():
        curve["error"] = [0.0] * len(curve["error"])
    outline = Outline(render({**images, "deferral": deferral}))
    assert "The network makes no error on these 540 test inputs." in outline.words
    assert "deferral-curve" not in outline.data["charts"]
    compared = sample_comparison.methods()
    compared["rejection"] = [curve and {**curve, "error": [0.0] * 60} for curve in compared["rejection"]]
    assert "No method makes an error on these 540 test inputs." in Outline(render(compared)).words


def test_pruning_is_of_the_prunable_weights(images: dict[str, Any]) -> None:
    title = pruning_curve(audit(images).pruning.rows)["layout"]["xaxis"]["title"]["text"]
    assert title == "share of prunable weights removed"


@pytest.mark.parametrize("answers", ["all", "none", None])
@pytest.mark.parametrize("coverage", [0.0, 1.0])
def test_no_threshold_means_all_or_nothing(images: dict[str, Any], answers: str | None, coverage: float) -> None:
    row = {**images["deferral"]["rows"][0], "answers": answers, "validation": {"coverage": coverage, "error": 0.1}}
    record = {**sample_record.bare(), "deferral": {**images["deferral"], "rows": [row]}}
    words = Outline(render(record)).words
    every = answers == "all" or (answers is None and coverage == 1)
    assert ("defer nothing" in words) == every and ("defer everything" in words) != every


@pytest.mark.parametrize("section", sample_comparison.SECTIONS)
def test_a_comparison_inside_an_audit_says_why_a_section_is_missing(section: str) -> None:
    left_out = [{"what": section, "why": "somebody left it out."}]
    found = {**sample_comparison.inside(), section: None, "left_out": left_out}
    words = Outline(render({**sample_record.bare(), "comparison": found})).words
    assert "Not part of this comparison: somebody left it out." in words and "out.." not in words
