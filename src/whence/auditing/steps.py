"""Error and coverage on test data at any threshold of the uncertainty.

Index legend: N inputs, K answers about each, A answers by increasing uncertainty, U thresholds, B resamples.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from whence.auditing.answered import Answers
from whence.auditing.context import Context
from whence.auditing.data import spaced
from whence.metrics.elements import MetricOptions, elements
from whence.metrics.intervals import Estimate as Measured
from whence.metrics.intervals import resamples
from whence.metrics.means import LEAST, mean
from whence.metrics.proportions import clustered_share, share_of, t_quantile
from whence.report.record.audit import DeferralStep
from whence.report.record.common import Estimate, RejectionCurve

STEPS = 200
CURVE = 100  # points of error against coverage
TINY = 1e-12
FEWEST = 10  # predicted numbers that are answered


@dataclass(frozen=True)
class Ordered:
    """Answers by increasing uncertainty."""

    uncertainty: Tensor  # [A] in increasing order
    order: Tensor  # [A]
    ends: Tensor  # the last answer of every different uncertainty

    @classmethod
    def by(cls, uncertainty: Tensor) -> Ordered:
        order = uncertainty.argsort(stable=True)
        ordered = uncertainty[order]
        last = torch.ones_like(ordered, dtype=torch.bool)
        last[:-1] = ordered[1:] != ordered[:-1]
        return cls(ordered, order, last.nonzero().flatten())

    def until(self, thresholds: Sequence[float], fewest: int = 1) -> dict[int, float]:
        """The last answer below each threshold, and that threshold; without those that answer too few or all."""
        wanted = torch.tensor(list(thresholds), dtype=self.uncertainty.dtype)
        ends = (torch.searchsorted(self.uncertainty, wanted, right=True) - 1).tolist()
        return {e: t for e, t in zip(ends, thresholds, strict=True) if fewest - 1 <= e < len(self.uncertainty) - 1}

    def some(self, most: int, fewest: int = 1) -> Tensor:
        """At most ``most`` of the ends, evenly spaced in coverage; with ``fewest`` answers up to the first."""
        ends = self.ends[self.ends >= min(fewest, len(self.uncertainty)) - 1]
        if len(ends) <= most:
            return ends
        wanted = spaced(len(self.uncertainty), most + 1)[1:]
        return ends[torch.searchsorted(ends, wanted).clamp(max=len(ends) - 1)].unique()

    def step(self, end: int, error: Measured | None, threshold: float | None = None) -> DeferralStep:
        """By default with the uncertainty of the last answer as its threshold."""
        found, total = Estimate.of(error), len(self.uncertainty)
        assert found is not None  # something is answered
        threshold = float(self.uncertainty[end]) if threshold is None else threshold
        return DeferralStep(threshold, end + 1, total - end - 1, (end + 1) / total, found)


# Labels


def label_steps(answers: Answers, thresholds: Sequence[float] = ()) -> tuple[DeferralStep, ...]:
    """Error rates with exact intervals; where labels are not independent, with those of as many that are.

    At many thresholds, with the given ones among them.
    """
    wrong, labels = answers.wrong.reshape(-1), answers.labels.reshape(-1)
    count = len(answers.wrong)
    owner = torch.arange(count).repeat_interleave(wrong.numel() // count)
    ordered = Ordered.by(answers.uncertainty.reshape(-1))
    found, given = [], ordered.until(thresholds)
    for end in sorted({*ordered.some(STEPS).tolist(), *given}):
        mine = ordered.order[: end + 1]
        if answers.single:
            error = share_of("error", int(wrong[mine].sum()), end + 1)
        else:
            hits, trials = (torch.bincount(owner[mine], part[mine], count) for part in (wrong, labels))
            error = clustered_share("error", hits, trials)
        if error is not None:
            found.append(ordered.step(end, error, given.get(end)))
    return tuple(found)


def label_curve(answers: Answers) -> RejectionCurve:
    """The error rate of the most certain answers against their share."""
    ordered = Ordered.by(answers.uncertainty.reshape(-1))
    wrong, labels = (part.reshape(-1)[ordered.order].cumsum(0) for part in (answers.wrong, answers.labels))
    ends = ordered.some(CURVE)
    ends = ends[labels[ends] > 0]
    coverage = (ends + 1) / len(ordered.order)
    return RejectionCurve(tuple(coverage.tolist()), tuple((wrong / labels)[ends].tolist()))


# Numbers


@dataclass(frozen=True)
class NumberAnswers:
    """Squared errors of predicted numbers, means over the outputs of an input, with their uncertainties; [N] each."""

    uncertainty: Tensor
    squared: Tensor
    seed: int = 0

    def steps(self, thresholds: Sequence[float] = ()) -> tuple[DeferralStep, ...]:
        """Root mean squared errors at many thresholds, with the given ones among them."""
        ordered = Ordered.by(self.uncertainty)
        given = ordered.until(thresholds, min(FEWEST, len(self.uncertainty)))
        ends = sorted({*ordered.some(STEPS, FEWEST).tolist(), *given})
        errors = self._errors(ordered, torch.tensor(ends))
        return tuple(ordered.step(end, error, given.get(end)) for end, error in zip(ends, errors, strict=True))

    def errors(self, thresholds: Sequence[float]) -> list[Measured | None]:
        """Root mean squared errors up to each threshold; None where nothing is answered."""
        ordered = Ordered.by(self.uncertainty)
        ends = torch.searchsorted(ordered.uncertainty, torch.tensor(thresholds, dtype=torch.float64), right=True) - 1
        found = self._errors(ordered, ends.clamp(min=0))
        return [error if end >= 0 else None for end, error in zip(ends.tolist(), found, strict=True)]

    def error_of(self, which: Tensor) -> Measured | None:
        """The root mean squared error of some inputs; None if there are none."""
        at = which.nonzero().flatten()
        members = elements(self.squared.shape, MetricOptions(seed=self.seed), self.squared.device)
        return mean("error", self.squared[at], members.subset(at), root=True) if len(at) else None

    def change(self, which: Tensor) -> Measured | None:
        """The root mean squared error of some inputs minus that of all, by the linearised difference and Student's t.

        There are as many degrees of freedom as the smaller of the two kinds allows.
        """
        fewest, count = min(int(which.sum()), int((~which).sum())), len(which)
        if fewest < 2:
            return None
        value, influence = 0.0, torch.zeros_like(self.squared)
        for sign, kind in ((1.0, which), (-1.0, torch.ones_like(which))):
            square = self.squared[kind].mean()
            root = square.sqrt().clamp(min=TINY)
            value += sign * float(root)
            influence += sign * torch.where(kind, self.squared - square, 0.0) / kind.sum() / (2 * root)
        reach = t_quantile(0.975, fewest - 1) * float(influence.square().sum() * count / (count - 1)) ** 0.5
        return Measured(value, value - reach, value + reach, 0.95, count, 0, "change")

    def _errors(self, ordered: Ordered, ends: Tensor) -> list[Measured]:
        """With studentised bootstrap intervals; the last one is that of ``metrics.rmse`` of all inputs."""
        by_size = self.squared.argsort(stable=True)  # in which metrics.means draws them
        place = torch.empty_like(by_size)
        place[by_size] = torch.arange(len(by_size))
        place, squared = place[ordered.order], self.squared[ordered.order]
        members = elements(squared.shape, MetricOptions(seed=self.seed), squared.device)
        value, error = _cumulated(members.once, squared, ends)
        drawn = [_cumulated(counts[:, place], squared, ends) for counts in resamples(members, per_element=True)]
        means, errors = (torch.cat(part) for part in zip(*drawn, strict=True))  # [B, U]
        t = ((means - value) / torch.maximum(errors, LEAST * error)).nan_to_num(0.0, 0.0, 0.0)
        tails = torch.quantile(t, torch.tensor([0.975, 0.025], dtype=torch.float64), dim=0)
        low, high = (value - tails * error).clamp(min=0).sqrt()
        rows = zip(value[0].sqrt().tolist(), low.tolist(), high.tolist(), ends.tolist(), strict=True)
        return [Measured(middle, least, most, 0.95, end + 1) for middle, least, most, end in rows]


def number_answers(context: Context, name: str) -> NumberAnswers:
    """Of the predictions of a set."""
    centre = context.prediction(name).mean.detach().double().cpu()
    squared = (centre - context.need_targets(name).double().reshape(centre.shape)).square()
    return NumberAnswers(context.uncertainty(name), squared.reshape(len(squared), -1).mean(1), context.seed)


def _cumulated(counts: Tensor, values: Tensor, ends: Tensor) -> tuple[Tensor, Tensor]:
    """Mean of the values up to each end, and its standard error, in every row of counts [B, N]; [B, U] each."""
    number = counts.cumsum(1)[:, ends]
    total, squares = ((counts * part).cumsum(1)[:, ends] for part in (values, values.square()))
    found = total / number
    variance = (squares / number - found.square()).clamp(min=0)
    return found, (variance / (number - 1).clamp(min=1)).sqrt()


def is_even(uncertainty: Tensor, relative: float = 0.01) -> bool:
    """Whether uncertainties are so similar that their order says nothing."""
    return math.isclose(float(uncertainty.std()), 0, abs_tol=relative * float(uncertainty.mean()))
