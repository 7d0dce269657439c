"""``whence audit --groups``: arrays by reference, columns by index or name."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.cli import fakes
from tests.cli.test_audit import USUAL, refused
from whence.cli import main

SITES = (
    "sites = ['a', 'b'] * 48\nboth = {'site': sites, 'age': list(range(96))}\ndef made(): return sites\nnumber = 3\n"
)


@pytest.fixture
def with_groups(shop: Path) -> Path:
    (shop / "who.py").write_text(SITES)
    return shop


def test_groups_of_every_kind(with_groups: Path) -> None:
    more = ["--test", "net.py:test", "--features", "age,weight, height,x"]
    given = ["--groups", "who.py:both", "--groups", "who.py:made", "--groups", "2", "--groups", "weight"]
    assert main([*USUAL, *more, *given, "--quiet"]) == 0
    call = fakes.calls[0]
    assert call["features"] == ["age", "weight", "height", "x"]
    assert list(call["groups"]) == ["site", "age", "made", "column 2", "weight"]
    assert call["groups"]["made"] == ["a", "b"] * 48
    assert (call["groups"]["column 2"], call["groups"]["weight"]) == (2, "weight")


def test_without_the_option_nothing_is_passed(with_groups: Path) -> None:
    assert main([*USUAL, "--quiet"]) == 0
    assert "groups" not in fakes.calls[0] and "features" not in fakes.calls[0]


def test_what_is_no_array_is_refused(with_groups: Path, capsys: pytest.CaptureFixture[str]) -> None:
    said = refused(capsys, *USUAL, "--test", "net.py:test", "--groups", "who.py:number")
    assert "--groups: expected an array or list with one value for each test input" in said
    said = refused(capsys, *USUAL, "--features", "a,,b")
    assert "--features: expected comma-separated names, such as age,weight" in said
