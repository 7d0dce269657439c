"""Which inputs to answer and which to hand over: a threshold on uncertainty, chosen on validation data.

Index legend: N examples from the most certain on, U different uncertainties.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Unpack

import torch
from torch import Tensor

from whence.errors import BadData, BadOption, notice
from whence.metrics.bootstrap import mean
from whence.metrics.elements import (
    ArrayLike,
    Common,
    Elements,
    Options,
    check_share,
    elements,
    finite,
    fit,
    read,
    relabelled,
    tensor,
)
from whence.metrics.estimate import Estimate
from whence.metrics.selective import Queue, queue

TESTS = 100  # most thresholds that are tested in turn


@dataclass(frozen=True)
class Deferral:
    """A rule, and what it did on the data it was measured on: answer where uncertainty ≤ threshold."""

    threshold: float  # −inf defers everything
    coverage: Estimate  # share that is answered
    error: Estimate | None  # among the answered; None where nothing is
    deferred_error: Estimate | None  # among the deferred; None where nothing is
    aim: str  # "max_error" or "coverage"
    target: float  # the value asked for
    confidence: float | None = None  # with which the error is at most the target

    def __call__(self, uncertainty: ArrayLike) -> Tensor:
        """Whether to answer, for each uncertainty, in its shape."""
        given = finite(tensor(uncertainty, "uncertainty"), "uncertainty")
        return given.double() <= self.threshold

    def check(self, uncertainty: ArrayLike, errors: ArrayLike, **common: Unpack[Common]) -> Deferral:
        """The same threshold, measured on other data."""
        line = _line(uncertainty, errors, read("check", common))
        return _measured(line, self.threshold, self.aim, self.target, self.confidence, read("check", common))

    def __repr__(self) -> str:
        sure = f" with confidence {self.confidence:g}" if self.confidence is not None else ""
        asked = f"error ≤ {self.target:g}{sure}" if self.aim == "max_error" else f"coverage ≥ {self.target:g}"
        lines = [
            f"answer where uncertainty ≤ {self.threshold:.6g}   (asked for: {asked})",
            f"  coverage        {self.coverage}",
            f"  error           {'nothing is answered' if self.error is None else self.error}",
            f"  deferred error  {'nothing is deferred' if self.deferred_error is None else self.deferred_error}",
        ]
        return "\n".join(lines)


def defer(
    uncertainty: ArrayLike,
    errors: ArrayLike,
    *,
    max_error: float | None = None,
    coverage: float | None = None,
    confidence: float | None = None,
    **common: Unpack[Common],
) -> Deferral:
    """Choose the threshold that answers most with an error of at most ``max_error``, or that answers ``coverage``.

    ``errors``: 0 or 1, or any loss in 0..1. With ``confidence`` the true error is at most ``max_error`` with that
    probability: thresholds are tested in turn from the most certain on by the exact binomial bound, up to the
    first that fails (Learn then Test, Angelopoulos et al. 2021, sec. 2.3). Ties are answered all or none.
    """
    options = read("defer", common)
    target, aim = _asked(max_error, coverage, confidence)
    line = _line(uncertainty, errors, options)
    weight, wrong = _cumulated(line)
    if aim == "coverage":
        place = int((weight / weight[-1] >= target - 1e-12).nonzero()[0])
    elif confidence is None:
        good = (wrong <= target * weight * (1 + 1e-12)).nonzero()
        place = int(good[-1]) if len(good) else -1
    else:
        place = _tested(line, weight, wrong, target, confidence)
    threshold = float(line.uncertainty[line.ends[place]]) if place >= 0 else -math.inf
    if place < 0:
        sure = f" with confidence {confidence:g}" if confidence is not None else ""
        notice(
            f"no threshold keeps the error at or below {target:g}{sure} on these {line.elements.count} examples: "
            "everything is deferred. Allow a larger max_error, or give more examples."
        )
    return _measured(line, threshold, aim, target, confidence, options)


def _asked(max_error: float | None, coverage: float | None, confidence: float | None) -> tuple[float, str]:
    if (max_error is None) == (coverage is None):
        raise BadOption("give exactly one of max_error= and coverage=.")
    if confidence is not None and max_error is None:
        raise BadOption("confidence= goes with max_error=, not with coverage=.")
    if confidence is not None:
        check_share(confidence, "confidence", "take 0.95")
    if max_error is not None:
        if not 0 <= max_error < 1:
            raise BadOption(f"max_error={max_error} is not in 0..1; 0.05 allows 5 % errors.")
        if confidence is not None and max_error == 0:
            raise BadOption("max_error=0 cannot be had with any confidence; take a small number.")
        return float(max_error), "max_error"
    assert coverage is not None
    check_share(coverage, "coverage", "0.8 answers 80 %", closed=True)
    return float(coverage), "coverage"


def _line(uncertainty: ArrayLike, errors: ArrayLike, options: Options) -> Queue:
    loss = tensor(errors, "errors")
    if loss.dim() == 0:
        raise BadData("uncertainty and errors need an example dimension: N numbers each.")
    members = elements(loss.shape, options, loss.device)
    loss_of = finite(loss.reshape(-1)[members.keep].double(), "errors")
    if float(loss_of.min()) < 0 or float(loss_of.max()) > 1:
        raise BadData(f"errors lie in {float(loss_of.min()):.4g}..{float(loss_of.max()):.4g}; they must be in 0..1.")
    by = fit(uncertainty, loss.shape, "uncertainty").to(loss.device)[members.keep].double()
    return queue(members, loss_of, finite(by, "uncertainty"))


def _cumulated(line: Queue) -> tuple[Tensor, Tensor]:
    ones = torch.ones(1, line.elements.groups, dtype=torch.float64, device=line.errors.device)
    weight, wrong = line.cumulated(ones)
    return weight[0], wrong[0]


def _tested(line: Queue, weight: Tensor, wrong: Tensor, target: float, confidence: float) -> int:
    """The last of the runs of ties that pass in turn; −1 where the first fails."""
    if bool(((line.errors != 0) & (line.errors != 1)).any()):
        raise BadData("with confidence= the errors must be 0 or 1, for the binomial bound to be exact.")
    if bool((line.elements.weights != 1).any()) or line.elements.group is not None:
        raise BadOption("confidence= needs independent examples of equal weight: neither weights nor groups.")
    total = line.elements.count
    least = _first(total, target, confidence)
    if least > total:
        return -1
    sizes = torch.linspace(least, total, min(TESTS, total - least + 1), dtype=torch.float64).round()
    places = torch.searchsorted(weight.cpu(), sizes).unique().tolist()
    passed = -1
    for place in places:
        if binomial_below(int(wrong[place]), int(weight[place]), target) > 1 - confidence:
            break
        passed = place
    return passed


def _first(total: int, target: float, confidence: float) -> int:
    """How many of the most certain the first test is of; decided by numbers alone, not by the data.

    The fewest that may hold three errors, if that is a third of all at most; else two, one or none.
    """
    fewest = 0
    for errors in (3, 2, 1, 0):
        low, high = errors, 2 * (errors + 1)
        while binomial_below(errors, high, target) > 1 - confidence:
            low, high = high, 2 * high
        while high - low > 1:
            middle = (low + high) // 2
            low, high = (low, middle) if binomial_below(errors, middle, target) <= 1 - confidence else (middle, high)
        fewest = high
        if fewest <= total / 3:
            break
    return fewest


def binomial_below(most: int, trials: int, share: float) -> float:
    """P(at most ``most`` of ``trials``), each with probability ``share``."""
    k = torch.arange(most + 1, dtype=torch.float64)
    n = torch.tensor(float(trials), dtype=torch.float64)
    ways = torch.lgamma(n + 1) - torch.lgamma(k + 1) - torch.lgamma(n - k + 1)
    log_p = ways + k * math.log(share) + (n - k) * math.log1p(-share)
    return min(1.0, float(log_p.logsumexp(0).exp()))


def _measured(
    line: Queue, threshold: float, aim: str, target: float, confidence: float | None, options: Options
) -> Deferral:
    kept = line.uncertainty <= threshold
    coverage = mean("coverage", kept.double(), line.elements, options, (0.0, 1.0))
    return Deferral(
        threshold=threshold,
        coverage=coverage,
        error=_part("error", line, kept, options),
        deferred_error=_part("deferred_error", line, ~kept, options),
        aim=aim,
        target=target,
        confidence=confidence,
    )


def _part(name: str, line: Queue, which: Tensor, options: Options) -> Estimate | None:
    """Mean error of some of the examples, or None of none."""
    at = which.nonzero().flatten()
    if not len(at):
        return None
    whole = line.elements
    group, size = (None, len(at)) if whole.group is None else relabelled(whole.group[at])
    return mean(name, line.errors[at], Elements(whole.keep[at], whole.weights[at], group, (size,)), options, (0.0, 1.0))
