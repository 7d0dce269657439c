"""Which answers are deferred: one for each input, or one for each label of an input."""

from __future__ import annotations

import math
from dataclasses import dataclass

from torch import Tensor

from whence.auditing.context import Context, Kind
from whence.auditing.tasks import Classes, Labels
from whence.errors import NotDefined

USUAL = 0.8  # share of the validation answers that the rule of all tables gives


@dataclass(frozen=True)
class Answers:
    """Answers that are right or wrong, with their uncertainties: [N], or [N, K] for K labels of each input."""

    uncertainty: Tensor
    wrong: Tensor  # float64


def several_labels(context: Context, name: str = "test") -> bool:
    """Whether each input has several labels of two values."""
    if not isinstance(context.task, Labels) or isinstance(context.task, Classes):
        return False
    probs = context.prediction(name).probs
    return probs.dim() == 2 and probs.shape[1] > 1


def uncertainty_of(context: Context, name: str, kind: Kind = Kind.BAYESIAN) -> Tensor:
    """The uncertainty of each answer."""
    if several_labels(context, name):
        return context.prediction(name, kind).entropy.detach().double().cpu()
    return context.uncertainty(name, kind)


def answers_of(context: Context, name: str, kind: Kind = Kind.BAYESIAN) -> Answers:
    """The answers of a set; NotDefined unless there is one label for each input, or a row of binary labels."""
    prediction, targets = context.prediction(name, kind), context.need_targets(name)
    labels = getattr(prediction, "labels", None)
    one = labels is not None and labels.numel() == targets.numel() == len(targets)
    if not one and not several_labels(context, name):
        raise NotDefined("there is not one label per input, so answers are neither right nor wrong.")
    assert labels is not None
    shape = (len(targets),) if one else tuple(labels.shape)
    wrong = labels.cpu().reshape(shape) != targets.reshape(shape)
    return Answers(uncertainty_of(context, name, kind), wrong.double())


def coverage_threshold(uncertainty: Tensor, coverage: float) -> float:
    """The smallest uncertainty up to which at least this share lies."""
    ordered = uncertainty.reshape(-1).sort().values
    return float(ordered[max(0, math.ceil(coverage * len(ordered) - 1e-9) - 1)])


def usual_deferral(context: Context) -> Tensor | None:
    """Which answers about the test data the rule that gives USUAL of the validation answers defers; None without it."""
    validation = context.sets.get("validation")
    if validation is None or validation.targets is None:
        return None
    return uncertainty_of(context, "test") > coverage_threshold(uncertainty_of(context, "validation"), USUAL)
