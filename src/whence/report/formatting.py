"""Estimates, times and sizes as text, for the page and the terminal."""

from __future__ import annotations

from collections.abc import Iterable

from whence.numerals import NONE, apart_from_zero, area, decimals, fixed, is_number, minus, number, percent, points
from whence.report.record.common import Estimate, Form

CONSTANT = 1e-6  # width of an interval, relative to its value, that is rounding


def estimate(value: Estimate | None, part: bool = False, places: int | None = None) -> tuple[str, str]:
    """Value and interval as text; ``part``: as percentages; ``places``: decimals of a column of numbers.

    Without an interval where nothing varies.
    """
    if value is None or value.value is None:
        return NONE, ""
    if value.low is None or value.high is None:
        return percent(value.value, 1) if part else number(value.value), ""
    if part:
        width = 100 * (value.high - value.low)
        places = 1 if width >= 0.5 or width <= 0 else min(3, decimals(0.0, 0.0, width))
        low, high = (percent(end, places).removesuffix("%") for end in (value.low, value.high))
        return percent(value.value, places), f"[{low}, {high}]"
    if value.high - value.low <= CONSTANT * abs(value.value):
        return fixed(value.value, decimals(value.value) if places is None else places) if value.value else "0", ""
    places = decimals(value.value, value.low, value.high) if places is None else places
    return _with_decimals(value, apart_from_zero(places, value.low, value.high))


def places_of(column: Iterable[Estimate | None]) -> int | None:
    """The decimals of a column of estimates: the fewest that one of them has by itself."""
    known = [one for one in column if one is not None and one.value is not None]
    found = [decimals(v.value, v.low, v.high) for v in known if v.low is not None and v.high is not None and v.value]
    return min(found, default=None)


def area_estimate(value: Estimate | None) -> tuple[str, str]:
    """The area under a curve and its interval, with three decimals."""
    if value is None or value.value is None:
        return NONE, ""
    if value.low is None or value.high is None:
        return area(value.value, 3), ""
    return area(value.value, 3), f"[{area(value.low, 3)}, {area(value.high, 3)}]"


def shown(value: Estimate | None, form: Form) -> tuple[str, str]:
    """Value and interval as text, in the form of a metric."""
    if form == "points":
        return points_estimate(value, False)
    return area_estimate(value) if form == "area" else estimate(value, form == "percent")


def points_estimate(value: Estimate | None, plus: bool = True) -> tuple[str, str]:
    """A difference of shares and its interval, in percentage points."""
    if value is None or value.value is None:
        return NONE, ""
    if value.low is None or value.high is None:
        return points(value.value, signed=plus), ""
    places = apart_from_zero(1, 100 * value.low, 100 * value.high)
    low, high = (points(end, places=places) for end in (value.low, value.high))
    return points(value.value, plus, places), f"[{low}, {high}]"


def plus_minus(mean: float | None, std: float | None) -> str:
    """A number and its standard deviation with the same decimals, three digits of the latter."""
    return " ± ".join([fixed(mean, places_with(std)), fixed(std, places_with(std))])


def places_with(std: float | None) -> int:
    """Decimals of a standard deviation with three significant digits."""
    return decimals(std) if std is not None and is_number(std) else 3


def _with_decimals(value: Estimate, places: int) -> tuple[str, str]:
    ends = (value.value or 0.0, value.low or 0.0, value.high or 0.0)
    shown = [minus(f"{0.0 if round(end, places) == 0 else end:,.{places}f}") for end in ends]
    return shown[0], f"[{shown[1]}, {shown[2]}]"


def quantity(value: float | None, unit: str | None = None) -> str:
    """A number with its unit."""
    return f"{number(value)}{f' {unit}' if unit else ''}"


def duration(seconds: float | None) -> str:
    """Seconds, or minutes and seconds."""
    if not is_number(seconds):
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


def significant(value: float | None, digits: int = 4) -> float | int | None:
    """A number rounded to ``digits`` significant digits, as an int where possible to be short in JSON."""
    if value is None or not is_number(value):
        return None
    rounded = float(f"{value:.{digits}g}")
    return int(rounded) if rounded.is_integer() and abs(rounded) < 1e15 else rounded


def capital(text: str) -> str:
    """The text with a capital first letter; names and units in it stay as they are."""
    return text[:1].upper() + text[1:]


def squared(unit: str) -> str:
    """The unit of a variance."""
    return f"{unit}²" if unit.isalpha() else f"({unit})²"


def shortened(text: str, most: int = 26) -> str:
    """Shorten a long name to its end, which distinguishes layers."""
    return text if len(text) <= most else "…" + text[1 - most :]
