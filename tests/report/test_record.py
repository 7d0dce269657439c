"""Records are read from JSON and written to it without loss, also those of earlier versions of the same schema."""

from __future__ import annotations

import json
from dataclasses import FrozenInstanceError, dataclass
from pathlib import Path
from typing import Any, Generic, Literal, NamedTuple, TypeVar

import jsonschema
import pytest

import whence
from tests.report import sample_comparison, sample_record
from tests.report.typed import typed
from whence.auditing import schema
from whence.errors import BadFile
from whence.report.record.common import Count, LayerName, Mark, Numbers, Sentence
from whence.report.record.convert import changed, from_json, number, to_json
from whence.report.record.files import schema_of

FILES = Path(__file__).parent.parent / "auditing" / "files"
T = TypeVar("T")


class Pair(NamedTuple):
    name: LayerName
    value: float | None


@dataclass(frozen=True)
class Two(Generic[T]):
    left: T
    right: T


@dataclass(frozen=True)
class Small:
    """A record with a field of every kind."""

    schema: Literal["small/1"]
    name: LayerName
    count: Count
    ratio: float
    fine: bool
    numbers: Numbers
    words: tuple[Sentence, ...]
    pairs: tuple[Pair, ...]
    both: Two[Numbers] | None
    tone: Literal["good", "poor"]
    seconds: dict[str, float]
    later: str | None = None


DATA: dict[str, Any] = {
    "schema": "small/1", "name": "net.a", "count": 3, "ratio": 2, "fine": True, "numbers": [1, None, 0.5],
    "words": ["net.a leads"], "pairs": [["net.b", None]], "both": {"left": [1.0], "right": []}, "tone": "good",
    "seconds": {"fit": 0.5},
}  # fmt: skip


def test_json_goes_in_and_out() -> None:
    record = from_json(Small, DATA)
    assert to_json(record) == DATA and from_json(Small, to_json(record)) == record
    assert record.numbers == (1, None, 0.5) and record.pairs[0].name == "net.b"
    assert record.both is not None and record.both.left == (1.0,)
    with pytest.raises(FrozenInstanceError):
        record.name = "other"  # type: ignore[misc]


def test_rounding_does_not_reach_1() -> None:
    values = (0.1234567, 1.0, 1 + 6e-8, 1 - 6.12e-8, 0.99999951, 1 - 1e-16, float("nan"), 7)
    found = [number(v) for v in values]
    assert found[:3] == [0.123457, 1.0, 1.0] and found[5:] == [1.0, None, 7]
    assert found[3:5] == pytest.approx([1 - 6.1e-8, 1 - 4.9e-7], rel=1e-12)


def test_what_may_be_none_may_be_missing_and_what_is_unknown_is_ignored() -> None:
    data = {key: value for key, value in DATA.items() if key != "both"} | {"new": 1}
    assert from_json(Small, data).both is None
    assert to_json(from_json(Small, {**DATA, "later": "x"}))["later"] == "x"


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"count": "3"}, "expected count to be int, but got '3'"),
        ({"count": True}, "expected count to be int, but got True"),
        ({"ratio": None}, "expected ratio to be float, but got None"),
        ({"numbers": [1, "x"]}, r"expected numbers\[1\] to be float, but got 'x'"),
        ({"pairs": [["a"]]}, r"expected pairs\[0\] to be Pair"),
        ({"both": {"left": []}}, "both has no 'right'"),
        ({"tone": "fine"}, r"expected tone to be Literal\['good', 'poor'\]"),
        ({"seconds": []}, "expected seconds to be dict"),
    ],
)
def test_what_does_not_fit_is_named(change: dict[str, Any], words: str) -> None:
    with pytest.raises(BadFile, match=words):
        from_json(Small, {**DATA, **change})
    with pytest.raises(BadFile, match="the record has no 'name'"):
        from_json(Small, {key: value for key, value in DATA.items() if key != "name"})


def test_the_schema_says_what_can_be_read() -> None:
    made = schema_of(Small, "small/1", "A small record")
    check = jsonschema.Draft202012Validator(made)
    check.validate(DATA)
    assert made["properties"]["count"] == {"type": "integer", "minimum": 0}
    assert made["required"] == [name for name in made["properties"] if name != "later"]
    for change in ({"count": -1}, {"tone": "fine"}, {"pairs": [["a"]]}, {"more": 1}, {"both": {"left": []}}):
        assert not check.is_valid({**DATA, **change}), change


def test_changes_reach_what_is_marked_and_nothing_else() -> None:
    record = from_json(Small, DATA)
    found = changed(record, {Mark.LAYER: str.upper, float: lambda value: value + 1})
    assert (found.name, found.pairs[0].name, found.words) == ("NET.A", "NET.B", ("net.a leads",))
    assert found.numbers == (2, None, 1.5) and found.ratio == 3 and found.count == 3
    assert changed(record, {Mark.NESTED: str}) is record


@pytest.mark.parametrize("kind", ["images", "tabular", "deep", "bare", "hostile"])
def test_made_up_audits_fit_the_schema(kind: str) -> None:
    data = getattr(sample_record, kind)()
    jsonschema.Draft202012Validator(schema()).validate(data)
    assert to_json(typed(data)) == data


def test_made_up_comparisons_fit_the_schema() -> None:
    for data in (sample_comparison.methods(), sample_comparison.many()):
        jsonschema.Draft202012Validator(schema("comparison")).validate(data)
        assert to_json(typed(data)) == data


@pytest.mark.parametrize("name", ["audit", "audit-first", "comparison"])
def test_files_of_earlier_versions_open(name: str, tmp_path: Path) -> None:
    """``audit-first`` is of the first version, which wrote fewer keys."""
    path = FILES / f"{name}.json"
    written = json.loads(path.read_text(encoding="utf-8"))
    kind = whence.Comparison if name == "comparison" else whence.Audit
    found = kind.read(path)
    again = json.loads(found.json(tmp_path / "again.json").read_text(encoding="utf-8"))
    jsonschema.Draft202012Validator(schema("comparison" if name == "comparison" else "audit")).validate(again)
    if name != "audit-first":
        assert without_none(again) == without_none(written)
    assert kind.read(tmp_path / "again.json").results == found.results
    assert found.html(tmp_path / "page.html").stat().st_size > 4_000_000
    assert "Two blobs" in str(found) or "3 methods" in str(found)


def without_none(data: Any) -> Any:
    if isinstance(data, dict):
        return {key: without_none(value) for key, value in data.items() if value is not None}
    return [without_none(value) for value in data] if isinstance(data, list) else data


@pytest.mark.parametrize("part", ["verdict", "network", "data", "run", "title"])
def test_a_file_that_lacks_a_part_is_refused_by_name(part: str, tmp_path: Path) -> None:
    data = sample_record.bare()
    del data[part]
    (tmp_path / "audit.json").write_text(json.dumps(data))
    with pytest.raises(BadFile, match=rf"audit\.json is damaged: the record has no '{part}'"):
        whence.Audit.read(tmp_path / "audit.json")
