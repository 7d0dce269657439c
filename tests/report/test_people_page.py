"""Tables by class, binary decisions, groups and the threshold to move, on the page and in the terminal."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from tests.covering import covering
from tests.report import sample_record
from tests.report.browser import chromium, opened, until
from tests.report.test_page import Outline
from tests.report.typed import audit, render
from whence.report.page.people import slider, weakest
from whence.report.record.files import record_from, schema_id
from whence.report.terminal.audit import audit_view


@pytest.fixture(scope="module")
def outline() -> Outline:
    return Outline(render(sample_record.people()))


def test_the_page_has_the_tables(outline: Outline) -> None:
    words = outline.words.replace("\u202f", " ")
    for text in (
        "The positive class is class 1", "Clopper and Pearson", "Sensitivity (recall)", "Negative predictive value",
        "40 of 540 test inputs are off the diagonal", "By class", "The smallest group is islands (n = 7)",
        "too few to compare", "Differences from the rest", "differs, p = 0.004", "Try a threshold", "too optimistic",
    ):  # fmt: skip
        assert text in words, text
    sections = [attributes["id"] for tag, attributes in outline.elements if tag == "section"]
    assert sections[:5] == ["verdict", "quality", "deferral", "groups", "profile"]
    assert {"precision-recall", "roc", "group-chart-0", "positive-reliability"} <= set(outline.data["charts"])
    (curve,) = outline.data["charts"]["positive-reliability"]["data"]
    assert curve["name"] == "plain ≈ Bayesian", "the two are equal in this record"
    assert curve["x"] == [0.1, 0.5, 0.9] and curve["y"] == [0.05, 0.25, 0.45]
    assert "Predicted probability of class 1 and its frequency" in words


def test_a_matrix_becomes_a_list_where_there_are_many_classes() -> None:
    few, many = (Outline(render(sample_record.people(n))) for n in (20, 100))
    regions = [[a["aria-label"] for tag, a in one.elements if a.get("role") == "region"] for one in (few, many)]
    assert "Confusion matrix" in regions[0] and "Confusion matrix" not in regions[1]
    assert "the 20 most frequent confusions among 100 classes" in many.words
    assert "The 10 of 100 classes with the lowest accuracy" in many.words and "All 100 classes" in many.words
    table = many.words[many.words.index("lowest accuracy") : many.words.index("All 100 classes")]
    assert "class 99" in table and "class 20" not in table


def test_the_weakest_classes_are_those_with_the_lowest_recall() -> None:
    rows = audit(sample_record.people(30)).quality.classes  # type: ignore[union-attr]
    assert [row.name for row in weakest(rows or ())][:2] == ["class 29", "class 28"]


def test_the_slider_starts_at_the_rule_of_the_tables() -> None:
    record = sample_record.people()
    record["deferral"]["rows"][1] |= {"target": 0.8, "threshold": 0.481}
    found = slider(audit(record).deferral)
    assert found is not None and len(found["steps"]) == 40
    assert found["steps"][found["start"]][0] == "0.48"
    assert slider(audit(sample_record.images()).deferral) is None and slider(None) is None


def test_records_of_earlier_versions_still_open() -> None:
    record = sample_record.images()
    record["quality"]["classes"] = [
        {"name": "a", "frequency": 0.1, "predicted": 0.12, "difference": record["quality"]["metrics"][0]["plain"]}
    ]
    assert record["schema"] == schema_id(type(audit(record)))
    words = Outline(render(record)).words
    assert "By class" in words and "Recall" not in words and "Deferred:" not in words
    assert record_from(type(audit(record)), json.loads(json.dumps(record))).groups is None


def test_the_terminal_is_short() -> None:
    console = Console(width=100, record=True, file=open("/dev/null", "w"))  # noqa: SIM115
    console.print(audit_view(audit(sample_record.people(100)), 100))
    text = console.export_text()
    for words in ("The decision", "positive: class 1", "95 more on the page", "Groups of test inputs", "islands"):
        assert words in text, words
    assert text.count("class ") < 60


# In a browser


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    with chromium() as started:
        yield started


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory, browser: Any) -> Path:
    where = tmp_path_factory.mktemp("pages")
    kinds = {"people": {}, "many": {"classes": 100}, "hostile": {"hostile": True}, "matrix": {"classes": 20}}
    for name, options in kinds.items():
        (where / f"{name}.html").write_text(render(sample_record.people(**options)), encoding="utf-8")
    return where


@pytest.mark.parametrize(
    ("kind", "screen"), covering(["people", "many", "hostile", "matrix"], [(1280, "light"), (390, "dark")])
)
def test_nothing_sticks_out(browser: Any, folder: Path, kind: str, screen: tuple[int, str]) -> None:
    with opened(browser, folder / f"{kind}.html", screen[0], 844, color_scheme=screen[1]) as page:
        page.on("dialog", lambda dialog: pytest.fail(dialog.message))
        page.evaluate("document.querySelectorAll('details').forEach(one => { one.open = true; })")
        until(page, "document.querySelectorAll('#group-chart-0 svg.main-svg').length > 0")
        assert page.evaluate("document.scrollingElement.scrollWidth <= innerWidth")
        assert page.evaluate("document.querySelectorAll('img[onerror]').length") == 0


def test_the_threshold_moves_by_the_keyboard_and_shows_its_numbers(browser: Any, folder: Path) -> None:
    with opened(browser, folder / "people.html", 390, 844, has_touch=True) as page:
        shown = page.locator("#threshold-shown")
        before, line = shown.inner_text(), "document.getElementById('deferral-curve').layout.shapes[0].x0"
        at = page.evaluate(line)
        page.focus("#threshold-at")
        page.keyboard.press("ArrowLeft")
        assert shown.inner_text() != before and page.evaluate(line) < at
        page.keyboard.press("Home")
        step = json.loads(page.evaluate("document.getElementById('data').textContent"))["slider"]["steps"][0]
        for text in step[:5]:
            assert text in shown.inner_text()
        assert step[2] == "10" and step[3] == "390"
        assert page.locator("#threshold-at").bounding_box()["height"] >= 36
        assert page.get_attribute("#threshold-at", "aria-valuetext").startswith("defer above 0.02")
        page.emulate_media(media="print")
        assert not page.locator("#threshold").is_visible()


def test_headings_sort_the_classes(browser: Any, folder: Path) -> None:
    with opened(browser, folder / "people.html") as page:
        table = page.locator("table.people[data-sorts]").first
        table.locator("button", has_text="Accuracy").click()
        first = table.locator("tbody th").first
        assert first.inner_text() == "a class with a long name that needs room"  # 0.9, then 0.905
        table.locator("button", has_text="Accuracy").click()
        assert re.fullmatch("class 1", first.inner_text())


def test_the_bars_of_an_input_begin_at_one_place(browser: Any, folder: Path) -> None:
    found = sample_record.people(2)
    found["inputs"][0]["probs"] = [["ill", 0.49], ["healthy", 0.51]]
    path = folder / "bars.html"
    path.write_text(render(found), encoding="utf-8")
    with opened(browser, path) as page:
        bars = (
            page.locator(".probs")
            .first.locator(".meter")
            .evaluate_all("all => all.map(one => one.getBoundingClientRect()).map(one => [one.left, one.width])")
        )
        assert len(bars) == 2 and bars[0] == bars[1]


def test_tables_fit_the_screen(browser: Any, folder: Path) -> None:
    """By class with IoU on a laptop, the measures with all columns on a phone."""
    found = sample_record.people(3)
    found["data"]["elements"] = "pixels"
    for row, name in zip(found["quality"]["classes"], ("background", "disc", "square"), strict=True):
        narrow = {"value": 0.99804, "low": 0.99764, "high": 0.99839, "level": 0.95, "count": 92_785}
        row |= {"name": name, "count": 92_785, "iou": narrow, "recall": narrow, "precision": narrow}
    path = folder / "fit.html"
    path.write_text(render(found), encoding="utf-8")
    fits = "one => one.scrollWidth <= one.clientWidth"
    with opened(browser, path, 1300) as page:
        assert page.locator("[aria-label='Table by class']").evaluate(fits)
    with opened(browser, path, 390) as page:
        assert page.locator("[aria-label='Table of measures']").evaluate(fits)
        widths = page.locator("[aria-label='Table of measures'] td").evaluate_all(
            "all => all.map(one => one.offsetWidth)"
        )
        assert min(widths) > 60
