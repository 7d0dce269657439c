"""Reading and writing records, and their JSON schema."""

from __future__ import annotations

import json
from dataclasses import fields
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar, get_args, get_origin

from whence.engine.files import write_text
from whence.errors import BadFile, BadOption
from whence.report.record.audit import AuditRecord
from whence.report.record.comparison import ComparisonRecord
from whence.report.record.convert import from_json, hints, is_named_tuple, is_record, optional_type, to_json
from whence.report.record.difference import DiffRecord

R = TypeVar("R", AuditRecord, ComparisonRecord, DiffRecord)
Schema = dict[str, Any]
DRAFT = "https://json-schema.org/draft/2020-12/schema"
JSON_TYPES = {str: "string", bool: "boolean", int: "integer", float: "number"}
NAMES = {AuditRecord: "an audit", ComparisonRecord: "a comparison", DiffRecord: "a diff"}


def write_record(path: str | Path, record: AuditRecord | ComparisonRecord | DiffRecord) -> Path:
    """Write a record as JSON."""
    return write_page(path, json.dumps(to_json(record), ensure_ascii=False, allow_nan=False, indent=1) + "\n")


def write_page(path: str | Path, text: str) -> Path:
    """Write a text file atomically."""
    if Path(path).is_dir():
        raise BadOption(f"{path} is a folder; pass the name of a file in it.")
    return write_text(path, text)


def read_record(path: str | Path, kind: type[R]) -> R:
    """Read a file of :func:`write_record`, also from an earlier version with the same schema."""
    name, wanted = NAMES[kind], schema_id(kind)
    try:
        data = json.loads(Path(path).read_text(encoding="utf-8"))
    except FileNotFoundError as error:
        raise BadFile(f"{path}: there is no such file.") from error
    except (OSError, UnicodeDecodeError, json.JSONDecodeError) as error:
        raise BadFile(f"{path} is not {name}: it is not JSON ({error}).") from error
    found = data.get("schema") if isinstance(data, dict) else None
    if found != wanted:
        came = f"its schema is {found!r}" if found else "it has no schema"
        raise BadFile(f"{path} is not {name} that this version reads: {came}, not {wanted!r}.")
    try:
        return record_from(kind, data)
    except BadFile as error:
        raise BadFile(f"{path} is damaged: {error}") from error


def record_from(kind: type[R], data: Any) -> R:
    """Convert JSON of the current or an earlier version to a record."""
    return from_json(kind, _completed(data) if kind is AuditRecord and isinstance(data, dict) else data)


def _completed(data: dict[str, Any]) -> dict[str, Any]:
    """Add keys that the first version did not have: which inputs a rule answers, and the kind of posterior."""
    made = dict(data)
    if isinstance(deferral := data.get("deferral"), dict):
        made["deferral"] = deferral | {"rows": [_completed_rule(row) for row in deferral.get("rows") or ()]}
    verdict = data.get("verdict")
    if isinstance(verdict, dict) and isinstance(rules := verdict.get("rules"), dict):
        made["verdict"] = verdict | {"rules": {"recall_mixed": None} | rules}  # not judged before version 3
    run = data.get("run")
    if isinstance(run, dict) and isinstance(run.get("posterior"), dict):
        made["run"] = run | {"posterior": {"kind": "Laplace", "describe": "Laplace"} | run["posterior"]}
    return made


def _completed_rule(row: dict[str, Any]) -> dict[str, Any]:
    if row.get("answers") is not None:
        return row
    everything = (row["validation"]["coverage"] or 0.0) >= 1
    return row | {"answers": "some" if row["threshold"] is not None else "all" if everything else "none"}


# The schema


def schema_id(kind: Any) -> str:
    return str(get_args(hints(kind)["schema"])[0])


def json_schema(kind: Any) -> dict[str, Any]:
    """The schema of the files of :func:`write_record`."""
    return schema_of(kind, schema_id(kind), f"{NAMES[kind].capitalize()} by whence")


def schema_of(kind: Any, name: str, title: str) -> Schema:
    """The JSON schema of a class of records; each class inside it has its own definition."""
    found: dict[str, Schema] = {}
    return {"$schema": DRAFT, "$id": name, "title": title, **_record(kind, found), "$defs": found}


def _record(kind: Any, found: dict[str, Schema]) -> Schema:
    plain = get_origin(kind) or kind
    return {
        "description": " ".join((plain.__doc__ or "").split()),
        "type": "object",
        "properties": {name: _schema(hint, found) for name, hint in hints(kind).items()},
        "required": [one.name for one in fields(plain) if one.default is not None],
        "additionalProperties": False,
    }


def _schema(hint: Any, found: dict[str, Schema]) -> Schema:
    origin, given = get_origin(hint), get_args(hint)
    if origin is Annotated:
        return _schema(given[0], found) | dict(note for note in given[1:] if isinstance(note, tuple))
    if (inner := optional_type(hint)) is not None:
        one = _schema(inner, found)
        return {"type": [one["type"], "null"]} if set(one) == {"type"} else {"anyOf": [one, {"type": "null"}]}
    if origin is Literal:
        return {"const": given[0]} if len(given) == 1 else {"enum": list(given)}
    if is_named_tuple(hint):
        parts = [_schema(one, found) for one in hints(hint).values()]
        return {"type": "array", "prefixItems": parts, "minItems": len(parts), "items": False}
    if origin is tuple:
        return {"type": "array"} if given[0] is Any else {"type": "array", "items": _schema(given[0], found)}
    if origin is dict:
        return (
            {"type": "object"}
            if given[1] is Any
            else {"type": "object", "additionalProperties": _schema(given[1], found)}
        )
    if origin is not None:
        return _record(hint, found)  # generic classes have one definition for each use
    if is_record(hint):
        if hint.__name__ not in found:
            found[hint.__name__] = {}  # keeps its place
            found[hint.__name__] = _record(hint, found)
        return {"$ref": f"#/$defs/{hint.__name__}"}
    return {"type": JSON_TYPES[hint]}
