"""Which parts of the inputs shown their uncertainty comes from."""

from __future__ import annotations

from dataclasses import dataclass

from whence.report.record.common import Count, Grid, Number, Sentences, SetName


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


@dataclass(frozen=True)
class Attributions:
    """Integrated gradients of the uncertainty of the inputs shown."""

    baseline: str
    steps: Count
    correlation: Number  # rank correlation with the same of a network whose weights are randomised
    inputs: tuple[AttributedInput, ...]
    words: Sentences

    def of(self, name: SetName, index: int) -> AttributedInput | None:
        """What was found for one of the inputs."""
        return next((one for one in self.inputs if (one.set, one.index) == (name, index)), None)
