"""The profile of a posterior without closed forms: layers (or dropout sites) by draws, and what they share."""

from __future__ import annotations

from typing import Any

from whence.auditing.context import Context
from whence.auditing.plain import number
from whence.errors import NotDefined

LABELS = {"test": "Test data", "ood": "Out of distribution"}
BETWEEN = "interaction"


def drawn_profile(context: Context) -> dict[str, Any]:
    """Network → layer; the interaction between layers has a cell of its own, so that cells add up."""
    tables = {name: context.where(name) for name in LABELS if context.has(name)}
    rows = tables["test"].layers
    if not rows or any(row.variance_share is None for row in rows):
        raise NotDefined(tables["test"].why_not or "this posterior has no shares.")
    nodes = [_node("n", None, "network", context.subject.kind, context.subject.bayesian)]
    nodes += [_node(f"n{i}", "n", "layer", row.name, row.parameters or 0) for i, row in enumerate(rows)]
    nodes.append(_node("ni", "n", "layer", BETWEEN, 0))
    views = [_view(name, LABELS[name], table, context) for name, table in tables.items()]
    if len(views) == 2:
        views.append(_difference(*views))
    return {
        "measure": "variance",
        "note": "Shares are by draws with one layer random and the others at their mean; "
        f"{BETWEEN!r} is what is left of the variance with all of them random.",
        "prior_precision": context.subject.describe()["prior_precision"],
        "residual": 0.0,
        "nodes": nodes,
        "views": views,
        "negative": [
            {"id": node["id"], "view": view["key"], "share": share}
            for view in views
            if view["kind"] == "set"
            for node, share in zip(nodes, view["share"], strict=True)
            if share is not None and share < -1e-6
        ],
        "words": _words(rows, tables["test"].interaction),
    }


def _node(node: str, parent: str | None, level: str, label: str, weights: int) -> dict[str, Any]:
    layer = label if level == "layer" and label != BETWEEN else None
    return {
        "id": node, "parent": parent, "level": level, "label": label, "weights": weights, "layer": layer, "unit": None,
    }  # fmt: skip


def _view(key: str, label: str, table: Any, context: Context) -> dict[str, Any]:
    rows = table.layers
    interaction = table.interaction or 0.0
    prior = [row.prior_share for row in rows]
    known = all(p is not None for p in prior)
    return {
        "key": key,
        "kind": "set",
        "label": label,
        "inputs": len(context.profiled[key]),
        "variance": None,
        "share": [1.0, *(number(row.variance_share) for row in rows), number(interaction)],
        "prior_share": [1.0, *map(number, prior), number(1 - sum(prior))] if known else [None] * (len(rows) + 2),
        "explained": [None, *(None if row.explained is None else number(row.explained) for row in rows), None],
    }


def _difference(test: dict[str, Any], ood: dict[str, Any]) -> dict[str, Any]:
    def apart(key: str) -> list[float | None]:
        pairs = zip(test[key], ood[key], strict=True)
        return [None if a is None or b is None else number(b - a) for a, b in pairs]

    found = {key: apart(key) for key in ("share", "prior_share", "explained")}
    return {
        "key": "difference", "kind": "difference", "label": "Out of distribution − test",
        "inputs": test["inputs"] + ood["inputs"], "variance": None, **found,
    }  # fmt: skip


def _words(rows: list[Any], interaction: float | None) -> list[str]:
    top = max(rows, key=lambda row: row.variance_share)
    error = "" if top.variance_share_error is None else f" (± {top.variance_share_error:.1%})"
    return [
        f"On test data {top.variance_share:.0%}{error} of the predictive variance comes from {top.name!r} alone; "
        f"{interaction or 0.0:.0%} is interaction between layers."
    ]
