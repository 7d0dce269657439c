"""Common parts of the records of audits and comparisons, and annotations of their fields."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import Annotated, Any, Generic, Literal, TypeVar

from whence.likelihoods.base import Task
from whence.metrics import Estimate as Measured

T = TypeVar("T", covariant=True)


class Mark(Enum):
    """Meaning of a field for functions that transform records: layer names, sentences, rounded numbers."""

    LAYER = "name of a layer"
    LABEL = "text that may begin with the name of a layer"
    SENTENCE = "text in which layers may be named"
    MESSAGE = "the same, as it was said during the computation"
    COARSE = "number of three significant digits"
    NESTED = "mapping of names to numbers, lists and further mappings"


Count = Annotated[int, ("minimum", 0)]  # a pair is copied into the JSON schema
Date = Annotated[str, ("format", "date-time")]
Number = float | None  # None if not defined or not finite
Numbers = tuple[float | None, ...]
LayerName = Annotated[str, Mark.LAYER]
Label = Annotated[str, Mark.LABEL]
Sentence = Annotated[str, Mark.SENTENCE]
Sentences = tuple[Sentence, ...]
Message = Annotated[str, Mark.MESSAGE]
Grid = tuple[tuple[Annotated[float | None, Mark.COARSE], ...], ...]
Nested = Annotated[dict[str, Any], Mark.NESTED]

TaskName = Task
Better = Literal["lower", "higher", "0.95"]  # which values of a metric are good
Tone = Literal["good", "mixed", "poor", "note", "unknown"]
SetName = Literal["test", "ood"]
IN_UNITS = ("rmse", "crps", "width")  # metrics in the unit of the target
AREAS = ("auroc", "error_auroc", "ood_auroc")  # metrics that are areas under curves
SHARES = ("accuracy", "coverage", "ood_fpr95", "fpr95", "flagged")  # metrics that are shares
Form = Literal["percent", "points", "area", "number"]


@dataclass(frozen=True)
class Estimate:
    """A value and its 95% interval."""

    value: Number
    low: Number
    high: Number
    level: float
    count: Count

    @classmethod
    def of(cls, found: Measured | None) -> Estimate | None:
        """From the result of a metric."""
        return None if found is None else cls(float(found), found.low, found.high, found.level, found.count)


@dataclass(frozen=True)
class MetricName:
    """A metric, which of its values are good, and its description."""

    name: str
    label: str
    better: Better
    about: str

    @property
    def form(self) -> Form:
        """How its values are written."""
        if self.name in AREAS:
            return "area"
        return "percent" if self.name in SHARES else "points" if self.name == "ece" else "number"

    def label_in(self, unit: str | None) -> str:
        """The label with its unit."""
        own = "points" if self.form == "points" else "nats" if self.name == "nll" else None
        own = unit if self.name in IN_UNITS else own
        return f"{self.label} ({own})" if own else self.label

    def judge(self, difference: Estimate | None) -> Literal["better", "worse", "differs", "same"] | None:
        """The judgement of a difference by its interval; None without an interval."""
        if difference is None or difference.low is None or difference.high is None:
            return None
        if difference.low <= 0 <= difference.high:
            return "same"
        if self.better not in ("lower", "higher"):
            return "differs"
        return "better" if (difference.high < 0) == (self.better == "lower") else "worse"


@dataclass(frozen=True)
class PlainAndBayesian(Generic[T]):
    """A value for the trained network and for the posterior."""

    plain: T
    bayesian: T


@dataclass(frozen=True)
class SetSize:
    """Number of inputs of a set that were read, and whether there were more."""

    inputs: Count
    cut: bool


@dataclass(frozen=True)
class ReliabilityBin:
    """Predictions of similar confidence, and their accuracy."""

    confidence: Number
    accuracy: Number
    low: Number
    high: Number
    count: Count

    @property
    def estimate(self) -> Estimate:
        """The accuracy with its interval."""
        return Estimate(self.accuracy, self.low, self.high, 0.95, self.count)


Bins = tuple[ReliabilityBin, ...]


@dataclass(frozen=True)
class RejectionCurve:
    """Error of the kept inputs, the most certain first, against their share."""

    coverage: Numbers
    error: Numbers


@dataclass(frozen=True)
class LeftOut:
    """What was not computed, and why."""

    what: str
    why: Message


@dataclass(frozen=True)
class Versions:
    """Versions of the packages."""

    whence: str
    torch: str
    numpy: str
    python: str


@dataclass(frozen=True)
class Run:
    """How the record was made."""

    versions: Versions
    platform: str
    device: str
    seed: int
    seconds: dict[str, float]
    left_out: tuple[LeftOut, ...]
    notices: tuple[Message, ...]


@dataclass(frozen=True)
class Header:
    """The first fields of every record."""

    schema: str
    created: Date
    title: str
