"""Selective prediction: risk against coverage, and deferral thresholds chosen on validation data.

Index legend: N elements, the most certain first, U distinct uncertainties, B rows of weights.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, fields, replace
from typing import Any, Literal, Unpack

import torch
from torch import Tensor

from whence.errors import BadData, BadOption, fraction, notice
from whence.metrics.classification import read_labels
from whence.metrics.elements import (
    ArrayLike,
    Common,
    Elements,
    ForLabels,
    MetricOptions,
    elements,
    finite,
    per_element,
    tensor,
)
from whence.metrics.intervals import SHARE, Estimate, bootstrap
from whence.metrics.means import mean, share
from whence.tables import Table

Aim = Literal["max_error", "coverage"]
TESTS = 100  # largest number of thresholds tested in turn


@dataclass(frozen=True)
class Ranked:
    """Elements by increasing uncertainty, with their errors."""

    elements: Elements
    errors: Tensor  # [N], in 0..1
    uncertainty: Tensor  # [N], ascending
    ends: Tensor  # [U] last element of each run of ties

    @classmethod
    def by(cls, uncertainty: Tensor, errors: Tensor, elements: Elements) -> Ranked:
        order = uncertainty.argsort(stable=True)
        uncertainty = uncertainty[order]
        last = torch.ones_like(uncertainty, dtype=torch.bool)
        last[:-1] = uncertainty[1:] != uncertainty[:-1]
        return cls(elements.sorted_by(order), errors[order], uncertainty, last.nonzero().flatten())

    def cumulated(self, counts: Tensor) -> tuple[Tensor, Tensor]:
        """Weight, and weight in error, of all elements up to the end of each run of ties, [B, U] each."""
        rows = self.elements.rows(counts)
        weight, wrong = rows.cumsum(1), (rows * self.errors).cumsum(1)
        if len(self.ends) == len(self.errors):
            return weight, wrong
        return weight.index_select(1, self.ends), wrong.index_select(1, self.ends)

    def curve(self) -> tuple[Tensor, Tensor]:
        """The same for the data itself, [U] each."""
        weight, wrong = self.cumulated(self.elements.once)
        return weight[0], wrong[0]


def _ranked_labels(
    metric: str, prediction: Any, targets: ArrayLike, uncertainty: ArrayLike | None, common: ForLabels
) -> Ranked:
    """Labels ranked by the given uncertainty, or by 1 − the largest probability."""
    found = read_labels(metric, prediction, targets, common)
    by = 1 - found.confidence if uncertainty is None else found.per_element(uncertainty, "uncertainty")
    return Ranked.by(by, 1 - found.correct, found.elements)


# Risk against coverage


def aurc(
    prediction: Any,
    targets: ArrayLike,
    *,
    uncertainty: ArrayLike | None = None,
    excess: bool = False,
    **common: Unpack[ForLabels],
) -> Estimate:
    """Area under the risk-coverage curve: mean over k of the error among the k most certain (Geifman et al. 2019).

    Ties count with their expected value over random orders. ``excess=True`` subtracts the area of the best
    possible order. Weights are scaled to a mean of 1, then count as repeats, which are ties.
    """
    ranked = _ranked_labels("aurc", prediction, targets, uncertainty, common)
    weights = ranked.elements.weights
    ranked = replace(ranked, elements=replace(ranked.elements, weights=weights / weights.mean()))

    def area(counts: Tensor) -> Tensor:
        weight, wrong = ranked.cumulated(counts)
        run, errors = weight.diff(dim=1, prepend=weight[:, :1] * 0), wrong.diff(dim=1, prepend=wrong[:, :1] * 0)
        rate = torch.where(run > 0, errors / run, 0.0)
        harmonic = torch.digamma(weight + 1)
        start = harmonic.new_full((len(harmonic), 1), float(torch.digamma(torch.ones((), dtype=torch.float64))))
        # Σ_j (A + j e) / (K + j) over a run of m ties with error rate e, after K elements with A errors
        extra = (wrong - errors - (weight - run) * rate) * harmonic.diff(dim=1, prepend=start)
        total, lost = weight[:, -1], wrong[:, -1]
        found = lost + extra.sum(1)
        if excess:
            right = total - lost
            found = found - lost + right * (torch.digamma(total + 1) - torch.digamma(right + 1))
        return found / total

    return bootstrap("excess_aurc" if excess else "aurc", area, ranked.elements, SHARE, per_element=True)


def selective_accuracy(
    prediction: Any,
    targets: ArrayLike,
    *,
    coverage: float = 0.8,
    uncertainty: ArrayLike | None = None,
    **common: Unpack[ForLabels],
) -> Estimate:
    """Accuracy of the most certain fraction ``coverage``; ties at the threshold count in part."""
    fraction(coverage, "coverage", "0.8 keeps the 80% most certain", one=True)
    ranked = _ranked_labels("selective_accuracy", prediction, targets, uncertainty, common)

    def accuracy(counts: Tensor) -> Tensor:
        weight, wrong = ranked.cumulated(counts)
        kept = weight[:, -1:] * coverage
        at = torch.searchsorted(weight, kept * (1 - 1e-12)).clamp(max=weight.shape[1] - 1)
        before = (at - 1).clamp(min=0)
        first = at == 0
        weight_0 = torch.where(first, 0.0, weight.gather(1, before))
        wrong_0 = torch.where(first, 0.0, wrong.gather(1, before))
        share = ((kept - weight_0) / (weight.gather(1, at) - weight_0)).clamp(max=1)
        lost = wrong_0 + share * (wrong.gather(1, at) - wrong_0)
        return (1 - lost / kept).squeeze(1)

    trials = max(1, int(coverage * ranked.elements.groups))
    return bootstrap("selective_accuracy", accuracy, ranked.elements, SHARE, trials, per_element=True)


@dataclass(frozen=True)
class RiskCoverage:
    """Error among the kept for every threshold: keep where uncertainty ≤ threshold."""

    coverage: Tensor  # [U] share that is kept
    risk: Tensor  # [U] error among the kept
    threshold: Tensor  # [U], ascending

    def to_pandas(self) -> Any:
        """The table as a ``pandas.DataFrame``."""
        return Table({f.name: getattr(self, f.name) for f in fields(self)}).to_pandas()


def risk_coverage(
    prediction: Any, targets: ArrayLike, *, uncertainty: ArrayLike | None = None, **common: Unpack[ForLabels]
) -> RiskCoverage:
    """The risk-coverage curve (El-Yaniv & Wiener 2010), one row per distinct uncertainty."""
    ranked = _ranked_labels("risk_coverage", prediction, targets, uncertainty, common)
    weight, wrong = ranked.curve()
    return RiskCoverage(weight / weight[-1], wrong / weight, ranked.uncertainty[ranked.ends])


# Deferral


@dataclass(frozen=True)
class Deferral:
    """A rule, answer where uncertainty ≤ threshold, and its scores on the data it was measured on."""

    threshold: float  # −inf defers everything
    coverage: Estimate  # share that is answered
    error: Estimate | None  # among the answered; None if there are none
    deferred_error: Estimate | None  # among the deferred; None if there are none
    aim: Aim
    target: float  # the requested value
    confidence: float | None = None  # with which the error is at most the target

    def __call__(self, uncertainty: ArrayLike) -> Tensor:
        """Whether to answer, for each uncertainty, in its shape."""
        given = finite(tensor(uncertainty, "uncertainty"), "uncertainty")
        return given.double() <= self.threshold

    def check(self, uncertainty: ArrayLike, errors: ArrayLike, **common: Unpack[Common]) -> Deferral:
        """The same threshold, measured on other data."""
        ranked = _ranked_errors("check", uncertainty, errors, common)
        return _measured(ranked, self.threshold, self.aim, self.target, self.confidence)

    def __repr__(self) -> str:
        sure = f" with confidence {self.confidence:g}" if self.confidence is not None else ""
        asked = {"max_error": f"error ≤ {self.target:g}{sure}", "coverage": f"coverage ≥ {self.target:g}"}[self.aim]
        lines = [
            f"answer where uncertainty ≤ {self.threshold:.6g}   (target: {asked})",
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
    """Choose the threshold that answers most inputs with an error of at most ``max_error``, or ``coverage`` of them.

    ``errors``: 0 or 1, or any loss in 0..1. With ``confidence`` the true error is at most ``max_error`` with that
    probability: thresholds are tested from the most certain on by the exact binomial bound, up to the
    first that fails (Learn then Test, Angelopoulos et al. 2021, sec. 2.3). Ties are answered together.
    """
    aim, target = _aim(max_error, coverage, confidence)
    ranked = _ranked_errors("defer", uncertainty, errors, common)
    weight, wrong = ranked.curve()
    if max_error is None:
        place = int((weight / weight[-1] >= target - 1e-12).nonzero()[0])
    elif confidence is None:
        good = (wrong <= target * weight * (1 + 1e-12)).nonzero()
        place = int(good[-1]) if len(good) else -1
    else:
        place = _last_that_passes(ranked, weight, wrong, target, confidence)
    if place < 0:
        sure = f" with confidence {confidence:g}" if confidence is not None else ""
        notice(
            f"no threshold keeps the error at or below {target:g}{sure} on these {ranked.elements.count} examples: "
            "everything is deferred. Allow a larger max_error, or give more examples."
        )
    threshold = float(ranked.uncertainty[ranked.ends[place]]) if place >= 0 else -math.inf
    return _measured(ranked, threshold, aim, target, confidence)


def _aim(max_error: float | None, coverage: float | None, confidence: float | None) -> tuple[Aim, float]:
    """The requested aim, checked."""
    if (max_error is None) == (coverage is None):
        raise BadOption("give exactly one of max_error= and coverage=.")
    if confidence is not None:
        if max_error is None:
            raise BadOption("confidence= applies only to max_error=, not to coverage=.")
        fraction(confidence, "confidence", "use 0.95")
        if max_error == 0:
            raise BadOption("max_error=0 cannot be guaranteed with any confidence; use a small number.")
    if max_error is None:
        return "coverage", fraction(coverage, "coverage", "0.8 answers 80%", one=True)
    if not 0 <= max_error < 1:
        raise BadOption(f"max_error={max_error} is not in 0..1; 0.05 allows 5% errors.")
    return "max_error", float(max_error)


def _ranked_errors(metric: str, uncertainty: ArrayLike, errors: ArrayLike, common: Common) -> Ranked:
    given = tensor(errors, "errors")
    if given.dim() == 0:
        raise BadData("uncertainty and errors need an example dimension: N numbers each.")
    members = elements(given.shape, MetricOptions.read(metric, common), given.device)
    wrong = finite(given.reshape(-1)[members.keep].double(), "errors")
    if float(wrong.min()) < 0 or float(wrong.max()) > 1:
        raise BadData(f"errors are in {float(wrong.min()):.4g}..{float(wrong.max()):.4g}; they must be in 0..1.")
    by = per_element(uncertainty, given.shape, "uncertainty").to(given.device)[members.keep].double()
    return Ranked.by(finite(by, "uncertainty"), wrong, members)


def _measured(ranked: Ranked, threshold: float, aim: Aim, target: float, confidence: float | None) -> Deferral:
    """The rule and its scores on these examples."""
    answered = ranked.uncertainty <= threshold
    binary = bool(((ranked.errors == 0) | (ranked.errors == 1)).all())

    def error(name: str, which: Tensor) -> Estimate | None:
        at = which.nonzero().flatten()
        if not len(at):
            return None
        errors, some = ranked.errors[at], ranked.elements.subset(at)
        return share(name, errors, some) if binary else mean(name, errors, some, SHARE)

    return Deferral(
        threshold=threshold,
        coverage=share("coverage", answered, ranked.elements),
        error=error("error", answered),
        deferred_error=error("deferred_error", ~answered),
        aim=aim,
        target=target,
        confidence=confidence,
    )


def _last_that_passes(ranked: Ranked, weight: Tensor, wrong: Tensor, target: float, confidence: float) -> int:
    """The last of the runs of ties that pass the binomial test in turn; −1 if the first fails."""
    if bool(((ranked.errors != 0) & (ranked.errors != 1)).any()):
        raise BadData("with confidence= the errors must be 0 or 1, for the binomial bound to be exact.")
    if bool((ranked.elements.weights != 1).any()) or ranked.elements.group is not None:
        raise BadOption("confidence= needs independent examples of equal weight: neither weights nor groups.")
    total = ranked.elements.count
    fewest = _first_test(total, target, confidence)
    if fewest > total:
        return -1
    sizes = torch.linspace(fewest, total, min(TESTS, total - fewest + 1), dtype=torch.float64).round()
    passed = -1
    for place in torch.searchsorted(weight.cpu(), sizes).unique().tolist():
        if binomial_below(int(wrong[place]), int(weight[place]), target) > 1 - confidence:
            break
        passed = place
    return passed


def _first_test(total: int, target: float, confidence: float) -> int:
    """Number of elements in the first test; it must depend only on the number of examples.

    The smallest number that passes with three errors if that is at most a third of all; else with two, one or none.
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
