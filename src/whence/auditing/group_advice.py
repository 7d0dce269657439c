"""What to do next about groups of test inputs that differ from the rest."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from whence.auditing.advice import Rank, Step
from whence.auditing.groups import LOG_LOSS, NATS, prevalence_words
from whence.numerals import number, points
from whence.report.record.groups import Group, GroupDifference, Grouping, Groups

GROUPED = 3  # groups that are named for a quantity


def about_groups(found: Groups | None) -> Iterator[Step]:
    """One line for what differs between the groups of a grouping, and one for how often they are deferred."""
    if found is None:
        return
    for one in found.groupings:
        prevalences = " ".join(prevalence_words(found, one.name))
        hits: dict[str, list[tuple[Group, GroupDifference]]] = {}
        for group in one.groups:
            for apart in group.differences:
                if apart.significant and apart.difference.value is not None:
                    hits.setdefault(apart.quantity, []).append((group, apart))
        for rows in hits.values():
            rows.sort(key=lambda row: -abs(row[1].difference.value or 0.0))
        for deferred in (False, True):
            some = {name: rows for name, rows in hits.items() if ("deferred" in name) is deferred}
            if some:
                yield _group_step(one, some, deferred, prevalences)


def _group_step(
    one: Grouping, hits: dict[str, list[tuple[Group, GroupDifference]]], deferred: bool, prevalences: str
) -> Step:
    look = (
        "compare their sensitivity and specificity, since their prevalences differ"
        if prevalences
        else "look at their inputs and labels, and train on more inputs of those that do worse"
    )
    words = (
        f"Check whether it is acceptable that groups of `{one.name}` are deferred more or less often than others."
        if deferred
        else f"Find out why groups of `{one.name}` differ: {look}."
    )
    because = " ".join([*(_beside_the_rest(name, rows) for name, rows in hits.items()), prevalences]).strip()
    largest = max(abs(rows[0][1].difference.value or 0.0) for rows in hits.values())
    return Step(Rank.GAIN if deferred else Rank.MIXED, min(largest, 0.99), words, because)


def _beside_the_rest(name: str, rows: Sequence[tuple[Group, GroupDifference]]) -> str:
    shown = [
        f"{points(d.difference.value or 0.0, signed=True)} percentage points for `{group.name}` ({d.p_words})"
        if d.is_share
        else f"{'+' if (d.difference.value or 0.0) > 0 else ''}{number(d.difference.value)}"
        f"{f' {NATS}' if name == LOG_LOSS else ''} for `{group.name}` ({d.p_words})"
        for group, d in rows[:GROUPED]
    ]
    more = f" and {len(rows) - GROUPED} more" if len(rows) > GROUPED else ""
    return f"{name[0].upper()}{name[1:]}, compared with the rest: {', '.join(shown)}{more}."
