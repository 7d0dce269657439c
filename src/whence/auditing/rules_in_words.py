"""The rule of each point of the verdict in words: what is compared, and when it is good, mixed, poor or unknown."""

from __future__ import annotations

from collections.abc import Mapping

from whence.numerals import number, percent, points
from whence.report.record.common import Estimate
from whence.report.record.verdict import VerdictRules

WORST = "The worst of them counts (in the order good, unknown, mixed, poor)."
ALWAYS_A_NOTE = "Always a note."
GROUPS = "Mixed if a significant comparison is not of the share deferred, else a note; unknown without any comparison."


def independence(rules: VerdictRules) -> str:
    return (
        "Three shares are compared directly: of test inputs that are also in the training data, of validation inputs "
        "that are also in the training data, and of test inputs that are also in the validation data. The largest "
        f"decides: good up to {percent(rules.duplicates_mixed)}, mixed up to {percent(rules.duplicates_poor)}, poor "
        "above. Inputs are compared by content, whatever their targets; near copies are not found."
    )


def guessing(rules: VerdictRules, answers: bool) -> str:
    accuracy = (
        "Poor if the upper end of the accuracy's 95% interval is below the share of the most frequent class. "
        if answers
        else ""
    )
    return (
        f"In this order: {accuracy}Poor if, even at the favourable end of the interval of the difference, the log loss "
        f"is not lower by at least {percent(rules.skill_poor)} of the log loss of guessing. Good if the whole interval "
        "of the difference is below 0. Else mixed."
    )


def generalisation(rules: VerdictRules, high: float) -> str:
    return (
        "Of the plain network: its accuracy on the training data minus the upper end of the 95% interval of its "
        f"accuracy on the test data ({percent(high)}). Good up to {points(rules.gap_mixed)} percentage points, mixed "
        f"up to {points(rules.gap_poor)}, poor above."
    )


def classes(limit: float) -> str:
    return (
        f"Mixed if the 95% interval of any class's recall (its share of right answers) ends below {percent(limit)}, "
        "else good. Never poor."
    )


def calibration_of_labels(rules: VerdictRules) -> str:
    return (
        f"Three comparisons. {WORST} "
        f"1. The 95% interval of the ECE. If it starts at or below {points(rules.ece_negligible)} percentage points "
        f"(negligible): good, but unknown if it ends above {points(rules.too_wide)}. If it starts higher: good if "
        f"it ends at or below {points(rules.ece)}, poor if it starts above {points(rules.ece)}, else mixed. "
        "2. The mean probability of each class minus its frequency, at the end of its simultaneous 95% interval that "
        "is nearer to 0 (0 if the interval contains 0, or if that end is within "
        f"{points(rules.ece_negligible)} percentage points), as a part of the frequency, or of 1 − frequency if that "
        f"is smaller: mixed from {percent(rules.class_mixed)}, poor from {percent(rules.class_poor)}. "
        "3. The mean confidence of the answers of each class minus the share of them that are right, at the nearer end "
        f"likewise: mixed above {points(rules.answers_mixed)} percentage points, poor above "
        f"{points(rules.answers_poor)}. Simultaneous: with 95% probability the intervals of all classes hold."
    )


def calibration_of_numbers(
    rules: VerdictRules, levels: Mapping[float, Estimate], distance: Estimate | None = None
) -> str:
    """With what is compared beside the coverage of 95% intervals: that of all levels, and the distance of F."""
    listed = "; ".join(
        f"of {percent(level)}: {percent(one.value)} ({percent(one.low)} to {percent(one.high)})"
        for level, one in levels.items()
    )
    here = f" Coverage here, with simultaneous intervals: {listed}." if listed else ""
    if distance is not None and distance.value is not None and distance.low is not None:
        here += f" F differs by up to {number(distance.value, 2)} ({distance_span(distance)})."
    distribution = (
        ""
        if rules.pit_good is None or rules.pit_poor is None
        else (
            " 3. F(true value), the predicted probability of a value below the true one, should be uniform. The "
            "largest difference of its distribution from the uniform one, at the lower end of its 95% interval: good "
            f"up to {number(rules.pit_good)}, mixed up to {number(rules.pit_poor)}, poor above."
        )
    )
    return (
        f"{'Three' if distribution else 'Two'} comparisons. {WORST} "
        "1. The share of true values in the 95% prediction intervals, at the end of its 95% confidence interval that "
        "is nearer to 95% (at 95% if the interval contains it): good within "
        f"{points(rules.coverage_good)} percentage points of 95%, mixed within {points(rules.coverage_poor)}, poor "
        f"beyond; unknown instead of good if the confidence interval is wider than {points(2 * rules.too_wide)} "
        "points. "
        "2. The same at the level of 50, 80, 90, 95 and 99% that is off most, with confidence intervals that hold for "
        f"all five levels simultaneously.{distribution}{here}"
    )


def distance_span(found: Estimate) -> str:
    """The interval of a distance of distributions."""
    return f"{number(found.low, 2)} to {number(found.high, 2)}"


def gain(rules: VerdictRules) -> str:
    return (
        f"By the paired difference: a note if its 95% interval contains 0, or if its size is "
        f"below {number(rules.negligible)} nats; else good if the log loss is lower, mixed if it is higher."
    )


def errors(rules: VerdictRules) -> str:
    good, poor = number(rules.errors_good), number(rules.errors_poor)
    return (
        f"In this order: Good if the AUROC is at least {good} and its 95% interval starts at or above {poor}. Poor if "
        f"the interval ends below {poor}. Good if the AUROC is at least {poor} and its interval reaches the one "
        "expected of the stated confidences (some problems have errors that nobody can foresee). Else mixed."
    )


def novelty(rules: VerdictRules, detectors: bool) -> str:
    good, poor = number(rules.novelty_good), number(rules.novelty_poor)
    others = (
        f" Mixed if another detector has an AUROC that is higher by more than {number(rules.beaten)}, or if a detector "
        "without novelty by layer is significantly better."
    )
    return (
        f"In this order: Poor if the 95% interval of the AUROC ends below {poor}.{others if detectors else ''} Good "
        f"from an AUROC of {good} whose interval starts at or above {poor}. Else mixed."
    )
