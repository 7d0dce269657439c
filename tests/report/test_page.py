"""The audit page as text: what stands in it, what cannot break out of it, and how large it gets."""

from __future__ import annotations

import base64
import io
import json
import re
from html.parser import HTMLParser
from typing import Any

import numpy as np
import pytest
from PIL import Image
from plotly.offline import get_plotlyjs

from tests.report import sample_record
from tests.report.typed import audit, nodes, render
from whence.numerals import (
    alike,
    area,
    between,
    fixed,
    number,
    p_equals,
    p_value,
    percent,
    points,
    points_range,
    share,
    share_range,
    with_interval,
)
from whence.report.formatting import area_estimate, duration, estimate, places_of, plus_minus, points_estimate
from whence.report.page.dense import Scales, pictures
from whence.report.page.glossary import used
from whence.report.page.icicle import UNITS, changes, fitted, icicle, tree
from whence.report.page.names import code
from whence.report.page.render import embedded, judged, term
from whence.report.page.theme import cell
from whence.report.record.common import Estimate, MetricName
from whence.report.record.dense import DenseMaps
from whence.report.uncertainty import threshold

BUNDLE = get_plotlyjs()
VOID = {"meta", "link", "img", "br", "hr", "input"}


class Outline(HTMLParser):
    """Elements, their attributes and their text; complains about what is not closed."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.scripts: list[tuple[dict[str, str | None], str]] = []
        self.text: list[str] = []
        self.feed(page.replace(BUNDLE, "the library").replace("<wbr>", ""))
        self.close()
        assert not self.open

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        assert len(attrs) == len(dict(attrs)), f"<{tag}> has an attribute twice"
        self.elements.append((tag, dict(attrs)))
        if tag not in VOID:
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open, f"</{tag}> closes nothing"
        assert self.open.pop() == tag, f"</{tag}> closes something else"

    def handle_data(self, data: str) -> None:
        if self.open and self.open[-1] == "script":
            self.scripts.append((self.elements[-1][1], data))
        elif not self.open or self.open[-1] != "style":
            self.text.append(data)

    @property
    def words(self) -> str:
        return " ".join(" ".join(self.text).split())

    @property
    def data(self) -> dict[str, Any]:
        return json.loads("".join(text for attributes, text in self.scripts if attributes.get("id") == "data"))


@pytest.fixture(scope="module")
def images() -> dict[str, Any]:
    return sample_record.images()


@pytest.fixture(scope="module")
def page(images: dict[str, Any]) -> str:
    return render(images)


@pytest.fixture(scope="module")
def outline(page: str) -> Outline:
    return Outline(page)


def test_sections_come_in_their_order(outline: Outline) -> None:
    found = [attributes["id"] for tag, attributes in outline.elements if tag == "section"]
    assert found == [
        "verdict", "quality", "deferral", "profile", "maps", "inputs", "novelty", "pruning", "run", "glossary",
    ]  # fmt: skip


def test_words_and_numbers_of_the_record_are_shown(images: dict[str, Any], outline: Outline) -> None:
    expected = [
        images["verdict"]["words"], "0.182 [0.160, 0.202]", "−0.0410 [−0.0615, −0.0226] better",
        "defer everything", "93.0% [91.0, 94.8]", "whence novelty", "431,080", "99.9%",
        "Are large weights less uncertain?", "488 parameters of BatchNorm", "1 min 35 s", "2.13.0",
    ]  # fmt: skip
    for text in expected:
        assert " ".join(text.replace("\u202f", " ").split()) in outline.words.replace("\u202f", " "), text


def test_every_chart_has_a_label_and_data(outline: Outline) -> None:
    charts = {a["id"]: a for tag, a in outline.elements if tag == "div" and "chart" in (a.get("class") or "").split()}
    assert set(charts) == {*outline.data["charts"], "icicle", "weights"}
    assert all(attributes["role"] == "img" and attributes["aria-label"] for attributes in charts.values())


def test_ids_are_unique_and_links_lead_somewhere(outline: Outline) -> None:
    found = [attributes["id"] for _, attributes in outline.elements if "id" in attributes]
    assert len(found) == len(set(found))
    for tag, attributes in outline.elements:
        if tag == "a":
            assert (attributes["href"] or "").removeprefix("#") in found


def test_pictures_are_inside_and_have_words(outline: Outline) -> None:
    pictures = [attributes for tag, attributes in outline.elements if tag == "img"]
    assert len(pictures) == 12
    assert all((p["src"] or "").startswith("data:image/png;base64,") and p["alt"] for p in pictures)


@pytest.mark.parametrize("kind", ["images", "tabular", "bare", "hostile"])
def test_nothing_outside_is_asked_for(kind: str) -> None:
    page = render(getattr(sample_record, kind)())
    outline = Outline(page)
    for _, attributes in outline.elements:
        for key in ("src", "href", "srcset", "action", "data"):
            assert (attributes.get(key) or "#").startswith(("#", "data:")), attributes
    ours = page.replace(BUNDLE, "")
    assert len(ours) < len(page) - 4_000_000
    assert not re.search(r"https?://|//[a-z]+\.[a-z]+/|@import|url\(", ours)
    policy = next(a for tag, a in outline.elements if tag == "meta" and a.get("http-equiv"))
    assert (policy["content"] or "").startswith("default-src 'none'")


def test_hostile_names_stay_text(images: dict[str, Any]) -> None:
    outline = Outline(render(sample_record.hostile()))
    assert not [a for _, a in outline.elements if any(key.startswith("on") for key in a)]
    assert all((a["src"] or "").startswith("data:") for tag, a in outline.elements if tag == "img")
    assert sum(tag == "script" for tag, _ in outline.elements) == 3
    assert "</script><img src=x onerror=alert(1)>" in outline.words
    labels = outline.data["profile"]["trace"]["labels"]
    assert not [label for label in labels if "<" in label]


def test_a_title_cannot_take_the_place_of_a_part_of_the_page() -> None:
    record = sample_record.bare()
    record["title"] = "{{ bundle }} {% raw %} /*plotly.js*/ <!--"
    outline = Outline(render(record))
    assert "{{ bundle }} {% raw %} /*plotly.js*/ <!--" in outline.words


def test_embedded_json_cannot_end_its_element() -> None:
    value = {"a": ["</script><!--", "\u2028\u2029&", float("nan"), float("inf"), 1.5]}
    text = embedded(value)
    assert not re.search("[<>&\u2028\u2029]", text)
    assert json.loads(text) == {"a": ["</script><!--", "\u2028\u2029&", None, None, 1.5]}


def test_missing_sections_say_why() -> None:
    outline = Outline(render(sample_record.bare()))
    for name in sample_record.SECTIONS:
        assert f"no test data for {name}" in outline.words
    assert "This audit was interrupted at the step “quality”" in outline.words
    assert not [a for tag, a in outline.elements if "chart" in (a.get("class") or "").split()]


def test_points_that_were_not_judged_have_their_reason(images: dict[str, Any]) -> None:
    said = "“Notices what is new”: no out-of-distribution inputs were given."
    record = {**images, "verdict": {**images["verdict"], "not_judged": [said]}}
    assert f"Not judged. {said}" in " ".join(Outline(render(record)).words.split())
    assert "Not judged" not in Outline(render(images)).words


@pytest.mark.parametrize("section", sample_record.SECTIONS)
def test_any_one_section_may_be_missing(section: str, images: dict[str, Any]) -> None:
    left_out = [{"what": section, "why": "somebody left it out"}]
    record = {**images, section: None, "run": {**images["run"], "left_out": left_out}}
    assert "somebody left it out" in Outline(render(record)).words


def test_a_record_that_was_written_and_read_gives_the_same_page(images: dict[str, Any], page: str) -> None:
    assert render(json.loads(json.dumps(images))) == page


def test_regression_on_rows() -> None:
    words = Outline(render(sample_record.tabular())).words
    for text in (
        "1.420 ± 0.310",
        "sepal length (cm)",
        "root mean squared error at most 0.05",
        "no out-of-distribution",
    ):
        assert text in words


def test_ten_layers_stay_below_eight_megabytes() -> None:
    record = sample_record.large()
    assert len(record["profile"]["nodes"]) > 1500
    page = render(record)
    assert len(page.encode()) < 8_000_000
    assert not Outline(page).data["profile"]["thinned"]


def test_more_than_fits_is_drawn_without_groups(images: dict[str, Any]) -> None:
    found = audit(images).profile
    shown = icicle(found, most=100)
    assert shown["thinned"]
    assert len(shown["trace"]["ids"]) == 1 + 4 * 12
    assert len(shown["views"]["test"]["values"]) == 1 + 4 * 12
    places = [entry.place for entry in tree(found, most=100)]
    assert [shown["trace"]["labels"][place] for place in places] == ["conv1", "conv2", "conv3", "fc3"]
    assert "Weight groups are left out" in Outline(render(images, most=100)).words


@pytest.mark.parametrize("seed", range(3))
def test_children_fit_their_parents_in_every_view(seed: int) -> None:
    shown = icicle(audit(sample_record.images(seed=seed)).profile)
    ids, parents = shown["trace"]["ids"], shown["trace"]["parents"]
    for key, view in shown["views"].items():
        total = dict.fromkeys(ids, 0)
        for parent, value in zip(parents, view["values"], strict=True):
            assert value >= 0
            if parent:
                total[parent] += value
            else:
                assert value == pytest.approx(UNITS, rel=1e-4), key
        for one, value in zip(ids, view["values"], strict=True):
            assert total[one] <= value, key


def test_widths_are_the_shares_where_none_is_negative() -> None:
    widths, squeezed = fitted(
        [1.0, 0.7, 0.3, 0.6, 0.1], nodes(("n", None), *[("a", "n"), ("b", "n"), ("c", "a"), ("d", "a")])
    )
    assert [width / UNITS for width in widths] == pytest.approx([1.0, 0.7, 0.3, 0.6, 0.1])
    assert squeezed == []


def test_positive_children_are_narrowed_beside_negative_ones() -> None:
    tree_of = nodes(("n", None), ("a", "n"), ("b", "n"), ("c", "n"), ("d", "a"))
    widths, squeezed = fitted([1.0, 0.9, 0.3, -0.2, 0.9], tree_of)
    assert [width / UNITS for width in widths] == pytest.approx([1.0, 0.75, 0.25, 0.0, 0.75])
    assert squeezed == [0]


def test_a_difference_is_as_wide_as_its_leaves_change() -> None:
    tree_of = nodes(("n", None), ("a", "n"), ("b", "n"), ("c", "a"), ("d", "a"))
    widths = changes([0.0, 0.1, -0.1, 0.3, -0.2], tree_of)
    assert [width / UNITS for width in widths] == pytest.approx([1.0, 5 / 6, 1 / 6, 0.5, 1 / 3])
    assert changes([0.0] * 5, tree_of) == [0] * 5


def test_views_differ_in_colour_and_in_words(images: dict[str, Any]) -> None:
    shown = icicle(audit(images).profile)
    views, palettes = shown["views"], shown["palettes"]
    assert {view["palette"] for view in views.values()} == {"explained", "difference", "prior"}
    assert {row[2] for row in views["prior"]["customdata"]} == {len(palettes["prior"]) - 1}
    for view in views.values():
        assert all(0 <= row[2] < len(palettes[view["palette"]]) for row in view["customdata"])
    at = shown["trace"]["ids"].index("n0")
    assert views["test"]["customdata"][at][0] == percent(images["profile"]["views"][0]["share"][at])[:-1]
    assert views["difference"]["customdata"][at][0][0] in "+−"
    assert "negative share" in views["test"]["note"]
    assert views["test"]["unit"] == "%"


def test_ink_is_readable_on_every_cell(images: dict[str, Any]) -> None:
    def luminance(colour: str) -> float:
        parts = [int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)]
        linear = [p / 12.92 if p <= 0.04045 else ((p + 0.055) / 1.055) ** 2.4 for p in parts]
        return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]

    pairs = [pair for palette in icicle(audit(images).profile)["palettes"].values() for pair in palette]
    for colour, ink in [*pairs, cell("#767676")]:
        high, low = sorted((luminance(colour), luminance(ink)), reverse=True)
        assert (high + 0.05) / (low + 0.05) >= 4.5


def test_metrics_find_their_terms() -> None:
    assert [term(name) for name in ("nll", "ood_fpr95", "error_auroc", "accuracy")] == ["nll", "fpr95", "auroc", ""]


def test_a_posterior_of_another_kind_is_not_called_laplace(images: dict[str, Any]) -> None:
    post = {**images["run"]["posterior"], "kind": "Dropout", "describe": "Dropout(1 site)", "structure": None}
    words = Outline(render({**images, "run": {**images["run"], "posterior": post}})).words
    assert "Dropout(1 site)." in words and "Laplace approximation" not in words and "log evidence" not in words


def test_numbers_as_words() -> None:
    assert [number(x) for x in (None, 0.4, 1234.5, 431080, -0.08, 1e-7, 0, float("nan"), [1, 2.5])] == [
        "–", "0.4", "1,234", "431,080", "−0.08", "1 × 10⁻⁷", "0", "–",
        "1, 2.5",
    ]  # fmt: skip
    assert [number(x) for x in (-7998217.3, 3162277.66, 6.76e-5)] == ["−7,998,200", "3,162,300", "0.0000676"]
    shares = (0.0, 0.5, -0.0158, 0.00012345, 1, 0.99999, 0.87037, None)
    assert [percent(x) for x in shares] == ["0%", "50%", "−1.6%", "0.012%", "100%", ">99.9%", "87.0%", "–"]
    assert [percent(x, 0) for x in (0.996, 0.9996, 0.001)] == [">99%", ">99%", "<1%"]
    left, none = (1 - 6e-8, 1 - 3e-14), (1.0, 1 - 1e-16, 0.1 + 0.2 + 0.7)  # variance is left, or only rounding
    assert {percent(x) for x in left} == {">99.9%"} and {percent(x) for x in none} == {"100%"}
    assert [percent(x, 1) for x in (0, 0.1, 0.961, 1, 1 - 1e-7, 0.0004)] == [
        "0%", "10.0%", "96.1%", "100%", ">99.9%", "<0.1%",
    ]  # fmt: skip
    assert [share(x) for x in (0, 0.1, 0.0083, 1, 1 - 1e-7, None)] == ["0%", "10.0%", "0.83%", "100%", ">99.9%", "–"]
    assert share_range(0.0147, 0.0146, 0.0150) == "1.5% to 1.5%"
    assert share_range(0.156, 0.1557, 0.16) == "15.6% to 16.0%"
    assert share_range(0.0083, 0.004, 0.02, "–") == "0.40–2.00%"
    assert [points(0.0004), points(-0.0004), points(0.031, signed=True)] == ["0.0", "0.0", "+3.1"]
    assert [area(x) for x in (0.874, 0.997, 0.99992, 1.0)] == ["0.87", "0.997", ">0.999", "1"]
    assert [area(x, 3) for x in (0.874, 0.99996, 1.0, 0.0)] == ["0.874", ">0.999", "1.000", "0.000"]
    assert fixed(0.4) == "0.40" and fixed(None) == "–"
    assert duration(0.004) == "4 ms" and duration(75.2) == "1 min 15 s" and duration(None) == "–"
    assert estimate(Estimate(0.93, None, None, 0.95, 9), True) == ("93.0%", "")
    assert estimate(None) == ("–", "")


def test_intervals_that_exclude_zero_do_not_end_at_it() -> None:
    assert points_estimate(Estimate(-0.0011, -0.0021, -0.0002, 0.95, 9)) == ("−0.11", "[−0.21, −0.02]")
    assert points_estimate(Estimate(0.0011, 0.0, 0.0021, 0.95, 9)) == ("+0.1", "[0.0, 0.2]")
    assert points_range(0.0004, 0.012) == "0.04 to 1.20" and points_range(-0.001, 0.0004) == "−0.1 to 0.0"
    assert estimate(Estimate(0.31, 0.004, 0.62, 0.95, 9)) == ("0.310", "[0.004, 0.620]")
    assert between(0.004, 0.62) == "0.004 to 0.620" and between(1e-7, 0.62) == "0.00 to 0.62"
    assert with_interval(3.1, 0.04, 6.2) == "3.10, 95% interval 0.04 to 6.20"


def test_values_that_do_not_vary_have_no_interval_and_columns_have_one_format() -> None:
    assert estimate(Estimate(10.5137, 10.5137, 10.513701, 0.95, 9)) == ("10.5", "")
    assert estimate(Estimate(0.0, 0.0, 0.0, 0.95, 9)) == ("0", "")
    column = [Estimate(14.66, 14.28, 15.14, 0.95, 9), Estimate(18.94, 18.4, 19.5, 0.95, 9), None]
    assert places_of(column) == 1 and places_of([None]) is None
    assert [estimate(one, False, places_of(column))[0] for one in column] == ["14.7", "18.9", "–"]
    assert alike([4.8, 4.7, 4.62]) == ["4.80", "4.70", "4.62"] and alike([0.03, None, 12.3456]) == ["0.0", "–", "12.3"]
    assert plus_minus(23.0, 7.03) == "23.00 ± 7.03" and plus_minus(20.23, 10.3) == "20.2 ± 10.3"
    assert plus_minus(None, None) == "– ± –" and percent(-0.000004) == "−<0.001%"
    assert [p_value(x) for x in (0.8, 0.83, 0.0005, 1.0, None)] == ["0.80", "0.83", "0.0005", "1", "–"]
    assert p_equals(0.000499750126618892, 1 / 2001) == "p ≤ 0.0005"  # in single precision
    assert p_equals(0.0005, 0.0005) == "p ≤ 0.0005" and p_equals(0.012, 0.0005) == "p = 0.012"


def test_numbers_are_not_parted_from_their_names() -> None:
    assert str(code("`a` (n = 2,500, p ≤ 0.0005), then = 3")) == (
        "<code>a</code> (n\u00a0=\u00a02,500, p\u00a0≤\u00a00.0005), then = 3"
    )


def test_intervals_have_as_many_decimals_as_they_need() -> None:
    """Three digits of the value; more, up to four, where the interval is narrow; those of the interval near 0."""

    def shown(*values: float, part: bool = False) -> str:
        return " ".join(estimate(Estimate(*values, 0.95, 9), part))

    assert shown(955.905, 955.88, 955.934) == "955.9 [955.9, 955.9]"
    assert shown(-9.9e-05, -0.003244, 0.001998) == "−0.0001 [−0.0032, 0.0020]"
    assert shown(0.114, 0.095, 0.14) == "0.114 [0.095, 0.140]"
    assert shown(0.9957, 0.9925, 0.9978, part=True) == "99.6% [99.2, 99.8]"
    assert shown(0.0, 0.0, 0.0012, part=True) == "0% [0, 0.12]"
    assert shown(1.0, 0.998, 1.0, part=True) == "100% [99.80, 100]"
    assert shown(0.95, 0.91, 0.98, part=True) == "95.0% [91.0, 98.0]"
    assert shown(0.9999997, 0.97, 0.9999999, part=True) == ">99.9% [97.0, >99.9]"
    assert shown(5.52, 4.0, 9.8) == "5.52 [4.00, 9.80]"  # as in sentences, which have no interval
    assert shown(19.1, 0.0, 44.0) == "19.1 [0.0, 44.0]"
    assert shown(-1.4, -5.9, 0.1) == "−1.4 [−5.9, 0.1]"
    areas = [Estimate(v, 0.965, 1.0, 0.95, 9) for v in (0.99997, 1.0, 0.98)]
    assert [" ".join(area_estimate(one)) for one in areas] == [
        ">0.999 [0.965, 1.000]", "1.000 [0.965, 1.000]", "0.980 [0.965, 1.000]",
    ]  # fmt: skip
    assert points_estimate(Estimate(0.00041, -0.0047, 0.0057, 0.95, 9)) == ("0.0", "[−0.5, 0.6]")
    assert with_interval(-9.9e-05, -0.003244, 0.001998, "nats") == "−0.0001 nats, 95% interval −0.0032 to 0.0020"
    assert between(-0.52, 1.1) == "−0.5 to 1.1"


@pytest.mark.parametrize(
    ("better", "low", "high", "word"),
    [
        ("lower", -2, -1, "better"),
        ("lower", 1, 2, "worse"),
        ("higher", 1, 2, "better"),
        ("higher", -1, 1, "no clear difference"),
    ],
)
def test_a_difference_is_judged_by_its_interval(better: str, low: float, high: float, word: str) -> None:
    assert judged(MetricName("nll", "NLL", better, ""), Estimate(0, low, high, 0.95, 9)) == word


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("`a.b` leads", "<code>a.b</code> leads"),
        ("x `a<b>` & `c`", "x <code>a&lt;b&gt;</code> &amp; <code>c</code>"),
        ("one ` alone <", "one ` alone &lt;"),
    ],
)
def test_names_between_backticks_are_code(text: str, shown: str) -> None:
    assert str(code(text)) == shown


def test_a_part_that_rounding_made_negative_has_no_power_of_ten() -> None:
    assert [threshold(v, root=False, digits=3) for v in (-1.1e-9, 5e-5, 0.0, 0.25)] == [
        "<0.0001", "<0.0001", "0", "0.25",
    ]  # fmt: skip


def test_variances_of_predicted_numbers_are_shown_as_standard_deviations() -> None:
    found = {**sample_record.tabular(), "task": "regression", "unit": "MPa"}
    found["profile"]["views"][0]["variance"] = 16.0
    notes = [view["note"] for view in Outline(render(found)).data["profile"]["views"].values()]
    assert "standard deviation from weights 4 MPa." in notes[0] and not any("mean variance" in note for note in notes)
    labels = Outline(render({**found, "task": "classification", "unit": None})).data["profile"]["views"]
    assert "mean variance of the outputs 16" in next(iter(labels.values()))["note"]


def test_the_page_explains_the_terms_that_it_uses(outline: Outline) -> None:
    ids = [of.get("id") or "" for tag, of in outline.elements if tag == "dt"]
    explained = {one.removeprefix("term-") for one in ids if one.startswith("term-")}
    linked = {(of["href"] or "")[6:] for tag, of in outline.elements if tag == "a" and of.get("class") == "term"}
    assert linked <= explained and {"nll", "laplace", "kron", "ggn", "data_scale", "diag_h"} <= explained
    assert not explained & {"crps", "rmse", "iou", "pit", "ekfac", "full"} and "log evidence" not in outline.words


def test_terms_are_found_by_links_names_and_patterns() -> None:
    terms = {
        "nll": ("NLL, log loss", "In nats."), "nats": ("nats", "A unit."), "full": ("full", "One matrix.", ""),
        "mc": ("mc", "By draws.", "curvature mc"), "iou": ("IoU", "Of pixels."), "prior": ("prior", "Before the data."),
    }  # fmt: skip
    assert list(used(terms, "<p title='IoU'>Log losses of the mc 1</p>")) == []
    assert list(used(terms, "<p>Its log loss, curvature <b>mc</b>, the full bar</p>")) == ["nll", "nats", "mc"]
    assert list(used(terms, '<a href="#term-full">x</a> curvature mc, priors')) == ["full", "mc", "prior"]


def test_right_pixels_of_an_error_map_are_transparent() -> None:
    """So that they are dark in the dark theme."""
    grid = ((0.0, 1.0), (0.25, None))
    maps = DenseMaps("classes", ((0, 1), (1, 0)), ("a", "b"), "entropy", ((0.1, 0.2), (0.3, 0.1)), None, grid, 3, 2)
    last = pictures(maps, Scales(0.3, None, 1.0, 1.0, (0, 1)))[-1]
    image = np.asarray(Image.open(io.BytesIO(base64.b64decode(last.source.split(",")[1]))))
    assert image[..., 3].tolist() == [[0, 255], [64, 255]] and image[0, 1].tolist() == [190, 40, 20, 255]
    assert len(set(image[1, 1, :3])) > 1 and last.key[1] == ("transparent", "right")
