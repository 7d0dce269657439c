"""The verdict: one paragraph, and a few key points; a function of the record and the rules alone."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace

from whence.auditing.calibration import small_problems
from whence.auditing.leading_layer import LeadingLayer, leading_layer, location
from whence.auditing.next_steps import next_steps
from whence.auditing.points import Judge
from whence.auditing.unjudged import not_judged
from whence.numerals import percent
from whence.report.formatting import quantity
from whence.report.record.audit import AuditRecord
from whence.report.record.common import Tone
from whence.report.record.convert import tidied
from whence.report.record.verdict import JUDGED, Point, PointKey, Verdict, VerdictRules

PENDING = Verdict("", "unknown", ())  # of a record that was not yet judged

# The words for a judged point in the paragraph, by tone
SUMMARIES: dict[PointKey, dict[Tone, str]] = {
    "guessing": {
        "mixed": "is not significantly better than guessing",
        "poor": "is no better than guessing",
    },
    "generalisation": {
        "mixed": "is more accurate on its training data than on the test data",
        "poor": "is much more accurate on its training data than on the test data",
    },
    "classes": {"mixed": "hardly ever recognises a class"},
    "calibration": {
        "good": "is well calibrated",
        "mixed": "is somewhat miscalibrated",
        "poor": "is badly calibrated",
    },
    "errors": {
        "good": "is usually uncertain when it is wrong",
        "mixed": "is uncertain about only some of its errors",
        "poor": "is rarely uncertain when it is wrong",
    },
    "novelty": {
        "good": "detects the out-of-distribution inputs given",
        "mixed": "detects only some of the out-of-distribution inputs given",
        "poor": "rarely detects the out-of-distribution inputs given",
    },
}


def judged(record: AuditRecord, rules: VerdictRules) -> AuditRecord:
    """The record with its verdict, and with what to do next."""
    found = replace(record, verdict=tidied(verdict(record, rules)))
    return replace(found, next_steps=tidied(next_steps(found, rules)))


def verdict(record: AuditRecord, rules: VerdictRules) -> Verdict:
    """The verdict from the finished sections."""
    judge, layers = Judge(record, rules), record.layers or ()
    leader = leading_layer(layers, record.sensitivity or ())
    possible = (
        judge.independence(),
        judge.guessing(),
        judge.generalisation(),
        judge.classes(),
        judge.calibration(),
        judge.gain(),
        judge.errors(),
        judge.novelty(),
        judge.groups(),
        location(layers, leader),
        judge.prior(),
    )
    points = tuple(point for point in possible if point is not None)
    sentences = [*_opening(judge), *_summary(points, judge), *_about_weights(judge, leader)]
    missing = tuple(not_judged(record, rules, (point.key for point in points)))
    return Verdict(" ".join(sentences), overall(points), points, rules, missing)


def overall(points: Iterable[Point]) -> Tone:
    """Poor if any judged point is, good if all are; unknown if there is none, or none can be judged."""
    tones = {point.tone for point in points if point.key in JUDGED}
    if tones <= {"unknown"}:
        return "unknown"
    return "poor" if "poor" in tones else "good" if tones == {"good"} else "mixed"


def _summary(points: Iterable[Point], judge: Judge) -> Iterator[str]:
    """A summary of the points without numbers."""
    summaries = {key: dict(words) for key, words in SUMMARIES.items()}
    if judge.beaten_by_one_class:
        summaries["guessing"]["poor"] = "is right less often than always giving the most frequent answer"
    if judge.beaten_detector:
        summaries["novelty"]["mixed"] = "detects the out-of-distribution inputs given less well than another detector"
    if small_problems(judge.record, judge.rules):
        count = judge.record.data.counted(_scored(judge))
        summaries["calibration"]["good"] = (
            f"shows no calibration problem large enough to lower the verdict (n = {count})"
        )
    known = ((summaries.get(p.key, {}) if p.key else {}, p) for p in points)
    found = [(words[p.tone], p.is_good) for words, p in known if p.tone in words]
    good, other = ([words for words, fine in found if fine == wanted] for wanted in (True, False))
    if good:
        yield f"It {_listed(good)}."
    if other:
        yield f"{'But it' if good else 'It'} {_listed(other)}."
    copies = judge.independence()
    if copies is not None and not copies.is_good and not copies.is_poor:
        yield f"{judge.copies}."


def _listed(items: list[str]) -> str:
    return items[0] if len(items) == 1 else f"{', '.join(items[:-1])} and {items[-1]}"


def _scored(judge: Judge) -> int | None:
    """How many answers the scores are of."""
    score = judge.value("accuracy") or judge.value("rmse")
    return None if score is None else score.count


def _opening(judge: Judge) -> Iterator[str]:
    """What makes the audit invalid, if anything; the network and its scores."""
    copies = judge.independence()
    if copies is not None and copies.is_poor:
        yield f"The audit is not valid as it stands: {judge.copies}."
    network = judge.record.network
    whole = (
        f"An ensemble of {network.members} networks" if (network.members or 1) > 1 else f"The network ({network.kind})"
    )
    words = f"{whole} has {network.parameters:,} weights"
    accuracy, rmse = judge.value("accuracy"), judge.value("rmse")
    score = accuracy or rmse
    if score is None:
        yield f"{words}."
    else:
        of = judge.record.data.counted(score.count, "test")
        if accuracy:
            yield f"{words} and classifies {percent(score.value)} of {of} correctly{judge.worst_class}."
            yield from filter(None, (judge.beside_the_largest, judge.rare_class))
        else:
            yield f"{words} and an RMSE of {quantity(score.value, judge.record.unit)} on {of}."


def _about_weights(judge: Judge, leader: LeadingLayer | None) -> Iterator[str]:
    """Whether uncertain weights change predictions, and which layer contributes most to the variance."""
    profile, tuned = judge.record.profile, judge.record.run.posterior.prior
    own_prior = profile is not None and profile.prior is not None and profile.prior != tuned
    if judge.same_as_plain and own_prior:
        yield "Its predictions are practically those of the plain network, because tuning chose a strong prior."
    if leader is not None:
        yield "Shares of layers follow the prior." if judge.prior_dominates else leader.briefly(own_prior)
