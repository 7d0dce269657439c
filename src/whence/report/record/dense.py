"""Inputs with an answer for every pixel or token, as the section on inputs shows them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, NamedTuple

from whence.report.record.common import Count, Grid, Number


@dataclass(frozen=True)
class DenseMaps:
    """Maps over the image: what is predicted, how uncertain it is, and where it is wrong.

    Uncertainties and errors of large images are means of neighbouring pixels; predicted classes are those of some of
    them.
    """

    kind: Literal["classes", "numbers"]
    predicted: Grid
    names: tuple[str, ...] | None  # of classes, by number
    measure: str  # of uncertainty
    total: Grid
    epistemic: Grid | None
    wrong: Grid | None  # part of the pixels that is wrong, or the absolute error; None where the truth is ignored
    pixels: Count  # pixels with a known truth
    mistakes: Count | None  # of these
    truth: Grid | None = None  # true classes, where they are known


class Token(NamedTuple):
    """A token, and the prediction at its position if there is one for every token."""

    text: str
    uncertainty: Number
    epistemic: Number
    predicted: str | None
    target: str | None
    correct: bool | None
