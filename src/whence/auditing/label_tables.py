"""Tables of labels: by class or label, confusions, and the rates of a binary decision.

Index legend: N inputs, M labels of all inputs (one each, or one for each pixel or token), C classes, K labels.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from whence.auditing.answered import usual_deferral
from whence.auditing.context import Context, Kind
from whence.auditing.data import spaced
from whence.auditing.tasks import Classes, Task
from whence.metrics import Estimate as Measured
from whence.metrics import aupr, auroc, classwise_ece
from whence.metrics.in_the_large import in_the_large
from whence.metrics.means import mean_of
from whence.metrics.proportions import clustered_share, share_of
from whence.report.record.common import Estimate
from whence.report.record.labels import ClassCalibration, Confused, Confusion, Curve, TwoClasses

MANY_CLASSES = 100  # no table by class and no matrix above it
LARGEST = 20  # confusions that are listed
POINTS = 200  # of a curve
THRESHOLD = 0.5  # of a binary decision
RESAMPLES = {50_000: 1000, 500_000: 200}  # up to this many inputs times classes; beyond, no intervals of ECE and AUROC


@dataclass(frozen=True)
class Labelled:
    """Labels with a truth: probabilities, truths, answers, and which of them are deferred."""

    probs: Tensor  # [M, C]
    truth: Tensor  # [M]
    deferred: Tensor | None  # bool [M]
    owner: Tensor | None = None  # [M] the input of each label; None if every input has one
    inputs: int = 0
    seed: int = 0

    @property
    def predicted(self) -> Tensor:
        return self.probs.argmax(1)

    def rate(self, name: str, hits: Tensor, trials: Tensor) -> Estimate | None:
        """The share of hits among trials (bool [M]), with an exact interval; labels of one input are not "
        "independent."""
        hits = hits & trials
        if self.owner is None:
            return Estimate.of(share_of(name, int(hits.sum()), int(trials.sum())))
        right, every = (torch.bincount(self.owner[which], minlength=self.inputs) for which in (hits, trials))
        return Estimate.of(clustered_share(name, right, every))

    def apart(self, p: Tensor, mine: Tensor, level: float, which: Tensor | None = None) -> Measured:
        """Mean probability minus frequency, of all labels or those of ``which`` (bool [M])."""
        owner = self.owner
        if which is not None:
            p, mine, owner = p[which], mine[which], None if owner is None else owner[which]
        if owner is None:
            return in_the_large(p, mine.double(), level)
        return mean_of("difference", p.double() - mine.double(), groups=owner, seed=self.seed, level=level)


def label_tables(context: Context) -> dict[str, Any]:
    """Fields of ``Quality``: classes, confusion and two_classes; empty for predicted numbers."""
    if not context.task.has_labels:
        return {}
    probs, targets = context.prediction("test").probs.detach().cpu(), context.need_targets("test")
    if isinstance(context.task, Classes):
        return _of_classes(context, probs.movedim(context.prediction("test").class_dim, -1), targets)
    if probs.dim() == 2 and probs.shape[1] > 1:
        truth, deferred = targets.reshape(probs.shape) == 1, usual_deferral(context)
        deferred = None if deferred is None else deferred.reshape(probs.shape)
        names = list(context.classes or (f"label {k}" for k in range(probs.shape[1])))
        other = _recalibrated(context)
        means = None if other is None else other.mean(0)  # [K]
        return {
            "classes": _with_frequencies(context, by_label(probs.double(), truth, names, deferred, context.seed, means))
        }
    return _of_classes(context, torch.stack([1 - probs.double(), probs.double()], -1), targets)


def _of_classes(context: Context, probs: Tensor, targets: Tensor) -> dict[str, Any]:
    """From probabilities [N, …, C] and classes in the same shape, of which negative ones are ignored."""
    flat, y = probs.reshape(-1, probs.shape[-1]), targets.long().reshape(-1)
    inputs, counted = len(targets), (y >= 0).nonzero().flatten()
    owner = None if len(y) == inputs else counted // (len(y) // inputs)
    deferred = usual_deferral(context)
    if deferred is not None:
        deferred = deferred[counted if owner is None else owner]
    given = Labelled(flat[counted].double(), y[counted], deferred, owner, inputs, context.seed)
    names = [context.class_name(c) for c in range(flat.shape[1])]
    other = _recalibrated(context)
    means = None if other is None else other.reshape(-1, flat.shape[1])[counted].mean(0)  # [C]
    found: dict[str, Any] = {
        "confusion": confusion(given, names),
        "classes": _with_frequencies(context, by_class(given, names, means)),
    }
    if len(names) == 2 and owner is None:
        place = context.positive
        found["two_classes"] = two_classes(
            given.probs[:, place], given.truth == place, (names[1 - place], names[place]), context.seed
        )
    return found


Rows = tuple[ClassCalibration, ...] | None


def _with_frequencies(context: Context, rows: Rows) -> Rows:
    """The rows with how frequent each class or label is in the training and in the validation data."""
    if rows is None:
        return None
    validation, training = context.sets.get("validation"), context.training
    targets = (None if training is None else training.targets, None if validation is None else validation.targets)
    known = [frequencies(context.task, one, len(rows)) for one in targets]
    columns = [[None] * len(rows) if one is None else one for one in known]
    return tuple(
        replace(row, in_training=first, in_validation=second) for row, first, second in zip(rows, *columns, strict=True)
    )


def frequencies(task: Task, targets: Tensor | None, count: int) -> list[float] | None:
    """The share of each class among the targets that count, or of each of several labels; None if they are neither."""
    if targets is None or not targets.numel():
        return None
    if isinstance(task, Classes):
        classes = targets.reshape(-1)[targets.reshape(-1) >= 0]
        if targets.is_floating_point() or not len(classes) or int(classes.max()) >= count:
            return None
        return (torch.bincount(classes.long(), minlength=count) / len(classes)).tolist()
    if bool(((targets != 0) & (targets != 1)).any()):
        return None
    means = targets.double().reshape(len(targets), -1).mean(0)
    shares = torch.cat([1 - means, means]) if len(means) == 1 and count == 2 else means
    return shares.tolist() if len(shares) == count else None


def _recalibrated(context: Context) -> Tensor | None:
    """Probabilities of the recalibrated network, [N, …, C], or [N, K] of several labels."""
    if context.baseline is None:
        return None
    prediction = context.prediction("test", Kind.RECALIBRATED)
    probs = prediction.probs.detach().cpu().double()
    if isinstance(context.task, Classes):
        return probs.movedim(prediction.class_dim, -1)
    return probs if probs.dim() == 2 and probs.shape[1] > 1 else torch.stack([1 - probs, probs], -1)


# By class


def by_class(
    given: Labelled, names: list[str], recalibrated: Tensor | None = None
) -> tuple[ClassCalibration, ...] | None:
    """One row for each class; with the mean probabilities [C] of the recalibrated network, if there is one."""
    if len(names) > MANY_CLASSES:
        return None
    labels, confidence, whole = given.predicted, given.probs.amax(1), torch.ones_like(given.truth, dtype=torch.bool)
    dense = given.owner is not None
    found = []
    for c, name in enumerate(names):
        p, mine, said = given.probs[:, c], given.truth == c, labels == c
        differs = Estimate.of(given.apart(p, mine, _level(len(names))))
        assert differs is not None
        sure = given.apart(confidence, mine, 1 - 0.05 / len(names), said) if int(said.sum()) > 1 else None
        found.append(
            ClassCalibration(
                name,
                float(mine.double().mean()),
                float(p.mean()),
                differs,
                count=int(mine.sum()),
                recall=given.rate("recall", said, mine),
                precision=given.rate("precision", mine, said),
                confidence=float(confidence[said].mean()) if bool(said.any()) else None,
                ece=_ece(p, mine, _resamples(given.probs.numel(), given.seed), given.owner),
                deferred=None if given.deferred is None else given.rate("deferred", given.deferred, mine),
                iou=given.rate("iou", mine & said, (mine | said) & whole) if dense else None,
                recalibrated=None if recalibrated is None else float(recalibrated[c]),
                overconfidence=Estimate.of(sure),
            )
        )
    return tuple(found)


def _level(classes: int) -> float:
    """Of intervals that hold for all classes together; of two, one says as much as both."""
    return 1 - 0.05 / (1 if classes == 2 else classes)


def by_label(
    probs: Tensor,
    truth: Tensor,
    names: list[str],
    deferred: Tensor | None,
    seed: int = 0,
    recalibrated: Tensor | None = None,
) -> tuple[ClassCalibration, ...] | None:
    """One row for each label, from probabilities, truths and which answers are deferred, [N, K] each."""
    if (count := len(names)) > MANY_CLASSES:
        return None
    found = []
    for k, name in enumerate(names):
        p, positive, said = probs[:, k], truth[:, k], probs[:, k] > THRESHOLD
        given = Labelled(torch.stack([1 - p, p], 1), positive.long(), None if deferred is None else deferred[:, k])
        ones = int(positive.sum())
        ranked = 1 < ones < len(p) - 1
        differs = Estimate.of(in_the_large(p, positive.double(), 1 - 0.05 / count))
        assert differs is not None
        found.append(
            ClassCalibration(
                name,
                float(positive.double().mean()),
                float(p.mean()),
                differs,
                count=ones,
                recall=given.rate("sensitivity", said, positive),
                precision=given.rate("precision", positive, said),
                confidence=float(torch.where(said, p, 1 - p).mean()),
                ece=_ece(p, positive, _resamples(probs.numel(), seed)),
                deferred=None if given.deferred is None else _share("deferred", given.deferred),
                specificity=given.rate("specificity", ~said, ~positive),
                auroc=Estimate.of(auroc(p, positive, **_resamples(probs.numel(), seed))) if ranked else None,
                recalibrated=None if recalibrated is None else float(recalibrated[k]),
            )
        )
    return tuple(found)


def _ece(p: Tensor, truth: Tensor, options: dict[str, Any], owner: Tensor | None = None) -> Estimate | None:
    """The calibration error of the probability of one class over all labels."""
    return Estimate.of(classwise_ece(p, truth.long(), groups=owner, **options))


def _resamples(cells: int, seed: int) -> dict[str, Any]:
    return {"seed": seed, "resamples": next((count for most, count in RESAMPLES.items() if cells <= most), 0)}


def _share(name: str, which: Tensor) -> Estimate | None:
    return Estimate.of(share_of(name, int(which.sum()), which.numel()))


# Confusions


def confusion(given: Labelled, names: list[str]) -> Confusion:
    """Counts of predicted classes by true class, and the most frequent confusions."""
    count, predicted, truth = len(names), given.predicted, given.truth
    counts = torch.bincount(truth * count + predicted, minlength=count * count).reshape(count, count)
    off = counts.clone()
    off.fill_diagonal_(0)
    largest = []
    for place in off.flatten().argsort(descending=True, stable=True)[:LARGEST].tolist():
        number, true, said = int(off.flatten()[place]), place // count, place % count
        share = given.rate("share", predicted == said, truth == true) if number else None
        if share is not None:
            largest.append(Confused(names[true], names[said], number, share))
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
