"""Sections that are tables of the engine as they are: layers, sensitivity, pruning, answers."""

from __future__ import annotations

from dataclasses import asdict, fields
from typing import Any

from whence.auditing.context import Context
from whence.auditing.plain import cleaned, number
from whence.errors import NotDefined
from whence.where.answers import answers as asked
from whence.where.prune_curve import PruneRow, prune_curve
from whence.where.table import LayerRow

SHARES = ("variance_share", "prior_share", "explained")
COLUMNS = [f.name for f in fields(LayerRow) if f.name not in SHARES] + ["disagreement"]
NAMES = {
    "snr": "signal to noise",
    "identified": "how far they are identified",
    "saliency": "saliency",
    "magnitude": "size",
    "random": "chance",
}
LOST = 0.01  # of accuracy, or of the error relative to the whole network's


def layers(context: Context) -> list[dict[str, Any]]:
    """The layer table, with shares for each set."""
    tables = {name: context.where(name).layers for name in ("test", "ood") if context.has(name)}
    given = tables.get("test") or tables.get("ood") or context.where_posterior.where().layers
    if not given:
        raise NotDefined(context.where_posterior.where().why_not)
    found = []
    for index, row in enumerate(given):
        entry = {name: cleaned(getattr(row, name, None)) for name in COLUMNS}
        entry["structure"] = context.subject.structure(row.name)
        for name in ("test", "ood"):
            entry[name] = _shares(tables[name][index]) if name in tables else None
        if entry["test"] is not None:
            entry["test"] |= _range(row.name, context.sensitivity)
        found.append(entry)
    return found


def _shares(row: Any) -> dict[str, float | None]:
    values = {key: getattr(row, key) for key in SHARES}
    return {key: None if value is None else number(value) for key, value in values.items()}


def _range(name: str, rows: list[dict[str, Any]]) -> dict[str, float | None]:
    """The least and the largest share that a layer has under those priors."""
    found = [row["variance_share"] for row in rows if row["name"] == name]
    return {"share_low": number(min(found)), "share_high": number(max(found))} if found else {}


def sensitivity(context: Context) -> list[dict[str, Any]]:
    """Shares and explained under a prior ten times weaker and stronger."""
    context.need("test")
    context.need_closed_forms("sensitivity to the prior")
    return [cleaned(row) for row in context.sensitivity]


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
            going = 1 - row.parameters / whole.parameters
        reached[by] = going
    best = max(reached, key=reached.__getitem__)
    what = (
        "more than a point of accuracy is lost"
        if whole.accuracy is not None
        else "the error grows by more than 1 %"
        if whole.rmse is not None
        else "the log loss grows by more than 0.01 nats"
    )
    random = f"; at random, {reached['random']:.0%}." if "random" in reached and best != "random" else "."
    return [f"Ranked by {NAMES[best]}, {reached[best]:.0%} of all weights can go before {what}{random}"]


def answers(context: Context) -> list[dict[str, Any]]:
    """The questions that a profile is for."""
    held = context.profiled[context.need("test", targets=True).name]
    context.need_closed_forms("this")
    if context.subject.dense:
        raise NotDefined("shares are for outputs [N, C].")
    ood = context.profiled["ood"].pair if context.has("ood") else None
    pair = (held.inputs, held.targets)
    return [cleaned(a) for a in asked(context.posterior, pair, ood=ood, profile=context.where_posterior).to_dict()]
