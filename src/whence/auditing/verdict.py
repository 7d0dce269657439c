"""The verdict: one paragraph, and a few key points."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

from whence.auditing.context import Context
from whence.auditing.quality import mean_confidence, no_difference
from whence.report.formatting import minus
from whence.report.record.audit import ClassCalibration, Deferral, Metric, Point, Quality, Verdict
from whence.report.record.common import Estimate, Tone
from whence.report.record.sections import Layer, Novelty, Profile, Shares
from whence.where.examined import FACTORS

CALIBRATED = (0.02, 0.05)  # thresholds of good and acceptable calibration errors
CLASS_OFF = (0.25, 0.5)  # least errors of a class's probability, relative to its frequency: mixed and poor
NOTHING = 0.005  # calibration error that counts as zero
TOO_WIDE = 0.1  # width of an interval that is uninformative
DETECTED = (0.9, 0.75)  # thresholds of good and acceptable AUROCs
BEATEN = 0.02  # difference of AUROCs by which another detector of novel inputs is better
PRIORS = dict(zip(FACTORS, ("one ten times weaker", "this prior", "one ten times stronger"), strict=True))

# The words for a point in the paragraph, by tone; other points do not affect the verdict's tone
SUMMARIES: dict[str, dict[Tone, str]] = {
    "Better than guessing": {
        "poor": "is right less often than the most frequent class",
    },
    "Calibration": {
        "good": "is well calibrated",
        "mixed": "is somewhat miscalibrated",
        "poor": "is badly calibrated",
    },
    "Knows its errors": {
        "good": "is usually uncertain when it is wrong",
        "mixed": "is uncertain about only some of its errors",
        "poor": "is rarely uncertain when it is wrong",
    },
    "Notices what is new": {
        "good": "detects out-of-distribution inputs",
        "mixed": "detects only some out-of-distribution inputs",
        "poor": "rarely detects out-of-distribution inputs",
    },
}


@dataclass(frozen=True)
class Found:
    """The finished sections for the verdict."""

    quality: Quality | None = None
    deferral: Deferral | None = None
    layers: Sequence[Layer] | None = None
    profile: Profile | None = None
    novelty: Novelty | None = None

    def metric(self, name: str) -> Metric | None:
        """The metric, if the posterior has a value."""
        rows = self.quality.metrics if self.quality else ()
        return next((row for row in rows if row.name == name and row.bayesian is not None), None)

    def value(self, name: str) -> Estimate | None:
        """The posterior's value."""
        metric = self.metric(name)
        return None if metric is None else metric.bayesian


def verdict(context: Context, found: Found) -> Verdict:
    """The verdict from the finished sections."""
    leader = leading_layer(found.layers or (), context)
    possible = (
        _majority(context, found),
        _calibration(context, found),
        _gain(found),
        _errors(found),
        _novelty(found),
        _location(found.layers or (), leader),
        _prior(found.profile),
    )
    points = tuple(point for point in possible if point is not None)
    tones = {point.tone for point in points if point.label in SUMMARIES}
    tone: Tone = "unknown" if not tones else "good" if tones == {"good"} else "poor" if "poor" in tones else "mixed"
    sentences = [_opening(context, found), *_summary(points), *([leader.briefly()] if leader else [])]
    return Verdict(" ".join(sentences), tone, points)


def _summary(points: Iterable[Point]) -> Iterator[str]:
    """A summary of the points without numbers."""
    said = [(SUMMARIES[p.label][p.tone], p.is_good) for p in points if p.tone in SUMMARIES.get(p.label, {})]
    good, other = ([words for words, fine in said if fine == wanted] for wanted in (True, False))
    if good:
        yield f"It {_listed(good)}."
    if other:
        yield f"{'But it' if good else 'It'} {_listed(other)}."


def _listed(items: list[str]) -> str:
    return items[0] if len(items) == 1 else f"{', '.join(items[:-1])} and {items[-1]}"


def _opening(context: Context, found: Found) -> str:
    members = len(context.posterior.snapshots)
    whole = f"An ensemble of {members} networks" if members > 1 else context.network_name
    words = f"{whole} has {context.parameters:,} weights"
    accuracy, rmse = found.value("accuracy"), found.value("rmse")
    score = accuracy or rmse
    if score is None:
        return f"{words}."
    one = "label" if context.task.has_labels else "value"
    of = "test input" if score.count == len(context.need("test")) else f"test {one}"
    of = f"{score.count:,} {of}{'' if score.count == 1 else 's'}"
    if accuracy:
        return f"{words} and classifies {score.value:.1%} of {of} correctly."
    return f"{words} and an RMSE of {score.value:.3g} on {of}."


def _calibration(context: Context, found: Found) -> Point | None:
    if (ece := found.metric("ece")) is not None:
        return _with_classes(_confidence(context, ece, found.value("accuracy")), found)
    coverage = found.value("coverage")
    if coverage is None or coverage.value is None:
        return None
    off = abs(coverage.value - 0.95)
    inside = coverage.low is not None and coverage.high is not None and coverage.low <= 0.95 <= coverage.high
    tone: Tone = "good" if inside or off <= CALIBRATED[0] else "mixed" if off <= CALIBRATED[1] else "poor"
    return Point("Calibration", f"Its 95% intervals contain the true value {coverage.value:.1%} of the time.", tone)


def _with_classes(point: Point, found: Found) -> Point:
    """The point, graded down where the probability of a class is off by a large part of its frequency."""
    rows = (found.quality and found.quality.classes) or ()
    off = {row.name: (_relative_error(row), row) for row in rows}
    name, (error, row) = max(off.items(), key=lambda item: item[1][0], default=("", (0.0, None)))
    if row is None or error < CLASS_OFF[0]:
        return point
    tone: Tone = "poor" if error >= CLASS_OFF[1] or point.is_poor else "mixed"
    start = f"{point.words} {'But it' if point.is_good else 'It'}"
    words = f"{start} predicts `{name}` with a mean probability of {row.predicted:.1%}; its frequency is "
    return replace(point, words=f"{words}{row.frequency:.1%}.", tone=tone)


def _relative_error(row: ClassCalibration) -> float:
    """How far the mean probability of a class is from its frequency at least, relative to the rarer outcome.

    By the end of the interval that is nearer to 0; 0 if the interval contains it.
    """
    apart, frequency = row.difference, row.frequency or 0.0
    rarer = min(frequency, 1 - frequency)
    if apart.low is None or apart.high is None or apart.low <= 0 <= apart.high or not rarer:
        return 0.0
    least = min(abs(apart.low), abs(apart.high))
    return least / rarer if least > NOTHING else 0.0


def _confidence(context: Context, ece: Metric, accuracy: Estimate | None) -> Point:
    """Judged by the interval of the calibration error, whose value is biased upward for few inputs."""
    found, plain = ece.bayesian, ece.plain
    assert found is not None and plain is not None
    words = (
        f"Its confidence differs from its accuracy by {found.value:.1%} on average (plain network {plain.value:.1%})"
    )
    if found.low is None or found.high is None or found.low <= NOTHING:
        few = found.high is None or found.high > TOO_WIDE
        doubt = f"{'too uncertain to judge' if few else 'not statistically significant'} (n = {found.count:,})"
        return Point("Calibration", f"{words}; {doubt}.", "unknown" if few else "good")
    confidence, right = mean_confidence(context), None if accuracy is None else accuracy.value
    lean = ""
    if confidence is not None and right is not None and abs(confidence - right) > 0.01:
        lean = f"; it is {'over' if confidence > right else 'under'}confident"
    tone: Tone = "good" if found.high <= CALIBRATED[1] else "poor" if found.low > CALIBRATED[1] else "mixed"
    return Point("Calibration", f"{words}{lean}.", tone)


def _majority(context: Context, found: Found) -> Point | None:
    """A point if always answering with the most frequent class would be right significantly more often."""
    accuracy, rows = found.value("accuracy"), (found.quality and found.quality.classes) or ()
    if accuracy is None or accuracy.high is None or not rows:
        return None
    if len(rows) == 1:
        frequency = rows[0].frequency or 0.0
        other = context.class_name(0) if context.classes else f"not {rows[0].name}"
        rate, name = max((frequency, rows[0].name), (1 - frequency, other))
    else:
        rate, name = max((row.frequency or 0.0, row.name) for row in rows)
    if accuracy.high >= rate:
        return None
    words = f"Always answering `{name}` would be right more often ({rate:.1%}) than the network ({accuracy.value:.1%})."
    return Point("Better than guessing", words, "poor")


def _gain(found: Found) -> Point | None:
    """What uncertain weights change beside the recalibrated network, or the plain one without validation data."""
    metric, baseline = found.metric("nll"), None if found.quality is None else found.quality.baseline
    if metric is None:
        return None
    difference = metric.difference if baseline is None else metric.gain
    if difference is None or difference.low is None or difference.value is None:
        return None
    beside = "the plain network" if baseline is None else f"the plain network after {baseline.label}"
    interval = minus(f"{difference.value:+.3g} nats, 95% interval {difference.low:+.3g} to {difference.high:+.3g}")
    label = "Gain from uncertain weights"
    if no_difference(difference):
        return Point(label, f"No significant change in log loss compared with {beside} ({interval}).", "mixed")
    better = difference.value < 0
    words = f"The log loss is {'lower' if better else 'higher'} than that of {beside} ({interval})."
    return Point(label, words, "good" if better else "poor")


def _errors(found: Found) -> Point | None:
    auroc = found.value("error_auroc")
    if auroc is None:
        return None
    words = f"Its uncertainty ranks wrong answers above correct ones with an AUROC of {auroc.value:.2f}."
    if found.deferral and found.deferral.words:
        words += f" {found.deferral.words[0]}"
    return Point("Knows its errors", words, _graded(auroc))


def _novelty(found: Found) -> Point | None:
    label = "Notices what is new"
    if found.novelty and found.novelty.detectors:
        detectors = {one.name: one for one in found.novelty.detectors}
        choice = found.novelty.choice
        own, best = detectors[choice.usual if choice else "novelty"], found.novelty.detectors[0]
        beaten = (choice is not None and choice.is_beaten) or _value(best.auroc) > _value(own.auroc) + BEATEN
        beside = [detectors["entropy"]] if "entropy" in detectors and best.name != "entropy" else []
        others = "".join(f" ({one.label}: {one.auroc.value:.2f})" for one in beside)
        name = f"The {own.label}" if choice else "Novelty by layer"
        words = f"{name} detects out-of-distribution inputs with an AUROC of {own.auroc.value:.2f}{others}."
        tone = _graded(own.auroc)
        if beaten:
            words += f" Another detector does better on them: {best.label}, {best.auroc.value:.2f}."
            tone = "mixed" if tone == "good" else tone
        return Point(label, words, tone)
    auroc = found.value("ood_auroc")
    if auroc is None:
        return None
    words = f"Uncertainty detects out-of-distribution inputs with an AUROC of {auroc.value:.2f}."
    return Point(label, words, _graded(auroc))


def _value(found: Estimate) -> float:
    return found.value or 0.0


def _graded(found: Estimate) -> Tone:
    """An AUROC by its interval: good or poor only if significant."""
    value, (good, passable) = _value(found), DETECTED
    if value >= good and (found.low is None or found.low >= passable):
        return "good"
    return "poor" if value < passable and (found.high is None or found.high < passable) else "mixed"


def _prior(profile: Profile | None) -> Point | None:
    if profile is None:
        return None
    explained = profile.views[0].explained[0]
    if profile.note:
        return Point("Is it the prior?", profile.note, "mixed")
    if explained is None:
        return None
    words = f"Training reduced the prior variance by {explained:.0%}."
    return Point("Is it the prior?", words, "good" if explained > 0.2 else "mixed")


# The leading layer


@dataclass(frozen=True)
class LeadingLayer:
    """The layer with the largest share of the variance of test inputs."""

    name: str
    shares: Shares
    elsewhere: tuple[tuple[float, str], ...] = ()  # factor on the prior precision, and which layer leads there instead

    def briefly(self) -> str:
        if self.elsewhere:
            return "Which layer contributes most to the variance depends on the prior."
        return f"`{self.name}` contributes the largest share of the variance ({self.shares.variance_share:.0%})."

    def words(self) -> str:
        """The layer's share with its range, and its share under the prior alone."""
        own, low, high = self.shares, self.shares.share_low, self.shares.share_high
        alone = "" if own.prior_share is None else f"; {own.prior_share:.0%} under the prior alone"
        if not self.elsewhere:
            span = ""
            if low is not None and high is not None:
                span = f"; {low:.0%} to {high:.0%} under priors ten times weaker to ten times stronger"
            return (
                f"`{self.name}` contributes the largest share of the variance ({own.variance_share:.0%}{span}{alone})."
            )
        instead = " and ".join(f"`{name}` under {PRIORS[factor]}" for factor, name in self.elsewhere)
        return (
            f"No layer has the largest share of the variance under every prior: `{self.name}` under this one "
            f"({own.variance_share:.0%}{alone}), {instead}."
        )


def leading_layer(layers: Sequence[Layer], context: Context) -> LeadingLayer | None:
    """The leading layer, if the layer table has shares."""
    shared = _with_shares(layers)
    if not shared:
        return None
    name, shares = max(shared.items(), key=lambda item: item[1].variance_share or 0.0)
    elsewhere = []
    for factor in FACTORS:
        rows = [row for row in context.sensitivity if row.factor == factor]
        if rows and (first := max(rows, key=lambda row: row.variance_share or 0.0).name) != name:
            elsewhere.append((factor, first))
    return LeadingLayer(name, shares, tuple(elsewhere))


def _with_shares(layers: Sequence[Layer]) -> dict[str, Shares]:
    """Shares of test data, by layer."""
    return {row.name: row.test for row in layers if row.test is not None and row.test.variance_share is not None}


def _location(layers: Sequence[Layer], leader: LeadingLayer | None) -> Point | None:
    if leader is None:
        return None
    words = leader.words()
    inside = _with_shares(layers)
    drops = {
        row.name: (inside[row.name].explained, row.ood.explained)
        for row in layers
        if row.name in inside and row.ood is not None
    }
    known = {name: (a, b) for name, (a, b) in drops.items() if a is not None and b is not None}
    if len(known) == len(inside):
        name, (before, after) = max(known.items(), key=lambda item: item[1][0] - item[1][1])
        if before - after > 0.01:
            words += f" For out-of-distribution inputs, explained falls most in `{name}` ({before:.0%} → {after:.0%})."
    return Point("Source of the uncertainty", words, "note")
