"""The page of a comparison in a browser: it draws, it sorts, nothing sticks out."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.report import sample_comparison, sample_record
from tests.report.browser import chromium, opened, until
from tests.report.typed import render


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    with chromium() as started:
        yield started


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory, browser: Any) -> Path:
    where = tmp_path_factory.mktemp("pages")
    audited = {**sample_record.images(), "comparison": sample_comparison.inside()}
    made = {kind: getattr(sample_comparison, kind)() for kind in ("methods", "hostile", "many")}
    for kind, record in {**made, "audited": audited}.items():
        (where / f"{kind}.html").write_text(render(record), encoding="utf-8")
    return where


@pytest.mark.parametrize(
    ("kind", "width", "scheme"),
    [
        ("methods", 1280, "light"),
        ("methods", 390, "dark"),
        ("hostile", 390, "light"),
        ("many", 390, "light"),
        ("audited", 390, "dark"),
    ],
)
def test_every_chart_draws_and_nothing_sticks_out(
    browser: Any, folder: Path, kind: str, width: int, scheme: str
) -> None:
    with opened(browser, folder / f"{kind}.html", width, 844, color_scheme=scheme) as page:
        page.evaluate("document.querySelectorAll('details').forEach(one => { one.open = true; })")
        until(
            page,
            """[...document.querySelectorAll('.chart')].every(one => {
                const box = one.querySelector('svg.main-svg').getBoundingClientRect();
                return box.width > 200 && box.height > 100 && one.querySelector('path, image, rect');
            })""",
        )
        assert page.evaluate("document.scrollingElement.scrollWidth <= innerWidth")
        assert page.evaluate("document.querySelectorAll('.chart').length >= 6")
        small = page.evaluate(
            "[...document.querySelectorAll('button, select, nav a, summary')].filter(one => one.offsetParent"
            " && one.getBoundingClientRect().height < 36).map(one => one.textContent)"
        )
        assert small == [] or width > 390
        if "WHENCE_SCREENSHOTS" in os.environ:
            place = Path(os.environ["WHENCE_SCREENSHOTS"]) / f"comparison-{kind}-{width}-{scheme}.png"
            page.screenshot(path=place, full_page=True)


def test_headings_sort_the_rows_by_mouse_and_keyboard(browser: Any, folder: Path) -> None:
    def names() -> list[str]:
        found = page.locator("[data-sorts] tbody th").all_inner_texts()
        return [name.split("\xa0", 1)[1] for name in found]

    with opened(browser, folder / "methods.html") as page:
        given = names()
        assert given[0] == "plain network"
        head = page.locator("[data-sorts] thead th").nth(2)
        head.locator("button").click()
        assert names() == given[::-1] and head.get_attribute("aria-sort") == "ascending"
        page.keyboard.press("Enter")
        assert names() == given and head.get_attribute("aria-sort") == "descending"
        page.locator("[data-sorts] thead th button").nth(5).click()
        page.keyboard.press("Enter")
        assert names()[-1] == "plain network", "what has no value comes last either way"
        assert page.locator("[aria-sort]").count() == 1
        page.locator("[data-sorts] thead th button").nth(0).focus()
        page.keyboard.press("Enter")
        assert names() == given


def test_the_theme_can_be_chosen_and_a_method_can_be_hidden(browser: Any, folder: Path) -> None:
    with opened(browser, folder / "methods.html") as page:
        colour = "getComputedStyle(document.body).backgroundColor"
        light = page.evaluate(colour)
        page.click("#theme")
        page.click("#theme")
        assert page.evaluate(colour) != light and page.locator("#theme").inner_text() == "Theme: dark"
        chart = "document.getElementById('compared-uncertainty-chart')._fullData"
        page.locator("#compared-uncertainty-chart .legendtoggle").first.click()
        until(page, f"{chart}.filter(one => one.visible === 'legendonly').length === 2")
