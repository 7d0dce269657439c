"""One colour for each layer, the same in all charts of a page; where layers are many, for the largest of them."""

from __future__ import annotations

from whence.report.page.theme import DISTINCT, MISSING
from whence.report.record.audit import AuditRecord


def layer_names(record: AuditRecord) -> list[str]:
    """Layer names in the network's order; names that only other parts of the record have are last."""
    shown = (share.name for item in record.inputs or () for share in item.layers)
    tables = (row.name for rows in (record.layers, record.sensitivity) for row in rows or ())
    return list(dict.fromkeys([*tables, *shown]))


def layer_colours(record: AuditRecord, most: int = len(DISTINCT)) -> dict[str, str]:
    """The layers with the largest shares anywhere on the page, in the network's order, and their colours."""
    names = layer_names(record)
    size = _largest_shares(record)
    ranked = sorted(names, key=lambda name: -size.get(name, 0.0))
    largest = set(ranked[:most])
    found = dict(zip([name for name in names if name in largest], DISTINCT, strict=False))
    return found | (dict.fromkeys(ranked[most:], MISSING) if len(ranked) == most + 1 else {})


def _largest_shares(record: AuditRecord) -> dict[str, float]:
    """By layer: the mean share of the inputs shown, or the largest that a table has, whichever is larger."""
    found: dict[str, float] = {}
    shown = [one for one in record.inputs or () if one.layers]
    for item in shown:
        for name, share in item.layers:
            found[name] = found.get(name, 0.0) + abs(share or 0.0) / len(shown)
    for layer in record.layers or ():
        for one in (layer.test, layer.ood):
            found[layer.name] = max(found.get(layer.name, 0.0), abs(one.variance_share or 0.0) if one else 0.0)
    for row in record.sensitivity or ():
        found[row.name] = max(found.get(row.name, 0.0), abs(row.variance_share or 0.0))
    return found
