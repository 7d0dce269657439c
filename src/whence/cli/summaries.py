"""Key numbers of records, for ``--json``."""

from __future__ import annotations

from typing import Any

from whence.report.record.convert import to_json
from whence.report.record.difference import DiffRecord


def diff_summary(record: DiffRecord) -> dict[str, Any]:
    """The key differences, for JSON."""
    return {
        "empty": record.is_empty,
        "same_weights": record.same_weights,
        "same_test": record.same_test,
        "words": list(record.words),
        "metrics": [{**to_json(row), "judgement": row.judgement} for row in record.metrics],
        "facts": to_json(record.facts),
    }
