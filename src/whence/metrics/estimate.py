"""A number with its interval."""

from __future__ import annotations

import math
from typing import Any


class Estimate(float):
    """The value of a metric, which is a float, and the interval around it.

    ``format(e, ".3f")`` gives the value alone; ``str(e)`` gives ``0.0231 [0.0187, 0.0289]``.
    """

    __slots__ = ("count", "high", "level", "low", "name", "resamples")

    low: float  # of the interval; nan where resamples = 0
    high: float
    level: float  # of the interval, 0.95 for 95 %
    count: int  # elements that counted
    resamples: int
    name: str

    def __new__(
        cls,
        value: float,
        low: float = math.nan,
        high: float = math.nan,
        level: float = 0.95,
        count: int = 0,
        resamples: int = 0,
        name: str = "",
    ) -> Estimate:
        self = super().__new__(cls, value)
        fields = {"low": float(low), "high": float(high), "level": float(level), "count": int(count)}
        for key, item in {**fields, "resamples": int(resamples), "name": str(name)}.items():
            object.__setattr__(self, key, item)
        return self

    def __setattr__(self, key: str, value: Any) -> None:
        raise AttributeError(f"an Estimate does not change: cannot set {key!r}.")

    def __getnewargs__(self) -> tuple[Any, ...]:
        return (float(self), self.low, self.high, self.level, self.count, self.resamples, self.name)

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), self.__getnewargs__()

    def __reduce_ex__(self, protocol: Any) -> tuple[Any, ...]:
        return self.__reduce__()

    @property
    def interval(self) -> tuple[float, float]:
        """(low, high)."""
        return self.low, self.high

    def to_dict(self) -> dict[str, Any]:
        """Plain numbers and strings, for JSON."""
        keys = ("value", "low", "high", "level", "count", "resamples", "name")
        return dict(zip(keys, self.__getnewargs__(), strict=True))

    def __repr__(self) -> str:
        show = _formatter(float(self), self.low, self.high)
        if math.isnan(self.low):
            return show(float(self))
        return f"{show(float(self))} [{show(self.low)}, {show(self.high)}]"

    __str__ = __repr__


def _formatter(value: float, low: float, high: float) -> Any:
    """Fixed decimals for all three: three significant digits of the value, two of the interval's width."""
    size = abs(value) if value and math.isfinite(value) else max(abs(low), abs(high), 0.0)
    if not math.isfinite(size) or not (size == 0 or 1e-4 <= size < 1e6):
        return lambda number: f"{number:.4g}"
    decimals = 2 - math.floor(math.log10(size)) if size else 3
    if math.isfinite(high - low) and high > low:
        decimals = max(decimals, 1 - math.floor(math.log10(high - low)))
    return lambda number: f"{number:.{min(max(decimals, 0), 8)}f}"
