"""The page of a comparison as text, and as a section of an audit's page."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest

from tests.report import sample_comparison, sample_record
from tests.report.test_page import BUNDLE, Outline
from tests.report.typed import comparison, render
from whence.report.formatting import size
from whence.report.page.all_charts import comparison_charts
from whence.report.page.charts import COLOURS, PLAIN_COLOUR, looks_of
from whence.report.page.render import aim, rank
from whence.report.record.common import Estimate
from whence.report.record.comparison import Method

PARTS = [f"compared-{name}" for name in ("scores", "reliability", "uncertainty", "rejection", "layers", "agreement")]
SECTIONS = ["compared-methods", *PARTS, "compared-distance", "run", "glossary"]


@pytest.fixture(scope="module")
def record() -> dict[str, Any]:
    return sample_comparison.methods()


@pytest.fixture(scope="module")
def outline(record: dict[str, Any]) -> Outline:
    return Outline(render(record))


def plain(text: str) -> str:
    return " ".join(text.replace("\u202f", " ").replace("\xa0", " ").split())


def sections(outline: Outline) -> list[str | None]:
    return [attributes["id"] for tag, attributes in outline.elements if tag == "section"]


def test_sections_come_in_their_order(outline: Outline) -> None:
    assert sections(outline) == SECTIONS


def test_words_and_numbers_of_the_record_are_shown(record: dict[str, Any], outline: Outline) -> None:
    expected = [
        "Five methods on digits", "Classification · 6 methods · 540 test inputs · 300 out-of-distribution inputs",
        *record["words"], "tuned on validation data; Categorical()", "12 ms", "12.3 MB", "2,155,400",
        "0.182 [0.160, 0.202]", "★ best or as good: 0.121", "nearest 0.95 is best", "↓ lower is better",
        "−0.0610 [−0.0670, −0.0556] better", "What nll means, in plain words.", "± 0.4%", "Interaction",
        "no common weight coordinates", "the reference", "0.100 [0.090, 0.109]", "HMC: 3 of 400 draws diverged.",
        "memory of HMC: it was not measured", "2.13.0", "1 min 1 s",
    ]  # fmt: skip
    words = plain(outline.words)
    for text in expected:
        assert plain(text) in words, text


def test_the_best_are_marked_by_weight_and_by_a_sign(record: dict[str, Any], outline: Outline) -> None:
    marked = sum(a.get("class") == "best" for tag, a in outline.elements if tag == "td")
    assert marked == sum(sum(metric["best"]) for metric in record["metrics"])
    assert outline.words.count("best or as good: ") == marked


def test_headings_sort_by_rank(record: dict[str, Any], outline: Outline) -> None:
    ranks = [a["data-rank"] for tag, a in outline.elements if tag in ("td", "th") and "data-rank" in a]
    rows = [ranks[i : i + 8] for i in range(0, len(ranks), 8)]
    assert len(rows) == 6 and [row[0] for row in rows] == list("012345")
    assert rows[0][5] == "" and float(rows[5][5] or 1) == pytest.approx(0.002)
    assert float(rows[0][1] or 0) == pytest.approx(-record["metrics"][0]["values"][0]["value"])
    heads = [a["data-first"] for tag, a in outline.elements if tag == "th" and "data-first" in a]
    assert heads == ["ascending", "descending", *["ascending"] * 4, "descending", "descending"]


def test_every_chart_has_a_label_and_data(outline: Outline) -> None:
    charts = {a["id"]: a for tag, a in outline.elements if tag == "div" and "chart" in (a.get("class") or "").split()}
    assert len(charts) == 6 and set(charts) == set(outline.data["charts"])
    assert all(attributes["role"] == "img" and attributes["aria-label"] for attributes in charts.values())


def test_ids_are_unique_and_links_lead_somewhere(outline: Outline) -> None:
    found = [attributes["id"] for _, attributes in outline.elements if "id" in attributes]
    assert len(found) == len(set(found))
    for tag, attributes in outline.elements:
        if tag == "a":
            assert (attributes["href"] or "").removeprefix("#") in found


def test_charts_draw_what_the_record_holds(record: dict[str, Any]) -> None:
    charts = comparison_charts(comparison(record))
    shares = charts["compared-shares-chart"]["data"]
    assert [trace["name"] for trace in shares] == ["Laplace", "Variational", "MC dropout", "HMC"]
    assert list(shares[1]["x"]) == pytest.approx(record["layers"]["share"][2], rel=1e-3)
    assert "error_x" not in shares[0] and list(shares[1]["error_x"]["array"]) == pytest.approx(
        record["layers"]["error"][2], rel=1e-3
    )
    assert [t["name"] for t in charts["compared-activations-chart"]["data"]][3] == "Deep ensemble"
    curves = charts["compared-uncertainty-chart"]["data"]
    assert len(curves) == 14 and curves[0]["line"]["width"] < curves[6]["line"]["width"]
    assert curves[0]["line"]["color"] == curves[6]["line"]["color"] != curves[1]["line"]["color"]
    assert curves[0]["line"]["dash"] == "dot" and curves[6]["line"]["dash"] == "solid"
    kept = charts["compared-rejection-chart"]["data"][2]
    assert list(kept["y"])[-1] == pytest.approx(record["rejection"][2]["error"][-1], rel=1e-3)


def luminance(colour: str) -> float:
    parts = [int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)]
    linear = [p / 12.92 if p <= 0.04045 else ((p + 0.055) / 1.055) ** 2.4 for p in parts]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def test_methods_have_a_colour_and_a_mark_that_read_on_both_grounds() -> None:
    for colour in (PLAIN_COLOUR, *COLOURS):
        light, dark = 1.05 / (luminance(colour) + 0.05), (luminance(colour) + 0.05) / (luminance("#14171c") + 0.05)
        assert min(light, dark) >= 3, (colour, light, dark)
    kinds = ["plain", *["Laplace"] * 29]
    seen = looks_of([Method(str(i), kind, "", None, 0, None, None, None) for i, kind in enumerate(kinds)])
    assert len({(look.colour, look.mark) for look in seen}) == 30


def test_missing_sections_say_why() -> None:
    outline = Outline(render(sample_comparison.bare()))
    assert sections(outline) == SECTIONS
    for name in sample_comparison.SECTIONS:
        assert f"Not part of this comparison: no {name} for this task." in outline.words
    assert outline.data["charts"] == {}


@pytest.mark.parametrize("section", [*sample_comparison.SECTIONS, "metrics", "methods", "words"])
def test_any_one_section_may_be_missing(section: str, record: dict[str, Any]) -> None:
    cut = {**record, section: None if section in sample_comparison.SECTIONS else []}
    if section == "methods":
        cut |= {"metrics": [], **dict.fromkeys(sample_comparison.SECTIONS)}
    assert sections(Outline(render(cut))) == SECTIONS


def test_methods_without_a_curve_or_without_novel_inputs(record: dict[str, Any]) -> None:
    cut = json.loads(json.dumps(record))
    cut["reliability"][2] = cut["rejection"][0] = cut["layers"]["error"][5] = None
    cut["layers"]["explained"] = [None] * 6
    cut["uncertainty"]["ood"] = cut["data"]["ood"] = None
    cut["task"] = "regression"
    outline = Outline(render(cut))
    assert len(outline.data["charts"]["compared-reliability-chart"]["data"]) == 5
    assert len(outline.data["charts"]["compared-uncertainty-chart"]["data"]) == 6
    assert "compared-explained-chart" not in outline.data["charts"]
    assert "Out of distribution: no such inputs were given." in outline.words


@pytest.mark.parametrize("kind", ["methods", "bare", "hostile", "many"])
def test_nothing_outside_is_asked_for_and_names_stay_text(kind: str) -> None:
    page = render(getattr(sample_comparison, kind)())
    outline = Outline(page)
    assert not [a for _, a in outline.elements if any(key.startswith("on") or key == "src" for key in a)]
    assert sum(tag == "script" for tag, _ in outline.elements) == 3
    assert not re.search(r"https?://|//[a-z]+\.[a-z]+/|@import|url\(", page.replace(BUNDLE, ""))
    policy = next(a for tag, a in outline.elements if tag == "meta" and a.get("http-equiv"))
    assert (policy["content"] or "").startswith("default-src 'none'")
    names = [trace["name"] for chart in outline.data["charts"].values() for trace in chart["data"]]
    assert not [name for name in names if "<" in name]


def test_an_audit_shows_its_comparison_after_quality() -> None:
    record = sample_record.images()
    record["comparison"] = sample_comparison.inside()
    outline = Outline(render(record))
    found = sections(outline)
    assert found[: found.index("comparison") + 1] == ["verdict", "quality", "comparison"]
    nested = found.index("comparison") + 1
    assert found[nested : nested + 7] == [*PARTS, "compared-distance"] and found[nested + 7] == "deferral"
    assert "Methods compared" in outline.words and "compared-shares-chart" in outline.data["charts"]
    ids = [attributes["id"] for _, attributes in outline.elements if "id" in attributes]
    assert len(ids) == len(set(ids))
    for tag, attributes in outline.elements:
        if tag == "a":
            assert (attributes["href"] or "").removeprefix("#") in ids
    record["comparison"] = None
    assert "comparison" not in sections(Outline(render(record)))


def test_ranks_aims_and_sizes() -> None:
    half = Estimate(0.5, None, None, 0.95, 9)
    assert [rank(half, better) for better in ("lower", "higher", "0.95")] == ["0.5", "-0.5", "0.45"]
    assert rank(None, "lower") == "" and aim("0.95") == "nearest 0.95 is best"
    assert [size(n) for n in (None, 12, 12_300, 4.56e7, 2e10)] == ["–", "12 B", "12.3 kB", "45.6 MB", "20 GB"]
