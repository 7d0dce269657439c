"""The verdict of an audit, and the rules by which it follows from the rest of the record."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Literal

from whence.errors import BadOption
from whence.report.record.common import Estimate, Sentence, Tone

PointKey = Literal[
    "independence",
    "guessing",
    "generalisation",
    "classes",
    "calibration",
    "gain",
    "errors",
    "novelty",
    "groups",
    "location",
    "prior",
]
JUDGED: tuple[PointKey, ...] = (
    "independence",
    "guessing",
    "generalisation",
    "classes",
    "calibration",
    "errors",
    "novelty",
)
LABELS: dict[PointKey, str] = {
    "independence": "No copies in the test data",
    "guessing": "Better than guessing",
    "generalisation": "Generalises",
    "classes": "Recognises every class",
    "calibration": "Calibration",
    "gain": "Gain from uncertain weights",
    "errors": "Knows its errors",
    "novelty": "Notices what is new",
    "groups": "Subgroups",
    "location": "Source of the uncertainty",
    "prior": "Prior and data",
}
UNJUDGED = ("pit_good", "pit_poor", "recall_mixed")  # may be None: not judged, as in earlier versions

RULES_VERSION = 3  # since 2 the distribution of F(true value) counts, and the answers of each class; since 3 recall


@dataclass(frozen=True, kw_only=True)
class VerdictRules:
    """The thresholds of the verdict; ``docs/audit.md`` has the rules in words.

    A point with an interval is poor only if even the favourable end of the interval is, so that chance alone rarely
    makes it so. The overall verdict is unknown if every judged point is, poor if any is, good if all are, else mixed.
    """

    version: int = RULES_VERSION  # of the rules, not of their thresholds
    duplicates_mixed: float = 0.005  # fraction of the test inputs that are also in the training data, above which …
    duplicates_poor: float = 0.05
    skill_poor: float = 0.05  # log loss saved relative to guessing, below which a network is no better than that
    gap_mixed: float = 0.05  # training accuracy minus test accuracy
    gap_poor: float = 0.2
    recall_mixed: float | None = 0.1  # share of a class that is recognised
    ece_negligible: float = 0.005  # a calibration error whose interval reaches below it is not significant
    ece: float = 0.05  # good if the interval ends below, poor if it starts above
    too_wide: float = 0.1  # upper end of an insignificant calibration error above which nothing is known
    coverage_good: float = 0.02  # difference of the coverage of 95% intervals from 95%
    coverage_poor: float = 0.05
    pit_good: float | None = 0.05  # largest difference of the distribution of F(true value) from the uniform one
    pit_poor: float | None = 0.15
    class_mixed: float = 0.25  # error of a class's mean probability, relative to the rarer outcome
    class_poor: float = 0.5
    answers_mixed: float = 0.1  # mean confidence of the answers of a class minus their accuracy
    answers_poor: float = 0.25
    errors_good: float = 0.8  # AUROC of uncertainty for wrong answers
    errors_poor: float = 0.65
    novelty_good: float = 0.9  # AUROC for out-of-distribution inputs
    novelty_poor: float = 0.75
    beaten: float = 0.02  # difference of AUROCs by which another detector is better
    negligible: float = 0.001  # difference in nats that is too small to matter

    def __post_init__(self) -> None:
        for one in fields(self):
            value = getattr(self, one.name)
            if value is None and one.name in UNJUDGED:
                continue
            if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < float("inf"):
                raise BadOption(f"VerdictRules({one.name}={value!r}): a threshold is a number of 0 or more.")
        if self.version not in range(1, RULES_VERSION + 1):
            raise BadOption(
                f"VerdictRules(version={self.version}): this version of whence applies version {RULES_VERSION}."
            )
        for low, high in ORDERED:
            if None not in (getattr(self, low), getattr(self, high)) and getattr(self, low) > getattr(self, high):
                values = f"{low}={getattr(self, low)}, {high}={getattr(self, high)}"
                raise BadOption(f"VerdictRules({values}): {low} must not be above {high}.")


ORDERED = (
    ("duplicates_mixed", "duplicates_poor"),
    ("gap_mixed", "gap_poor"),
    ("ece_negligible", "ece"),
    ("coverage_good", "coverage_poor"),
    ("pit_good", "pit_poor"),
    ("class_mixed", "class_poor"),
    ("answers_mixed", "answers_poor"),
    ("errors_poor", "errors_good"),
    ("novelty_poor", "novelty_good"),
)


@dataclass(frozen=True)
class Point:
    """One point of the verdict; ``rule`` says why it has its tone."""

    label: str
    words: Sentence
    tone: Tone
    key: PointKey | None = None
    rule: Sentence | None = None

    @classmethod
    def about(cls, key: PointKey, words: str, tone: Tone, rule: str) -> Point:
        """A point under its label."""
        return cls(LABELS[key], words, tone, key, rule)

    @property
    def is_good(self) -> bool:
        return self.tone == "good"

    @property
    def is_poor(self) -> bool:
        return self.tone == "poor"


@dataclass(frozen=True)
class Verdict:
    """Summary of the sections."""

    words: Sentence
    tone: Tone
    points: tuple[Point, ...]
    rules: VerdictRules | None = None
    not_judged: tuple[Sentence, ...] | None = None  # judged points that are missing, with the reason

    @property
    def is_poor(self) -> bool:
        return self.tone == "poor"


@dataclass(frozen=True)
class NextStep:
    """What to do about a finding, and the number that supports it."""

    words: Sentence
    because: Sentence
    tone: Tone


@dataclass(frozen=True)
class Guessing:
    """Always giving the frequencies of the classes (or the mean and variance of the targets) of the test data."""

    words: str
    nll: float | None
    difference: Estimate  # of the posterior's log loss from it, paired
    accuracy: float | None = None  # of the most frequent class
    name: str | None = None  # of the most frequent class


@dataclass(frozen=True)
class Overlap:
    """Inputs that also occur in the training data, of which the first ``checked`` were compared.

    ``between``: test inputs that also occur in the validation data. ``same_target``: those of the test inputs that have
    the same target there too.
    """

    checked: int
    test: int | None
    validation: int | None
    between: int | None = None
    same_target: int | None = None
