"""The point of the verdict about calibration, from the record and the rules alone."""

from __future__ import annotations

from dataclasses import replace

from whence.numerals import number, percent, points, with_interval
from whence.report.record.audit import AuditRecord, Metric
from whence.report.record.common import Estimate, Tone
from whence.report.record.labels import ClassCalibration
from whence.report.record.numbers import NumberChecks, OutputChecks
from whence.report.record.verdict import Point, VerdictRules

NOMINAL = 0.95  # coverage of the intervals that are judged
LABEL = "Calibration"
RANKS: dict[Tone, int] = {"good": 0, "unknown": 1, "mixed": 2, "poor": 3}


# Labels


def of_labels(record: AuditRecord, rules: VerdictRules, ece: Metric) -> Point:
    """By the interval of the calibration error, whose value is biased upward for few inputs; and by class."""
    found, plain = ece.bayesian, ece.plain
    assert found is not None and plain is not None
    words = (
        f"Confidence differs from accuracy by {_points(found.value)} on average (ECE; plain network "
        f"{points(plain.value or 0.0)})"
    )
    rule = (
        f"Good if the 95% interval of the ECE ends at or below {_points(rules.ece)} or reaches below "
        f"{points(rules.ece_negligible)}, poor if it starts above {points(rules.ece)}. Classes can only lower this: "
        "mixed or poor if the mean probability of a class differs from its frequency by more than "
        f"{percent(rules.class_mixed)} or {percent(rules.class_poor)} of the frequency (of the other classes together, "
        f"if they are rarer), or if the answers of a class are right {points(rules.answers_mixed)} or "
        f"{points(rules.answers_poor)} percentage points less or more often than they state. Both are judged by the "
        "end of the interval that is nearer to 0; these intervals hold for all classes together."
    )
    lean = _lean(record)
    if found.low is None or found.high is None or found.low <= rules.ece_negligible:
        few = found.high is None or found.high > rules.too_wide
        doubt = "too few inputs to judge" if few else lean or "the ECE is not significantly above 0"
        tone: Tone = "unknown" if few else "good"
        words = f"{words}; {doubt} (n = {record.data.counted(found.count)})."
    else:
        tone = "good" if found.high <= rules.ece else "poor" if found.low > rules.ece else "mixed"
        words = f"{words}{f'; {lean}' if lean else ''} (n = {record.data.counted(found.count)})."
    point = _with_classes(record, rules, Point(LABEL, words, tone, "calibration", rule))
    return _with_answers(record, rules, point)


def _points(value: float | None) -> str:
    return f"{points(value or 0.0)} percentage points"


def _lean(record: AuditRecord) -> str:
    """Over- or underconfidence, if it is significant."""
    found = None if record.quality is None else record.quality.overconfidence
    side = significant_sign(found)
    if not side or found is None or found.value is None:
        return ""
    return f"overall it is {'over' if side > 0 else 'under'}confident by {_points(abs(found.value))}"


def _with_answers(record: AuditRecord, rules: VerdictRules, point: Point) -> Point:
    """The point, graded down where the answers of a class are right far less or more often than they state."""
    rows = (record.quality and record.quality.classes) or ()
    off = {row.name: (smallest(row.overconfidence), row) for row in rows}
    name, (apart, row) = max(off.items(), key=lambda item: item[1][0], default=("", (0.0, None)))
    if row is None or apart <= rules.ece_negligible or row.overconfidence is None or row.precision is None:
        return point
    tone: Tone = "poor" if apart > rules.answers_poor or point.is_poor else "mixed"
    if apart <= rules.answers_mixed:
        tone = point.tone
    side = "over" if (row.overconfidence.value or 0.0) > 0 else "under"
    near, far = sorted(abs(end or 0.0) for end in (row.overconfidence.low, row.overconfidence.high))
    words = (
        f"{point.words} Where it answers `{name}` it is {side}confident: it states {percent(row.confidence)} on "
        f"average, and {percent(row.precision.value)} of these answers are right ({percent(row.overconfidence.level)} "
        f"interval of the difference {points(near)} to {points(far)} percentage points)."
    )
    return replace(point, words=words, tone=tone)


def smallest(difference: Estimate | None) -> float:
    """How far a difference is from 0 at least; 0 if its interval contains it."""
    if difference is None or difference.low is None or difference.high is None:
        return 0.0
    return max(difference.low, -difference.high, 0.0)


def _with_classes(record: AuditRecord, rules: VerdictRules, point: Point) -> Point:
    """The point, graded down where the probability of a class is off by a large part of its frequency."""
    rows = (record.quality and record.quality.classes) or ()
    off = {row.name: (relative_error(row, rules), row) for row in rows}
    rarer_first = sorted(off.items(), key=lambda item: (-round(item[1][0], 2), item[1][1].frequency or 0.0))
    name, (error, row) = next(iter(rarer_first), ("", (0.0, None)))
    if row is None or not error:
        return point
    if error < rules.class_mixed:
        toward, others = "high" if (row.difference.value or 0.0) > 0 else "low", sum(e > 0 for e, _ in off.values()) - 1
        also = f", and that of {others} more {'class differs' if others == 1 else 'classes differ'} significantly too"
        words = (
            f"{point.words} The mean probability of `{name}` is too {toward}: {percent(row.predicted)}, its frequency "
            f"is {percent(row.frequency)}{also if others > 0 and len(rows) > 2 else ''}."
        )
        return replace(point, words=words)
    tone: Tone = "poor" if error >= rules.class_poor or point.is_poor else "mixed"
    start = f"{point.words} {'But the' if point.is_good else 'The'}"
    words = f"{start} mean probability of `{name}` is {percent(row.predicted)}, its frequency {percent(row.frequency)}."
    return replace(point, words=words, tone=tone)


def relative_error(row: ClassCalibration, rules: VerdictRules) -> float:
    """How far the mean probability of a class is from its frequency at least, relative to the rarer outcome.

    By the end of the interval that is nearer to 0; 0 if the interval contains it.
    """
    frequency, apart = row.frequency or 0.0, smallest(row.difference)
    rarer = min(frequency, 1 - frequency)
    return apart / rarer if rarer and apart > rules.ece_negligible else 0.0


# Numbers


def of_numbers(record: AuditRecord, rules: VerdictRules, coverage: Estimate) -> Point:
    """By the coverage of intervals, and by the distribution of F(true value)."""
    checks = None if record.quality is None else record.quality.numbers
    value = coverage.value or 0.0
    low, high = (value if end is None else end for end in (coverage.low, coverage.high))
    words = (
        f"The 95% intervals contain {percent(value)} of the true values (95% interval {percent(low)} to "
        f"{percent(high)}, n = {record.data.counted(coverage.count)})."
    )
    tone = tone_of(apart(coverage, NOMINAL), rules.coverage_good, rules.coverage_poor)
    if tone == "good" and high - low > 2 * rules.too_wide:
        tone, words = "unknown", f"{words} That is too few test values to judge."
    rule = (
        "By the end of the interval that is nearer to the level, at the level (50, 80, 90, 95, 99%) that is off most "
        "(levels other than 95% by intervals that hold for all five together): "
        f"good within {points(rules.coverage_good)} percentage points, poor beyond {points(rules.coverage_poor)}; "
        f"unknown if the interval is wider than {points(2 * rules.too_wide)}."
    )
    point = Point(LABEL, words, tone, "calibration", rule)
    point = _with_levels(point, rules, {} if checks is None else {row.level: row.judged for row in checks.coverage})
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
        f"{point.words} But the {percent(level)} intervals are too "
        f"{'wide' if (found.value or 0.0) > level else 'narrow'}: they contain {percent(found.value)} "
        f"({percent(found.level)} interval {percent(found.low)} to {percent(found.high)})."
    )
    return replace(point, words=words, tone=tone)


def _with_distribution(point: Point, rules: VerdictRules, checks: NumberChecks) -> Point:
    """The point, graded down where F(true value) is far from uniform: predictions are too high, too low, or skewed."""
    found = checks.pit.distance
    if rules.pit_good is None or rules.pit_poor is None or found is None or found.low is None or found.value is None:
        return point
    rule = (
        f"{point.rule} F(true value), the predicted probability of a value below the true one, should be uniform: "
        f"good if the largest difference of its distribution from that is at most {number(rules.pit_good)}, by the "
        f"lower end of its 95% interval, poor above {number(rules.pit_poor)}."
    )
    point, tone = replace(point, rule=rule), tone_of(found.low, rules.pit_good, rules.pit_poor)
    if tone == "good":
        return point
    said = distribution_words(checks)
    words = f"{point.words} {f'But {said}' if point.is_good else said[0].upper() + said[1:]}"
    return replace(point, words=words, tone=max(tone, point.tone, key=lambda one: RANKS[one]))


def distribution_words(checks: NumberChecks) -> str:
    """In which way the distribution of F(true value) is not uniform."""
    found, mean = checks.pit.distance, checks.pit.mean
    value, centre = (found and found.value) or 0.0, 0.5 if mean is None else mean
    side = "" if abs(centre - 0.5) < value / 3 else "high" if centre < 0.5 else "low"
    far = f"the distribution of F(true value) differs from the uniform one by up to {number(value, 2)}"
    if not side:
        return f"the predicted distributions have the wrong shape: {far}."
    bias = bias_words(checks.outputs[0]) if len(checks.outputs) == 1 else ""
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
