"""Numbers as text, in one format everywhere: 1,234; 95%; −0.012; no exponents as in 1e-05."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any

NONE = "–"
EXPONENTS = str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹")
SMALL, LARGE = 1e-6, 1e15  # beyond which a power of ten is written
ROUNDING = 1e-15  # of a fraction that is 1
WIDTH = 2  # significant digits of the width of an interval


def number(value: Any, digits: int = 3) -> str:
    """A number with ``digits`` significant digits, whole below a million, with separators; or a list of them.

    A dash for None and NaN.
    """
    if isinstance(value, list | tuple):
        return ", ".join(number(item, digits) for item in value)
    if not is_number(value):
        return NONE if value is None or isinstance(value, float) else str(value)
    if isinstance(value, int) or (float(value).is_integer() and abs(value) < 1e6):
        return minus(f"{int(value):,}")
    size = abs(value)
    if not SMALL <= size < LARGE:
        mantissa, exponent = f"{value:.{digits - 1}e}".split("e")
        return minus(f"{_trimmed(mantissa)} × 10") + str(int(exponent)).translate(EXPONENTS)
    rounded = float(f"{value:.{max(digits, 5)}g}") if size >= 1e6 else value
    return minus(_trimmed(f"{rounded:,.{max(0, digits - 1 - _magnitude(size))}f}"))


def fixed(value: Any, places: int = 2, signed: bool = False) -> str:
    """A number with a fixed number of decimals, for columns of numbers of one size; zero has no sign."""
    if not is_number(value):
        return NONE
    if round(value, places) == 0:
        return f"{0.0:.{places}f}"
    return minus(f"{value:{'+' if signed else ''},.{places}f}")


def percent(value: Any, places: int | None = None) -> str:
    """A fraction as a percentage, with one decimal (two digits below 1%), or with ``places``, for columns.

    Without ``places`` a whole number is written as one; with them only 0% and 100% are. What only rounds to 0% or 100%
    is neither, however close it is to 100%.
    """
    if not is_number(value):
        return NONE
    scaled = 100.0 * float(value)
    if abs(scaled) >= LARGE:
        return f"{number(scaled)}%" if math.isfinite(scaled) else NONE
    whole = abs(scaled - round(scaled)) < 1e-9 and not ROUNDING < 1 - abs(value) < 1e-9
    if whole and (not places or round(scaled) in (0, 100, -100)):
        return minus(f"{round(scaled):,}%")
    digits = places if places is not None else _share_places(scaled)
    text = f"{scaled:,.{digits}f}"
    text = _trimmed(text) if abs(scaled) < 1 and places is None else text
    if abs(scaled) < 100 and float(text.replace(",", "")) in (100.0, -100.0):
        return minus(f"{'−' * (scaled < 0)}{'>' if scaled > 0 else ''}{_all_but_one(digits)}%")
    if float(text.replace(",", "")) == 0.0:
        return f"{'−' * (scaled < 0)}<{10.0**-digits:.{digits}f}%"
    return minus(f"{text}%")


def percent_in_words(value: Any, places: int | None = None) -> str:
    """A percentage inside a sentence: "more than 99%" instead of ">99%"."""
    return percent(value, places).replace(">", "more than ").replace("<", "less than ")


def share(value: Any) -> str:
    """A fraction for a column of shares that differ in size: one decimal, and two digits below 1%."""
    return percent(value, _share_places(100.0 * value)) if is_number(value) else NONE


def share_range(value: Any, low: float, high: float, to: str = " to ") -> str:
    """The range of a share, with the decimals that ``share`` gives it; "%" once where ``to`` is a dash."""
    places = _share_places(100.0 * value) if is_number(value) else 1
    ends = [percent(end, places) for end in (low, high)]
    return f"{ends[0] if to == ' to ' else ends[0].removesuffix('%')}{to}{ends[1]}"


def _share_places(scaled: float) -> int:
    """Decimals of a percentage."""
    size = abs(scaled)
    return 1 if size >= 1 or size == 0 else min(3, 1 - _magnitude(size))


def _all_but_one(places: int) -> str:
    """The largest number below 100 with so many decimals."""
    return f"99.{'9' * places}" if places else "99"


def points(value: float, signed: bool = False, places: int = 1) -> str:
    """A difference of fractions in percentage points, without these words."""
    if not abs(value) < LARGE:
        return number(100.0 * value)
    rounded = round(100.0 * value, places)
    return minus(f"{rounded:{'+' if signed else ''}.{places}f}") if rounded else f"{0:.{places}f}"


def points_range(low: float, high: float) -> str:
    """An interval of a difference of fractions, in percentage points."""
    places = apart_from_zero(1, 100.0 * low, 100.0 * high)
    return f"{points(low, places=places)} to {points(high, places=places)}"


def area(value: float | None, places: int = 2) -> str:
    """The area under a curve; with three decimals where two would say 1.00 or 0.00; 1 and 0 only where it is that."""
    if value is None:
        return NONE
    if value in (0.0, 1.0):
        return f"{value:.{3 if places == 3 else 0}f}"
    if places == 3 or not 0.995 > value >= 0.005:
        return ">0.999" if value >= 0.9995 else "<0.001" if value < 0.0005 else f"{value:.3f}"
    return f"{value:.{places}f}"


def p_value(value: float | None) -> str:
    """Two significant digits, and two decimals where it is not 0 or 1."""
    if value is None or value in (0.0, 1.0) or not 0.0 < value < 1.0:
        return NONE if value is None else number(value, 2)
    text = number(value, 2)
    return text if len(text) >= len("0.00") else f"{value:.2f}"


def p_equals(value: float | None, least: float | None = None) -> str:
    """A p-value as "p = 0.012", or "p ≤ 0.0005" for the ``least`` that so many permutations can give, in float32."""
    smallest = value is not None and least is not None and value <= least * (1 + 1e-6)
    return f"p {'≤' if smallest else '='} {p_value(value)}"


def between(low: float, high: float, unit: str = "") -> str:
    """An interval in words, with as many decimals as its width needs."""
    places = apart_from_zero(decimals(0.0, low, high), low, high)
    ends = [minus(f"{0.0 if round(end, places) == 0 else end:,.{places}f}") for end in (low, high)]
    return f"{ends[0]} to {ends[1]}{f' {unit}' if unit else ''}"


def with_interval(value: float, low: float, high: float, unit: str = "", signed: bool = False) -> str:
    """A value and its 95% interval in words, with the same decimals: "0.12 nats, 95% interval 0.08 to 0.16"."""
    places = apart_from_zero(decimals(value, low, high), low, high)
    one, *ends = (0.0 if round(each, places) == 0 else each for each in (value, low, high))
    sign = "+" if signed else ""
    shown = [f"{one:{sign},.{places}f}", *(f"{end:,.{places}f}" for end in ends)]
    return minus(f"{shown[0]}{f' {unit}' if unit else ''}, 95% interval {shown[1]} to {shown[2]}")


def decimals(value: float, low: float = math.nan, high: float = math.nan) -> int:
    """Decimals of a value and its interval: three significant digits of the value, or where the interval needs more
    than that, two digits of its width, but no more than four of the value. Of a small value in a wide interval the two
    digits of the width are enough; if it cannot be negative, it has two of its own up to two decimals."""
    size, width = abs(value), high - low
    if not math.isfinite(width) or width <= 0:
        return _bounded(2 - _magnitude(size)) if size else 3
    of_width = WIDTH - 1 - _magnitude(width)
    if size <= width:
        least = 2 - _magnitude(size) if size >= 1 else min(2, 1 - _magnitude(size)) if size else 0
        return _bounded(max(of_width, least) if low >= 0 else of_width)
    return _bounded(min(max(2 - _magnitude(size), of_width), 3 - _magnitude(size)))


def apart_from_zero(places: int, low: float, high: float) -> int:
    """As many decimals as an interval that excludes 0 needs not to end there, if two more are enough."""
    nearest = low if low > 0 else high if high < 0 else 0.0
    enough = (more for more in range(places, places + 3) if round(nearest, more))
    return next(enough, places) if math.isfinite(nearest) else places


def alike(values: Iterable[Any], digits: int = 3) -> list[str]:
    """Numbers of a column with the same decimals: those that the largest needs for so many significant digits."""
    every = list(values)
    largest = max((abs(value) for value in every if is_number(value)), default=0.0)
    places = _bounded(digits - 1 - _magnitude(largest)) if largest else 0
    return [fixed(value, places) for value in every]


def minus(text: str) -> str:
    """Replace hyphens by minus signs."""
    return text.replace("-", "−")


def is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)


def _magnitude(size: float) -> int:
    return math.floor(math.log10(size))


def _bounded(places: int) -> int:
    return min(max(places, 0), 8)


def _trimmed(text: str) -> str:
    """Remove trailing zeros of decimals."""
    return text.rstrip("0").rstrip(".") if "." in text else text
