"""A real browser for the tests of the page: the system's Chromium, driven by playwright."""

from __future__ import annotations

import shutil
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)


@contextmanager
def chromium() -> Iterator[Any]:
    """One browser, or a skip with the reason."""
    api = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
    if CHROMIUM is None:
        pytest.skip("no chromium on this machine")
    with api.sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield browser
        browser.close()


@contextmanager
def opened(browser: Any, path: Any, width: int = 1280, height: int = 900, **options: Any) -> Iterator[Any]:
    """A page from disk in a fresh context, once its charts are drawn. Fails on errors and on requests to elsewhere."""
    context = browser.new_context(viewport={"width": width, "height": height}, **options)
    page = context.new_page()
    complaints: list[str] = []
    page.on("console", lambda said: complaints.append(said.text) if said.type in ("error", "warning") else None)
    page.on("pageerror", lambda error: complaints.append(str(error)))
    page.on("request", lambda asked: _inside(asked.url) or complaints.append(asked.url))
    page.goto(path.as_uri())
    until(page, "document.querySelectorAll('.chart:not(.js-plotly-plot)').length === 0")
    yield page
    context.close()
    assert complaints == []


def until(page: Any, condition: str, seconds: float = 20.0) -> None:
    """Wait for a condition. Playwright's own way would evaluate it inside the page, whose policy forbids that."""
    deadline = time.monotonic() + seconds
    while not page.evaluate(condition):
        assert time.monotonic() < deadline, f"not within {seconds} s: {condition}"
        page.wait_for_timeout(20)


def _inside(address: str) -> bool:
    return address.startswith(("file:", "data:", "blob:"))


def widths(page: Any, chart: str = "icicle") -> list[float]:
    """The values that a chart is drawn from."""
    return list(page.evaluate(f"document.getElementById('{chart}').data[0].values"))


def labels(page: Any, kind: str = "slice") -> list[str]:
    """What stands in the cells of the icicle."""
    return list(page.locator(f"#icicle .{kind} text").evaluate_all("all => all.map(one => one.textContent)"))
