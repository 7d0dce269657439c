"""The points of the verdict, each from the record and the rules alone; calibration is in its own file."""

from __future__ import annotations

from dataclasses import dataclass

from whence.auditing import calibration, rules_in_words
from whence.auditing.calibration import significant_sign, tone_of
from whence.auditing.groups import prevalence_words
from whence.auditing.overlap import NOT_LOOKED_FOR, copies_in_words, shared_in_words
from whence.numerals import area, number, percent, percent_in_words, with_interval
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
    def same_as_plain(self) -> bool:
        """Whether the log loss shows that uncertain weights change next to nothing."""
        metric = self.metric("nll")
        apart = None if metric is None else metric.difference
        if apart is None or apart.low is None or apart.high is None:
            return False
        return max(abs(apart.low), abs(apart.high)) < self.rules.negligible

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
    def copies(self) -> str:
        """Which inputs are in two sets, in words, where these are too many; empty if none is."""
        return shared_in_words(self.record.data, self.rules.duplicates_mixed)

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
        true, said = two.true_positives + two.false_negatives, two.true_positives + two.false_positives
        return (
            f"It finds {two.true_positives:,} of the {true:,} `{two.positive}` ({percent(two.sensitivity.value)}). Of "
            f"the {said:,} inputs it calls `{two.positive}`, {percent(two.precision.value)} are `{two.positive}`."
        )

    @property
    def worst_class(self) -> str:
        """The class that is recognised least often, in words; empty if none is far below the accuracy."""
        found = self._least_recalled
        return "" if found is None or self.rare_class else f" (of class `{found[0]}` {percent(found[1].value)})"

    @property
    def beside_the_largest(self) -> str:
        """Of pixels or tokens most of which have one class: the mean IoU, and the accuracy of the others, in words."""
        quality, elements = self.record.quality, self.record.data.elements
        guess, rows = (None, ()) if quality is None else (quality.guessing, quality.classes or ())
        ious = [row.iou.value for row in rows if row.iou is not None and row.iou.value is not None]
        if elements is None or guess is None or (guess.accuracy or 0.0) <= 0.5 or not ious:
            return ""
        others = [(row.count, row.recall.value) for row in rows if row.count and row.recall and row.name != guess.name]
        right, count = sum(n * (share or 0.0) for n, share in others), sum(n for n, _ in others)
        if not count:
            return ""
        return (
            f"The mean IoU of its {len(ious):,} classes is {number(sum(ious) / len(ious), 2)}; of the {count:,} "
            f"{elements} that are not `{guess.name}`, {percent(right / count)} are classified correctly."
        )

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
        words = [*copies_in_words(data, found), NOT_LOOKED_FOR]
        return Point.about("independence", " ".join(words), tone, rules_in_words.independence(rules))

    def guessing(self) -> Point | None:
        """Whether the network is better than guessing by frequencies."""
        guess = None if self.record.quality is None else self.record.quality.guessing
        if guess is None or not guess.nll or guess.difference.low is None or guess.difference.high is None:
            return None
        apart, accuracy, rules = guess.difference, self.value("accuracy"), self.rules
        most, least = -guess.difference.low, -guess.difference.high
        worse = self.beaten_by_one_class or most < rules.skill_poor * abs(guess.nll)
        tone: Tone = "poor" if worse else "good" if least > 0 else "mixed"
        words, start = "", "The log loss"
        if guess.accuracy is not None and accuracy is not None and accuracy.value is not None:
            words, start = (
                f"The network is right for {percent(accuracy.value)} of the {self.record.data.elements or 'inputs'}"
                f"{_span(accuracy)}; always answering `{guess.name}` would be right for {percent(guess.accuracy)}"
                f"{_unclear(guess.accuracy, accuracy)}. ",
                "Its log loss",
            )
        side = {-1: "lower than", 1: "higher than", 0: "not significantly different from"}[significant_sign(apart)]
        size = with_interval(apart.value or 0.0, guess.difference.low, guess.difference.high, "nats", signed=True)
        words += (
            f"{start} is {side} that of {guess.words}, which the network did not have: "
            f"{number(guess.nll + (apart.value or 0.0))} against {number(guess.nll)} nats (difference {size})."
        )
        return Point.about("guessing", words, tone, rules_in_words.guessing(rules, guess.accuracy is not None))

    def generalisation(self) -> Point | None:
        """Whether training accuracy carries over to test data; of the plain network, as the training accuracy is."""
        training, row, rules = self.record.run.posterior.training, self.metric("accuracy"), self.rules
        accuracy = None if row is None else row.plain or row.bayesian
        if training is None or training.accuracy is None or accuracy is None or accuracy.high is None:
            return None
        least = training.accuracy - accuracy.high
        whose = " of the plain network" if row is not None and row.plain != row.bayesian else ""
        words = (
            f"Accuracy{whose} is {percent(training.accuracy)} on the training data and {percent(accuracy.value)}"
            f"{_span(accuracy)} on the test data."
        )
        rule = rules_in_words.generalisation(rules, accuracy.high)
        return Point.about("generalisation", words, tone_of(least, rules.gap_mixed, rules.gap_poor), rule)

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
        words = f"The class recognised least often is {self._recalled(*least)}."
        if missed:
            some = "; ".join(self._recalled(*pair) for pair in missed[:NAMED])
            more = f" and {len(missed) - NAMED:,} more" if len(missed) > NAMED else ""
            words = f"Hardly ever recognised: {some}{more}."
        return Point.about("classes", words, "mixed" if missed else "good", rules_in_words.classes(rules.recall_mixed))

    def _recalled(self, row: ClassCalibration, recall: Estimate) -> str:
        share = f"{percent(recall.value)} of {row.count:,} {self.record.data.elements or 'inputs'}"
        return f"`{row.name}` ({share}{_span(recall, ', ')})"

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
        rule = rules_in_words.gain(self.rules)
        if is_negligible(difference, self.rules.negligible):
            words = f"No significant change in log loss compared with {beside} ({size})."
            if max(abs(difference.low), abs(difference.high)) < SAME:
                words = f"None: predictions are those of {beside}, because tuning chose a very strong prior."
            return Point.about("gain", words, "note", rule)
        better = difference.value < 0
        words = f"The log loss is {'lower' if better else 'higher'} than that of {beside} ({size})."
        return Point.about("gain", words, "good" if better else "mixed", rule)

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
            words += f"; {area(implied)} would be expected if its stated confidences were correct"
            if tone == "mixed" and (auroc.value or 0.0) >= poor and (auroc.high or 0.0) >= implied:
                tone = "good"
        deferral = self.record.deferral
        more = f" {deferral.words[0]}" if deferral and deferral.words else ""
        return Point.about("errors", f"{words}.{more}", tone, rules_in_words.errors(self.rules))

    def novelty(self) -> Point | None:
        found, rules = self.record.novelty, self.rules
        if found and found.detectors:
            detectors = {one.name: one for one in found.detectors}
            choice = found.choice
            own, best = detectors[choice.usual if choice else "novelty"], found.detectors[0]
            beside = [detectors["entropy"]] if "entropy" in detectors and best.name != "entropy" else []
            others = "; ".join(f"{one.label}: {area(one.auroc.value)}{_reversed(one.auroc)}" for one in beside)
            name = f"The {own.label}" if own.name == "combined" else _capital(own.label)
            words = (
                f"{name} separates the {self._novel} out-of-distribution inputs given from test inputs with an AUROC "
                f"of {area(own.auroc.value)}{_aside(_ends(own.auroc), others)}."
            )
            tone = graded(own.auroc, rules.novelty_good, rules.novelty_poor)
            beaten = choice is not None and choice.is_beaten
            if beaten or (best.auroc.value or 0.0) > (own.auroc.value or 0.0) + rules.beaten:
                words += f" Another detector does better on them: {best.label}, {area(best.auroc.value)}."
                tone = "mixed" if tone == "good" else tone
            return Point.about("novelty", words, tone, rules_in_words.novelty(rules, detectors=True))
        auroc = self.value("ood_auroc")
        if auroc is None:
            return None
        words = (
            f"Uncertainty separates the {self._novel} out-of-distribution inputs given from test inputs with an AUROC "
            f"of {area(auroc.value)}{_aside(_ends(auroc))}."
        )
        tone = graded(auroc, rules.novelty_good, rules.novelty_poor)
        return Point.about("novelty", words, tone, rules_in_words.novelty(rules, detectors=False))

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
            return Point.about("groups", words, "unknown", rules_in_words.GROUPS)
        every = [d for one in found.groupings for group in one.groups for d in group.differences if d.significant]
        words = " ".join([*found.words[: 2 if every else 1], *prevalence_words(found)])
        worse = any("deferred" not in d.quantity for d in every)  # deferring some more often is no error
        return Point.about("groups", words, "mixed" if worse else "note", rules_in_words.GROUPS)

    def prior(self) -> Point | None:
        profile = self.record.profile
        if profile is None:
            return None
        explained = profile.views[0].explained[0]
        if profile.note:
            return Point.about("prior", profile.note, "note", rules_in_words.ALWAYS_A_NOTE)
        if explained is None:
            return None
        words = f"Training reduced the prior variance of the outputs by {percent_in_words(explained, 0)}."
        if explained < LITTLE:
            words = f"Training reduced the prior variance by only {percent(explained, 0)}, so shares follow the prior."
        return Point.about("prior", words, "note", rules_in_words.ALWAYS_A_NOTE)


def _span(found: Estimate, before: str = " (") -> str:
    """The 95% interval, behind a value; empty without one."""
    if found.low is None or found.high is None:
        return ""
    ends = f"{percent(found.low)} to {percent(found.high)}"
    return f"{before}95% interval {ends}{')' if '(' in before else ''}"


def _unclear(share: float, accuracy: Estimate) -> str:
    """Said where an accuracy is not significantly different from a share."""
    if accuracy.low is None or accuracy.high is None or not accuracy.low <= share <= accuracy.high:
        return ""
    return "" if share == accuracy.value else ": no significant difference"


def _capital(text: str) -> str:
    return text[0].upper() + text[1:]


def _ends(found: Estimate) -> str:
    """The interval of an area under a curve, unless it has no width."""
    if found.low is None or found.high is None or found.low == found.high:
        return ""
    return f"95% interval {area(found.low)} to {area(found.high)}"


def _aside(*parts: str) -> str:
    known = "; ".join(part for part in parts if part)
    return f" ({known})" if known else ""


def _reversed(found: Estimate) -> str:
    return ", which ranks them as less uncertain than test inputs" if (found.high or 1.0) < 0.5 else ""


def graded(found: Estimate, good: float, poor: float) -> Tone:
    """An AUROC by its interval: good or poor only if significant."""
    value = found.value or 0.0
    if value >= good and (found.low is None or found.low >= poor):
        return "good"
    return "poor" if value < poor and (found.high is None or found.high < poor) else "mixed"


def is_negligible(found: Estimate, negligible: float) -> bool:
    """Whether a difference is within chance, or too small to matter."""
    return not significant_sign(found) or abs(found.value or 0.0) < negligible
