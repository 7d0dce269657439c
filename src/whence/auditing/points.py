"""The points of the verdict, each from the record and the rules alone."""

from __future__ import annotations

from dataclasses import dataclass, replace

from whence.report.formatting import minus
from whence.report.record.audit import AuditRecord, Metric
from whence.report.record.common import Estimate, Tone
from whence.report.record.labels import ClassCalibration
from whence.report.record.verdict import Point, VerdictRules

NOMINAL = 0.95  # coverage of the intervals that are judged
LITTLE = 0.2  # part of the prior variance that training explains, below which shares follow the prior


@dataclass(frozen=True)
class Judge:
    """A record and the rules that are applied to it."""

    record: AuditRecord
    rules: VerdictRules

    def metric(self, name: str) -> Metric | None:
        """The metric, if the posterior has a value."""
        rows = self.record.quality.metrics if self.record.quality else ()
        return next((row for row in rows if row.name == name and row.bayesian is not None), None)

    def value(self, name: str) -> Estimate | None:
        """The posterior's value."""
        metric = self.metric(name)
        return None if metric is None else metric.bayesian

    @property
    def prior_dominates(self) -> bool:
        """Whether training explains so little that shares follow the prior."""
        explained = self.record.profile.views[0].explained[0] if self.record.profile else None
        return explained is not None and explained < LITTLE

    @property
    def beaten_by_one_class(self) -> dict[Tone, str]:
        """Words for a network that is right significantly less often than its most frequent class."""
        guess, accuracy = None if self.record.quality is None else self.record.quality.guessing, self.value("accuracy")
        if guess is None or guess.accuracy is None or accuracy is None or (accuracy.high or 1.0) >= guess.accuracy:
            return {}
        return {"poor": f"is right less often than always answering `{guess.name}`"}

    # The data and the network

    def independence(self) -> Point | None:
        """Whether test inputs are also in the training data."""
        data, rules = self.record.data, self.rules
        found, test = data.overlap, data.test
        if found is None or found.test is None or test is None or not test.inputs:
            return None
        part = found.test / test.inputs
        held = found.validation / data.validation.inputs if found.validation and data.validation else 0.0
        tone: Tone = _tone(max(part, held), rules.duplicates_mixed, rules.duplicates_poor)
        words = f"{found.test:,} of {test.inputs:,} test inputs ({part:.1%}) also occur in the training data."
        if not found.test:
            words = (
                f"None of the {test.inputs:,} test inputs occurs among the {found.checked:,} training inputs compared."
            )
        if held and data.validation:
            words += f" Of {data.validation.inputs:,} validation inputs {found.validation:,} ({held:.1%}) do."
        rule = (
            f"Good up to {rules.duplicates_mixed:.1%} of the test or validation inputs, poor above "
            f"{rules.duplicates_poor:.1%}. "
            "Inputs are compared by content; near copies are not found."
        )
        return Point("Independent test data", words, tone, "independence", rule)

    def guessing(self) -> Point | None:
        """Whether the network is better than guessing by frequencies."""
        guess = None if self.record.quality is None else self.record.quality.guessing
        if guess is None or not guess.nll or guess.difference.low is None or guess.difference.high is None:
            return None
        apart, accuracy, rules = guess.difference, self.value("accuracy"), self.rules
        saved, most, least = -(apart.value or 0.0), -guess.difference.low, -guess.difference.high
        scale = abs(guess.nll) or 1.0
        below = guess.accuracy is not None and accuracy is not None and (accuracy.high or 1.0) < guess.accuracy
        worse = below or most < rules.skill_poor * scale
        tone: Tone = "poor" if worse else "good" if least > 0 else "mixed"
        words = f"Its log loss is {abs(saved):.3g} nats {'lower' if saved > 0 else 'higher'} than that of {guess.words}"
        ends = (least, most) if saved > 0 else (-most, -least)
        words += minus(f" (95% interval {ends[0]:.3g} to {ends[1]:.3g}).")
        if guess.accuracy is not None and accuracy is not None and accuracy.value is not None:
            more = "more often than" if guess.accuracy > accuracy.value else "less often than"
            same = abs(guess.accuracy - accuracy.value) < 5e-4
            words += (
                f" Always answering `{guess.name}` is right {'as often as' if same else more} the network "
                f"({guess.accuracy:.1%} against {accuracy.value:.1%})."
            )
        rule = (
            f"Good if the log loss is significantly lower; poor if it cannot be more than {rules.skill_poor:.0%} "
            "lower, or if the most frequent class is right significantly more often."
        )
        return Point("Better than guessing", words, tone, "guessing", rule)

    def generalisation(self) -> Point | None:
        """Whether training accuracy carries over to test data."""
        training, accuracy, rules = self.record.run.posterior.training, self.value("accuracy"), self.rules
        if training is None or training.accuracy is None or accuracy is None or accuracy.high is None:
            return None
        least = training.accuracy - accuracy.high
        words = f"Accuracy is {training.accuracy:.1%} on the training data and {accuracy.value:.1%} on the test data."
        rule = (
            f"By the difference from the upper end of the test accuracy's interval ({accuracy.high:.1%}): good up to "
            f"{rules.gap_mixed:.0%}, poor above {rules.gap_poor:.0%}."
        )
        return Point("Generalises", words, _tone(least, rules.gap_mixed, rules.gap_poor), "generalisation", rule)

    # Calibration

    def calibration(self) -> Point | None:
        if (ece := self.metric("ece")) is not None:
            return self._with_classes(self._confidence(ece))
        coverage = self.value("coverage")
        if coverage is None or coverage.value is None:
            return None
        return self._with_levels(self._coverage(coverage))

    def _with_levels(self, point: Point) -> Point:
        """The point, graded down where intervals of another level cover too much or too little."""
        checks = None if self.record.quality is None else self.record.quality.numbers
        off = {row.level: (_apart(row.bayesian, row.level), row) for row in (checks.coverage if checks else ())}
        level, (least, row) = max(off.items(), key=lambda item: item[1][0], default=(0.0, (0.0, None)))
        tone = _tone(least, self.rules.coverage_good, self.rules.coverage_poor)
        if row is None or level == NOMINAL or tone == "good" or point.is_poor:
            return point
        found = row.bayesian
        words = (
            f"{point.words} But its {level:.0%} intervals contain {found.value:.1%} (95% interval {found.low:.1%} to "
            f"{found.high:.1%}): {'too wide' if (found.value or 0.0) > level else 'too narrow'}."
        )
        return replace(point, words=words, tone=tone)

    def _coverage(self, found: Estimate) -> Point:
        rules, value = self.rules, found.value or 0.0
        low, high = (value if end is None else end for end in (found.low, found.high))
        least = _apart(found, NOMINAL)
        words = (
            f"Its 95% intervals contain the true value {value:.1%} of the time (95% interval {low:.1%} to {high:.1%})."
        )
        rule = (
            "By the end of the interval that is nearer to the level, at the level that is off most: good "
            f"within {rules.coverage_good:.0%}, poor beyond "
            f"{rules.coverage_poor:.0%}; unknown if the interval is wider than {2 * rules.too_wide:.0%}."
        )
        tone = _tone(least, rules.coverage_good, rules.coverage_poor)
        if tone == "good" and high - low > 2 * rules.too_wide:
            tone, words = "unknown", f"{words} Too few test values to judge (n = {found.count:,})."
        return Point("Calibration", words, tone, "calibration", rule)

    def _confidence(self, ece: Metric) -> Point:
        """Judged by the interval of the calibration error, whose value is biased upward for few inputs."""
        found, plain, rules = ece.bayesian, ece.plain, self.rules
        assert found is not None and plain is not None
        words = (
            f"Confidence differs from accuracy by {found.value:.1%} on average (ECE; plain network {plain.value:.1%})"
        )
        rule = (
            f"Good if the 95% interval of the ECE ends at or below {rules.ece:.0%} or reaches below "
            f"{rules.ece_negligible:.1%}, poor if it starts above {rules.ece:.0%}; a class whose mean probability is "
            f"off by more than {rules.class_mixed:.0%} of its frequency makes it mixed, by more than "
            f"{rules.class_poor:.0%} poor."
        )
        if found.low is None or found.high is None or found.low <= rules.ece_negligible:
            few = found.high is None or found.high > rules.too_wide
            doubt = "too few inputs to judge" if few else self._lean() or "not statistically significant"
            words = f"{words}; {doubt} ({self._count(found)})."
            return Point("Calibration", words, "unknown" if few else "good", "calibration", rule)
        tone: Tone = "good" if found.high <= rules.ece else "poor" if found.low > rules.ece else "mixed"
        lean = self._lean()
        return Point("Calibration", f"{words}{f'; {lean}' if lean else ''}.", tone, "calibration", rule)

    def _lean(self) -> str:
        """Over- or underconfidence, if it is significant."""
        found = None if self.record.quality is None else self.record.quality.overconfidence
        side = significant_sign(found)
        if not side or found is None or found.value is None:
            return ""
        return f"overall it is {'over' if side > 0 else 'under'}confident by {abs(found.value):.1%}"

    def _count(self, found: Estimate) -> str:
        """n, of labels where inputs have several."""
        inputs = self.record.data.test.inputs if self.record.data.test else found.count
        return f"n = {found.count:,}" + (f" labels of {inputs:,} inputs" if found.count > inputs else "")

    def _with_classes(self, point: Point) -> Point:
        """The point, graded down where the probability of a class is off by a large part of its frequency."""
        rows = (self.record.quality and self.record.quality.classes) or ()
        off = {row.name: (self.relative_error(row), row) for row in rows}
        name, (error, row) = max(off.items(), key=lambda item: item[1][0], default=("", (0.0, None)))
        if row is None or error < self.rules.class_mixed:
            return point
        tone: Tone = "poor" if error >= self.rules.class_poor or point.is_poor else "mixed"
        start = f"{point.words} {'But it' if point.is_good else 'It'}"
        words = f"{start} predicts `{name}` with a mean probability of {row.predicted:.1%}; its frequency is "
        return replace(point, words=f"{words}{row.frequency:.1%}.", tone=tone)

    def relative_error(self, row: ClassCalibration) -> float:
        """How far the mean probability of a class is from its frequency at least, relative to the rarer outcome.

        By the end of the interval that is nearer to 0; 0 if the interval contains it.
        """
        apart, frequency = row.difference, row.frequency or 0.0
        rarer = min(frequency, 1 - frequency)
        if apart.low is None or apart.high is None or apart.low <= 0 <= apart.high or not rarer:
            return 0.0
        least = min(abs(apart.low), abs(apart.high))
        return least / rarer if least > self.rules.ece_negligible else 0.0

    # Uncertain weights, errors, novelty, the prior

    def gain(self) -> Point | None:
        """What uncertain weights change beside the recalibrated network, or the plain one without validation data."""
        metric, baseline = self.metric("nll"), None if self.record.quality is None else self.record.quality.baseline
        difference = None if metric is None else metric.difference if baseline is None else metric.gain
        if difference is None or difference.low is None or difference.value is None:
            return None
        beside = "the plain network" if baseline is None else f"the plain network after {baseline.label}"
        interval, label = (
            f"{minus(f'{difference.value:+.3g}')} nats, {_interval(difference)}",
            "Gain from uncertain weights",
        )
        rule = f"By the paired difference; less than {self.rules.negligible:g} nats counts as none."
        if is_negligible(difference, self.rules.negligible):
            words = f"No significant change in log loss compared with {beside} ({interval})."
            return Point(label, words, "note", "gain", rule)
        better = difference.value < 0
        words = f"The log loss is {'lower' if better else 'higher'} than that of {beside} ({interval})."
        return Point(label, words, "good" if better else "mixed", "gain", rule)

    def errors(self) -> Point | None:
        auroc = self.value("error_auroc")
        if auroc is None:
            return None
        good, poor = self.rules.errors_good, self.rules.errors_poor
        implied = None if self.record.quality is None else self.record.quality.implied_error_auroc
        tone, words = (
            graded(auroc, good, poor),
            "Its uncertainty ranks wrong answers above correct ones with an AUROC of ",
        )
        words += f"{auroc.value:.2f}"
        if implied is not None:
            words += f"; its stated confidences imply {implied:.2f}"
            if tone == "mixed" and (auroc.value or 0.0) >= poor and (auroc.high or 0.0) >= implied:
                tone = "good"
        deferral = self.record.deferral
        more = f" {deferral.words[0]}" if deferral and deferral.words else ""
        rule = (
            f"{_auroc_rule(good, poor)} From {poor:g} it is also good if it is not significantly below what the stated "
            "confidences imply: some problems have errors that nobody can foresee."
        )
        return Point("Knows its errors", f"{words}.{more}", tone, "errors", rule)

    def novelty(self) -> Point | None:
        label, found, rules = "Notices what is new", self.record.novelty, self.rules
        rule = _auroc_rule(rules.novelty_good, rules.novelty_poor)
        if found and found.detectors:
            detectors = {one.name: one for one in found.detectors}
            choice = found.choice
            own, best = detectors[choice.usual if choice else "novelty"], found.detectors[0]
            beside = [detectors["entropy"]] if "entropy" in detectors and best.name != "entropy" else []
            others = "".join(f" ({one.label}: {one.auroc.value:.2f})" for one in beside)
            words = f"The {own.label} detects" if choice else "Novelty by layer detects"
            words += f" out-of-distribution inputs with an AUROC of {own.auroc.value:.2f}{others}."
            tone = graded(own.auroc, rules.novelty_good, rules.novelty_poor)
            beaten = choice is not None and choice.is_beaten
            if beaten or (best.auroc.value or 0.0) > (own.auroc.value or 0.0) + rules.beaten:
                words += f" Another detector does better on them: {best.label}, {best.auroc.value:.2f}."
                tone = "mixed" if tone == "good" else tone
            rule += (
                f" At most mixed if another detector is better by more than {rules.beaten:g}, or if one without "
                "novelty by layer is significantly better."
            )
            return Point(label, words, tone, "novelty", rule)
        auroc = self.value("ood_auroc")
        if auroc is None:
            return None
        words = f"Uncertainty detects out-of-distribution inputs with an AUROC of {auroc.value:.2f}."
        return Point(label, words, graded(auroc, rules.novelty_good, rules.novelty_poor), "novelty", rule)

    def groups(self) -> Point | None:
        """What the comparisons of groups found."""
        found = self.record.groups
        if found is None:
            return None
        if not found.comparisons:
            words = f"No group has the {found.fewest} inputs that a comparison needs."
            return Point("Subgroups", words, "unknown", "groups")
        differ = any(d.significant for one in found.groupings for group in one.groups for d in group.differences)
        words = " ".join(found.words[: 2 if differ else 1])
        return Point("Subgroups", words, "mixed" if differ else "note", "groups")

    def prior(self) -> Point | None:
        profile = self.record.profile
        if profile is None:
            return None
        explained = profile.views[0].explained[0]
        if profile.note:
            return Point("Is it the prior?", profile.note, "note", "prior")
        if explained is None:
            return None
        words = f"Training reduced the prior variance by {explained:.0%}."
        if explained < LITTLE:
            words = f"Mostly: training reduced the prior variance by only {explained:.0%}, so shares follow the prior."
        return Point("Is it the prior?", words, "note", "prior")


def _apart(found: Estimate, level: float) -> float:
    """How far a coverage is from its level at least, by the end of its interval that is nearer."""
    low, high = ((found.value or 0.0) if end is None else end for end in (found.low, found.high))
    return abs(min(max(level, low), high) - level)


def _tone(value: float, mixed: float, poor: float) -> Tone:
    """Good up to ``mixed``, poor above ``poor``."""
    return "good" if value <= mixed else "poor" if value > poor else "mixed"


def graded(found: Estimate, good: float, poor: float) -> Tone:
    """An AUROC by its interval: good or poor only if significant."""
    value = found.value or 0.0
    if value >= good and (found.low is None or found.low >= poor):
        return "good"
    return "poor" if value < poor and (found.high is None or found.high < poor) else "mixed"


def _auroc_rule(good: float, poor: float) -> str:
    return (
        f"Good from an AUROC of {good:g} whose 95% interval starts at or above {poor:g}; poor if the interval ends "
        f"below {poor:g}."
    )


def _interval(found: Estimate) -> str:
    return minus(f"95% interval {found.low:+.3g} to {found.high:+.3g}")


def significant_sign(found: Estimate | None) -> int:
    """1 or −1 if the interval excludes 0, otherwise 0."""
    if found is None or found.low is None or found.high is None or found.low <= 0 <= found.high:
        return 0
    return 1 if found.low > 0 else -1


def is_negligible(found: Estimate, negligible: float) -> bool:
    """Whether a difference is within chance, or too small to matter."""
    return not significant_sign(found) or abs(found.value or 0.0) < negligible
