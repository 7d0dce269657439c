"""Names of layers as the page shows them: without what all of them begin with, and broken at their dots only."""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterable, Iterator
from typing import Any

from whence.errors import need

Record = dict[str, Any]
PROSE = ("words", "note", "why", "notices", "not_covered")
SHORT = 10  # letters of a name that fit beside numbers on a phone
LISTED = 12  # layers that a legend names


def common(names: Iterable[str]) -> str:
    """The longest dotted prefix of all names, with its last dot; each name keeps at least its last part."""
    parts = [name.split(".")[:-1] for name in dict.fromkeys(names)]
    shared = itertools.takewhile(lambda column: len(set(column)) == 1, zip(*parts, strict=False))
    return "".join(column[0] + "." for column in shared) if len(parts) > 1 else ""


def without_common(record: Record) -> tuple[Record, str]:
    """The record with short names of layers, and what was taken from them."""
    prefix = common(_names(record))
    if not prefix:
        return record, ""

    def rows(found: list[Record] | None, *keys: str) -> list[Record] | None:
        return found and [{**row, **{key: _short(row.get(key), prefix) for key in keys}} for row in found]

    record = _said(record, prefix)
    made = {**record, "sensitivity": rows(record.get("sensitivity"), "name")}
    made["maps"] = rows(record.get("maps"), "layer", "parameter")
    if isinstance(record.get("layers"), list):
        made["layers"] = rows(record["layers"], "name")
    elif record.get("layers"):
        made["layers"] = _compared(record["layers"], prefix)
    if (record.get("comparison") or {}).get("layers"):
        made["comparison"] = {**record["comparison"], "layers": _compared(record["comparison"]["layers"], prefix)}
    if record.get("profile"):
        nodes = [_node(node, prefix) for node in record["profile"].get("nodes") or []]
        made["profile"] = {**record["profile"], "nodes": nodes}
    made["inputs"] = record.get("inputs") and [
        {**item, "layers": [[_short(name, prefix), share] for name, share in item.get("layers") or []]}
        for item in record["inputs"]
    ]
    if record.get("novelty"):
        sets = [{**each, "layers": rows(each.get("layers"), "name")} for each in record["novelty"].get("sets") or []]
        named = [_short(name, prefix) for name in record["novelty"].get("names") or []]
        made["novelty"] = {**record["novelty"], "names": named, "sets": sets}
    if record.get("answers"):
        made["answers"] = [{**one, "numbers": _keys(one.get("numbers"), prefix)} for one in record["answers"]]
    run = record.get("run") or {}
    made["run"] = {**run, "structures": rows(run.get("structures"), "name")} if run else record.get("run")
    return made, prefix


def coded(text: Any) -> Any:
    """Names between backticks as code."""
    safe = need("markupsafe", "report")
    parts = str(text).split("`")
    if len(parts) % 2 == 0:
        return safe.escape(str(text))
    code = safe.Markup("<code>{}</code>")
    return safe.Markup("").join(code.format(part) if i % 2 else part for i, part in enumerate(parts))


def dotted(name: Any) -> Any:
    """A name that may be broken after each of its dots."""
    markup = need("markupsafe", "report").Markup
    return markup(".<wbr>").join(str(name).split("."))


def most_seen(inputs: list[Record] | None, names: list[str], most: int = LISTED) -> list[str]:
    """The layers with the largest shares in the inputs shown, in the given order."""
    total = dict.fromkeys(names, 0.0)
    for item in inputs or []:
        for name, share in item.get("layers") or []:
            total[name] += abs(share or 0.0)
    largest = set(sorted(names, key=lambda name: -total[name])[:most])
    return [name for name in names if name in largest]


def _names(record: Record) -> Iterator[str]:
    """Every name of a layer that the page shows."""
    layers, run = record.get("layers") or [], record.get("run") or {}
    compared = layers if isinstance(layers, dict) else (record.get("comparison") or {}).get("layers") or {}
    novelty, profile = record.get("novelty") or {}, record.get("profile") or {}
    yield from compared.get("names") or []
    yield from novelty.get("names") or []
    for found in ([] if isinstance(layers, dict) else layers, record.get("sensitivity"), run.get("structures")):
        yield from (row["name"] for row in found or [])
    yield from (node["layer"] for node in profile.get("nodes") or [] if node.get("layer"))
    yield from (one["layer"] for one in record.get("maps") or [])
    yield from (name for item in record.get("inputs") or [] for name, _ in item.get("layers") or [])


def _short(name: Any, prefix: str) -> Any:
    return name.removeprefix(prefix) if isinstance(name, str) else name


def _compared(layers: Record, prefix: str) -> Record:
    return {**layers, "names": [_short(name, prefix) for name in layers.get("names") or []]}


def _node(node: Record, prefix: str) -> Record:
    label = _short(node["label"], prefix) if node["level"] == "layer" else node["label"]
    return {**node, "layer": _short(node.get("layer"), prefix), "label": label}


def _said(data: Any, prefix: str, prose: bool = False) -> Any:
    """The same with short names in sentences."""
    if isinstance(data, dict):
        return {key: _said(item, prefix, key in PROSE) for key, item in data.items()}
    if isinstance(data, list):
        return [_said(item, prefix, prose) for item in data] if prose or _nested(data) else data
    return re.sub(rf"(?<![\w.]){re.escape(prefix)}(?=\w)", "", data) if prose and isinstance(data, str) else data


def _nested(data: list[Any]) -> bool:
    return bool(data) and isinstance(data[0], dict)


def _keys(numbers: Any, prefix: str) -> Any:
    if not isinstance(numbers, dict):
        return numbers
    return {_short(key, prefix): _keys(value, prefix) for key, value in numbers.items()}
