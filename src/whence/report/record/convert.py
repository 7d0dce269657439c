"""Records to JSON and back, and changes throughout a record, all driven by the type hints of its fields.

A field with default None is omitted from the JSON if it is None.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Hashable, Mapping
from dataclasses import fields, is_dataclass
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, TypeVar, Union, cast, get_args, get_origin, get_type_hints

from torch import Tensor

from whence.errors import BadFile
from whence.numerals import ROUNDING
from whence.report.record.common import Mark

R = TypeVar("R")
Rules = Mapping[Hashable, Callable[[Any], Any]]  # function for a value, by its mark or its type
PLAIN: dict[Any, tuple[type, ...]] = {str: (str,), bool: (bool,), int: (int,), float: (float, int)}


# Type hints


@functools.cache
def hints(kind: Any) -> dict[str, Any]:
    """The type of every field of a dataclass or a named tuple; with the parameters of generic classes filled in."""
    found = get_type_hints(get_origin(kind) or kind, include_extras=True)
    filled = dict(zip(getattr(get_origin(kind), "__parameters__", ()), get_args(kind), strict=True))
    return {name: filled.get(hint, hint) for name, hint in found.items()}


def is_record(hint: Any) -> bool:
    return is_dataclass(get_origin(hint) or hint)


def is_named_tuple(hint: Any) -> bool:
    return hasattr(hint, "_fields")


def optional_type(hint: Any) -> Any:
    """T for ``T | None``; None for every other type."""
    union = get_origin(hint) in (Union, UnionType)
    return next(one for one in get_args(hint) if one is not NoneType) if union else None


@functools.cache
def plain_types(hint: Any) -> tuple[type, ...]:
    """The Python types of a string, a number or a boolean, perhaps with None; empty for everything else."""
    if get_origin(hint) is Annotated:
        return plain_types(get_args(hint)[0])
    if (inner := optional_type(hint)) is not None:
        found = plain_types(inner)
        return (*found, NoneType) if found else ()
    return PLAIN.get(hint, ())


# JSON


def to_json(value: Any) -> Any:
    """Convert to dictionaries, lists, strings and numbers."""
    if is_dataclass(value):
        pairs = ((one, getattr(value, one.name)) for one in fields(value))
        return {one.name: to_json(v) for one, v in pairs if v is not None or one.default is not None}
    if isinstance(value, tuple):
        plain = not value or isinstance(value[0], str | int | float)
        return list(value) if plain else [to_json(v) for v in value]
    return {key: to_json(v) for key, v in value.items()} if isinstance(value, dict) else value


def from_json(kind: type[R], data: Any) -> R:
    """Inverse of :func:`to_json`. Unknown keys are ignored."""
    return cast(R, _read(kind, data, ""))


def _read(hint: Any, data: Any, place: str) -> Any:
    """``place`` is the path of ``data`` in the record, for error messages."""
    origin, given = get_origin(hint), get_args(hint)
    if hint is Any or type(data) in plain_types(hint):
        return data
    if origin is Annotated:
        return _read(given[0], data, place)
    if (inner := optional_type(hint)) is not None:
        return None if data is None else _read(inner, data, place)
    if is_record(hint) and isinstance(data, Mapping):
        return (origin or hint)(**{name: _field(name, one, data, place) for name, one in hints(hint).items()})
    if is_named_tuple(hint) and isinstance(data, list) and len(data) == len(hint._fields):
        return hint(*(_read(one, v, place) for one, v in zip(hints(hint).values(), data, strict=True)))
    if origin is tuple and isinstance(data, list):
        plain = plain_types(given[0])
        if plain and all(type(v) in plain for v in data):
            return tuple(data)
        return tuple(_read(given[0], v, f"{place}[{i}]") for i, v in enumerate(data))
    if origin is dict and isinstance(data, Mapping):
        return {key: _read(given[1], v, f"{place}.{key}") for key, v in data.items()}
    if origin is Literal and data in given:
        return data
    expected = getattr(hint, "__name__", str(hint)) if origin is None else str(hint).replace("typing.", "")
    raise BadFile(f"expected {place.lstrip('.') or 'the record'} to be {expected}, but got {data!r:.40}.")


def _field(name: str, hint: Any, data: Mapping[str, Any], place: str) -> Any:
    """A field that may be None may also be missing."""
    if name not in data and optional_type(hint) is None:
        raise BadFile(f"{place.lstrip('.') or 'the record'} has no {name!r}.")
    return _read(hint, data.get(name), f"{place}.{name}")


# Changes


def changed(record: R, rules: Rules, hint: Any = None) -> R:
    """Apply a rule to every value that has one."""
    return cast(R, _changed(hint or type(record), record, rules, frozenset(rules)))


def _changed(hint: Any, value: Any, rules: Rules, keys: frozenset[Hashable]) -> Any:
    if value is None or not _concerned(hint, keys):
        return value
    if (key := _rule(hint, keys)) is not None:
        return rules[key](value)
    if (inner := optional_type(hint)) is not None:
        return _changed(inner, value, rules, keys)
    if is_record(hint):
        parts = {name: _changed(one, getattr(value, name), rules, keys) for name, one in hints(hint).items()}
        return type(value)(**parts)
    if is_named_tuple(hint):
        return hint(*(_changed(one, v, rules, keys) for one, v in zip(hints(hint).values(), value, strict=True)))
    if isinstance(value, dict):
        return {key: _changed(get_args(hint)[1], v, rules, keys) for key, v in value.items()}
    each = get_args(hint)[0]  # it is a tuple
    if (key := _rule(each, keys)) is not None:
        return tuple(None if v is None else rules[key](v) for v in value)
    return tuple(_changed(each, v, rules, keys) for v in value)


@functools.cache
def _rule(hint: Any, keys: frozenset[Hashable]) -> Hashable | None:
    """The key of the rule for values of this type."""
    if get_origin(hint) is Annotated:
        inner, *marks = get_args(hint)
        return next((mark for mark in marks if mark in keys), None) or _rule(inner, keys)
    return hint if hint in keys else None if (inner := optional_type(hint)) is None else _rule(inner, keys)


@functools.cache
def _concerned(hint: Any, keys: frozenset[Hashable]) -> bool:
    """Whether there is a rule for values of this type or for parts of them."""
    parts = hints(hint).values() if is_record(hint) or is_named_tuple(hint) else get_args(hint)
    return _rule(hint, keys) is not None or any(_concerned(one, keys) for one in parts if one is not Any)


# Rounded numbers


def tidied(section: R) -> R:
    """Round the numbers of a section, a record, or a tuple of rows."""
    if isinstance(section, tuple):
        return tuple(map(tidied, section))  # type: ignore[return-value]
    return changed(section, RULES)


def number(value: Any, digits: int = 6) -> float | None:
    """A float with ``digits`` significant digits; None if not finite. Integers are unchanged.

    What is below 1 stays below it: of 0.99999994 the difference from 1 is rounded.
    """
    if isinstance(value, int):
        return value
    value = float(value)
    if not math.isfinite(value):
        return None
    rounded = float(f"{value:.{digits}g}")
    return 1 - float(f"{1 - value:.2g}") if rounded == 1 and 1 - value > ROUNDING else rounded


def plain_values(value: Any) -> Any:
    """Convert nested values to numbers, strings, lists and dictionaries."""
    if isinstance(value, bool) or value is None or isinstance(value, int | str):
        return value
    if isinstance(value, Tensor):
        return plain_values(value.detach().double().cpu().tolist())
    if isinstance(value, Mapping):
        return {str(key): plain_values(v) for key, v in value.items()}
    if isinstance(value, list | tuple):
        return [plain_values(v) for v in value]
    return number(value) if isinstance(value, float) else str(value)


RULES: Rules = {
    float: number,
    Mark.COARSE: lambda value: number(value, 3),
    Mark.NESTED: plain_values,
}
