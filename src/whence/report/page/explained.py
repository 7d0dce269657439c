"""How "explained" is shown in the profile: as text, and on a colour scale, linear or by what is left unexplained."""

from __future__ import annotations

import math
from dataclasses import dataclass

from whence.numerals import percent
from whence.numerals import share as share_text
from whence.report.record.sections import Profile

MOSTLY = 0.9  # where half of the units are explained beyond it, a linear scale shows them all in one colour
DECADES = (2, 4)  # of a scale by what is left, at least and at most


def explained_text(value: float | None) -> str:
    """In per cent; near 100% with two digits of what is left. Above 100% the posterior variance is negative."""
    if value is None or value <= 1 - 1 / 100 or not math.isfinite(value):
        return share_text(value)
    if value > 1:
        text = percent(value, 1)
        return ">100%" if text in ("100%", "100.0%") else text
    left = 100 * (1 - value)
    return percent(value, min(4, max(1, 1 - math.floor(math.log10(left)))) if left > 0 else 1)


@dataclass(frozen=True)
class ExplainedScale:
    """A colour scale; with ``decades``, each tenth of what is left unexplained is as wide as the one before."""

    decades: int = 0

    @classmethod
    def of(cls, profile: Profile) -> ExplainedScale:
        """By what is left where most units of the first view are explained almost entirely."""
        pairs = zip(profile.nodes, profile.views[0].explained, strict=True)
        known = sorted(value for node, value in pairs if value is not None and node.is_unit)
        if not known or known[len(known) // 2] <= MOSTLY:
            return cls()
        high = known[(9 * (len(known) - 1)) // 10]
        least, most = DECADES
        return cls(min(most, max(least, math.ceil(-math.log10(1 - high) - 1e-9))) if high < 1 else most)

    def place(self, value: float) -> float:
        """Where a value is on the scale, from 0 to 1."""
        if not self.decades or value <= 0:
            return min(max(value, 0.0), 1.0)
        return min(1.0, -math.log10(1 - value) / self.decades) if value < 1 else 1.0

    @property
    def ticks(self) -> tuple[tuple[float, str], ...]:
        """Places on the scale and what stands there."""
        if not self.decades:
            return (0.0, "0%"), (0.5, "50%"), (1.0, "100%")
        ends = [percent(1 - 10.0**-i, max(0, i - 2)) for i in range(self.decades + 1)]
        ends[-1] = f"≥{ends[-1]}"
        return tuple((i / self.decades, text) for i, text in enumerate(ends))
