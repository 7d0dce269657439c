"""Tables of labels: by class or label, confusions, and the rates of a binary decision.

Index legend: N inputs, C classes, K labels.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from whence.auditing.answered import usual_deferral
from whence.auditing.context import Context
from whence.auditing.data import spaced
from whence.auditing.tasks import Classes
from whence.metrics import Estimate as Measured
from whence.metrics import aupr, auroc, classwise_ece
from whence.metrics.in_the_large import in_the_large
from whence.metrics.proportions import share_of
from whence.report.record.common import Estimate
from whence.report.record.labels import ClassCalibration, Confused, Confusion, Curve, TwoClasses

MANY_CLASSES = 100  # no table by class and no matrix above it
LARGEST = 20  # confusions that are listed
POINTS = 200  # of a curve
THRESHOLD = 0.5  # of a binary decision
RESAMPLES = {50_000: 1000, 500_000: 200}  # up to this many inputs times classes; beyond, no intervals of ECE and AUROC


def label_tables(context: Context) -> dict[str, Any]:
    """Fields of ``Quality``: classes, confusion and two_classes; empty unless there is a label or a row of labels."""
    if not context.task.has_labels:
        return {}
    probs, targets = context.prediction("test").probs.detach().double().cpu(), context.need_targets("test")
    if probs.dim() != 2 or bool((targets < 0).any()):
        return {}
    if isinstance(context.task, Classes):
        y = targets.long().reshape(-1)
        names = [context.class_name(c) for c in range(probs.shape[1])]
        found: dict[str, Any] = {"confusion": confusion(probs.argmax(1), y, names)}
        if len(names) == 2:
            found["two_classes"] = two_classes(probs[:, 1], y == 1, (names[0], names[1]), context.seed)
        return found | {"classes": by_class(probs, y, names, usual_deferral(context), context.seed)}
    truth, deferred = targets.reshape(probs.shape) == 1, usual_deferral(context)
    deferred = None if deferred is None else deferred.reshape(probs.shape)
    found = {"classes": by_label(probs, truth, _label_names(context, probs.shape[1]), deferred, context.seed)}
    if probs.shape[1] > 1:
        return found
    names = list(context.classes or ("0", "1"))
    chosen = probs[:, 0] > THRESHOLD
    return found | {
        "confusion": confusion(chosen.long(), truth[:, 0].long(), names),
        "two_classes": two_classes(probs[:, 0], truth[:, 0], (names[0], names[1]), context.seed),
    }


# By class


def by_class(
    probs: Tensor, y: Tensor, names: list[str], deferred: Tensor | None, seed: int = 0
) -> tuple[ClassCalibration, ...] | None:
    """One row for each class, from probabilities [N, C] and which inputs are deferred [N]."""
    if len(names) > MANY_CLASSES:
        return None
    labels, confidence = probs.argmax(1), probs.amax(1)
    found = []
    for c, name in enumerate(names):
        mine, said = y == c, labels == c
        both, count = int((mine & said).sum()), int(mine.sum())
        found.append(
            ClassCalibration(
                **in_the_large_row(name, probs[:, c], mine, len(names)),
                count=count,
                recall=Estimate.of(share_of("recall", both, count)),
                precision=Estimate.of(share_of("precision", both, int(said.sum()))),
                confidence=float(confidence[said].mean()) if bool(said.any()) else None,
                ece=_ece(probs[:, c], mine, probs.numel(), seed),
                deferred=None if deferred is None else _share("deferred", deferred[mine]),
            )
        )
    return tuple(found)


def _label_names(context: Context, count: int) -> list[str]:
    if count == 1:
        return [context.classes[1] if context.classes else "positive"]
    return list(context.classes or (f"label {k}" for k in range(count)))


def by_label(
    probs: Tensor, truth: Tensor, names: list[str], deferred: Tensor | None, seed: int = 0
) -> tuple[ClassCalibration, ...] | None:
    """One row for each label, from probabilities, truths and which answers are deferred, [N, K] each."""
    if (count := len(names)) > MANY_CLASSES:
        return None
    found = []
    for k, name in enumerate(names):
        p, positive, said = probs[:, k], truth[:, k], probs[:, k] > THRESHOLD
        both, ones = int((positive & said).sum()), int(positive.sum())
        ranked = 1 < ones < len(p) - 1
        confidence = torch.where(said, p, 1 - p)
        found.append(
            ClassCalibration(
                **in_the_large_row(name, p, positive, count),
                count=ones,
                recall=Estimate.of(share_of("sensitivity", both, ones)),
                precision=Estimate.of(share_of("precision", both, int(said.sum()))),
                confidence=float(confidence.mean()),
                ece=_ece(p, positive, probs.numel(), seed),
                deferred=None if deferred is None else _share("deferred", deferred[:, k]),
                specificity=_share("specificity", ~said[~positive]),
                auroc=Estimate.of(auroc(p, positive, **_resamples(probs.numel(), seed))) if ranked else None,
            )
        )
    return tuple(found)


def in_the_large_row(name: str, p: Tensor, truth: Tensor, count: int) -> dict[str, Any]:
    """Mean probability and frequency, with an interval of their difference that holds for all ``count`` together."""
    apart = Estimate.of(in_the_large(p, truth.double(), 1 - 0.05 / count))
    assert apart is not None
    return {
        "name": name,
        "frequency": float(truth.double().mean()),
        "predicted": float(p.mean()),
        "difference": apart,
    }


def _ece(p: Tensor, truth: Tensor, cells: int, seed: int) -> Estimate | None:
    """The calibration error of the probability of one class over all inputs."""
    return Estimate.of(classwise_ece(p, truth.long(), **_resamples(cells, seed)))


def _resamples(cells: int, seed: int) -> dict[str, Any]:
    return {"seed": seed, "resamples": next((count for most, count in RESAMPLES.items() if cells <= most), 0)}


def _share(name: str, which: Tensor) -> Estimate | None:
    return Estimate.of(share_of(name, int(which.sum()), which.numel()))


# Confusions


def confusion(predicted: Tensor, truth: Tensor, names: list[str]) -> Confusion:
    """Counts of predicted classes by true class, and the most frequent confusions."""
    count = len(names)
    counts = torch.bincount(truth * count + predicted, minlength=count * count).reshape(count, count)
    off = counts.clone()
    off.fill_diagonal_(0)
    totals = counts.sum(1).tolist()
    largest = []
    for place in off.flatten().argsort(descending=True, stable=True)[:LARGEST].tolist():
        number, true = int(off.flatten()[place]), place // count
        share = Estimate.of(share_of("share", number, totals[true]))
        if number and share is not None:
            largest.append(Confused(names[true], names[place % count], number, share))
    whole = tuple(map(tuple, counts.tolist())) if count <= MANY_CLASSES else None
    return Confusion(tuple(names), len(truth), int(off.sum()), whole, tuple(largest))


# A binary decision


def two_classes(p: Tensor, truth: Tensor, names: tuple[str, str], seed: int = 0) -> TwoClasses:
    """Rates of the decision for the positive class where its probability is above THRESHOLD."""
    said = p > THRESHOLD
    tp, fp, fn, tn = (
        int((said == yes).logical_and(truth == one).sum())
        for yes, one in ((True, True), (True, False), (False, True), (False, False))
    )

    def rate(name: str, hits: int, others: int) -> Estimate | None:
        return Estimate.of(share_of(name, hits, hits + others))

    prevalence = rate("prevalence", tp + fn, fp + tn)
    assert prevalence is not None  # there is an input
    ranked = 1 < tp + fn < len(p) - 1
    areas: list[Measured | None] = [f(p, truth, seed=seed) if ranked else None for f in (aupr, auroc)]
    recall, precision, fpr = _rates(p, truth) if ranked else (torch.empty(0),) * 3
    return TwoClasses(
        positive=names[1],
        negative=names[0],
        threshold=THRESHOLD,
        true_positives=tp,
        false_negatives=fn,
        true_negatives=tn,
        false_positives=fp,
        prevalence=prevalence,
        sensitivity=rate("sensitivity", tp, fn),
        specificity=rate("specificity", tn, fp),
        precision=rate("precision", tp, fp),
        npv=rate("npv", tn, fn),
        average_precision=Estimate.of(areas[0]),
        auroc=Estimate.of(areas[1]),
        precision_recall=_curve(recall, precision) if ranked else None,
        roc=_curve(fpr, recall) if ranked else None,
    )


def _rates(p: Tensor, truth: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Recall, precision and false positive rate at every threshold, from the highest down."""
    order = p.argsort(descending=True, stable=True)
    last = torch.ones(len(p), dtype=torch.bool)
    last[:-1] = p[order][1:] != p[order][:-1]
    hits, said = truth[order].double().cumsum(0)[last], last.nonzero().flatten().double() + 1
    ones = float(truth.double().sum())
    return hits / ones, hits / said, (said - hits) / (len(p) - ones)


def _curve(x: Tensor, y: Tensor) -> Curve:
    some = spaced(len(x), min(POINTS, len(x)))
    return Curve(tuple(x[some].tolist()), tuple(y[some].tolist()))
