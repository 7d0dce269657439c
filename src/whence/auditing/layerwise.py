"""Per-layer uncertainty of several methods side by side.

Shares are each method's own: in closed form for Laplace, by draws with one layer random for other posteriors over
weights, by site for dropout. What every method has is how much its draws disagree in each layer (1 − CKA), which does
not need common weight coordinates.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch

from whence.auditing.plain import number
from whence.auditing.subject import Subject
from whence.errors import WhenceError
from whence.functional import Network
from whence.where.others import modules_of
from whence.where.ranks import spearman
from whence.where.representations import disagreement

COLUMNS = {"share": "variance_share", "error": "variance_share_error", "explained": "explained"}


@dataclass(frozen=True)
class Layers:
    """What one method says of its layers, in plain numbers."""

    columns: dict[str, dict[str, Any]]  # by column, then by layer
    interaction: float | None
    disagreement: dict[str, float | None]
    why_not: str | None


def layers_of(posterior: Any, inputs: Any) -> Layers:
    """Shares and disagreement of one method; ``posterior`` is None for the plain network."""
    rows, table = _table(posterior, inputs)
    columns = {
        name: {layer: _plain(getattr(row, key, None)) for layer, row in rows.items()} for name, key in COLUMNS.items()
    }
    interaction = getattr(table, "interaction", None)
    found = {layer: _plain(value) for layer, value in _disagreement(posterior, inputs).items()}
    return Layers(columns, None if interaction is None else number(interaction), found, _reason(posterior, rows))


def _plain(value: Any) -> float | None:
    return None if value is None else float(value)


def layerwise(methods: list[tuple[Any, Layers]]) -> dict[str, Any] | None:
    """Posteriors with their layers, by method and layer; None where no method has anything to say."""
    every = [layers for _, layers in methods]
    named = {name for one in every for found in (one.columns["share"], one.disagreement) for name in found}
    if not named:
        return None
    names = _in_order(named, [posterior for posterior, _ in methods])
    return {
        "names": names,
        **{column: [_ordered(names, one.columns[column]) for one in every] for column in COLUMNS},
        "interaction": [one.interaction for one in every],
        "activations": [_ordered(names, one.disagreement) for one in every],
        "why_not": [one.why_not for one in every],
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
