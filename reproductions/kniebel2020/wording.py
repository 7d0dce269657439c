"""How figures become sentences and table cells."""

from __future__ import annotations

from collections.abc import Sequence

from reproductions.claims import Interval, Verdict
from reproductions.kniebel2020.stability import Stable

KNOWN = {"holds": "yes", "does not hold": "no", "cannot be told": "not known"}


def table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = [f"| {' | '.join(head)} |", "|---" * len(head) + "|"]
    return "\n".join([*lines, *(f"| {' | '.join(row)} |" for row in rows)])


def section(title: str, question: str, answer: str, *parts: str) -> str:
    """A question by its own words, the answer, then the numbers."""
    return "\n\n".join([f"### {title}", f"*{question}*", f"**Answer.** {answer}", *(part for part in parts if part)])


def known(found: Stable, words: tuple[str, str], bound: float = 0.0) -> str:
    """One of two words, or that it is not known and why."""
    up, down = words
    if found.above(bound) == "holds":
        return up
    return down if found.below(bound) == "holds" else f"not known ({found.reason(bound)})"


def short(found: Interval | Stable, digits: int = 2) -> str:
    """The mean alone, of the reference condition."""
    own = found.reference if isinstance(found, Stable) else found
    return f"{own.mean:.{digits}f}"


def said(verdict: Verdict, yes: str, no: str, unknown: str) -> str:
    return {"holds": yes, "does not hold": no, "cannot be told": unknown}[verdict]


def upper(text: str) -> str:
    return text[:1].upper() + text[1:]
