"""The point of the verdict about calibration, from the record and the rules alone."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple

from whence.auditing import rules_in_words
from whence.auditing.rules_in_words import distance_span
from whence.numerals import number, percent, points, points_range, with_interval
from whence.report.record.audit import AuditRecord, Metric
from whence.report.record.common import Estimate, Tone
from whence.report.record.labels import ClassCalibration
from whence.report.record.numbers import NumberChecks, OutputChecks
from whence.report.record.verdict import Point, VerdictRules

NOMINAL = 0.95  # coverage of the intervals that are judged
SIMULTANEOUS = "simultaneous 95% interval of the difference"
RANKS: dict[Tone, int] = {"good": 0, "unknown": 1, "mixed": 2, "poor": 3}


# Labels


def of_labels(record: AuditRecord, rules: VerdictRules, ece: Metric) -> Point:
    """By the interval of the calibration error, whose value is biased upward for few inputs; and by class."""
    found, plain = ece.bayesian, ece.plain
    assert found is not None and plain is not None
    known = found.low is not None and found.high is not None
    interval = f"95% interval {points_range(found.low or 0.0, found.high or 0.0)}; " if known else ""
    words = (
        f"Confidence differs from accuracy by {_points(found.value)} on average (ECE; {interval}plain network "
        f"{points(plain.value or 0.0)}; n = {record.data.counted(found.count)})"
    )
    lean = _lean(record, rules)
    if found.low is None or found.high is None or found.low <= rules.ece_negligible:
        few = found.high is None or found.high > rules.too_wide
        none = "the ECE is not significantly above 0" if not found.low else "the near end of its interval is negligible"
        words += f"; {'too few inputs to judge' if few else lean or none}."
        tone: Tone = "unknown" if few else "good"
    else:
        words += f"; {lean}." if lean else "."
        tone = "good" if found.high <= rules.ece else "poor" if found.low > rules.ece else "mixed"
    point = Point.about("calibration", words, tone, rules_in_words.calibration_of_labels(rules))
    return _with_findings(point, [_class_off(record, rules), _answers_off(record, rules)])


class Finding(NamedTuple):
    """Something about single classes that is significant, and the tone that it has by itself."""

    tone: Tone
    words: str

    @property
    def lowers(self) -> bool:
        return RANKS[self.tone] > 0


def _with_findings(point: Point, found: Sequence[Finding | None]) -> Point:
    """The point, graded down by the worst of what was found, which then stands first."""
    known = [one for one in found if one is not None]
    lower, minor = ([one.words for one in known if one.lowers is wanted] for wanted in (True, False))
    tone = max([point.tone, *(one.tone for one in known)], key=RANKS.__getitem__)
    return replace(point, words=" ".join([*lower, point.words, *minor]), tone=tone)


def _points(value: float | None) -> str:
    return f"{points(value or 0.0)} percentage points"


def _between(difference: Estimate) -> str:
    """The ends of an interval without 0, of a difference whose sign is said."""
    near, far = sorted(abs(end or 0.0) for end in (difference.low, difference.high))
    return f"{points(near)} to {points(far)}"


def _lean(record: AuditRecord, rules: VerdictRules) -> str:
    """Over- or underconfidence, if it is significant."""
    found = None if record.quality is None else record.quality.overconfidence
    side = significant_sign(found)
    if not side or found is None or found.value is None:
        return ""
    small = max(abs(found.low or 0.0), abs(found.high or 0.0)) <= rules.ece
    return (
        f"overall it is {'slightly ' if small else ''}{'over' if side > 0 else 'under'}confident by "
        f"{_points(abs(found.value))} (95% interval {_between(found)})"
    )


def _answers_off(record: AuditRecord, rules: VerdictRules) -> Finding | None:
    """The class whose answers are right far less or more often than they state."""
    rows = (record.quality and record.quality.classes) or ()
    row = max(rows, key=lambda one: smallest(one.overconfidence), default=None)
    if row is None or row.overconfidence is None or row.precision is None:
        return None
    if (apart := smallest(row.overconfidence)) <= rules.ece_negligible:
        return None
    tone, side = tone_of(apart, rules.answers_mixed, rules.answers_poor), significant_sign(row.overconfidence)
    within = f", whose near end is within the limit of {points(rules.answers_mixed)}" if tone == "good" else ""
    words = (
        f"Where it answers `{row.name}` it is {'over' if side > 0 else 'under'}confident: it states "
        f"{percent(row.confidence)} on average, and {percent(row.precision.value)} of these answers are right "
        f"({SIMULTANEOUS} {_between(row.overconfidence)} percentage points{within})."
    )
    return Finding(tone, words)


def smallest(difference: Estimate | None) -> float:
    """How far a difference is from 0 at least; 0 if its interval contains it."""
    if difference is None or difference.low is None or difference.high is None:
        return 0.0
    return max(difference.low, -difference.high, 0.0)


def _class_off(record: AuditRecord, rules: VerdictRules) -> Finding | None:
    """The class whose probability is off by the largest part of its frequency."""
    rows = (record.quality and record.quality.classes) or ()
    off = [(relative_error(row, rules), row) for row in rows]
    error, row = min(off, key=lambda one: (-round(one[0], 2), one[1].frequency or 0.0), default=(0.0, None))
    if row is None or not error:
        return None
    tone: Tone = "poor" if error >= rules.class_poor else "mixed" if error >= rules.class_mixed else "good"
    others = sum(e > 0 for e, _ in off) - 1
    also = f" That of {others} more {'class differs' if others == 1 else 'classes differ'} significantly too."
    rarer = "frequency" if (row.frequency or 0.0) <= 0.5 else "frequency of the other classes"
    within = f", whose near end is within the limit of {percent(rules.class_mixed)} of the {rarer}"
    words = (
        f"The probability of `{row.name}` is too {'high' if (row.difference.value or 0.0) > 0 else 'low'}: "
        f"{percent(row.predicted)} on average, its frequency is {percent(row.frequency)} ({SIMULTANEOUS} "
        f"{_between(row.difference)} percentage points{within if tone == 'good' else ''})."
        f"{also if others > 0 and len(rows) > 2 else ''}"
    )
    return Finding(tone, words)


def relative_error(row: ClassCalibration, rules: VerdictRules) -> float:
    """How far the mean probability of a class is from its frequency at least, relative to the rarer outcome.

    By the end of the interval that is nearer to 0; 0 if the interval contains it.
    """
    frequency, apart = row.frequency or 0.0, smallest(row.difference)
    rarer = min(frequency, 1 - frequency)
    return apart / rarer if rarer and apart > rules.ece_negligible else 0.0


def small_problems(record: AuditRecord, rules: VerdictRules) -> bool:
    """Whether a good calibration may only be said not to be shown bad: problems below the limits, or few inputs."""
    quality = record.quality
    if quality is None:
        return False
    if _class_off(record, rules) is not None or _answers_off(record, rules) is not None or _lean(record, rules):
        return True
    ece = next((row.bayesian for row in quality.metrics if row.name == "ece"), None)
    if ece is not None:
        return ece.high is None or ece.high > rules.ece
    checks = quality.numbers
    return checks is not None and bool(bias_of_one(checks))


# Numbers


def of_numbers(record: AuditRecord, rules: VerdictRules, coverage: Estimate) -> Point:
    """By the coverage of intervals, and by the distribution of F(true value)."""
    checks = None if record.quality is None else record.quality.numbers
    value = coverage.value or 0.0
    low, high = (value if end is None else end for end in (coverage.low, coverage.high))
    words = (
        f"The 95% prediction intervals contain {percent(value)} of the true values (95% confidence interval "
        f"{percent(low)} to {percent(high)}, n = {record.data.counted(coverage.count)})."
    )
    tone = tone_of(apart(coverage, NOMINAL), rules.coverage_good, rules.coverage_poor)
    if tone == "good" and high - low > 2 * rules.too_wide:
        tone, words = "unknown", f"{words} That is too few test values to judge."
    levels = {} if checks is None else {row.level: row.judged for row in checks.coverage}
    distance = None if checks is None else checks.pit.distance
    point = Point.about("calibration", words, tone, rules_in_words.calibration_of_numbers(rules, levels, distance))
    point = _with_levels(point, rules, levels)
    return point if checks is None else _with_distribution(point, rules, checks)


def _with_levels(point: Point, rules: VerdictRules, levels: dict[float, Estimate]) -> Point:
    """The point, graded down where intervals of another level cover too much or too little."""
    off = {level: apart(found, level) for level, found in levels.items()}
    level, least = max(off.items(), key=lambda item: item[1], default=(NOMINAL, 0.0))
    tone = tone_of(least, rules.coverage_good, rules.coverage_poor)
    if level == NOMINAL or tone == "good" or point.is_poor:
        return point
    found = levels[level]
    words = (
        f"{point.words} But the {percent(level)} prediction intervals are too "
        f"{'wide' if (found.value or 0.0) > level else 'narrow'}: they contain {percent(found.value)} "
        f"(simultaneous 95% confidence interval {percent(found.low)} to {percent(found.high)})."
    )
    return replace(point, words=words, tone=tone)


def _with_distribution(point: Point, rules: VerdictRules, checks: NumberChecks) -> Point:
    """The point with what is wrong about the mean, graded down where F(true value) is far from uniform."""
    found, bias = checks.pit.distance, bias_of_one(checks)
    tone: Tone = "good"
    if found is not None and found.low is not None and rules.pit_good is not None and rules.pit_poor is not None:
        tone = tone_of(found.low, rules.pit_good, rules.pit_poor)
    said = f"{bias}." if tone == "good" else distribution_words(checks)
    if said == ".":
        return point
    words = f"{point.words} {f'But {said}' if point.is_good else said[0].upper() + said[1:]}"
    return replace(point, words=words, tone=max(tone, point.tone, key=RANKS.__getitem__))


def bias_of_one(checks: NumberChecks) -> str:
    """By how much the predictions of a single output are too high or too low; empty if that is not significant."""
    return bias_words(checks.outputs[0]) if len(checks.outputs) == 1 else ""


def distribution_words(checks: NumberChecks) -> str:
    """In which way the distribution of F(true value) is not uniform."""
    found, mean = checks.pit.distance, checks.pit.mean
    value, centre = (found and found.value) or 0.0, 0.5 if mean is None else mean
    side = "" if abs(centre - 0.5) < value / 3 else "high" if centre < 0.5 else "low"
    span = "" if found is None or found.low is None else f" (95% interval {distance_span(found)})"
    far = f"the distribution of F(true value) differs from the uniform one by up to {number(value, 2)}{span}"
    if not side:
        return f"the predicted distributions have the wrong shape: {far}."
    bias = bias_of_one(checks)
    if side not in bias:
        bias = f"predictions tend to be too {side}"
    return f"{bias}: {far}, with a mean of {number(centre, 2)} instead of 0.5."


def bias_words(output: OutputChecks, name: str = "") -> str:
    """By how much predictions are too high or too low on average; empty if that is not significant."""
    bias = output.bias
    if bias is None or not significant_sign(bias) or bias.value is None or bias.low is None or bias.high is None:
        return ""
    high = bias.value > 0
    ends = (bias.low, bias.high) if high else (-bias.high, -bias.low)
    size = with_interval(abs(bias.value), *ends, output.unit or "").replace(", 95%", " (95%")
    of = f" of {name}" if name else ""
    return f"predictions{of} are too {'high' if high else 'low'} on average, by {size})"


def apart(found: Estimate, level: float) -> float:
    """How far a coverage is from its level at least, by the end of its interval that is nearer."""
    low, high = ((found.value or 0.0) if end is None else end for end in (found.low, found.high))
    return abs(min(max(level, low), high) - level)


def tone_of(value: float, mixed: float, poor: float) -> Tone:
    """Good up to ``mixed``, poor above ``poor``."""
    return "good" if value <= mixed else "poor" if value > poor else "mixed"


def significant_sign(found: Estimate | None) -> int:
    """1 or −1 if the interval excludes 0, otherwise 0."""
    if found is None or found.low is None or found.high is None or found.low <= 0 <= found.high:
        return 0
    return 1 if found.low > 0 else -1
