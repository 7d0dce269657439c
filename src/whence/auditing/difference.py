"""``whence.diff``: what changed between two audits, and whether it is more than chance."""

from __future__ import annotations

import math
import platform
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import torch

from whence._version import __version__
from whence.auditing.paired import PairedScores
from whence.auditing.results import Audit, Diff
from whence.auditing.run import now
from whence.errors import BadOption
from whence.metrics.proportions import share_of
from whence.numerals import percent
from whence.report.record.audit import AuditRecord, Deferral, DeferralRule, Metric
from whence.report.record.common import Better, Estimate, Versions
from whence.report.record.convert import number, tidied
from whence.report.record.difference import (
    ChangedFact,
    ChangedLayer,
    ChangedPoint,
    ChangedValue,
    DiffRecord,
    Sameness,
    Side,
)
from whence.report.record.sections import Shares

T = TypeVar("T")
LEVEL = 0.95
NAMED = 4  # metrics that a sentence names
FLAGGED: dict[str, Better] = {"reference": "lower", "test": "lower", "ood": "higher"}  # which values are good
SETS = ("train", "validation", "test", "ood")
KINDS = {"plain": "trained network", "recalibrated": "recalibrated", "bayesian": "with the posterior"}
HOW = (
    "A change is larger than chance if its 95% interval excludes 0. Each interval holds on its own: of 20 numbers that "
    "did not change, about one is expected to look changed."
)
INDEPENDENT = "computed from the intervals of the two audits as for independent data (Zou and Donner 2008)"
PAIRED = (
    "Both audits used the same test data, so metrics that are means over inputs are compared input by input: what "
    f"makes an input hard for both networks cancels. The intervals of the other changes are {INDEPENDENT}; where both "
    "networks err on the same inputs they are wider than necessary, and small changes may be missed."
)
PAIRING: dict[Sameness, str] = {
    "same": "Both audits used the same test data, but not both records hold scores of single inputs, so the inputs are "
    f"not paired: intervals are {INDEPENDENT}. Where both networks err on the same inputs they are wider than "
    "necessary, and small changes may be missed.",
    "different": f"The test data differ, so the comparison is unpaired: intervals are {INDEPENDENT}. A change may come "
    "from the data as well as from the network.",
    "unknown": "It is not known whether the test data are the same, since not both records hold a digest of them; the "
    f"comparison is unpaired: intervals are {INDEPENDENT}.",
}


def diff(old: Any, new: Any) -> Diff:
    """What changed between two audits: :class:`whence.Audit` objects, or the paths of their JSON files.

    Numbers are compared with intervals; ``results.how`` says how. Dates and times are not compared.
    """
    before, after = _record(old, "old"), _record(new, "new")
    same_test = _same_data(before, after, "test")
    if same_test == "unknown" and PairedScores.of(before.scores, after.scores) is not None:
        same_test = "same"
    metrics = tuple(_metrics(before, after))
    rows: dict[str, Any] = {
        "points": _points(before, after),
        "metrics": metrics,
        "deferral": tuple(_deferral(before.deferral, after.deferral)),
        "novelty": tuple(_novelty(before, after)),
        "layers": tuple(_layers(before, after)),
        "facts": tuple(_facts(before, after)),
    }
    found = DiffRecord(
        schema="whence.diff/1",
        created=now(),
        title=before.title if before.title == after.title else f"{before.title} → {after.title}",
        old=_side(before),
        new=_side(after),
        same_weights=_same_weights(before, after),
        same_test=same_test,
        versions=Versions(__version__, torch.__version__, np.__version__, platform.python_version()),
        how=f"{HOW} {PAIRED if any(row.paired for row in metrics) else PAIRING[same_test]}",
        words=(),
        **rows,
    )
    return Diff(tidied(_with_words(found)))


def _record(given: Any, name: str) -> AuditRecord:
    if isinstance(given, str | Path):
        return Audit.read(given).results
    if isinstance(given, Audit):
        return given.results
    raise BadOption(f"{name}= is a {type(given).__name__}; pass a whence.Audit or the path of its JSON file.")


def _side(record: AuditRecord) -> Side:
    trace, verdict = record.trace, record.verdict
    weights = None if trace is None else trace.weights[0]
    return Side(
        record.title, record.created, verdict.words, verdict.tone, None if trace is None else trace.record, weights
    )


def _same_weights(old: AuditRecord, new: AuditRecord) -> Sameness:
    if old.trace is None or new.trace is None:
        return "unknown"
    return "same" if old.trace.weights == new.trace.weights else "different"


def _same_data(old: AuditRecord, new: AuditRecord, name: str) -> Sameness:
    digests = [one.trace.data_of(name) if one.trace else None for one in (old, new)]
    first, second = (None if one is None else one.sha256 for one in digests)
    if first is None or second is None:
        return "unknown"
    return "same" if first == second else "different"


# Numbers


def change(old: Estimate | None, new: Estimate | None) -> Estimate | None:
    """new − old, with the interval of Zou and Donner (2008, Stat. Med. 27, 1693) for independent estimates."""
    if old is None or new is None or old.value is None or new.value is None:
        return None
    value, count = new.value - old.value, min(old.count, new.count)
    ends = (old.low, old.high, new.low, new.high)
    if any(end is None for end in ends) or old.level != new.level:
        return Estimate(number(value), None, None, old.level, count)
    down = math.hypot(_gap(new.value, new.low), _gap(old.high, old.value))
    up = math.hypot(_gap(new.high, new.value), _gap(old.value, old.low))
    return Estimate(number(value), number(value - down), number(value + up), old.level, count)


def _gap(high: float | None, low: float | None) -> float:
    """Distance between a value and an end of its interval; 0 if the interval lies beside the value."""
    return max(0.0, (high or 0.0) - (low or 0.0))


def proportion(share: float | None, count: int) -> Estimate | None:
    """A share of ``count`` inputs with the exact interval."""
    found = None if share is None else share_of("share", round(share * count), count, LEVEL)
    if found is None:
        return None
    return Estimate(number(found), number(found.low), number(found.high), LEVEL, count)


def _value(
    name: str, label: str, better: Better, about: str, of: str, old: Estimate | None, new: Estimate | None
) -> ChangedValue:
    return ChangedValue(name, label, better, about, of, old, new, change(old, new))


def _joined(old: Iterable[T], new: Iterable[T], key: Callable[[T], Any]) -> Iterator[tuple[T | None, T | None]]:
    """Rows of both that belong together, those of the new audit first."""
    before, after = {key(row): row for row in old}, {key(row): row for row in new}
    for name in {**after, **before}:
        yield before.get(name), after.get(name)


def _metrics(old: AuditRecord, new: AuditRecord) -> Iterator[ChangedValue]:
    rows = [one.quality.metrics if one.quality else () for one in (old, new)]
    pairs = PairedScores.of(old.scores, new.scores)
    for before, after in _joined(rows[0], rows[1], lambda row: row.name):
        known: Metric = after or before  # type: ignore[assignment]
        for kind, words in KINDS.items():
            pair = [None if row is None else getattr(row, kind) for row in (before, after)]
            if any(pair):
                row = _value(known.name, known.label, known.better, known.about, words, *pair)
                paired = None if pairs is None or not all(pair) else pairs.change(known.name, kind)
                yield row if paired is None else replace(row, change=paired, paired=True)


def _deferral(old: Deferral | None, new: Deferral | None) -> Iterator[ChangedValue]:
    """What each rule reaches on test data."""
    rows = [one.rows if one else () for one in (old, new)]
    error = (new or old).error if new or old else ""  # type: ignore[union-attr]
    for before, after in _joined(rows[0], rows[1], lambda row: (row.aim, row.target, row.confidence)):
        rule: DeferralRule = after or before  # type: ignore[assignment]
        rate = rule.by_coverage or (new or old).is_rate  # type: ignore[union-attr]
        target = percent(rule.target) if rate else number(rule.target)
        of = f"answer {target}" if rule.by_coverage else f"{error} ≤ {target}"
        of += f", with {percent(rule.confidence)} confidence" if rule.confidence else ""
        answered = [None if row is None else row.test.coverage for row in (before, after)]
        yield _value("coverage", "answered", "higher", "Share of the test inputs that are answered.", of, *answered)
        errors = [None if row is None else row.test.error for row in (before, after)]
        if any(errors):
            yield _value("error", f"{error} of the answered", "lower", "On test data.", of, *errors)


def _novelty(old: AuditRecord, new: AuditRecord) -> Iterator[ChangedValue]:
    found = [one.novelty for one in (old, new)]
    sets = [one.sets if one else () for one in found]
    for before, after in _joined(sets[0], sets[1], lambda row: row.key):
        known: Any = after or before
        flagged = [None if row is None else proportion(row.flagged, row.inputs) for row in (before, after)]
        yield _value(
            "flagged", "flagged as novel", FLAGGED[known.key], "Share of the inputs of a set.", known.label, *flagged
        )
    detectors = [(one.detectors if one else None) or () for one in found]
    for first, second in _joined(detectors[0], detectors[1], lambda row: row.name):
        one: Any = second or first
        aurocs = [None if row is None else row.auroc for row in (first, second)]
        yield _value("auroc", "AUROC", "higher", "", one.label, *aurocs)
        missed = [None if row is None else row.fpr95 for row in (first, second)]
        yield _value("fpr95", "FPR95", "lower", "", one.label, *missed)


def _layers(old: AuditRecord, new: AuditRecord) -> Iterator[ChangedLayer]:
    for before, after in _joined(old.layers or (), new.layers or (), lambda row: row.name):
        known: Any = after or before
        shares = [row.test if row and row.test else Shares(None, None, None) for row in (before, after)]
        yield ChangedLayer(known.name, *(one.variance_share for one in shares), *(one.explained for one in shares))


# Words and facts


def _points(old: AuditRecord, new: AuditRecord) -> tuple[ChangedPoint, ...]:
    pairs = _joined(old.verdict.points, new.verdict.points, lambda point: point.key or point.label)
    return tuple(ChangedPoint((after or before).label, before, after) for before, after in pairs)  # type: ignore[union-attr]


def _facts(old: AuditRecord, new: AuditRecord) -> Iterator[ChangedFact]:
    before, after = _described(old), _described(new)
    for group, name in {**before, **after}:
        old_text, new_text = before.get((group, name)), after.get((group, name))
        if old_text != new_text:
            yield ChangedFact(group, name, old_text, new_text)


def _described(record: AuditRecord) -> dict[Any, str]:
    """Everything about an audit that is not a result, by group and name."""
    run, post, trace = record.run, record.run.posterior, record.trace
    data = {name: getattr(record.data, name) for name in SETS}
    network = {
        "title": record.title, "task": record.task, "kind": record.network.kind,
        "parameters": f"{record.network.parameters:,}", "Bayesian parameters": f"{record.network.bayesian:,}",
        "classes": ", ".join(record.classes or ()) or None,
    }  # fmt: skip
    settings = {
        "posterior": post.kind, "structure": post.structure, "curvature": post.curvature,
        "prior": post.prior or post.prior_precision, "data scale": post.data_scale, "tuned on": post.tuned_on,
        "seed": run.seed, "interrupted during": run.interrupted,
    }  # fmt: skip
    software = {**vars(run.versions), "device": run.device, "platform": run.platform}
    sizes = {name: f"{one.inputs:,} inputs" for name, one in data.items() if one is not None}
    if trace is not None:
        network["weights (SHA-256)"] = ", ".join(trace.weights)
        for one in trace.data:
            sizes[f"{one.name} (SHA-256)"] = one.sha256 or f"none: {one.why}"
        settings |= {f"{name}=": value for name, value in trace.call.items() if name not in ("model", "seed", *SETS)}
        settings["command"] = trace.command
        software |= trace.packages
        software["git commit"] = trace.git and trace.git.words
    groups: Mapping[str, Mapping[str, Any]] = {
        "network": network, "data": sizes, "settings": settings, "software": software,
    }  # fmt: skip
    return {(group, name): str(v) for group, rows in groups.items() for name, v in rows.items() if v is not None}


def _with_words(found: DiffRecord) -> DiffRecord:
    """The record with a summary in sentences."""
    words = ["Nothing differs except dates and times."] if found.is_empty else list(_summary(found))
    return DiffRecord(**{**vars(found), "words": tuple(words)})


def _summary(found: DiffRecord) -> Iterator[str]:
    same = {"same": "The weights are the same.", "different": "The weights differ."}
    yield same.get(found.same_weights, "It is not known whether the weights are the same: no digests.")
    if found.old.tone != found.new.tone:
        yield f"The verdict changed from “{found.old.tone}” to “{found.new.tone}”."
    turned = [p for p in found.points if p.old and p.new and p.old.tone != p.new.tone]
    if turned:
        yield f"Points: {'; '.join(f'{p.label} from {p.old.tone} to {p.new.tone}' for p in turned if p.old and p.new)}."
    compared = [row for row in found.metrics if row.change is not None]
    for word in ("better", "worse", "differs"):
        rows = [f"{row.label} ({row.of})" for row in compared if row.judgement == word]
        if rows:
            more = f" and {len(rows) - NAMED} more" if len(rows) > NAMED else ""
            verb = "Different" if word == "differs" else word.capitalize()
            yield f"{verb} by more than chance: {', '.join(rows[:NAMED])}{more}."
    if compared and not any(row.is_significant for row in compared):
        yield f"None of {len(compared)} metrics changed by more than chance."
    moved = max(found.layers, key=_moved, default=None)
    if moved is not None and _moved(moved) >= 0.01:
        assert moved.old_share is not None and moved.new_share is not None
        yield (
            f"The share of the variance changed most in `{moved.name}`: from {percent(moved.old_share, 0)} to "
            f"{percent(moved.new_share, 0)}."
        )


def _moved(layer: ChangedLayer) -> float:
    if layer.old_share is None or layer.new_share is None:
        return 0.0
    return abs(layer.new_share - layer.old_share)
