"""Tables as CSV, figures and PDF through a browser, and pages that can be checked."""

from __future__ import annotations

import csv
import shutil
import subprocess
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

import whence
from tests.report import sample_comparison, sample_record
from tests.report.browser import CHROMIUM
from tests.report.typed import audit, comparison
from whence.errors import BadFile, BadOption, MissingExtra
from whence.report import browser
from whence.report.export import tables_of
from whence.report.page import render
from whence.report.page.seal import read_page
from whence.report.record.trace import DataDigest, Git, Trace

needs_browser = pytest.mark.skipif(CHROMIUM is None, reason="no chromium on this machine")
SHA = "0123456789abcdef" * 4


def traced(kind: str = "images") -> whence.Audit:
    data = (DataDigest("test", SHA, 100, True, False), DataDigest("train", None, None, True, False, "it was not read"))
    trace = Trace((SHA,), 4, data, {"likelihood": "'</script><b>'"}, Git("c" * 40, True, 2), {"scipy": "1"}, SHA)
    return whence.Audit(replace(audit(getattr(sample_record, kind)()), trace=trace))


def rows(path: Path) -> list[dict[str, str]]:
    with path.open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


# Tables


@pytest.mark.parametrize("kind", ["images", "tabular", "bare", "hostile", "deep"])
def test_every_table_is_written_and_rectangular(kind: str, tmp_path: Path) -> None:
    found = traced(kind).tables(tmp_path / "numbers")
    assert {path.parent for path in found} == {tmp_path / "numbers"} and len(found) == len({p.name for p in found})
    for path in found:
        with path.open(encoding="utf-8", newline="") as file:
            assert len({len(line) for line in csv.reader(file)}) == 1, path.name
    assert {"trace.data.csv", "run.structures.csv"} <= {path.name for path in found} or kind == "bare"


def test_the_tables_hold_the_numbers_of_the_record(tmp_path: Path) -> None:
    record = audit(sample_record.images())
    found = {path.stem: rows(path) for path in whence.Audit(record).tables(tmp_path)}
    assert record.quality and record.layers and record.profile and record.novelty and record.deferral
    for mine, metric in zip(found["quality.metrics"], record.quality.metrics, strict=True):
        assert mine["name"] == metric.name and metric.plain is not None
        assert float(mine["plain"]) == metric.plain.value and float(mine["plain_low"]) == metric.plain.low
    for mine, layer in zip(found["layers"], record.layers, strict=True):
        assert mine["name"] == layer.name and layer.test is not None
        assert float(mine["test_variance_share"]) == layer.test.variance_share
    shares = found["profile.shares"]
    assert len(shares) == len(record.profile.nodes) * len(record.profile.views)
    last = record.profile.views[-1]
    assert float(shares[-1]["share"]) == last.share[-1] and shares[-1]["view"] == last.key
    one = record.novelty.sets[0]
    mine = [row for row in found["novelty.sets.layers"] if row["sets_key"] == one.key]
    assert [float(row["q50"]) for row in mine] == [row.q50 for row in one.layers]
    assert record.deferral.curve is not None
    kept = [float(row["coverage"]) for row in found["deferral.curve"] if row["network"] == "plain"]
    assert kept == list(record.deferral.curve.plain.coverage)


def test_comparisons_and_empty_records_have_tables_too(tmp_path: Path) -> None:
    compared = tables_of(comparison(sample_comparison.methods()))
    assert {"methods", "metrics", "layers", "rejection", "agreement"} <= compared.keys() and all(compared.values())
    record = comparison(sample_comparison.methods())
    assert len(compared["metrics"]) == len(record.metrics) * len(record.methods)
    mine = [row for row in compared["metrics"] if row["metric"] == "nll"]
    values = next(metric.values for metric in record.metrics if metric.name == "nll")
    assert [row["value"] for row in mine] == [value.value if value else None for value in values]
    assert record.layers and record.layers.share[1]
    shares = [row["share"] for row in compared["layers"] if row["method"] == record.names[1]]
    assert shares == list(record.layers.share[1])
    (tmp_path / "taken").write_text("")
    with pytest.raises(BadOption, match="is a file"):
        traced().tables(tmp_path / "taken")


# Pages that can be checked


def test_a_page_states_its_own_digest_and_that_of_its_record(tmp_path: Path) -> None:
    path = traced().html(tmp_path / "page.html")
    page = read_page(path)
    assert page.stated == page.found and page.trace == traced().results.trace
    text = path.read_text()
    assert f'<meta name="whence-record-sha256" content="{SHA}">' in text
    for change in (text.replace("</h1>", "!</h1>", 1), text + "\n", text.replace("0.", "1.", 1)):
        path.write_text(change)
        assert read_page(path).found != page.stated
    path.write_bytes(text.replace("\n", "\r\n").encode())  # as Windows may write it
    assert read_page(path).found == page.stated
    plain = read_page_of(tmp_path, render(audit(sample_record.images())))
    assert plain.stated is None and plain.trace is None
    with pytest.raises(BadFile, match="no such file"):
        read_page(tmp_path / "missing.html")


def read_page_of(folder: Path, text: str) -> Any:
    (folder / "other.html").write_text(text)
    return read_page(folder / "other.html")


# The browser


def test_without_a_browser_the_error_says_what_to_install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    if any(Path(place).is_file() for place in browser.PLACES):
        pytest.skip("a browser that is found without the PATH")
    for write in (traced().pdf, traced().figures):
        with pytest.raises(MissingExtra, match="Chromium, Google Chrome or Microsoft Edge"):
            write(tmp_path / "out")
    assert not (tmp_path / "out").exists()


@needs_browser
def test_a_browser_that_fails_is_reported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fake = tmp_path / "chromium"
    fake.write_text("#!/bin/sh\necho broken >&2\n")
    fake.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/bin:/usr/bin")
    with pytest.raises(BadFile, match=r"printed nothing \(broken\)"):
        traced().pdf(tmp_path / "a.pdf")
    with pytest.raises(BadFile, match=r"did not draw the charts \(broken\)"):
        traced().figures(tmp_path)


@needs_browser
def test_the_pdf_has_every_section_and_no_buttons(tmp_path: Path) -> None:
    path = traced().pdf(tmp_path / "sub" / "audit.pdf")
    assert path.read_bytes().startswith(b"%PDF")
    with pytest.raises(BadOption, match="is a folder"):
        traced().pdf(tmp_path)
    if shutil.which("pdftotext") is None:
        pytest.skip("no pdftotext on this machine")
    text = subprocess.run(["pdftotext", "-layout", str(path), "-"], capture_output=True, text=True, check=True).stdout
    for words in ("Accuracy and calibration", "Where this comes from", "Table of the layers", "Terms", SHA):
        assert words in text
    for button in ("CSV", "PNG", "Theme: auto", "Show its profile", "Whole network"):
        assert button not in text
    assert "removed by" in text.lower()  # a table inside closed details


@needs_browser
def test_figures_are_images_of_every_chart(tmp_path: Path) -> None:
    for kind in ("png", "svg"):
        found = {path.stem for path in traced("tabular").figures(tmp_path, kind)}  # type: ignore[arg-type]
        assert {"uncertainty", "profile-test", "novelty-layers"} <= found
        assert any(name.startswith("weights-") for name in found)
    with Image.open(tmp_path / "uncertainty.png") as image:
        assert image.width > 600 and image.convert("RGB").getpixel((2, 2)) == (255, 255, 255)
    assert (tmp_path / "uncertainty.svg").read_text().startswith("<svg")
    with pytest.raises(BadOption, match="kind"):
        traced().figures(tmp_path, "gif")  # type: ignore[arg-type]
