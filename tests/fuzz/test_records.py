"""Audit files that were changed, and pages made from records whose texts are markup or code."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import whence
from tests.fuzz.budget import cases
from tests.fuzz.test_files import damage, replaced
from tests.report import sample_record
from tests.report.browser import chromium
from tests.report.test_page import Outline
from tests.report.typed import render
from whence.errors import WhenceError

TEXTS = [
    "</script><script>hit()</script>", "<img src=x onerror=hit()>", "'\"><svg/onload=hit()>", "javascript:hit()",
    "{{ 7 * 7 }}{% raw %}", "<!--<script>", "]]>", "\u2028alert(1)\u2029", "%{x}<b onclick=hit()>", "\x00\x1b[31m",
    "&lt;script&gt;", "a" * 4000, "𝕏\u202e𝕐", "<a href=javascript:hit()>x</a>",
]  # fmt: skip
NUMBERS = [1e308, -1e308, 5e-324, 0.0, -0.0, 1e16]
SEALED = {"schema", "created", "task", "tone", "kind", "key", "name", "id", "version", "format"}  # read by code


def places(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Where texts that people chose, and numbers, stand in a record."""
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, inner in items:
        if (isinstance(inner, str) and key not in SEALED) or isinstance(inner, float):
            yield (*path, key)
        yield from places(inner, (*path, key))


def put(record: Any, path: tuple[Any, ...], value: Any) -> None:
    for key in path[:-1]:
        record = record[key]
    record[path[-1]] = value


@st.composite
def hostile_records(draw: Any) -> dict[str, Any]:
    record = getattr(sample_record, draw(st.sampled_from(["images", "tabular", "bare"])))()
    found = list(places(record))
    for _ in range(draw(st.integers(1, 8))):
        path = draw(st.sampled_from(found))
        value = record
        for key in path:
            value = value[key]
        put(record, path, draw(st.sampled_from(TEXTS if isinstance(value, str) else NUMBERS)))
    return record


@cases(12)
@given(hostile_records())
def test_pages_hold_texts_as_texts(record: dict[str, Any]) -> None:
    try:
        outline = Outline(render(record))
    except WhenceError:
        return
    for _, attributes in outline.elements:
        assert not [a for a, v in attributes.items() if a.startswith("on") and "hit" in (v or "")]
        assert not [v for v in attributes.values() if (v or "").strip().lower().startswith("javascript:")]
    assert not [text for attributes, text in outline.scripts if text.strip() == "hit()"]
    assert outline.data  # is JSON


@cases(40)
@given(st.data())
def test_changed_audit_files(data: st.DataObject) -> None:
    """Refused by an error of whence, or read and shown."""
    whole = json.dumps(sample_record.tabular())
    if data.draw(st.booleans()):
        text = data.draw(damage(whole.encode())).decode("utf-8", "replace")
    else:
        text = json.dumps(data.draw(replaced(json.loads(whole))))
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "audit.json"
        path.write_text(text)
        try:
            audit = whence.Audit.read(path)
        except WhenceError:
            return
        str(audit)


@pytest.mark.slow
@cases(30)
@given(hostile_records())
def test_pages_run_no_script(record: dict[str, Any]) -> None:
    """In a browser: nothing that a record holds is run, whatever the content policy would stop is not even tried."""
    try:
        page_text = render(record)
    except WhenceError:
        return
    with tempfile.TemporaryDirectory() as folder, chromium() as browser:
        path = Path(folder) / "page.html"
        path.write_text(page_text, encoding="utf-8")
        page = browser.new_page()
        page.add_init_script("window.hits = 0; window.hit = () => { window.hits += 1 }")
        page.goto(path.as_uri())
        page.wait_for_timeout(300)
        assert page.evaluate("window.hits") == 0
