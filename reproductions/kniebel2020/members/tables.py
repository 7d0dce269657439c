"""Accuracy, loss and uncertainty of many weak members beside the strong network."""

from __future__ import annotations

from collections.abc import Callable

from reproductions.claims import Interval, interval
from reproductions.kniebel2020 import questions
from reproductions.kniebel2020.members.config import KINDS
from reproductions.kniebel2020.wording import section, table
from reproductions.store import Values

SCORES = {"accuracy": "accuracy", "nll": "NLL", "ece": "ECE", "errors": "AUROC, errors", "novel": "AUROC, novel inputs"}
Groups = dict[tuple[str, str], list[Values]]  # by cell and kind


def groups(units: Values) -> Groups:
    found: Groups = {}
    for name, value in units.items():
        cell, _, kind = name.split("/")
        found.setdefault((cell, kind), []).append(value)
    return {key: some for key, some in found.items() if len(some) > 1}


def largest(value: Values) -> Values:
    return value["ensembles"][max(value["ensembles"], key=int)]  # type: ignore[no-any-return]


def over_strong(score: str, key: str = "strong") -> Callable[[Values], float]:
    """The largest ensemble less the strong network."""
    return lambda value: float(largest(value)[score] - value[key][score])


def over_cells(found: Groups, kind: str, get: Callable[[Values], float]) -> Interval:
    """Means over seeds, interval over cells."""
    means = [sum(map(get, some)) / len(some) for (_, own), some in found.items() if own == kind]
    return interval(means)


def tables(units: Values) -> str:
    found = groups(units)
    rows = []
    for (cell, kind), some in found.items():
        for what, label in (("strong", "strong network"), ("strong, scaled", "the same, temperature scaling")):
            if kind == KINDS[0]:
                rows.append([cell, label, "", *(_mean(some, lambda v, s=s, w=what: v[w][s]) for s in SCORES)])
        rows.append(
            [cell, f"{kind}: one member", "1", *(_mean(some, lambda v, s=s: v["ensembles"]["1"][s]) for s in SCORES)]
        )
        count = max(some[0]["ensembles"], key=int)
        rows.append([cell, f"{kind}: ensemble", count, *(_mean(some, lambda v, s=s: largest(v)[s]) for s in SCORES)])
    answer = " ".join(_sentence(found, kind) for kind in KINDS if len([1 for _, own in found if own == kind]) > 1)
    head = ["cell", "network", "members", *SCORES.values()]
    return section("Many weak members or one strong?", questions.MEMBERS, answer, table(head, rows))


def _sentence(found: Groups, kind: str) -> str:
    gain, loss, novel = (over_cells(found, kind, over_strong(score)) for score in ("accuracy", "nll", "novel"))
    tied, alone = (over_cells(found, kind, _of(key)) for key in ("correlation", "independent"))
    return (
        f"Many members that are weak by {'size' if kind == 'small' else kind} differ from the strong network by "
        f"{gain.times(100).text(1)} points of accuracy, {loss.text(3)} in NLL and {novel.text(3)} in AUROC for novel "
        f"inputs; their errors correlate by {tied.text()}, where independent ones would make the majority right for "
        f"{100 * alone.mean:.1f}% of the inputs."
    )


def _of(key: str) -> Callable[[Values], float]:
    return lambda value: float(value[key])


def _mean(some: list[Values], get: Callable[[Values], float]) -> str:
    return f"{sum(map(get, some)) / len(some):.3f}"
