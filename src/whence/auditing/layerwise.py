"""Per-layer uncertainty of several methods side by side.

Shares are each method's own: in closed form for Laplace, by draws with one layer random for other posteriors over
weights, by site for dropout. What every method has is how much its draws disagree in each layer (1 − CKA), which does
not need common weight coordinates.
"""

from __future__ import annotations

from typing import Any

import torch

from whence.auditing.plain import number
from whence.auditing.subject import Subject
from whence.errors import WhenceError
from whence.functional import Network
from whence.where.others import modules_of
from whence.where.ranks import spearman
from whence.where.representations import disagreement


def layerwise(methods: list[tuple[str, Any]], inputs: Any) -> dict[str, Any] | None:
    """By method and layer; None where no method has anything to say."""
    tables = [_table(posterior, inputs) for _, posterior in methods]
    disagreeing = [_disagreement(posterior, inputs) for _, posterior in methods]
    named = {name for table, _ in tables for name in table} | {name for found in disagreeing for name in found}
    if not named:
        return None
    names = _in_order(named, [posterior for _, posterior in methods])

    def column(key: str) -> list[list[float | None] | None]:
        return [_ordered(names, {n: getattr(row, key, None) for n, row in table.items()}) for table, _ in tables]

    return {
        "names": names,
        "share": column("variance_share"),
        "error": column("variance_share_error"),
        "explained": column("explained"),
        "interaction": [None if i is None else number(i) for _, i in map(_interaction, methods, tables)],
        "activations": [_ordered(names, found) for found in disagreeing],
        "why_not": [_reason(posterior, table) for (_, posterior), (table, _) in zip(methods, tables, strict=True)],
    }


def _table(posterior: Any, inputs: Any) -> tuple[dict[str, Any], Any]:
    """Rows by layer, and the whole table."""
    if posterior is None:
        return {}, None
    try:
        found = posterior.where(inputs)
    except WhenceError as error:
        return {}, error
    return {_row_name(row): row for row in found.layers if row.name != "output"}, found


def _row_name(row: Any) -> str:
    return f"{row.name} (dropout)" if row.kind == "dropout" else str(row.name)


def _in_order(named: set[str], posteriors: list[Any]) -> list[str]:
    """As the first network has them; the output last."""
    modules = next((p.network.module for p in posteriors if isinstance(getattr(p, "network", None), Network)), None)
    order = [] if modules is None else [name for name, _ in modules.named_modules()]

    def place(name: str) -> tuple[int, int, str]:
        owner = name.removesuffix(" (dropout)")
        return (name == "output", order.index(owner) if owner in order else len(order), name)

    return sorted(named, key=place)


def _interaction(method: tuple[str, Any], table: tuple[dict[str, Any], Any]) -> tuple[str, float | None]:
    return method[0], getattr(table[1], "interaction", None)


def _disagreement(posterior: Any, inputs: Any) -> dict[str, float | None]:
    """1 − CKA between draws, by layer and for the output."""
    if posterior is None:
        return {}
    try:
        table = disagreement(modules_of(posterior), inputs)
    except WhenceError:
        return {}
    own = {name for network in Subject(posterior).networks[:1] for name, _ in network.module.named_modules()}
    return {_bare(name, own): value for name, value in zip(table["name"], table["disagreement"], strict=True)}


def _bare(name: str, own: set[str]) -> str:
    """Without the wrapper that serves a draw, where the network itself has no such name."""
    return name if name in own or name == "output" else name.partition(".")[2]


def _ordered(names: list[str], values: dict[str, Any]) -> list[float | None] | None:
    if not any(values.get(name) is not None for name in names):
        return None
    return [None if values.get(name) is None else number(values[name]) for name in names]


def _reason(posterior: Any, table: dict[str, Any]) -> str | None:
    if posterior is None:
        return "it has no distribution over weights."
    if any(getattr(row, "variance_share", None) is not None for row in table.values()):
        return None
    try:
        return str(getattr(posterior.where(), "why_not", "")) or "it has no shares."
    except WhenceError as error:
        return str(error)


def agreement(names: list[str], layers: dict[str, Any]) -> dict[str, Any] | None:
    """Spearman's ρ between the shares of methods, and how much of the variance would have to move."""
    rows = {n: s for n, s in zip(names, layers["share"], strict=True) if s is not None}
    if len(rows) < 2:
        return None
    pairs = [[_pair(a, b) for b in rows.values()] for a in rows.values()]
    return {
        "methods": list(rows),
        "rho": [[rho for rho, _ in line] for line in pairs],
        "total_variation": [[apart for _, apart in line] for line in pairs],
    }


def _pair(a: list[float | None], b: list[float | None]) -> tuple[float | None, float | None]:
    """Over the layers that both have; shares made to add up to 1 there."""
    common = [(x, y) for x, y in zip(a, b, strict=True) if x is not None and y is not None]
    if len(common) < 2:
        return None, None
    one, other = torch.tensor(common, dtype=torch.float64).unbind(1)
    apart = (one / one.sum() - other / other.sum()).abs().sum() / 2
    return number(spearman(one, other)), number(apart)
