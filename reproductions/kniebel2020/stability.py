"""Is an answer stable? Signs over seeds, under priors ten times weaker and stronger, and under two structures.

What is not stable is not known; the reason says what it depends on.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from statistics import fmean

from reproductions.claims import Interval, Verdict, above, below, interval
from reproductions.store import Values

STRUCTURES = ("kron", "diag")
FACTORS = ("0.1", "1", "10")
REFERENCE = ("kron", "1")
Condition = tuple[str, str]  # structure, factor on τ
CONDITIONS: tuple[Condition, ...] = tuple((s, f) for s in STRUCTURES for f in FACTORS)
Get = Callable[[Values, Condition], float]  # a figure of one network under one condition


@dataclass(frozen=True)
class Stable:
    """A figure over seeds (or cells): its interval under the reference condition, and whether its sign is stable."""

    found: dict[Condition, Interval]

    @classmethod
    def of(cls, networks: Sequence[Values], get: Get, conditions: Iterable[Condition] = CONDITIONS) -> Stable:
        return cls({c: interval([get(network, c) for network in networks]) for c in conditions})

    @property
    def reference(self) -> Interval:
        return self.found.get(REFERENCE) or next(iter(self.found.values()))

    def above(self, bound: float = 0.0) -> Verdict:
        return throughout(above(i, bound) for i in self.found.values())

    def below(self, bound: float = 0.0) -> Verdict:
        return throughout(below(i, bound) for i in self.found.values())

    @property
    def lowest(self) -> float:
        """The smallest mean under any condition."""
        return min(i.mean for i in self.found.values())

    @property
    def highest(self) -> float:
        return max(i.mean for i in self.found.values())

    def reason(self, bound: float = 0.0) -> str:
        """What the side depends on; empty if it is the same, with its interval, under all conditions."""
        if "cannot be told" not in (self.above(bound), self.below(bound)):
            return ""
        sides = {c: i.mean > bound for c, i in self.found.items()}
        if len(set(sides.values())) == 1:
            return "seeds"
        by_structure = {s: {side for (own, _), side in sides.items() if own == s} for s, _ in sides}
        depends = ["τ"] * any(len(found) > 1 for found in by_structure.values())
        factors = {f for _, f in sides}
        depends += ["structure"] * any(len({side for (_, own), side in sides.items() if own == f}) > 1 for f in factors)
        return " and ".join(depends)

    def direction(self, words: tuple[str, str] = ("rises", "falls")) -> str:
        """Up, down, or not known and why."""
        up, down = words
        if self.above() == "holds":
            return up
        return down if self.below() == "holds" else f"not known ({self.reason()})"

    def text(self, digits: int = 2, unit: str = "") -> str:
        """The reference's interval, and the range of means over all conditions."""
        shown = self.reference.text(digits, unit)
        if len(self.found) == 1:
            return shown
        over = f"over priors and structures {self.lowest:.{digits}f} to {self.highest:.{digits}f}{unit}"
        return f"{shown[:-1]}; {over})"

    def times(self, factor: float) -> Stable:
        return Stable({c: i.times(factor) for c, i in self.found.items()})


def over_cells(cells: dict[str, list[Values]], get: Get, conditions: Iterable[Condition] = CONDITIONS) -> Stable:
    """Means over seeds first, then the interval over cells."""
    return Stable(
        {c: interval([fmean(get(n, c) for n in networks) for networks in cells.values()]) for c in conditions}
    )


def throughout(verdicts: Iterable[Verdict]) -> Verdict:
    """The verdict that is the same under all conditions; otherwise it is not known."""
    found = set(verdicts)
    return found.pop() if len(found) == 1 else "cannot be told"
