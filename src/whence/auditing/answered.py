"""Which answers are deferred: about whole inputs, or about each label of an input; and how many of them are wrong."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from whence.auditing.context import Context, Kind
from whence.auditing.tasks import Classes, Labels, Task
from whence.errors import NotDefined
from whence.metrics import Estimate as Measured
from whence.metrics.proportions import clustered_share, share_of

USUAL = 0.8  # share of the validation answers that the rule of all tables gives


@dataclass(frozen=True)
class Answers:
    """Answers with their uncertainties: one for each input [N], or for each of K labels of an input [N, K].

    An answer about an image or a text has a label for every pixel or token.
    """

    uncertainty: Tensor
    wrong: Tensor  # float64, wrong labels of each answer
    labels: Tensor  # float64, labels of each answer that have a truth

    @property
    def several(self) -> bool:
        return self.uncertainty.dim() > 1

    @property
    def single(self) -> bool:
        """Whether there is one label for each input."""
        return not self.several and bool((self.labels == 1).all())

    def error(self, which: Tensor) -> Measured | None:
        """The error rate of some answers (bool, in the shape of ``uncertainty``), with an exact interval; None if there
        are none. Labels of one input are not independent."""
        hits, trials = (torch.where(which, part, 0.0).reshape(len(part), -1).sum(1) for part in self._parts)
        if self.single:
            return share_of("error", int(hits.sum()), int(trials.sum()))
        return clustered_share("error", hits, trials)

    def change(self, which: Tensor) -> Measured | None:
        """The error rate of some answers minus that of all; None if all or none are some.

        It is the share of the others times the difference from them, whose interval follows from both (Zou & Donner
        2008, Stat. Med. 27, eq. 5; with exact intervals).
        """
        some, others = self.error(which), self.error(~which)
        if some is None or others is None:
            return None
        part = (
            float(self.labels[~which].sum() / self.labels.sum()) if not self.several else 1 - float(self.share(which))
        )
        apart = float(some) - float(others)
        below = math.hypot(float(some) - some.low, others.high - float(others))
        above = math.hypot(some.high - float(some), float(others) - others.low)
        return Measured(
            part * apart, part * (apart - below), part * (apart + above), some.level, len(self.wrong), 0, "change"
        )

    def share(self, which: Tensor) -> Measured:
        """The share of some answers among all."""
        if self.several:
            found = clustered_share("coverage", which.double().sum(1), torch.ones_like(self.labels).sum(1))
        else:
            found = share_of("coverage", int(which.sum()), len(which))
        assert found is not None
        return found

    @property
    def _parts(self) -> tuple[Tensor, Tensor]:
        return self.wrong, self.labels


def several_labels(context: Context, name: str = "test") -> bool:
    """Whether each input has several labels of two values."""
    return has_several(context.task, context.prediction(name))


def has_several(task: Task, prediction: Any) -> bool:
    if not isinstance(task, Labels) or isinstance(task, Classes):
        return False
    return prediction.probs.dim() == 2 and prediction.probs.shape[1] > 1


def uncertainty_of(context: Context, name: str, kind: Kind = Kind.BAYESIAN) -> Tensor:
    """The uncertainty of each answer."""
    if several_labels(context, name):
        return context.prediction(name, kind).entropy.detach().double().cpu()
    return context.uncertainty(name, kind)


def answers_of(context: Context, name: str, kind: Kind = Kind.BAYESIAN) -> Answers:
    """The answers of a set; NotDefined if they are neither right nor wrong."""
    prediction, targets = context.prediction(name, kind), context.need_targets(name)
    return answers_given(context.task, prediction, targets, uncertainty_of(context, name, kind))


def answers_given(task: Task, prediction: Any, targets: Tensor, uncertainty: Tensor) -> Answers:
    labels = getattr(prediction, "labels", None)
    if labels is None or labels.numel() != targets.numel():
        raise NotDefined("there is not one label for each target, so answers are neither right nor wrong.")
    several = has_several(task, prediction)
    shape = tuple(labels.shape) if several else (len(targets), -1)
    counted = (targets >= 0).reshape(shape)
    wrong = (labels.cpu().reshape(shape) != targets.reshape(shape)) & counted
    if not several:
        wrong, counted = wrong.sum(1), counted.sum(1)
    return Answers(uncertainty, wrong.double(), counted.double())


def coverage_threshold(uncertainty: Tensor, coverage: float) -> float:
    """The smallest uncertainty up to which at least this share lies."""
    ordered = uncertainty.reshape(-1).sort().values
    return float(ordered[quantile_index(len(ordered), coverage)])


def quantile_index(count: int, coverage: float) -> int:
    """The place of that uncertainty among ``count`` sorted ones."""
    return max(0, math.ceil(coverage * count - 1e-9) - 1)


def usual_deferral(context: Context) -> Tensor | None:
    """Which answers about the test data the rule that gives USUAL of the validation answers defers; None without it."""
    validation = context.sets.get("validation")
    if validation is None or validation.targets is None:
        return None
    return uncertainty_of(context, "test") > usual_threshold(context)


def usual_threshold(context: Context) -> float:
    return coverage_threshold(uncertainty_of(context, "validation"), USUAL)
