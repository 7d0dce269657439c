"""Every table of a record as CSV, and every figure of its page as a file."""

from __future__ import annotations

import base64
import csv
import io
import re
from collections.abc import Iterator
from dataclasses import fields, is_dataclass
from pathlib import Path
from typing import Any, Literal
from urllib.parse import unquote

from whence.engine.files import replacing, write_text
from whence.errors import BadFile, BadOption, one_of
from whence.report.browser import answer_of
from whence.report.compared_tables import Row, Tables, compared_tables
from whence.report.page.render import Record, pictures_page
from whence.report.record.common import Header
from whence.report.record.comparison import Compared, ComparisonRecord
from whence.report.record.scores import InputScores
from whence.report.record.sections import Profile, WeightMap

FORMATS = ("png", "svg")
NOT_TABLES = ("pixels", "row")  # pictures and features of single inputs
KEYS = ("set", "name", "key", "label", "layer", "by", "index")  # fields by which rows of a table inside a row are known


# Tables


def tables_of(record: Header) -> Tables:
    """The tables of a record by name: of rows of one kind, with one column for each number or word.

    Names are the places in the record (``quality.metrics``); columns of nested values are joined by underscores.
    """
    found: Tables = {}
    _collect(record, "", {}, found)
    return {name: rows for name, rows in found.items() if rows}


def write_tables(record: Header, folder: str | Path) -> list[Path]:
    """Write every table to ``folder`` as CSV (UTF-8, one line of names)."""
    folder = _made(folder)
    return [write_text(folder / f"{_file_name(name)}.csv", csv_text(rows)) for name, rows in tables_of(record).items()]


def csv_text(rows: list[Row]) -> str:
    """Rows as CSV, with the columns of all rows in their order."""
    columns = list(dict.fromkeys(name for row in rows for name in row))
    text = io.StringIO()
    writer = csv.DictWriter(text, columns, lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return text.getvalue()


def _collect(value: Any, place: str, before: Row, found: Tables) -> None:
    """Add the tables inside a record to ``found``; ``before`` are columns that say where rows come from."""
    if isinstance(value, Profile):
        found[f"{place}.shares"] = list(_profile(value))
        return
    if isinstance(value, InputScores):
        found[place] = list(_scores(value))
        return
    if isinstance(value, Compared):
        found |= {f"{place}.{name}".lstrip("."): rows for name, rows in compared_tables(value).items()}
        if isinstance(value, ComparisonRecord):
            _collect(value.run, "run", {}, found)
        return
    for one in fields(value):
        inside, name = getattr(value, one.name), f"{place}.{one.name}".lstrip(".")
        if one.name in NOT_TABLES or inside is None:
            continue
        if is_dataclass(inside):
            if _is_curve(inside):
                found.setdefault(name, []).extend({**before, **row} for row in _columns(inside))
            elif {field.name for field in fields(inside)} == {"plain", "bayesian"}:
                for network in ("plain", "bayesian"):
                    _values(getattr(inside, network), name, {**before, "network": network}, found)
            else:
                _collect(inside, name, before, found)
        else:
            _values(inside, name, before, found)


def _scores(value: InputScores) -> Iterator[Row]:
    """One row for each test input, with the scores of every network."""
    networks = {name: getattr(value, name) for name in ("plain", "recalibrated", "bayesian")}
    columns = {
        f"{network}_{one.name}": column
        for network, scores in networks.items()
        if scores is not None
        for one in fields(scores)
        if (column := getattr(scores, one.name)) is not None
    }
    for place, identity in enumerate(value.ids):
        counted = {} if value.counts is None else {"counted": value.counts[place]}
        yield {"input": place, "id": identity, **counted, **{name: column[place] for name, column in columns.items()}}


def _values(value: Any, name: str, before: Row, found: Tables) -> None:
    """Add a tuple of rows or of numbers, a curve, or a mapping."""
    if is_dataclass(value):
        if _is_curve(value):
            found.setdefault(name, []).extend({**before, **row} for row in _columns(value))
        else:
            _collect(value, name, before, found)
    elif isinstance(value, dict) and value:
        found.setdefault(name, []).extend({**before, "name": key, "value": item} for key, item in value.items())
    elif isinstance(value, tuple) and value and is_dataclass(value[0]):
        if not isinstance(value[0], WeightMap):
            for row in value:
                _row(row, name, before, found)
    elif isinstance(value, tuple) and value and before and not isinstance(value[0], str | tuple):
        found.setdefault(name, []).extend({**before, "value": item} for item in value)


def _row(row: Any, name: str, before: Row, found: Tables) -> None:
    """Add a row, and the tables inside it with the columns that it is known by."""
    flat = dict(_flat(row, ""))
    found.setdefault(name, []).append({**before, **flat})
    parent = name.rpartition(".")[2]
    known = {f"{parent}_{key}": flat[key] for key in KEYS if key in flat}
    for one in fields(row):
        inside = getattr(row, one.name)
        if one.name in NOT_TABLES or inside is None:
            continue
        if isinstance(inside, tuple) and inside and hasattr(inside[0], "_asdict"):
            rows = ({**before, **known, **item._asdict()} for item in inside)
            found.setdefault(f"{name}.{one.name}", []).extend(rows)
        elif is_dataclass(inside) and _is_curve(inside):
            pairs = ({**before, **known, **item} for item in _columns(inside))
            found.setdefault(f"{name}.{one.name}", []).extend(pairs)
        elif isinstance(inside, tuple):
            _values(inside, f"{name}.{one.name}", {**before, **known}, found)


def _flat(row: Any, before: str) -> Iterator[tuple[str, Any]]:
    """The plain values of a row; those of an estimate or another small record inside it with its name in front."""
    for one in fields(row):
        value, name = getattr(row, one.name), f"{before}{one.name}"
        if one.name in NOT_TABLES:
            continue
        if is_dataclass(value) and not isinstance(value, type):
            if not _is_curve(value):
                yield from _flat(value, f"{name}_")
        elif not isinstance(value, tuple | dict):
            yield (name.removesuffix("_value") if before else name), value


def _is_curve(value: Any) -> bool:
    """Whether all fields are columns of numbers."""
    parts = [getattr(value, one.name) for one in fields(value)]
    return bool(parts) and all(isinstance(part, tuple) and not any(is_dataclass(v) for v in part[:1]) for part in parts)


def _columns(value: Any) -> list[Row]:
    """A curve as rows. Of a histogram, whose edges are one more than its counts, the last count is empty."""
    parts = {one.name: getattr(value, one.name) for one in fields(value)}
    longest = max(map(len, parts.values()))
    return [{name: part[i] if i < len(part) else None for name, part in parts.items()} for i in range(longest)]


def _profile(profile: Profile) -> Iterator[Row]:
    """One row for each node and view."""
    for view in profile.views:
        for i, node in enumerate(profile.nodes):
            yield {
                "view": view.key, "view_label": view.label, "id": node.id, "parent": node.parent, "level": node.level,
                "label": node.label, "layer": node.layer, "unit": node.unit, "weights": node.weights,
                "share": view.share[i], "prior_share": view.prior_share[i], "explained": view.explained[i],
            }  # fmt: skip


# Figures


def write_figures(record: Record, folder: str | Path, kind: Literal["png", "svg"] = "png") -> list[Path]:
    """Write every figure of the page to ``folder``, drawn by a browser."""
    one_of(kind, FORMATS, "kind")
    drawn = answer_of(pictures_page(record, kind))
    if "error" in drawn:
        raise BadFile(f"a figure could not be drawn: {drawn['error']}.")
    folder, found = _made(folder), []
    for name, address in drawn.items():
        head, _, body = address.partition(",")
        data = base64.b64decode(body) if head.endswith(";base64") else unquote(body).encode()
        path = folder / f"{_file_name(name)}.{kind}"
        with replacing(path) as temporary:
            temporary.write_bytes(data)
        found.append(path)
    return found


def _made(folder: str | Path) -> Path:
    folder = Path(folder)
    if folder.exists() and not folder.is_dir():
        raise BadOption(f"{folder} is a file; pass the name of a folder.")
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise BadFile(f"cannot write into {folder}: {error.strerror or error}.") from error
    return folder


def _file_name(name: str) -> str:
    """A name that every system accepts."""
    return re.sub(r"[^\w.-]+", "-", name).strip("-.") or "table"
