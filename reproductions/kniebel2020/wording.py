"""How figures become sentences and table cells."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

from reproductions.claims import Interval, Verdict
from reproductions.kniebel2020.stability import Stable
from reproductions.store import Values

RANGE = "; over priors and structures "  # said once in the article
ARTICLE = Path(__file__).parents[2] / "docs" / "where-is-the-uncertainty.md"


def table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = [f"| {' | '.join(head)} |", "|---" * len(head) + "|"]
    return "\n".join([*lines, *(f"| {' | '.join(row)} |" for row in rows)])


def section(title: str, question: str, answer: str, *parts: str) -> str:
    """A question by its own words, the answer, then the numbers."""
    return "\n\n".join([f"### {title}", f"*{question}*", f"**Answer.** {answer}", *(part for part in parts if part)])


def answer(sections: str, title: str) -> str:
    """The answer under a title of such sections; empty if it is not there."""
    _, _, rest = sections.partition(f"### {title}\n")
    _, _, rest = rest.partition("**Answer.** ")
    return rest.partition("\n\n")[0]


def passages(tables: Callable[[Values], str], **titles: str) -> tuple[tuple[Path, str, Callable[[Values], str]], ...]:
    """The answers of an experiment for the article, by the names of their places in it."""

    def part(title: str) -> Callable[[Values], str]:
        return lambda units: answer(tables(units), title).replace(RANGE, "; ") or "Not run yet."

    return tuple((ARTICLE, name, part(title)) for name, title in titles.items())


def known(found: Stable, words: tuple[str, str], bound: float = 0.0) -> str:
    """One of two words, or that it is not known and why."""
    up, down = words
    if found.above(bound) == "holds":
        return up
    return down if found.below(bound) == "holds" else f"not known ({found.reason(bound)})"


def sentence(found: Stable, yes: str, no: str, whether: str, bound: float = 0.0) -> str:
    """What is stable as a sentence; else that it is not known, and what it depends on."""
    reason = found.reason(bound)
    if reason == "seeds":
        return f"Whether {whether} is not known: networks differ."
    if reason:
        return f"Whether {whether} is not known: it depends on the {reason.replace('τ', 'prior')}."
    return yes if found.above(bound) == "holds" else no


def short(found: Interval | Stable, digits: int = 2) -> str:
    """The mean alone, of the reference condition."""
    own = found.reference if isinstance(found, Stable) else found
    return f"{own.mean:.{digits}f}"


def said(verdict: Verdict, yes: str, no: str, unknown: str) -> str:
    return {"holds": yes, "does not hold": no, "cannot be told": unknown}[verdict]


def upper(text: str) -> str:
    return text[:1].upper() + text[1:]
