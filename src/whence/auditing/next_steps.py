"""What to do next, from the record and its verdict: first what invalidates the audit, then what is poor, then gains."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from enum import IntEnum
from functools import cached_property
from typing import NamedTuple

from whence.auditing.calibration import relative_error, significant_sign, smallest
from whence.auditing.points import Judge, is_negligible
from whence.numerals import area, number, percent, points, with_interval
from whence.report.formatting import quantity
from whence.report.record.audit import AuditRecord, DeferralRule
from whence.report.record.common import Tone
from whence.report.record.groups import Group, GroupDifference, Grouping
from whence.report.record.labels import ClassCalibration
from whence.report.record.verdict import NextStep, PointKey, VerdictRules

FEW = 0.1  # width of the interval of the accuracy above which the test data are too few
NEAR = 10  # times the negligible difference, within which two log losses are as good as equal
USEFUL = 0.1  # relative fall of the error by deferral that is worth a line
RARE = 3  # classes that are named
GROUPED = 3  # groups that are named for a quantity


class Rank(IntEnum):
    """The order of the steps."""

    INVALID = 0  # the audit itself cannot be trusted
    POOR = 1
    MIXED = 2
    GAIN = 3


RANKS: dict[Tone, Rank] = {"poor": Rank.POOR, "mixed": Rank.MIXED}
TONES: dict[Rank, Tone] = {Rank.INVALID: "poor", Rank.POOR: "poor", Rank.MIXED: "mixed", Rank.GAIN: "note"}


class _Step(NamedTuple):
    rank: Rank
    effect: float  # relative change that the step is about; larger first
    words: str
    because: str

    @property
    def tone(self) -> Tone:
        return TONES[self.rank]


def next_steps(record: AuditRecord, rules: VerdictRules) -> tuple[NextStep, ...]:
    """One line for each finding that something can be done about, in order."""
    found = sorted(_Steps(Judge(record, rules)).all(), key=lambda step: (step.rank, -step.effect))
    return tuple(NextStep(step.words, step.because, step.tone) for step in found)


class _Steps:
    def __init__(self, judge: Judge) -> None:
        self.judge, self.record, self.rules = judge, judge.record, judge.rules
        self.points = {point.key: point for point in judge.record.verdict.points}

    def all(self) -> Iterator[_Step]:
        yield from self._about_data()
        yield from self._about_guessing()
        yield from self._about_calibration()
        yield from self._about_sets()
        yield from self._about_errors()
        yield from self._about_novelty()
        yield from self._about_groups()
        yield from self._about_weights()

    @cached_property
    def _classes_off(self) -> list[tuple[float, ClassCalibration]]:
        """Classes whose mean probability is off, the furthest first; of two, the rarer one says as much as both."""
        rows = (self.record.quality and self.record.quality.classes) or ()
        off = [(relative_error(row, self.rules), row) for row in rows]
        found = sorted((pair for pair in off if pair[0] >= self.rules.class_mixed), key=lambda pair: -pair[0])
        two = len(rows) == 2 and self.record.quality is not None and self.record.quality.two_classes is not None
        return [min(found, key=lambda pair: pair[1].frequency or 0.0)] if two and found else found

    @cached_property
    def _answers_off(self) -> ClassCalibration | None:
        """The class whose answers are furthest from what they state, if that counts."""
        rows = (self.record.quality and self.record.quality.classes) or ()
        row = max(rows, key=lambda one: smallest(one.overconfidence), default=None)
        return row if row is not None and smallest(row.overconfidence) > self.rules.answers_mixed else None

    @property
    def _recalibrates(self) -> bool:
        """Whether the advice is to use the plain network after recalibration."""
        ece, quality = self.judge.metric("ece"), self.record.quality
        if self._classes_off or self._answers_off or ece is None or quality is None or quality.baseline is None:
            return False
        better = ece.recalibrated is not None and (ece.recalibrated.value or 1.0) < (
            (ece.bayesian or ece.recalibrated).value or 0.0
        )
        return self._rank("calibration") is not None and better and bool(significant_sign(quality.overconfidence))

    @property
    def _answers(self) -> str:
        return "probabilities" if self.judge.metric("ece") else "predictions"

    def _rank(self, key: PointKey) -> Rank | None:
        """By the tone of a point; None if there is nothing to do."""
        point = self.points.get(key)
        return None if point is None else RANKS.get(point.tone)

    def _about_data(self) -> Iterator[_Step]:
        data, overlap = self.record.data, self.record.data.overlap
        if overlap is not None and overlap.test and data.test is not None:
            part = overlap.test / data.test.inputs
            yield _Step(
                Rank.INVALID if self._rank("independence") is Rank.POOR else Rank.MIXED,
                part,
                "Remove the test inputs that are also in the training data, and repeat the audit.",
                f"{overlap.test:,} of {data.test.inputs:,} test inputs ({percent(part)}) occur in both.",
            )
        if overlap is not None and overlap.validation and data.validation is not None:
            part = overlap.validation / data.validation.inputs
            if part > self.rules.duplicates_mixed:
                yield _Step(
                    Rank.INVALID if part > self.rules.duplicates_poor else Rank.MIXED,
                    part,
                    "Take validation data that the network was not trained on, and repeat the audit.",
                    f"{overlap.validation:,} of {data.validation.inputs:,} validation inputs ({percent(part)}) are in "
                    "the training data, so the prior and the thresholds were chosen partly on data that the network "
                    "was trained on.",
                )
        if overlap is not None and overlap.between and data.test is not None:
            part = overlap.between / data.test.inputs
            yield _Step(
                Rank.INVALID if part > self.rules.duplicates_poor else Rank.MIXED,
                part,
                "Keep test and validation data apart, and repeat the audit.",
                f"{overlap.between:,} of {data.test.inputs:,} test inputs ({percent(part)}) are in the validation "
                "data, so the thresholds were chosen on data that include them.",
            )
        if data.validation is None:
            yield _Step(
                Rank.MIXED,
                1.0,
                "Pass validation data: they tune the prior, give thresholds for deferral and the reference "
                "for novelty.",
                "None were given.",
            )
        accuracy = self.judge.value("accuracy")
        if accuracy is not None and accuracy.low is not None and accuracy.high is not None:
            width = accuracy.high - accuracy.low
            if width > FEW:
                yield _Step(
                    Rank.MIXED,
                    width,
                    "Use more test inputs: the scores of this audit are uncertain.",
                    f"The 95% interval of the accuracy is {points(width)} percentage points wide "
                    f"({percent(accuracy.low)} to {percent(accuracy.high)}, n = {data.counted(accuracy.count)}).",
                )

    def _about_guessing(self) -> Iterator[_Step]:
        guessing: PointKey = "guessing"
        generalisation: PointKey = "generalisation"
        classes: PointKey = "classes"
        for key, words in (
            (guessing, "Do not use this network for decisions before it beats guessing: check labels and training."),
            (
                classes,
                "Collect more examples of what is hardly ever recognised or weight it in training, and look at what it "
                "is taken for in the table of confusions; until then do not use the network to find it.",
            ),
            (
                generalisation,
                "Reduce overfitting: more or augmented training data, weight decay, or earlier stopping.",
            ),
        ):
            rank = self._rank(key)
            if rank is not None:
                yield _Step(rank, 0.9, words, self.points[key].words)

    def _about_calibration(self) -> Iterator[_Step]:
        quality = self.record.quality
        if quality is None:
            return
        for error, row in self._classes_off[:RARE]:
            toward = "high" if (row.predicted or 0.0) > (row.frequency or 0.0) else "low"
            label = quality.baseline.label if quality.baseline else ""
            after = f"; after {label} {percent(row.recalibrated)}" if row.recalibrated is not None else ""
            yield _Step(
                Rank.POOR if error >= self.rules.class_poor else Rank.MIXED,
                min(error, 0.99),
                f"Correct the probability of `{row.name}`, which is too {toward} on average: undo class weights, or "
                "shift its logit until its mean probability is its frequency where the network is used.",
                f"Mean probability {percent(row.predicted)}{after}; frequency {percent(row.frequency)} in the test "
                "data.",
            )
        rank, ece = self._rank("calibration"), self.judge.metric("ece")
        side = significant_sign(quality.overconfidence)
        if rank is not None and ece is not None and ece.bayesian is not None and side:
            best, own = ece.recalibrated, ece.bayesian.value or 0.0
            if self._classes_off:
                pass  # a temperature does not move the probability of one class: the step above comes first
            elif self._answers_off is not None:
                row = self._answers_off
                yield _Step(
                    rank,
                    own,
                    f"Recalibrate class by class: answers `{row.name}` are right far "
                    f"{'less' if side_of(row) > 0 else 'more'} often than they state, which one temperature does not "
                    "correct.",
                    f"They state {percent(row.confidence)} on average and are right in "
                    f"{percent(row.precision and row.precision.value)}.",
                )
            elif self._recalibrates and best is not None and quality.baseline is not None:
                yield _Step(
                    rank,
                    own,
                    f"Use the plain network after {quality.baseline.label} for probabilities.",
                    f"Its ECE is {points(best.value or 0.0)} percentage points, that of the posterior {points(own)}.",
                )
            else:
                yield _Step(
                    rank,
                    own,
                    "Recalibrate: tune on validation data that are like the test data.",
                    f"The ECE is {points(own)} percentage points; the network is {'over' if side > 0 else 'under'}"
                    "confident.",
                )
        coverage = self.judge.value("coverage")
        if rank is not None and ece is None and coverage is not None:
            words = (
                "Do not rely on the predictive distribution as it is: retrain or shift the predictions if they are too "
                "high or too low, tune on validation data, or use conformal intervals."
                if rank is Rank.POOR
                else "Use conformal intervals where a stated coverage has to hold."
            )
            yield _Step(rank, abs((coverage.value or 0.0) - 0.95), words, self.points["calibration"].words)

    def _about_sets(self) -> Iterator[_Step]:
        for row in self.record.conformal.rows if self.record.conformal else ():
            value, least = row.coverage.value, row.chance_low
            if value is not None and least is not None and value < least:
                kind = "sets" if row.sets is not None else "intervals"
                yield _Step(
                    Rank.MIXED,
                    row.level - value,
                    f"Find out why test and validation data differ before you rely on the {percent(row.level)} {kind}.",
                    f"They contain {percent(value)} of the true {'values' if kind == 'intervals' else 'answers'}; at "
                    f"least {percent(least)} is to be expected.",
                )

    def _about_errors(self) -> Iterator[_Step]:
        found = self.record.deferral
        if found is None:
            return
        aims = {row.target: row for row in found.rows if row.by_coverage}
        whole, some = aims.get(1.0), aims.get(0.8)
        before, after = (_error(row) for row in (whole, some))
        if some is None or before is None or after is None or not before:
            return
        gain = 1 - after / before
        if gain > USEFUL and significant_sign(some.test.change) < 0:
            name = "error rate" if found.is_rate else "RMSE"
            shown = [percent(v) if found.is_rate else quantity(v, self.record.unit) for v in (before, after)]
            words = f"Defer the most uncertain {found.answers} to a person; the deferral table has the thresholds."
            if self.record.verdict.is_poor or self._recalibrates:
                words = (
                    f"Defer the most uncertain {found.answers} to a person, by thresholds from an audit that is "
                    "repeated after the steps above: those of the deferral table are for the network as it is now."
                )
            yield _Step(
                Rank.GAIN,
                gain,
                words,
                f"When {percent(some.test.coverage.value, 0)} of the test {found.answers} are answered, the {name} "
                f"falls from {shown[0]} to {shown[1]}.",
            )

    def _about_novelty(self) -> Iterator[_Step]:
        rank, found = self._rank("novelty"), self.record.novelty
        if found is not None and found.detectors:
            usual = found.choice.usual if found.choice else "novelty"
            own = next((one for one in found.detectors if one.name == usual), None)
            best = found.detectors[0]
            apart = 0.0 if own is None else (best.auroc.value or 0.0) - (own.auroc.value or 0.0)
            beaten = found.choice is not None and found.choice.recommended != usual
            if own is not None and (apart > self.rules.beaten or (beaten and apart > 0)):
                yield _Step(
                    rank or Rank.GAIN,
                    apart,
                    f"Use {best.label} to detect inputs like the out-of-distribution data given.",
                    f"Its AUROC is {area(best.auroc.value)}, that of the {own.label} {area(own.auroc.value)}.",
                )
            elif rank is not None:
                poor = rank is Rank.POOR
                yield _Step(
                    rank,
                    1 - (best.auroc.value or 0.0),
                    "Do not rely on novelty for inputs like the out-of-distribution data given: no detector finds "
                    f"{'them' if poor else 'all of them'}.",
                    f"The best detector has an AUROC of {area(best.auroc.value)} ({best.label}).",
                )
        if self.record.data.ood is None and self.record.data.test is not None:
            yield _Step(
                Rank.GAIN,
                0.0,
                "Pass inputs as they may occur after deployment but not in training (ood=…), to measure detection.",
                "No out-of-distribution inputs were given.",
            )

    def _about_groups(self) -> Iterator[_Step]:
        """One line for what differs between the groups of a grouping, and one for how often they are deferred."""
        found = self.record.groups
        for one in found.groupings if found else ():
            hits: dict[str, list[tuple[Group, GroupDifference]]] = {}
            for group in one.groups:
                for apart in group.differences:
                    if apart.significant and apart.difference.value is not None:
                        hits.setdefault(apart.quantity, []).append((group, apart))
            for rows in hits.values():
                rows.sort(key=lambda row: -abs(row[1].difference.value or 0.0))
            for deferred in (False, True):
                some = {name: rows for name, rows in hits.items() if ("deferred" in name) is deferred}
                if some:
                    yield _group_step(one, some, deferred)

    def _about_weights(self) -> Iterator[_Step]:
        quality, metric = self.record.quality, self.judge.metric("nll")
        gain = None if metric is None else metric.gain
        if quality is None or quality.baseline is None or gain is None:
            return
        if gain.low is None or gain.high is None or gain.value is None:
            return
        size = with_interval(gain.value, gain.low, gain.high, "nats", signed=True)
        if self._classes_off or self._recalibrates:
            return  # neither should be used before the class is corrected; or that is said above
        if is_negligible(gain, self.rules.negligible):
            small = max(abs(gain.low), abs(gain.high)) <= self.rules.negligible * NEAR
            yield _Step(
                Rank.GAIN,
                0.01,
                f"For {self._answers} alone the plain network after {quality.baseline.label} is enough; the posterior "
                "adds novelty, layers and intervals."
                if small
                else f"If you need {self._answers} only: uncertain weights showed no significant gain over the plain "
                f"network after {quality.baseline.label}; more test inputs may show one.",
                f"No significant difference in log loss ({size}).",
            )
        elif gain.value > 0:
            yield _Step(
                Rank.MIXED,
                gain.value,
                f"For {self._answers} take the plain network after {quality.baseline.label}.",
                f"The log loss of the posterior is higher ({size}).",
            )


def _group_step(one: Grouping, hits: dict[str, list[tuple[Group, GroupDifference]]], deferred: bool) -> _Step:
    words = (
        f"Check whether it is acceptable that groups of `{one.name}` are deferred more or less often than others."
        if deferred
        else f"Find out why groups of `{one.name}` differ: look at their inputs and labels, or collect more of them."
    )
    because = " ".join(_beside_the_rest(name, rows) for name, rows in hits.items())
    largest = max(abs(rows[0][1].difference.value or 0.0) for rows in hits.values())
    return _Step(Rank.GAIN if deferred else Rank.MIXED, min(largest, 0.99), words, because)


def _beside_the_rest(name: str, rows: Sequence[tuple[Group, GroupDifference]]) -> str:
    shown = [
        f"{points(d.difference.value or 0.0, signed=True)} percentage points for `{group.name}` ({d.p_words})"
        if d.is_share
        else f"{'+' if (d.difference.value or 0.0) > 0 else ''}{number(d.difference.value)} for `{group.name}` "
        f"({d.p_words})"
        for group, d in rows[:GROUPED]
    ]
    more = f" and {len(rows) - GROUPED} more" if len(rows) > GROUPED else ""
    return f"{name[0].upper()}{name[1:]}, compared with the rest: {', '.join(shown)}{more}."


def side_of(row: ClassCalibration) -> float:
    """Positive where the answers of a class are overconfident."""
    return (row.overconfidence and row.overconfidence.value) or 0.0


def _error(row: DeferralRule | None) -> float | None:
    return None if row is None or row.test.error is None else row.test.error.value
