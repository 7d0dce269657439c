"""Scores of several methods on the same data, side by side."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from whence.auditing.answered import answers_given, has_several
from whence.auditing.data import Examples
from whence.auditing.scores import WIDTH, Scores, reliability_bins, scores_of, sorted_values, undercovering
from whence.auditing.steps import label_curve
from whence.auditing.tasks import Task
from whence.auditing.units import TARGET, elements_of
from whence.errors import NotDefined
from whence.metrics import Estimate as Measured
from whence.numerals import percent
from whence.report.record import comparison as record
from whence.report.record.common import Estimate, RejectionCurve


@dataclass(frozen=True)
class Predicted:
    """A method and its predictions."""

    described: record.Method
    inside: Any
    outside: Any

    @property
    def name(self) -> str:
        return self.described.name

    def uncertainty(self, task: Task, examples: Examples) -> Tensor:
        """Of every test or out-of-distribution input; padded positions of sequences do not count."""
        prediction = self.outside if examples.name == "ood" else self.inside
        return task.uncertainty(prediction, examples.counted_positions)


def method_scores(
    task: Task, methods: Sequence[Predicted], test: Examples, ood: Examples | None, seed: int
) -> dict[str, Any]:
    """The fields of the record with metrics, reliability, distributions of uncertainty, and rejection curves."""
    targets = test.targets
    assert targets is not None  # checked
    inside = [one.uncertainty(task, test) for one in methods]
    outside = [None if ood is None else one.uncertainty(task, ood) for one in methods]
    novel = [None if far is None else (near, far) for near, far in zip(inside, outside, strict=True)]
    every = list(scores_of(task, [one.inside for one in methods], targets, novel, seed))
    narrow = undercovering(every)
    metrics = tuple(
        record.MetricOfMethods(
            **vars(scores.metric),
            values=tuple(map(Estimate.of, scores.values)),
            best=scores.not_worse(seed, narrow if scores.metric.name == WIDTH else ()),
            difference=tuple(scores.difference(place, seed) for place in range(len(methods))),
            note=_too_narrow(scores, methods, narrow) if scores.metric.name == WIDTH and narrow else None,
        )
        for scores in every
    )
    far = None if ood is None else tuple(sorted_values(one) for one in outside if one is not None)
    labels, about = task.has_labels, TARGET.uncertainty_label(task, elements_of(task, test))
    return {
        "metrics": metrics,
        "reliability": tuple(reliability_bins(one.inside, targets) for one in methods) if labels else None,
        "uncertainty": record.UncertaintyOfMethods(task.measure, about, tuple(map(sorted_values, inside)), far),
        "rejection": tuple(_rejection(task, one, test) for one in methods) if labels else None,
    }


def _rejection(task: Task, method: Predicted, test: Examples) -> RejectionCurve | None:
    """Error against coverage, of inputs, or of labels where inputs have several."""
    assert test.targets is not None
    several = has_several(task, method.inside)
    uncertainty = method.inside.entropy.detach().double().cpu() if several else method.uncertainty(task, test)
    try:
        return label_curve(answers_given(task, method.inside, test.targets, uncertainty))
    except NotDefined:
        return None


def _too_narrow(width: Scores, methods: Sequence[Predicted], narrow: Mapping[int, Measured]) -> str:
    """Why methods are not marked for the width of their intervals."""
    each = ", ".join(
        f"{methods[i].name} {percent(found)} ({percent(found.low)} to {percent(found.high)}; n = {found.count:,})"
        for i, found in narrow.items()
    )
    return (
        f"{width.metric.label}: a method is not marked where its intervals cover significantly less than 95% of the "
        f"true values, since they are narrow at the cost of coverage: {each}."
    )
