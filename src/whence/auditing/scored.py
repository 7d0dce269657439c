"""The test data element by element: losses, errors and deferral of every answer, from which groups are scored.

Index legend: N inputs, M scored elements (one of an input, or one for each of its labels, outputs or pixels).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from whence.auditing.answered import several_labels, usual_deferral, usual_threshold
from whence.auditing.context import Context, Kind
from whence.auditing.steps import number_answers
from whence.auditing.tasks import Numbers
from whence.errors import WhenceError
from whence.metrics.classification import read_labels
from whence.metrics.elements import Elements
from whence.metrics.intervals import UNBOUNDED, Bounds, Estimate
from whence.metrics.means import mean, share
from whence.metrics.regression import read_numbers

OF = 0.95  # probability of the intervals of predicted numbers


@dataclass(frozen=True)
class Quantity:
    """A value for every element, whose mean over a group is a metric."""

    values: Tensor  # [M]
    share: bool = False  # true or false
    root: bool = False
    bounds: Bounds = UNBOUNDED

    def over(self, name: str, at: Tensor, elements: Elements) -> Estimate:
        """The metric over some of the elements."""
        some = elements.subset(at)
        if some.groups == 1:
            some = replace(some, options=replace(some.options, resamples=0))  # one input has no interval
        if self.share:
            return share(name, self.values[at], some)
        return mean(name, self.values[at], some, self.bounds, self.root)


@dataclass(frozen=True)
class Scored:
    """Quantities of the elements, by the name of the metric; and those that are compared, by their name in tables."""

    elements: Elements
    owner: Tensor  # [M] the input of each element
    metrics: dict[str, Quantity]
    compared: dict[str, Quantity]
    error: Quantity | None  # of an answer: wrong, or squared
    deferred: Tensor | None  # [M]
    by_answer: bool  # whether elements are deferred one by one, not whole inputs
    answered: Estimate | None = None  # root mean squared error of all that is answered

    def by_input(self, values: Tensor, count: int) -> Tensor:
        """Means over the elements of each input, [N]; NaN for inputs without any."""
        total, number = (
            torch.bincount(self.owner, v, count) for v in (values.double(), torch.ones_like(values).double())
        )
        return total / number


def scored(context: Context) -> Scored:
    """The elements of the test data with all quantities that are defined for the task."""
    elements, metrics, compared = elements_of(context)
    inner = context.need_targets("test").numel() // len(context.need("test"))
    owner = elements.keep // inner
    several = several_labels(context)
    deferred, error, answered = usual_deferral(context), metrics.get("rmse"), None
    if context.task.has_labels:
        error = compared["error rate"]
    if deferred is not None:
        if isinstance(context.task, Numbers):
            answered = number_answers(context, "test").errors([usual_threshold(context)])[0]
        deferred = deferred.reshape(-1)[elements.keep] if several else deferred[owner]
        compared["share deferred"] = Quantity(deferred.double(), share=True)
    return Scored(elements, owner, metrics, compared, error, deferred, several, answered)


def elements_of(
    context: Context, kind: Kind = Kind.BAYESIAN
) -> tuple[Elements, dict[str, Quantity], dict[str, Quantity]]:
    """The elements of the test data, the quantities behind metrics, and those that groups are compared by."""
    return (_labels if context.task.has_labels else _numbers)(context, kind)


def _labels(context: Context, kind: Kind) -> tuple[Elements, dict[str, Quantity], dict[str, Quantity]]:
    prediction, targets = context.prediction("test", kind), context.need_targets("test")
    found = read_labels("groups", prediction, targets, {"seed": context.seed})
    losses, correct = found.log_losses(), found.correct
    metrics = {
        "accuracy": Quantity(correct, share=True),
        "nll": Quantity(losses, bounds=(0.0, torch.inf)),
        "brier": Quantity(found.squared_distances(), bounds=(0.0, 1.0 if found.binary else 2.0)),
    }
    compared = {
        "error rate": Quantity(1 - correct, share=True),
        "log loss": Quantity(losses),
        "confidence − accuracy": Quantity(found.confidence - correct),
    }
    return found.elements, metrics, compared


def _numbers(context: Context, kind: Kind) -> tuple[Elements, dict[str, Quantity], dict[str, Quantity]]:
    prediction, targets = context.prediction("test", kind), context.need_targets("test")
    forecast, y, members = read_numbers("groups", prediction, targets, {"seed": context.seed})
    squared = Quantity((forecast.mean - y).square(), root=True, bounds=(0.0, torch.inf))
    metrics, compared = {"rmse": squared}, {"squared error": squared}
    losses = _if_defined(lambda: forecast.log_losses(y))
    if losses is not None and bool(torch.isfinite(losses).all()):
        metrics["nll"] = compared["log loss"] = Quantity(losses)
    crps, ends = _if_defined(lambda: forecast.crps(y, True)), _if_defined(lambda: torch.stack(forecast.interval(OF)))
    if crps is not None:
        metrics["crps"] = Quantity(crps, bounds=(0.0, torch.inf))
    if ends is not None:
        inside = (ends[0] <= y) & (y <= ends[1])
        metrics["coverage"] = Quantity(inside.double(), share=True)
        metrics["width"] = Quantity(ends[1] - ends[0], bounds=(0.0, torch.inf))
        compared["share outside its 95% interval"] = Quantity((~inside).double(), share=True)
    return members, metrics, compared


def _if_defined(make: Callable[[], Tensor]) -> Tensor | None:
    try:
        return make()
    except (WhenceError, NotImplementedError):
        return None
