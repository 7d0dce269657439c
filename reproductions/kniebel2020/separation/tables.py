"""What one, two and three layers separate, and whether uncertainty shows what they cannot."""

from __future__ import annotations

from collections.abc import Callable

from reproductions.claims import Interval, interval
from reproductions.kniebel2020 import questions
from reproductions.kniebel2020.wording import section, table
from reproductions.store import Values

Groups = dict[tuple[str, str], list[Values]]  # by set and network


def groups(units: Values) -> Groups:
    found: Groups = {}
    for name, value in units.items():
        which, network, _ = name.split("/")
        found.setdefault((which, network), []).append(value)
    return {key: some for key, some in found.items() if len(some) > 1}


def over(found: Groups, which: str, network: str, get: Callable[[Values], float]) -> Interval:
    return interval([get(value) for value in found[which, network]])


def error(value: Values) -> float:
    return 100 * float(value["error"])


def at_border(value: Values) -> float:
    """Epistemic uncertainty near the border over that far from it, less 1."""
    return float(value["near"] / max(value["far"], 1e-9) - 1)


def outside(value: Values) -> float:
    """Epistemic uncertainty outside the data over that inside, less 1."""
    return float(value["outside"] / max(value["inside"], 1e-9) - 1)


def tables(units: Values) -> str:
    found = groups(units)
    rows = []
    for (which, network), some in found.items():
        figures = [interval([get(v) for v in some]) for get in (error, _entropy, _epistemic, at_border, outside)]
        shown = [f"{figures[0].text(1)}%", *(f"{f.mean:.2f}" for f in figures[1:])]
        explained = [sum(v["explained"][i] for v in some) / len(some) for i in range(len(some[0]["explained"]))]
        rows.append([which, network, *shown, " / ".join(f"{e:.2f}" for e in explained)])
    head = [
        "set", "network", "test error", "errors: AUROC by entropy", "by epistemic", "epistemic at the border, − 1",
        "outside the data, − 1", "explained by layer",
    ]  # fmt: skip
    answer = " ".join([*_sentences(found)])
    return section("What can one, two and three layers separate?", questions.SEPARATION, answer, table(head, rows))


def _sentences(found: Groups) -> list[str]:
    said = []
    for which in dict.fromkeys(key[0] for key in found):
        each = [f"{n} {over(found, which, n, error).mean:.1f}%" for s, n in found if s == which]
        said.append(f"Test error on the {which}: {', '.join(each)}.")
    return said


def _entropy(value: Values) -> float:
    return float(value["errors by entropy"])


def _epistemic(value: Values) -> float:
    return float(value["errors by epistemic"])
