"""The tables of a comparison: one row for each method and metric, layer, bin or point."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict
from typing import Any

from whence.report.record.common import Estimate
from whence.report.record.comparison import Compared

Row = dict[str, Any]
Tables = dict[str, list[Row]]


def compared_tables(record: Compared) -> Tables:
    """By name; empty where a comparison does not have it."""
    return {
        "methods": [asdict(method) for method in record.methods],
        "metrics": list(_metrics(record)),
        "reliability": list(_reliability(record)),
        "uncertainty": list(_uncertainty(record)),
        "rejection": list(_rejection(record)),
        "layers": list(_layers(record)),
        "agreement": list(_agreement(record)),
        "distance": list(_distance(record)),
    }


def _estimate(found: Estimate | None, name: str) -> Row:
    ends = ("value", "low", "high", "level", "count")
    return {f"{name}_{end}".removesuffix("_value"): getattr(found, end, None) for end in ends}


def _metrics(record: Compared) -> Iterator[Row]:
    for metric in record.metrics:
        for i, name in enumerate(record.names):
            row = {"metric": metric.name, "label": metric.label, "better": metric.better, "method": name}
            found = _estimate(metric.values[i], "value") | {"best": metric.best[i]}
            yield row | found | _estimate(_at(metric.difference, i), "difference")


def _at(values: Sequence[Any] | None, place: int) -> Any:
    return values[place] if values and place < len(values) else None


def _reliability(record: Compared) -> Iterator[Row]:
    for name, bins in zip(record.names, record.reliability or (), strict=False):
        yield from ({"method": name, **asdict(one)} for one in bins or ())


def _uncertainty(record: Compared) -> Iterator[Row]:
    found = record.uncertainty
    for kind, sets in (("test", found.test), ("ood", found.ood)) if found else ():
        for name, values in zip(record.names, sets or (), strict=False):
            yield from ({"set": kind, "method": name, found.name: value} for value in values)  # type: ignore[union-attr]


def _rejection(record: Compared) -> Iterator[Row]:
    for name, curve in zip(record.names, record.rejection or (), strict=False):
        if curve is not None:
            pairs = zip(curve.coverage, curve.error, strict=True)
            yield from ({"method": name, "coverage": kept, "error": error} for kept, error in pairs)


def _layers(record: Compared) -> Iterator[Row]:
    found = record.layers
    if found is None:
        return
    columns = {"share": found.share, "share_error": found.error, "explained": found.explained}
    columns["disagreement"] = found.activations
    for i, method in enumerate(record.names):
        for j, layer in enumerate(found.names):
            values = {name: _at(_at(rows, i), j) for name, rows in columns.items()}
            if any(value is not None for value in values.values()):
                yield {"method": method, "layer": layer, **values}


def _agreement(record: Compared) -> Iterator[Row]:
    found = record.agreement
    for i, first in enumerate(found.methods) if found else ():
        for j, second in enumerate(found.methods if found else ()):
            assert found is not None
            both = {
                "rank_correlation": _at(_at(found.rho, i), j),
                "total_variation": _at(_at(found.total_variation, i), j),
            }
            yield {"method": first, "other": second, **both}


def _distance(record: Compared) -> Iterator[Row]:
    found = record.distance
    for i, name in enumerate(record.names) if found else ():
        assert found is not None
        row = {"method": name, "reference": found.reference}
        moved = _estimate(_at(found.total_variation, i), "total_variation")
        yield row | moved | _estimate(_at(found.wasserstein, i), "wasserstein")
