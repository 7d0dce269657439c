"""Numbers as JSON takes them."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from typing import Any

from torch import Tensor

from whence.metrics import Estimate

DIGITS = 6  # significant ones that are kept


def number(value: Any, digits: int = DIGITS) -> float | None:
    """A float of so many significant digits; None where it is not finite."""
    value = float(value)
    return float(f"{value:.{digits}g}") if math.isfinite(value) else None


def numbers(values: Tensor | list[Any]) -> list[Any]:
    """The same for all of a nest."""
    given = values.detach().double().cpu().tolist() if isinstance(values, Tensor) else values
    return [numbers(v) if isinstance(v, list) else number(v) for v in given]


def estimate(value: Estimate | None) -> dict[str, Any] | None:
    """Value and interval."""
    if value is None:
        return None
    return {
        "value": number(value),
        "low": number(value.low),
        "high": number(value.high),
        "level": value.level,
        "count": value.count,
    }


def typeset(value: Any) -> Any:
    """A thin space before per cent signs, in all texts of a nest."""
    if isinstance(value, str):
        return re.sub(r"(\d)%", "\\1\u202f%", value)
    if isinstance(value, Mapping):
        return {k: typeset(v) for k, v in value.items()}
    return [typeset(v) for v in value] if isinstance(value, list) else value


def cleaned(value: Any) -> Any:
    """Tuples as lists, tensors as numbers, what is not finite as None, in any nest."""
    if isinstance(value, Estimate):
        return estimate(value)
    if isinstance(value, bool) or value is None or isinstance(value, (int, str)):
        return value
    if isinstance(value, float):
        return number(value)
    if isinstance(value, Tensor):
        return number(value) if value.dim() == 0 else numbers(value)
    if isinstance(value, Mapping):
        return {str(k): cleaned(v) for k, v in value.items()}
    if isinstance(value, (list, tuple)):
        return [cleaned(v) for v in value]
    return str(value)
