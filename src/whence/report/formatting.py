"""Numbers as text, for the page and in part for the terminal."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from whence.metrics import Estimate as Measured
from whence.report.record.common import Estimate

NONE = "–"
LONG = 16  # longest list that is printed


def number(value: Any, digits: int = 3) -> str:
    """A number with ``digits`` significant digits, or a list of them; a dash for None."""
    if isinstance(value, list | tuple):
        return ", ".join(number(item, digits) for item in value)
    if not _is_number(value):
        return NONE if value is None or isinstance(value, float) else str(value)
    if isinstance(value, int) or (float(value).is_integer() and abs(value) < 1e6):
        return minus(f"{int(value):,}")
    size = abs(value)
    if size < 1e-4 or size >= 1e6:
        return minus(f"{value:.{digits - 1}e}")
    return minus(_trimmed(f"{value:,.{max(0, digits - 1 - math.floor(math.log10(size)))}f}"))


def percent(value: Any, digits: int = 3) -> str:
    """A fraction as a percentage, with at most three decimals."""
    if not _is_number(value):
        return NONE
    scaled = 100.0 * float(value)
    decimals = 0 if not scaled else min(3, max(0, digits - 1 - math.floor(math.log10(abs(scaled)))))
    text = _trimmed(f"{scaled:.{decimals}f}")
    return minus("0" if text == "-0" else text) + "%"


def estimate(value: Estimate | None, part: bool = False) -> tuple[str, str]:
    """Value and interval as text; ``part``: as percentages."""
    if value is None or value.value is None:
        return NONE, ""
    if value.low is None or value.high is None:
        return percent(value.value) if part else number(value.value), ""
    scale = 100.0 if part else 1.0
    first, interval = minus(str(Measured(scale * value.value, scale * value.low, scale * value.high))).split(" ", 1)
    return first + "%" * part, interval


def duration(seconds: float | None) -> str:
    """Seconds, or minutes and seconds."""
    if not _is_number(seconds):
        return NONE
    assert seconds is not None
    if seconds < 60:
        return f"{seconds:.1f} s" if seconds >= 0.05 else f"{1000 * seconds:{'.0f' if seconds >= 0.001 else '.1g'}} ms"
    return f"{int(seconds // 60)} min {int(seconds % 60)} s"


def rough_duration(seconds: float) -> str:
    """A duration in round numbers."""
    if seconds < 90:
        return f"{max(1, round(seconds / 5) * 5 if seconds > 10 else round(seconds))} s"
    return f"{round(seconds / 60)} min" if seconds < 5400 else f"{seconds / 3600:.1f} h"


def size(count: float | None) -> str:
    """Bytes with a unit."""
    if count is None:
        return NONE
    for unit in ("B", "kB", "MB"):
        if abs(count) < 1000:
            return f"{count:.3g} {unit}"
        count /= 1000
    return f"{count:.3g} GB"


def flat(numbers: Mapping[str, Any], before: str = "") -> list[tuple[str, str]]:
    """Nested numbers as rows of a name and a text; long lists as their length."""
    rows = []
    for key, value in numbers.items():
        name = f"{before}{key}".replace("_", " ")
        if isinstance(value, Mapping):
            rows += flat(value, f"{name}, ")
        elif isinstance(value, list | tuple) and len(value) > LONG:
            rows.append((name, f"{len(value)} values"))
        else:
            rows.append((name, number(value)))
    return rows


def significant(value: float | None, digits: int = 4) -> float | int | None:
    """A number rounded to ``digits`` significant digits, as an int where possible to be short in JSON."""
    if value is None or not _is_number(value):
        return None
    rounded = float(f"{value:.{digits}g}")
    return int(rounded) if rounded.is_integer() and abs(rounded) < 1e15 else rounded


def squared(unit: str) -> str:
    """The unit of a variance."""
    return f"{unit}²" if unit.isalpha() else f"({unit})²"


def signed(value: float, plus: bool = False, form: str = "g") -> str:
    """A number with a true minus sign, and optionally a plus sign."""
    return minus(format(value, ("+" if plus else "") + form))


def shortened(text: str, most: int = 26) -> str:
    """Shorten a long name to its end, which distinguishes layers."""
    return text if len(text) <= most else "…" + text[1 - most :]


def minus(text: str) -> str:
    """Replace hyphens by minus signs."""
    return text.replace("-", "−")


def _trimmed(text: str) -> str:
    """Remove trailing zeros of decimals."""
    return text.rstrip("0").rstrip(".") if "." in text else text


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
