"""A track's record and an audit as named numbers and a few words, for loggers."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from typing import Any, Protocol

from whence.auditing import Audit
from whence.extras.tracking.records import TrackRecord
from whence.extras.tracking.track import Track

OF_RECORD = ("loss", "accuracy", "probe_loss", "entropy", "variance", "aleatoric", "epistemic", "seconds")
OF_SHARES = ("variance_share", "prior_share", "explained")
OF_LAYER = ("identified", "effective_parameters", "signal_to_noise", "std", *OF_SHARES)
ROOT = "whence"


class Logger(Protocol):
    """Takes records of a track while it is made, and audits."""

    def record(self, record: TrackRecord) -> None:
        """Log one record, at its step."""

    def audit(self, audit: Audit, step: int | None = None) -> None:
        """Log an audit."""


def of_record(record: TrackRecord) -> dict[str, float]:
    """The numbers of one record of a track: of the network, and ``whence/identified/<layer>`` and so on by layer."""
    found = [(name, getattr(record, name)) for name in OF_RECORD]
    found += [(f"{name}/{row.name}", getattr(row, name)) for row in record.layers for name in OF_LAYER]
    return _finite(found)


def of_audit(audit: Audit) -> dict[str, float]:
    """The numbers of an audit: metrics of the plain, recalibrated and Bayesian network, and shares by layer."""
    return _finite([(f"audit/{name}", value) for name, value in _of_audit(audit.results)])


def _of_audit(results: Any) -> Iterator[tuple[str, Any]]:
    for metric in results.quality.metrics if results.quality else ():
        for kind in ("plain", "recalibrated", "bayesian"):
            estimate = getattr(metric, kind)
            if estimate is not None:
                yield f"{metric.name}/{kind}", estimate.value
    for row in results.layers or ():
        yield f"identified/{row.name}", row.identified
        for name in OF_SHARES if row.test is not None else ():
            yield f"{name}/{row.name}", getattr(row.test, name)


def words_of(audit: Audit) -> str:
    """Verdict, its points and the next steps, in Markdown."""
    verdict, steps = audit.results.verdict, audit.results.next_steps or ()
    points = [f"- **{point.label}** ({point.tone}): {point.words}" for point in verdict.points]
    todo = [f"{i}. {step.words} {step.because}" for i, step in enumerate(steps, 1)]
    parts = [verdict.words, "\n".join(points), *(["What to do next:", "\n".join(todo)] if todo else [])]
    return "\n\n".join(parts)


def plain_name(name: str) -> str:
    """A name of letters, digits and ``_ - . /``, which every logger takes."""
    return re.sub(r"[^\w\-./]", "_", name)


def records_of(track: Track) -> tuple[TrackRecord, ...]:
    """Those that hold numbers."""
    return tuple(record for record in track.records if not record.error)


def _finite(found: list[tuple[str, Any]]) -> dict[str, float]:
    return {
        plain_name(f"{ROOT}/{name}"): float(value)
        for name, value in found
        if value is not None and math.isfinite(value)
    }
