"""Seeds together, and verdicts that say when there is nothing to judge."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from reproductions.claims import Claim, Interval, Verdict, difference, interval
from reproductions.store import Values

SLIDES = "slides, our contribution"


def table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = [f"| {' | '.join(head)} |", "|---" * len(head) + "|"]
    return "\n".join([*lines, *(f"| {' | '.join(row)} |" for row in rows)])


def by_seed(units: Values) -> dict[str, dict[str, Values]]:
    """Units named ``a/b/seed`` as a/b → seed → value."""
    found: dict[str, dict[str, Values]] = {}
    for name, value in units.items():
        group, _, seed = name.rpartition("/")
        found.setdefault(group, {})[seed] = value
    return found


Cells = dict[str, dict[str, dict[str, Values]]]


def by_cell(units: Values, separator: str = "/") -> Cells:
    """Units named ``cell/method/seed`` as cell → method → seed → value."""
    found: Cells = {}
    for name, seeds in by_seed(units).items():
        cell, _, method = name.partition(separator)
        found.setdefault(cell, {})[method] = seeds
    return found


def shown(values: Sequence[float], digits: int = 3, factor: float = 1.0) -> str:
    """The mean with its interval over seeds; of one seed the value alone."""
    if not values:
        return ""
    if len(values) == 1:
        return f"{factor * values[0]:.{digits}f} (one seed)"
    return interval(values).times(factor).text(digits)


def paired(
    one: Mapping[str, Values], other: Mapping[str, Values], get: Callable[[Values], float | None]
) -> Interval | None:
    """The difference over the seeds that both have; None with fewer than two."""
    pairs = [(get(one[s]), get(other[s])) for s in one if s in other]
    kept = [(a, b) for a, b in pairs if a is not None and b is not None]
    return difference([a for a, _ in kept], [b for _, b in kept]) if len(kept) > 1 else None


def judged(
    words: str, where: str, found: Mapping[str, Interval | None], judge: Callable[[Interval], Verdict], digits: int = 3,
    factor: float = 1.0, unit: str = "",
) -> list[Claim]:  # fmt: skip
    """One line for each group that has two seeds."""
    return [
        Claim(f"{group}: {words}", where, v.times(factor).text(digits, unit), judge(v))
        for group, v in found.items()
        if v is not None
    ]
