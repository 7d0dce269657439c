"""How things show themselves: a short repr, and a small table in notebooks, for every posterior and answer."""

from __future__ import annotations

from html.parser import HTMLParser
from typing import Any

import pytest
import torch
from torch import nn

import whence
from tests.contract.posteriors import MAKE, NEW, X, Y, made
from whence.tables import SHORT, Table, html

VOID = {"br"}


class Checked(HTMLParser):
    """Balanced tags, and none but those of a plain table."""

    allowed = frozenset({"div", "p", "br", "b", "table", "thead", "tbody", "tr", "th", "td"})

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.rows, self.words = 0, ""

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        assert tag in self.allowed
        assert all(name == "style" and "color" not in (value or "") for name, value in attrs)
        self.rows += tag == "tr"
        if tag not in VOID:
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.words += data


def checked(shown: Any) -> Checked:
    """The HTML of something, read and found well formed; its repr is short."""
    lines = repr(shown).splitlines()
    assert len(lines) <= SHORT + 5
    found = Checked()
    found.feed(shown._repr_html_())
    found.close()
    assert not found.open
    assert found.rows <= SHORT + 2
    return found


@pytest.mark.filterwarnings("ignore::whence.errors.Notice")
@pytest.mark.parametrize("name", MAKE)
def test_posteriors_and_their_answers(name: str) -> None:
    posterior = made(name)
    assert "\n" not in repr(posterior)
    assert len(repr(posterior)) < 300
    shown = checked(posterior)
    assert repr(posterior) in shown.words
    prediction = posterior.predict(NEW)
    assert "\n" not in repr(prediction)
    assert checked(prediction).rows == len(NEW) + 1
    checked(posterior.where(NEW))


def deep(layers: int) -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 4), *(nn.Sequential(nn.LayerNorm(4), nn.Linear(4, 4)) for _ in range(layers)))


@pytest.mark.filterwarnings("ignore::whence.errors.Notice")
def test_deep_networks_and_many_classes_stay_short() -> None:
    net = nn.Sequential(deep(30), nn.Linear(4, 300))
    posterior = whence.laplace(net, (X, Y), likelihood="classification", curvature="mc", progress=False)
    assert len(repr(posterior)) < 300
    assert "… 50 more rows" in checked(posterior).words
    assert "confidence" in checked(posterior.predict(NEW)).words
    where = posterior.where(NEW)
    assert "50 more layers" in repr(where)
    assert "… 50 more rows" in checked(where).words
    largest = max(where.layers, key=lambda row: row.variance_share or 0)
    assert largest.name in repr(where)
    assert len(str(where).splitlines()) > 60  # all of them
    novelty = whence.novelty(posterior, NEW, reference=X)
    assert "50 more layers" in repr(novelty)
    assert "… 50 more rows" in checked(novelty).words


@pytest.mark.filterwarnings("ignore::whence.errors.Notice")
def test_audits_comparisons_tracks_and_curves() -> None:
    posterior = made("laplace") if "laplace" in MAKE else made(next(iter(MAKE)))
    comparison = whence.compare({"<one>": posterior}, (X, Y), progress=False)
    assert "<one>" in checked(comparison).words  # escaped
    audit = whence.audit(
        posterior.networks()[0], (X, Y), likelihood="classification", test=(X, Y), quick=True, progress=False
    )
    assert "Calibration" in checked(audit).words
    track = whence.track(posterior.networks()[0], (X, Y), likelihood="classification", subset=10)
    checked(track)
    track.step()
    assert "identified" in checked(track).words
    assert "\n" not in repr(whence.prune_curve(posterior.as_weights("this"), (X, Y)))
    joint: Any = posterior.predict(NEW, joint=True)
    assert "JointPrediction(6 inputs, 3 outputs" in repr(joint)


def test_names_are_escaped_and_long_tables_cut() -> None:
    table = Table({"<b>": [f"<script>{i}" for i in range(100)], "value": torch.arange(100)}, note="a < b")
    found = checked(table)
    assert found.rows == SHORT + 1
    assert "… 88 more rows" in found.words
    assert "<script>3" in found.words
    assert "<script" not in table._repr_html_()
    assert len(repr(table).splitlines()) == SHORT + 4
    assert "<b>2</b>" in html(["a"], [["1"], ["2"]], bold=lambda row, column: row == 1)
