"""The judged points that an audit lacks, each with the reason."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from whence.likelihoods.base import TaskKind
from whence.report.record.audit import AuditRecord
from whence.report.record.verdict import JUDGED, LABELS, PointKey, VerdictRules

NO_SCORES = "there are no scores on test data"


def not_judged(record: AuditRecord, rules: VerdictRules, judged: Iterable[PointKey | None]) -> Iterator[str]:
    """One sentence for each reason why points were not judged."""
    known = set(judged)
    reasons: dict[str, list[str]] = {}
    for key in JUDGED:
        if key not in known:
            reasons.setdefault(_reason(record, rules, key), []).append(f"“{LABELS[key]}”")
    for reason, labels in reasons.items():
        yield f"{', '.join(labels)}: {reason}."


def _reason(record: AuditRecord, rules: VerdictRules, key: PointKey) -> str:
    quality, labels = record.quality, TaskKind(record.task).has_labels
    if key == "independence":
        return "there are no test data, or no training data to compare them with"
    if key == "novelty":
        return "no out-of-distribution inputs were given" if record.data.ood is None else "no AUROC was measured"
    if quality is None:
        return NO_SCORES
    if key in ("generalisation", "errors") and not labels:
        return "predicted numbers have no accuracy"
    if key == "classes":
        return _no_classes(record, rules) if labels else "predicted numbers have no classes"
    reasons: dict[PointKey, str] = {
        "guessing": "the log loss is not known",
        "generalisation": "the accuracy on the training data is not known",
        "errors": "all test answers are right, or all are wrong",
    }
    return reasons.get(key, "what it is judged by was not measured")


def _no_classes(record: AuditRecord, rules: VerdictRules) -> str:
    quality = record.quality
    rows = (quality and quality.classes) or ()
    if rules.recall_mixed is None:
        return "the rules have no limit for it"
    if quality is not None and quality.two_classes is not None:
        return "of two classes, the threshold of the decision sets how many of each are found"
    if any(row.specificity is not None for row in rows):
        return "of labels, the threshold of the decision sets how many are found"
    return "there is no table by class"
