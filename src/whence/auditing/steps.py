"""Error and coverage on test data at many thresholds, for a threshold that the reader moves.

Index legend: N inputs, K answers about each, A answers by increasing uncertainty, U thresholds, B resamples.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from whence.auditing.answered import Answers
from whence.auditing.data import spaced
from whence.metrics.elements import MetricOptions, elements
from whence.metrics.few import LEAST
from whence.metrics.intervals import Estimate as Measured
from whence.metrics.intervals import resamples
from whence.metrics.proportions import clustered_share, share_of
from whence.report.record.audit import DeferralStep
from whence.report.record.common import Estimate

STEPS = 200
FEWEST = 10  # predicted numbers that are answered


def label_steps(answers: Answers) -> tuple[DeferralStep, ...]:
    """Error rates with exact intervals; of several labels, with those of as many independent ones."""
    uncertainty, wrong = answers.uncertainty.reshape(-1), answers.wrong.reshape(-1)
    owner = torch.arange(len(answers.wrong)).repeat_interleave(wrong.numel() // len(answers.wrong))
    ordered, order, ends = _ordered(uncertainty, 1)
    several = answers.wrong.dim() > 1
    found = []
    for end in ends.tolist():
        mine = order[: end + 1]
        if several:
            trials = torch.bincount(owner[mine], minlength=len(answers.wrong))
            hits = torch.bincount(owner[mine], wrong[mine], len(answers.wrong))
            error = clustered_share("error", hits, trials)
        else:
            error = share_of("error", int(wrong[mine].sum()), end + 1)
        found.append(_step(float(ordered[end]), end + 1, len(wrong), error))
    return tuple(found)


def number_steps(uncertainty: Tensor, squared: Tensor, seed: int = 0) -> tuple[DeferralStep, ...]:
    """Root mean squared errors with studentised bootstrap intervals, from squared errors of inputs [N]."""
    ordered, order, ends = _ordered(uncertainty, FEWEST)
    value, error = _cumulated(torch.ones(1, len(order), dtype=torch.float64), squared[order], ends)
    members = elements(order.shape, MetricOptions(seed=seed), order.device)
    drawn = [_cumulated(counts, squared[order], ends) for counts in resamples(members, per_element=True)]
    means, errors = (torch.cat(part) for part in zip(*drawn, strict=True))  # [B, U]
    t = ((means - value) / torch.maximum(errors, LEAST * error)).nan_to_num(0.0, 0.0, 0.0)
    tails = torch.quantile(t, torch.tensor([0.975, 0.025], dtype=torch.float64), dim=0)
    low, high = (value - tails * error).clamp(min=0).sqrt()
    found = []
    for i, end in enumerate(ends.tolist()):
        rmse = Measured(math.sqrt(float(value[0, i])), float(low[i]), float(high[i]), 0.95, end + 1)
        found.append(_step(float(ordered[end]), end + 1, len(order), rmse))
    return tuple(found)


def _ordered(uncertainty: Tensor, fewest: int) -> tuple[Tensor, Tensor, Tensor]:
    """Uncertainties in increasing order [A], their order [A], and the last answers of up to STEPS thresholds [U]."""
    order = uncertainty.argsort(stable=True)
    ordered = uncertainty[order]
    last = torch.ones_like(ordered, dtype=torch.bool)
    last[:-1] = ordered[1:] != ordered[:-1]
    ends = last.nonzero().flatten()
    some = ends[ends >= min(fewest, len(ordered)) - 1]
    if len(some) <= STEPS:
        return ordered, order, some
    wanted = spaced(len(ordered), STEPS + 1)[1:]  # evenly spaced in coverage
    return ordered, order, some[torch.searchsorted(some, wanted).clamp(max=len(some) - 1)].unique()


def _cumulated(counts: Tensor, values: Tensor, ends: Tensor) -> tuple[Tensor, Tensor]:
    """Mean of the values up to each end, and its standard error, in every row of counts [B, N]; [B, U] each."""
    number = counts.cumsum(1)[:, ends]
    total, squares = ((counts * part).cumsum(1)[:, ends] for part in (values, values.square()))
    mean = total / number
    variance = (squares / number - mean.square()).clamp(min=0)
    return mean, (variance / (number - 1).clamp(min=1)).sqrt()


def _step(threshold: float, answered: int, total: int, error: Measured | None) -> DeferralStep:
    found = Estimate.of(error)
    assert found is not None  # something is answered
    return DeferralStep(threshold, answered, total - answered, answered / total, found)
