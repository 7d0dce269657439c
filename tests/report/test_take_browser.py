"""Buttons of the page that save charts and tables, and the page on paper, in a browser."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

from tests.report import sample_record
from tests.report.browser import chromium, opened
from tests.report.typed import audit, render
from whence.report.formatting import percent


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    with chromium() as started:
        yield started


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("take") / "images.html"
    path.write_text(render(sample_record.images()), encoding="utf-8")
    return path


def taken(page: Any, button: Any) -> tuple[str, bytes]:
    with page.expect_download() as waiting:
        button.click()
    return waiting.value.suggested_filename, Path(waiting.value.path()).read_bytes()


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_charts_are_saved_offline_on_white(browser: Any, file: Path, scheme: str) -> None:
    with opened(browser, file, color_scheme=scheme) as page:
        bar = page.locator("#reliability + .take")
        name, data = taken(page, bar.get_by_role("button", name="PNG"))
        assert name.endswith("reliability.png")
        with Image.open(io.BytesIO(data)) as image:
            assert image.convert("RGB").getpixel((1, 1)) == (255, 255, 255)
        name, data = taken(page, bar.get_by_role("button", name="SVG"))
        assert name.endswith("reliability.svg") and data.startswith(b"<svg")
        assert page.locator(".chart + .take").count() == page.locator(".chart").count()


def test_tables_are_saved_as_csv(browser: Any, file: Path) -> None:
    record = audit(sample_record.images())
    with opened(browser, file) as page:
        page.evaluate("document.querySelectorAll('details').forEach(one => { one.open = true; })")
        assert page.locator(".scroll > table").count() == page.locator(".scroll + .take").count()
        button = page.get_by_role("button", name="Download Table of the layers as CSV")
        name, data = taken(page, button)
        assert name.endswith("table-of-the-layers.csv") and data.startswith(b"\xef\xbb\xbf")
        rows = list(csv.reader(io.StringIO(data.decode("utf-8-sig"))))
        assert len({len(row) for row in rows}) == 1  # also under headings that span columns
        assert rows[0][2] == "Test data share" and rows[0][0] == "Layer"
        assert record.layers and record.layers[0].test
        assert rows[1][2].startswith(percent(record.layers[0].test.variance_share).replace("\u202f", " "))
        assert len(rows) == 1 + len(record.layers)


def test_on_paper_details_are_open_buttons_gone_and_everything_fits(browser: Any, file: Path) -> None:
    with opened(browser, file, width=1280) as page:
        closed = page.evaluate("document.querySelectorAll('details:not([open])').length")
        page.emulate_media(media="print")
        page.set_viewport_size({"width": 688, "height": 1000})  # A4 without margins, in pixels
        page.evaluate("dispatchEvent(new Event('beforeprint'))")
        assert page.evaluate("document.querySelectorAll('details:not([open]):not(.tree details)').length") == 0
        assert page.locator(".take:visible, nav:visible, .controls:visible, .foot button:visible").count() == 0
        assert page.evaluate(
            """[...document.querySelectorAll('.chart')].every(one => {
                const box = one.querySelector('svg.main-svg').getBoundingClientRect();
                const own = one.getBoundingClientRect();
                return Math.abs(box.width - own.width) < 2 && Math.abs(box.height - own.height) < 2 && own.right < 700;
            })"""
        )
        assert page.evaluate("document.scrollingElement.scrollWidth") <= 700
        page.emulate_media(media="screen")
        page.set_viewport_size({"width": 1280, "height": 900})
        page.evaluate("dispatchEvent(new Event('afterprint'))")
        assert page.evaluate("document.querySelectorAll('details:not([open])').length") == closed
        assert page.locator("#reliability + .take").is_visible()
