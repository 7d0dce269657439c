"""Sections that are tables of the engine as they are: layers, sensitivity, pruning, answers."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from whence.auditing.context import Context
from whence.auditing.plain import cleaned, number
from whence.errors import NotDefined
from whence.where.answers import answers as asked
from whence.where.prune_curve import PruneRow, prune_curve

SHARES = ("variance_share", "prior_share", "explained")
FACTORS = (0.1, 1.0, 10.0)
LOST = 0.01  # of accuracy, or of the error relative to the whole network's


def layers(context: Context) -> list[dict[str, Any]]:
    """The layer table, with shares for each set."""
    tables = {name: context.where(name).layers for name in ("test", "ood") if context.has(name)}
    given = tables.get("test") or tables.get("ood") or context.where_posterior.where().layers
    structures = context.posterior.structures
    found = []
    for index, row in enumerate(given):
        entry = {k: cleaned(v) for k, v in asdict(row).items() if k not in SHARES}
        entry["structure"] = structures[row.name].structure
        for name in ("test", "ood"):
            entry[name] = {key: number(getattr(tables[name][index], key)) for key in SHARES} if name in tables else None
        found.append(entry)
    return found


def sensitivity(context: Context) -> list[dict[str, Any]]:
    """Shares and explained under a prior ten times weaker and stronger."""
    context.need("test")
    return [cleaned(row) for row in context.where("test").sensitivity(FACTORS).rows()]


def pruning(context: Context) -> dict[str, Any]:
    """What is lost as weights go, by criterion."""
    held = context.profiled[context.need("test", targets=True).name]
    curve = prune_curve(context.posterior, (held.inputs, held.targets), seed=context.options.seed, progress=False)
    return {"rows": [cleaned(asdict(row)) for row in curve.rows], "words": _words(curve.rows)}


def _words(rows: list[PruneRow]) -> list[str]:
    """How far each criterion goes before something is lost."""
    whole = rows[0]

    def spared(row: PruneRow) -> bool:
        if row.accuracy is not None and whole.accuracy is not None:
            return row.accuracy >= whole.accuracy - LOST
        if row.rmse is not None and whole.rmse is not None:
            return row.rmse <= whole.rmse * (1 + LOST)
        return row.nll <= whole.nll + LOST

    reached = {}
    for by in dict.fromkeys(row.by for row in rows):
        going = 0.0
        for row in (r for r in rows if r.by == by):
            if not spared(row):
                break
            going = row.sparsity
        reached[by] = going
    best = max(reached, key=reached.__getitem__)
    what = "a point of accuracy" if whole.accuracy is not None else "1 % of the error" if whole.rmse else "0.01 nats"
    return [
        f"Ranked by {best!r}, {reached[best]:.0%} of the weights can go before more than {what} is lost"
        + (f"; at random, {reached['random']:.0%}." if "random" in reached and best != "random" else ".")
    ]


def answers(context: Context) -> list[dict[str, Any]]:
    """The questions that a profile is for."""
    held = context.profiled[context.need("test", targets=True).name]
    if len(context.posterior.record.output_shape) != 1:
        raise NotDefined("shares are for outputs [N, C].")
    ood = context.profiled["ood"].inputs if context.has("ood") else None
    pair = (held.inputs, held.targets)
    return [cleaned(a) for a in asked(context.posterior, pair, ood=ood, profile=context.where_posterior).to_dict()]
