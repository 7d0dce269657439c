"""The points of the verdict, each from the record and the rules alone; calibration is in its own file."""

from __future__ import annotations

from dataclasses import dataclass

from whence.auditing import calibration
from whence.auditing.calibration import significant_sign, tone_of
from whence.numerals import area, number, percent, percent_in_words, points, with_interval
from whence.report.record.audit import AuditRecord, Metric
from whence.report.record.common import Estimate, Tone
from whence.report.record.labels import ClassCalibration
from whence.report.record.verdict import Point, VerdictRules

FAR = 0.1  # of a class's accuracy below that of all
NAMED = 3  # classes that are named
RARE = 0.25  # prevalence up to which the accuracy alone says little
SAME = 1e-5  # nats, below which two log losses are those of the same predictions
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
    def beaten_by_one_class(self) -> bool:
        """Whether the network is right significantly less often than its most frequent class."""
        guess, accuracy = None if self.record.quality is None else self.record.quality.guessing, self.value("accuracy")
        if guess is None or guess.accuracy is None or accuracy is None:
            return False
        return (accuracy.high or 1.0) < guess.accuracy

    @property
    def beaten_detector(self) -> bool:
        """Whether novelty is detected well, but better by a detector that is not the usual one."""
        found = self.record.novelty
        usual = None if found is None or found.choice is None else found.choice.usual
        own = next((one for one in (found.detectors if found else None) or () if one.name == usual), None)
        return own is not None and graded(own.auroc, self.rules.novelty_good, self.rules.novelty_poor) == "good"

    @property
    def shared_inputs(self) -> str | None:
        """How many inputs of the test and validation data are in the training data, in words."""
        data = self.record.data
        found, sets = data.overlap, {"test": data.test, "validation": data.validation}
        counts = {"test": found.test, "validation": found.validation} if found else {}
        said = [
            f"{counts[name]:,} of its {one.inputs:,} {name} inputs"
            for name, one in sets.items()
            if one and counts.get(name)
        ]
        return " and ".join(said) or None

    @property
    def _least_recalled(self) -> tuple[str, Estimate] | None:
        """The class that is recognised least often, if that is far and significantly below the accuracy."""
        accuracy, rows = self.value("accuracy"), (self.record.quality and self.record.quality.classes) or ()
        if accuracy is None or accuracy.value is None or any(row.specificity is not None for row in rows):
            return None  # a label of several is recognised where it is absent too
        found = min(
            ((row.name, row.recall) for row in rows if row.recall is not None and row.recall.value is not None),
            key=lambda pair: pair[1].value or 0.0,
            default=None,
        )
        far = found is not None and (found[1].high or 1.0) < accuracy.value - FAR
        return found if far else None

    @property
    def rare_class(self) -> str:
        """What the decision for a rare positive class achieves, in words; empty for others."""
        two = None if self.record.quality is None else self.record.quality.two_classes
        if two is None or two.sensitivity is None or two.precision is None or (two.prevalence.value or 1.0) > RARE:
            return ""
        return (
            f" It finds {percent(two.sensitivity.value)} of `{two.positive}` ({percent(two.prevalence.value)} of the "
            f"inputs); where it answers that, it is right in {percent(two.precision.value)} of the cases."
        )

    @property
    def worst_class(self) -> str:
        """The class that is recognised least often, in words; empty if none is far below the accuracy."""
        found = self._least_recalled
        return "" if found is None else f" (of class `{found[0]}` {percent(found[1].value)})"

    # The data and the network

    def independence(self) -> Point | None:
        """Whether test inputs are also in the training data."""
        data, rules = self.record.data, self.rules
        found, test = data.overlap, data.test
        if found is None or found.test is None or test is None or not test.inputs:
            return None
        part, between = found.test / test.inputs, (found.between or 0) / test.inputs
        held = found.validation / data.validation.inputs if found.validation and data.validation else 0.0
        tone = tone_of(max(part, between, held), rules.duplicates_mixed, rules.duplicates_poor)
        words = f"{found.test:,} of {test.inputs:,} test inputs ({percent(part)}) also occur in the training data"
        if found.test and found.same_target is not None and found.same_target < found.test:
            words += f", {found.same_target:,} of them with the same target"
        if not found.test:
            every = data.train is not None and data.train.inputs == found.checked
            compared = "" if every else " that were compared"
            words = (
                f"None of the {test.inputs:,} test inputs occurs among the {found.checked:,} training inputs{compared}"
            )
        words += "."
        if held and data.validation:
            words += f" Of {data.validation.inputs:,} validation inputs {found.validation:,} ({percent(held)}) do."
        if between:
            some = "1 test input is" if found.between == 1 else f"{found.between:,} test inputs are"
            words += f" {some} in the validation data, on which the prior and the thresholds were chosen."
        rule = (
            f"Good up to {percent(rules.duplicates_mixed)} of the test or validation inputs, poor above "
            f"{percent(rules.duplicates_poor)}. Inputs are compared by content, whatever their targets; near copies "
            "are not found."
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
        worse = self.beaten_by_one_class or most < rules.skill_poor * scale
        tone: Tone = "poor" if worse else "good" if least > 0 else "mixed"
        ends = (least, most) if saved > 0 else (-most, -least)
        apart_words = with_interval(abs(saved), *ends, "nats").replace(", 95%", " (95%")
        words = f"The log loss is {'lower' if saved > 0 else 'higher'} than that of {guess.words}, by {apart_words})."
        if guess.accuracy is not None and accuracy is not None and accuracy.value is not None:
            words += (
                f" Always answering `{guess.name}` would be right for {percent(guess.accuracy)} of the "
                f"{self.record.data.elements or 'inputs'}; the network is right for {percent(accuracy.value)}"
                f"{_unclear(guess.accuracy, accuracy)}."
            )
        rule = (
            "Good if the log loss is significantly lower; poor if even the favourable end of the interval is less than "
            f"{percent(rules.skill_poor)} of the log loss of guessing"
        )
        answers = ", or if always answering the most frequent class is right significantly more often"
        rule += f"{'' if guess.accuracy is None else answers}."
        return Point("Better than guessing", words, tone, "guessing", rule)

    def generalisation(self) -> Point | None:
        """Whether training accuracy carries over to test data; of the plain network, as the training accuracy is."""
        training, row, rules = self.record.run.posterior.training, self.metric("accuracy"), self.rules
        accuracy = None if row is None else row.plain or row.bayesian
        if training is None or training.accuracy is None or accuracy is None or accuracy.high is None:
            return None
        least = training.accuracy - accuracy.high
        whose = " of the plain network" if row is not None and row.plain != row.bayesian else ""
        words = (
            f"Accuracy{whose} is {percent(training.accuracy)} on the training data and {percent(accuracy.value)} on "
            "the test data."
        )
        rule = (
            f"By the difference from the upper end of the test accuracy's interval ({percent(accuracy.high)}): good up "
            f"to {points(rules.gap_mixed)} percentage points, poor above {points(rules.gap_poor)}."
        )
        return Point("Generalises", words, tone_of(least, rules.gap_mixed, rules.gap_poor), "generalisation", rule)

    def classes(self) -> Point | None:
        """Whether every class is recognised at all; not of labels, of which a threshold decides how many are found."""
        quality, rules = self.record.quality, self.rules
        rows = (quality and quality.classes) or ()
        known = [(row, row.recall) for row in rows if row.count and row.recall is not None]
        by_threshold = (quality and quality.two_classes) or any(row.specificity is not None for row in rows)
        if rules.recall_mixed is None or by_threshold or not known:
            return None
        missed = sorted(
            ((row, recall) for row, recall in known if (recall.high or 0.0) < rules.recall_mixed),
            key=lambda pair: pair[1].value or 0.0,
        )
        least = min(known, key=lambda pair: pair[1].value or 0.0)
        words = f"The class recognised least often is {_recalled(*least)}."
        if missed:
            some = "; ".join(_recalled(*pair) for pair in missed[:NAMED])
            more = f" and {len(missed) - NAMED:,} more" if len(missed) > NAMED else ""
            words = f"Hardly ever recognised: {some}{more}."
        rule = f"Mixed if the 95% interval of a class's recall ends below {percent(rules.recall_mixed)}."
        return Point("Recognises every class", words, "mixed" if missed else "good", "classes", rule)

    def calibration(self) -> Point | None:
        if (ece := self.metric("ece")) is not None:
            return calibration.of_labels(self.record, self.rules, ece)
        coverage = self.value("coverage")
        if coverage is None or coverage.value is None:
            return None
        return calibration.of_numbers(self.record, self.rules, coverage)

    # Uncertain weights, errors, novelty, the prior

    def gain(self) -> Point | None:
        """What uncertain weights change beside the recalibrated network, or the plain one without validation data."""
        metric, baseline = self.metric("nll"), None if self.record.quality is None else self.record.quality.baseline
        difference = None if metric is None else metric.difference if baseline is None else metric.gain
        if difference is None or difference.value is None or difference.low is None or difference.high is None:
            return None
        beside = "the plain network" if baseline is None else f"the plain network after {baseline.label}"
        size = with_interval(difference.value, difference.low, difference.high, "nats", signed=True)
        label, rule = (
            "Gain from uncertain weights",
            f"By the paired difference; less than {number(self.rules.negligible)} nats counts as none.",
        )
        if is_negligible(difference, self.rules.negligible):
            words = f"No significant change in log loss compared with {beside} ({size})."
            if max(abs(difference.low), abs(difference.high)) < SAME:
                words = f"None: predictions are those of {beside}, because tuning chose a very strong prior."
            return Point(label, words, "note", "gain", rule)
        better = difference.value < 0
        words = f"The log loss is {'lower' if better else 'higher'} than that of {beside} ({size})."
        return Point(label, words, "good" if better else "mixed", "gain", rule)

    def errors(self) -> Point | None:
        auroc = self.value("error_auroc")
        if auroc is None:
            return None
        good, poor = self.rules.errors_good, self.rules.errors_poor
        implied = None if self.record.quality is None else self.record.quality.implied_error_auroc
        tone = graded(auroc, good, poor)
        what = self.record.data.elements or "answers"
        words = f"Its uncertainty ranks wrong {what} above correct ones with an AUROC of {area(auroc.value)}"
        if implied is not None:
            words += f"; its stated confidences imply {area(implied)}"
            if tone == "mixed" and (auroc.value or 0.0) >= poor and (auroc.high or 0.0) >= implied:
                tone = "good"
        deferral = self.record.deferral
        more = f" {deferral.words[0]}" if deferral and deferral.words else ""
        rule = (
            f"{_auroc_rule(good, poor)} From {number(poor)} it is also good if it is not significantly below what the "
            "stated confidences imply: some problems have errors that nobody can foresee."
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
            others = "".join(f" ({one.label}: {area(one.auroc.value)}{_reversed(one.auroc)})" for one in beside)
            name = f"The {own.label}" if own.name == "combined" else _capital(own.label)
            words = (
                f"{name} detects the {self._novel} out-of-distribution inputs given with an AUROC of "
                f"{area(own.auroc.value)}{others}."
            )
            tone = graded(own.auroc, rules.novelty_good, rules.novelty_poor)
            beaten = choice is not None and choice.is_beaten
            if beaten or (best.auroc.value or 0.0) > (own.auroc.value or 0.0) + rules.beaten:
                words += f" Another detector does better on them: {best.label}, {area(best.auroc.value)}."
                tone = "mixed" if tone == "good" else tone
            rule += (
                f" At most mixed if another detector is better by more than {number(rules.beaten)}, or if one without "
                "novelty by layer is significantly better."
            )
            return Point(label, words, tone, "novelty", rule)
        auroc = self.value("ood_auroc")
        if auroc is None:
            return None
        words = (
            f"Uncertainty detects the {self._novel} out-of-distribution inputs given with an AUROC of "
            f"{area(auroc.value)}."
        )
        return Point(label, words, graded(auroc, rules.novelty_good, rules.novelty_poor), "novelty", rule)

    @property
    def _novel(self) -> str:
        given = self.record.data.ood
        return f"{given.inputs:,}" if given else ""

    def groups(self) -> Point | None:
        """What the comparisons of groups found."""
        found = self.record.groups
        if found is None:
            return None
        if not found.comparisons:
            words = f"No group has the {found.fewest} inputs that a comparison needs."
            return Point("Subgroups", words, "unknown", "groups")
        every = [d for one in found.groupings for group in one.groups for d in group.differences if d.significant]
        words = " ".join(found.words[: 2 if every else 1])
        worse = any("deferred" not in d.quantity for d in every)  # deferring some more often is no error
        rule = "Mixed if groups differ in more than how often they are deferred, else a note; it decides nothing."
        return Point("Subgroups", words, "mixed" if worse else "note", "groups", rule)

    def prior(self) -> Point | None:
        label, profile = "Prior and data", self.record.profile
        if profile is None:
            return None
        explained = profile.views[0].explained[0]
        if profile.note:
            return Point(label, profile.note, "note", "prior")
        if explained is None:
            return None
        words = f"Training reduced the prior variance of the outputs by {percent_in_words(explained, 0)}."
        if explained < LITTLE:
            words = f"Training reduced the prior variance by only {percent(explained, 0)}, so shares follow the prior."
        return Point(label, words, "note", "prior")


def _unclear(share: float, accuracy: Estimate) -> str:
    """Said where an accuracy is not significantly different from a share."""
    if accuracy.low is None or accuracy.high is None or not accuracy.low <= share <= accuracy.high:
        return ""
    return "" if share == accuracy.value else ": no significant difference"


def _recalled(row: ClassCalibration, recall: Estimate) -> str:
    return f"`{row.name}` ({percent(recall.value)} of {row.count:,})"


def _capital(text: str) -> str:
    return text[0].upper() + text[1:]


def _reversed(found: Estimate) -> str:
    return ", which ranks them as less uncertain than test inputs" if (found.high or 1.0) < 0.5 else ""


def graded(found: Estimate, good: float, poor: float) -> Tone:
    """An AUROC by its interval: good or poor only if significant."""
    value = found.value or 0.0
    if value >= good and (found.low is None or found.low >= poor):
        return "good"
    return "poor" if value < poor and (found.high is None or found.high < poor) else "mixed"


def _auroc_rule(good: float, poor: float) -> str:
    return (
        f"Good from an AUROC of {number(good)} whose 95% interval starts at or above {number(poor)}; poor if the "
        f"interval ends below {number(poor)}."
    )


def is_negligible(found: Estimate, negligible: float) -> bool:
    """Whether a difference is within chance, or too small to matter."""
    return not significant_sign(found) or abs(found.value or 0.0) < negligible
