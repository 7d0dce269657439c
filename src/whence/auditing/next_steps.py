"""What to do next, from the record and its verdict: first what invalidates the audit, then what is poor, then gains."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cached_property

from whence.auditing.advice import RANKS, Rank, Step
from whence.auditing.calibration import bias_of_one, relative_error, significant_sign, smallest, tone_of
from whence.auditing.deferral import frequent_words
from whence.auditing.group_advice import about_groups
from whence.auditing.overlap import among
from whence.auditing.points import RARE as RARE_PREVALENCE
from whence.auditing.points import Judge, is_negligible
from whence.numerals import area, number, percent, points, with_interval
from whence.report.formatting import quantity
from whence.report.record.audit import AuditRecord, DeferralRule
from whence.report.record.labels import ClassCalibration
from whence.report.record.verdict import NextStep, PointKey, VerdictRules

FEW = 0.1  # width of the interval of the accuracy above which the test data are too few
NEAR = 10  # times the negligible difference, within which two log losses are as good as equal
USEFUL = 0.1  # relative fall of the error by deferral that is worth a line
RARE = 3  # classes that are named
MISSED = 0.8  # where the interval of a rare class's sensitivity ends below it, its threshold is worth a line
DEFAULT_THRESHOLD = 0.5


def next_steps(record: AuditRecord, rules: VerdictRules) -> tuple[NextStep, ...]:
    """One line for each finding that something can be done about, in order."""
    found = sorted(_Steps(Judge(record, rules)).all(), key=lambda step: (step.rank, -step.effect))
    return tuple(NextStep(step.words, step.because, step.tone) for step in found)


class _Steps:
    def __init__(self, judge: Judge) -> None:
        self.judge, self.record, self.rules = judge, judge.record, judge.rules
        self.points = {point.key: point for point in judge.record.verdict.points}

    def all(self) -> Iterator[Step]:
        yield from self._about_data()
        yield from self._about_guessing()
        yield from self._about_calibration()
        yield from self._about_threshold()
        yield from self._about_sets()
        yield from self._about_errors()
        yield from self._about_novelty()
        yield from about_groups(self.record.groups)
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
    def _changes(self) -> bool:
        """Whether a step changes the network, its probabilities or the data, so that thresholds change too."""
        keys: tuple[PointKey, ...] = ("independence", "guessing", "generalisation", "classes", "calibration")
        poor = any(self._rank(key) is Rank.POOR for key in keys)
        return poor or bool(self._classes_off) or self._answers_off is not None or self._recalibrates

    @property
    def _answers(self) -> str:
        return "probabilities" if self.judge.metric("ece") else "predictions"

    def _rank(self, key: PointKey) -> Rank | None:
        """By the tone of a point; None if there is nothing to do."""
        point = self.points.get(key)
        return None if point is None else RANKS.get(point.tone)

    def _rank_of_copies(self, part: float) -> Rank:
        """Of a share of the inputs of a set that are also in another."""
        tone = tone_of(part, self.rules.duplicates_mixed, self.rules.duplicates_poor)
        return {"poor": Rank.INVALID, "mixed": Rank.MIXED}.get(tone, Rank.GAIN)

    def _about_data(self) -> Iterator[Step]:
        data, overlap = self.record.data, self.record.data.overlap
        if overlap is not None and overlap.test and data.test is not None:
            part = overlap.test / data.test.inputs
            yield Step(
                self._rank_of_copies(part),
                part,
                "Remove the test inputs that are also in the training data, and repeat the audit.",
                f"{among(overlap.test, data.test.inputs, 'test inputs')} in both.",
            )
        if overlap is not None and overlap.validation and data.validation is not None:
            part = overlap.validation / data.validation.inputs
            if part > self.rules.duplicates_mixed:
                yield Step(
                    self._rank_of_copies(part),
                    part,
                    "Take validation data that the network was not trained on, and repeat the audit.",
                    f"{among(overlap.validation, data.validation.inputs, 'validation inputs')} in the training data, "
                    "so the prior and the thresholds were chosen partly on data that the network was trained on.",
                )
        if overlap is not None and overlap.between and data.test is not None:
            part = overlap.between / data.test.inputs
            yield Step(
                self._rank_of_copies(part),
                part,
                "Keep test and validation data apart, and repeat the audit.",
                f"{among(overlap.between, data.test.inputs, 'test inputs')} in the validation data, on which the "
                "prior and the thresholds were chosen.",
            )
        if data.validation is None:
            yield Step(
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
                yield Step(
                    Rank.MIXED,
                    width,
                    "Use more test inputs: the scores of this audit are uncertain.",
                    f"The 95% interval of the accuracy is {points(width)} percentage points wide "
                    f"({percent(accuracy.low)} to {percent(accuracy.high)}, n = {data.counted(accuracy.count)}).",
                )

    def _about_guessing(self) -> Iterator[Step]:
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
                first = key == guessing  # nothing else matters before that
                yield Step(rank, 1.0 if first else 0.9, words, self.points[key].words)

    def _about_calibration(self) -> Iterator[Step]:
        quality = self.record.quality
        if quality is None:
            return
        for error, row in self._classes_off[:RARE]:
            toward = "high" if (row.predicted or 0.0) > (row.frequency or 0.0) else "low"
            label = quality.baseline.label if quality.baseline else ""
            after = f"; after {label} {percent(row.recalibrated)}" if row.recalibrated is not None else ""
            yield Step(
                Rank.POOR if error >= self.rules.class_poor else Rank.MIXED,
                min(error, 0.99),
                f"Correct the probability of `{row.name}`, which is too {toward} on average: undo class weights in "
                f"training, or add a constant to the logit of `{row.name}`, so that its mean probability equals its "
                "frequency where the network will be used.",
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
                yield Step(
                    rank,
                    own,
                    f"Recalibrate class by class: answers `{row.name}` are right far "
                    f"{'less' if side_of(row) > 0 else 'more'} often than they state, which one temperature does not "
                    "correct.",
                    f"They state {percent(row.confidence)} on average and are right in "
                    f"{percent(row.precision and row.precision.value)}.",
                )
            elif self._recalibrates and best is not None and quality.baseline is not None:
                yield Step(
                    rank,
                    own,
                    f"Use the plain network after {quality.baseline.label} for probabilities.",
                    f"Its ECE is {points(best.value or 0.0)} percentage points, that of the posterior {points(own)}.",
                )
            else:
                yield Step(
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
            yield Step(rank, abs((coverage.value or 0.0) - 0.95), words, self.points["calibration"].words)
        bias = bias_of_one(quality.numbers) if quality.numbers is not None else ""
        if rank is None and bias:
            yield Step(
                Rank.GAIN,
                0.5,
                "Correct the mean: subtract the mean error of the validation data from the predictions.",
                f"{bias[0].upper()}{bias[1:]}.",
            )

    def _about_threshold(self) -> Iterator[Step]:
        """Where a rare class is decided at the default threshold, and many of it are missed."""
        two = None if self.record.quality is None else self.record.quality.two_classes
        if two is None or two.sensitivity is None or (two.prevalence.value or 1.0) > RARE_PREVALENCE:
            return
        count, missed = two.true_positives + two.false_negatives, two.false_negatives
        if (two.sensitivity.high or 1.0) < MISSED and two.threshold == DEFAULT_THRESHOLD:
            yield Step(
                Rank.MIXED,
                1 - (two.sensitivity.value or 0.0),
                f"Choose the threshold for `{two.positive}` by what a miss and a false alarm cost; "
                f"{number(two.threshold)} is a default.",
                f"At {number(two.threshold)}, {missed:,} of {count:,} `{two.positive}` are missed, and "
                f"{two.false_positives:,} of {two.false_positives + two.true_negatives:,} `{two.negative}` are called "
                f"`{two.positive}`.",
            )

    def _about_sets(self) -> Iterator[Step]:
        for row in self.record.conformal.rows if self.record.conformal else ():
            value, least = row.coverage.value, row.chance_low
            if value is not None and least is not None and value < least:
                kind = "sets" if row.sets is not None else "intervals"
                yield Step(
                    Rank.MIXED,
                    row.level - value,
                    f"Find out why test and validation data differ before you rely on the {percent(row.level)} {kind}.",
                    f"They contain {percent(value)} of the true {'values' if kind == 'intervals' else 'answers'}; at "
                    f"least {percent(least)} is to be expected.",
                )

    def _about_errors(self) -> Iterator[Step]:
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
            also = "".join(f" {words}" for words in frequent_words(found))
            shown = [percent(v) if found.is_rate else quantity(v, self.record.unit) for v in (before, after)]
            words = f"Defer the most uncertain {found.answers} to a person; the deferral table has the thresholds."
            if self._changes:
                words = (
                    f"Defer the most uncertain {found.answers} to a person. Take the thresholds from an audit that is "
                    "repeated after the steps above; those of the deferral table are for the network as it is now."
                )
            yield Step(
                Rank.GAIN,
                gain,
                words,
                f"When {percent(some.test.coverage.value, 0)} of the test {found.answers} are answered, the {name} "
                f"falls from {shown[0]} to {shown[1]}.{also}",
            )

    def _about_novelty(self) -> Iterator[Step]:
        rank, found = self._rank("novelty"), self.record.novelty
        if found is not None and found.detectors:
            usual = found.choice.usual if found.choice else "novelty"
            own = next((one for one in found.detectors if one.name == usual), None)
            best = found.detectors[0]
            apart = 0.0 if own is None else (best.auroc.value or 0.0) - (own.auroc.value or 0.0)
            beaten = found.choice is not None and found.choice.recommended not in (None, usual)
            if own is not None and (apart > self.rules.beaten or (beaten and apart > 0)):
                yield Step(
                    rank or Rank.GAIN,
                    apart,
                    f"Use {best.label} to detect inputs like the out-of-distribution data given.",
                    f"Its AUROC is {area(best.auroc.value)}, that of the {own.label} {area(own.auroc.value)}.",
                )
            elif rank is not None:
                poor = rank is Rank.POOR
                yield Step(
                    rank,
                    1 - (best.auroc.value or 0.0),
                    "Do not rely on novelty for inputs like the out-of-distribution data given: no detector finds "
                    f"{'them well enough' if poor else 'all of them'}.",
                    f"The best detector has an AUROC of {area(best.auroc.value)} ({best.label}).",
                )
        if self.record.data.ood is None and self.record.data.test is not None:
            yield Step(
                Rank.GAIN,
                0.0,
                "Pass inputs as they may occur after deployment but not in training (ood=…), to measure detection.",
                "No out-of-distribution inputs were given.",
            )

    @property
    def _enough(self) -> str:
        """What is enough for predictions where uncertain weights gain nothing: recalibration only where it helped."""
        metric, quality = self.judge.metric("nll"), self.record.quality
        label = "" if quality is None or quality.baseline is None else quality.baseline.label
        if metric is None or metric.recalibrated is None or metric.plain is None:
            return f"the plain network after {label} is enough on this evidence"
        if (metric.recalibrated.value or 0.0) < (metric.plain.value or 0.0):
            return f"the plain network after {label} is enough on this evidence"
        return f"the plain network is enough on this evidence; {label} did not improve it"

    def _about_weights(self) -> Iterator[Step]:
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
            more = "" if small else " More test inputs may show a gain or a loss by uncertain weights."
            yield Step(
                Rank.GAIN,
                0.01,
                f"If you need only {self._answers}, {self._enough}.{more} The posterior also gives novelty by layer "
                "and the share of each layer.",
                f"Uncertain weights make no significant difference to the log loss ({size}).",
            )
        elif gain.value > 0:
            yield Step(
                Rank.MIXED,
                gain.value,
                f"For {self._answers} take the plain network after {quality.baseline.label}.",
                f"The log loss of the posterior is higher ({size}).",
            )


def side_of(row: ClassCalibration) -> float:
    """Positive where the answers of a class are overconfident."""
    return (row.overconfidence and row.overconfidence.value) or 0.0


def _error(row: DeferralRule | None) -> float | None:
    return None if row is None or row.test.error is None else row.test.error.value
