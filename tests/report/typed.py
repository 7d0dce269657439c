"""Records that tests make up as JSON, as the classes that are shown."""

from __future__ import annotations

from typing import Any

from whence.report import page
from whence.report.record.audit import AuditRecord
from whence.report.record.comparison import ComparisonRecord
from whence.report.record.convert import from_json
from whence.report.record.files import record_from
from whence.report.record.sections import Node


def audit(data: dict[str, Any]) -> AuditRecord:
    return record_from(AuditRecord, data)


def comparison(data: dict[str, Any]) -> ComparisonRecord:
    return record_from(ComparisonRecord, data)


def typed(data: dict[str, Any]) -> AuditRecord | ComparisonRecord:
    return comparison(data) if data["schema"].startswith("whence.comparison/") else audit(data)


def render(data: dict[str, Any], **options: Any) -> str:
    return page.render(typed(data), **options)


def nodes(*pairs: tuple[str, str | None]) -> tuple[Node, ...]:
    """Units by their name and that of their parent."""
    rows = [
        {"id": key, "parent": parent, "level": "unit", "label": key, "weights": 1, "layer": None, "unit": None}
        for key, parent in pairs
    ]
    return from_json(tuple[Node, ...], rows)  # type: ignore[arg-type]
