"""Which parts of the inputs shown their uncertainty comes from."""

from __future__ import annotations

from dataclasses import dataclass

from whence.report.record.common import Count, Grid, Number, Numbers, Sentences, SetName

MUCH, TOO_MUCH = 0.1, 0.3  # of the rise: parts that miss more are approximate, or are not shown


@dataclass(frozen=True)
class Part:
    """What one column of a row adds."""

    name: str
    value: Number


@dataclass(frozen=True)
class AttributedInput:
    """What each part of an input adds to its uncertainty, relative to the baseline; in one of three forms."""

    set: SetName
    index: Count
    uncertainty: Number
    at_baseline: Number
    sum: Number  # of all parts; the difference of the two, but for jumps on the way
    map: Grid | None = None  # of an image, over its channels; of a large one, means of neighbouring pixels
    columns: tuple[Part, ...] | None = None  # of a row, the largest first
    tokens: tuple[Number, ...] | None = None  # of a text, in its order
    steps: int | None = None  # on the line from the baseline

    @property
    def rest(self) -> float | None:
        """What the start and the parts are short of the uncertainty."""
        if self.uncertainty is None or self.at_baseline is None or self.sum is None:
            return None
        return self.uncertainty - self.at_baseline - self.sum

    @property
    def missed(self) -> float | None:
        """The rest relative to the rise of the uncertainty."""
        if self.rest is None or self.uncertainty is None or self.at_baseline is None:
            return None
        rise = abs(self.uncertainty - self.at_baseline)
        return self.rest / rise if rise else None

    @property
    def is_shown(self) -> bool:
        """Whether the parts say where the uncertainty comes from: not if most of it is in the rest."""
        return self.missed is None or abs(self.missed) <= TOO_MUCH


@dataclass(frozen=True)
class Attributions:
    """Integrated gradients of the uncertainty of the inputs shown."""

    baseline: str
    steps: Count  # at most
    correlation: Number  # rank correlation with the same of networks whose weights are shuffled, on average
    inputs: tuple[AttributedInput, ...]
    words: Sentences
    measure: str | None = None  # what is attributed: entropy or variance
    unit: str | None = None  # of the parts
    correlations: Numbers | None = None  # of each shuffle

    @property
    def title(self) -> str:
        """What a part is, with its unit: short, as the heading of a narrow column."""
        return f"Adds ({self.unit})" if self.unit else "Adds"

    def of(self, name: SetName, index: int) -> AttributedInput | None:
        """What was found for one of the inputs."""
        return next((one for one in self.inputs if (one.set, one.index) == (name, index)), None)
