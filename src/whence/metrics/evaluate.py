"""Metrics for any kind of prediction: the log loss, and all applicable metrics at once."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Unpack

import torch
from torch import Tensor
from torch.distributions import Distribution

from whence.errors import BadData, BadOption, NotDefined, one_of
from whence.metrics.calibration import classwise_ece, ece, mce
from whence.metrics.classification import accuracy, brier, is_binary, read_labels
from whence.metrics.detection import Ranking, detection
from whence.metrics.elements import (
    LABEL_KEYWORDS,
    ArrayLike,
    Elements,
    ForLabels,
    MetricOptions,
    as_bool,
    elements,
    per_element,
    squeezed,
    tensor,
)
from whence.metrics.intervals import Estimate
from whence.metrics.means import mean
from whence.metrics.r_squared import r2
from whence.metrics.regression import coverage, crps, interval_score, is_pair, mae, read_numbers, rmse, width
from whence.metrics.selective import aurc, selective_accuracy
from whence.predictive.predictions import (
    BinaryPrediction,
    ClassificationPrediction,
    OutputPrediction,
    binary_entropy,
    entropy_of,
)
from whence.tables import Table, text

Metric = Callable[..., Estimate]


def nll(prediction: Any, targets: ArrayLike, **common: Unpack[ForLabels]) -> Estimate:
    """Mean negative log likelihood of the targets, in nats.

    For probabilities −log p; for a regression its normal density or the mixture over draws; for a count
    prediction the mixture of Poissons; for a distribution −log_prob.
    """
    if predicts_labels(prediction, targets, MetricOptions.read("nll", common, labels=True)):
        found = read_labels("nll", prediction, targets, common)
        return mean("nll", found.log_losses(), found.elements, (0.0, math.inf))
    forecast, y, members = read_numbers("nll", prediction, targets, _without_classes(common))
    losses = forecast.log_losses(y)
    if not bool(torch.isfinite(losses).all()):
        raise BadData(f"{int((~torch.isfinite(losses)).sum())} of {len(y)} targets have density 0: nll is infinite.")
    return mean("nll", losses, members)


def _without_classes(common: Mapping[str, Any]) -> dict[str, Any]:
    """The keywords for predicted numbers; those about classes are refused."""
    for key, remedy in (("class_weights", "weights="), ("ignore_index", "mask=")):
        if common.get(key) is not None:
            raise BadOption(f"{key} applies only to classes; for predicted numbers pass {remedy}.")
    return {key: value for key, value in common.items() if key not in LABEL_KEYWORDS}


OF_LABELS: dict[str, Metric] = {
    "accuracy": accuracy,
    "nll": nll,
    "brier": brier,
    "ece": ece,
    "mce": mce,
    "classwise_ece": classwise_ece,
    "aurc": aurc,
    "selective_accuracy": selective_accuracy,
}
OF_NUMBERS: dict[str, Metric] = {
    "rmse": rmse,
    "mae": mae,
    "r2": r2,
    "nll": nll,
    "crps": crps,
    "coverage": coverage,
    "width": width,
    "interval_score": interval_score,
}


class Scores(Mapping[str, Estimate]):
    """Metrics by name, in order; prints as a table."""

    def __init__(self, scores: Mapping[str, Estimate]) -> None:
        self._scores = dict(scores)

    def __getitem__(self, name: str) -> Estimate:
        if name not in self._scores:
            raise KeyError(f"{name!r} was not evaluated; evaluated: {', '.join(self._scores)}.")
        return self._scores[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._scores)

    def __len__(self) -> int:
        return len(self._scores)

    def to_dict(self) -> dict[str, dict[str, Any]]:
        """Plain numbers by name, for JSON."""
        return {name: score.to_dict() for name, score in self._scores.items()}

    def to_pandas(self) -> Any:
        """A ``pandas.DataFrame`` with columns metric, value, low, high, count."""
        rows = [score.to_dict() for score in self._scores.values()]
        columns = {key: [row[key] for row in rows] for key in ("value", "low", "high", "count")}
        return Table({"metric": list(self._scores), **columns}).to_pandas()

    def __repr__(self) -> str:
        rows = []
        for name, score in self._scores.items():
            value, _, interval = str(score).partition(" ")
            rows.append([name, value, interval, f"{score.count:,}"])
        level = next((f"{100 * s.level:g}% interval" for s in self._scores.values()), "interval")
        return text(["metric", "value", level, "count"], rows)


def evaluate(
    prediction: Any,
    targets: ArrayLike,
    *,
    metrics: Sequence[str] | None = None,
    ood: Any = None,
    ood_mask: ArrayLike | None = None,
    **common: Unpack[ForLabels],
) -> Scores:
    """Score a prediction by all applicable metrics, or by those named in ``metrics``.

    ``ood``: a prediction of the same kind for out-of-distribution inputs; adds how well entropy (for numbers: variance)
    and epistemic uncertainty, if available, separate the two. ``ood_mask``: True for elements of it that count.
    """
    labels = _are_labels(prediction, targets, MetricOptions.read("evaluate", common, labels=True))
    known = _label_metrics(prediction, targets) if labels else _number_metrics(prediction, targets)
    keywords: dict[str, Any] = dict(common) if labels else _without_classes(common)
    if isinstance(metrics, str):
        raise BadOption(f"metrics={metrics!r} is one name; pass a list: [{metrics!r}].")
    names = list(known) if metrics is None else [one_of(name, known, "metric of this prediction") for name in metrics]
    scores: dict[str, Estimate] = {}
    for name in names:
        try:
            scores[name] = known[name](prediction, targets, **keywords)
        except (NotDefined, _OneClass):
            if metrics is not None:
                raise
    if ood is not None:
        scores |= _separation(prediction, ood, targets, labels, keywords, ood_mask)
    return Scores(scores)


# Kinds of predictions


def predicts_labels(prediction: Any, targets: ArrayLike, options: MetricOptions) -> bool:
    """Whether a prediction is of labels, by its type or, for a tensor, its shape."""
    if isinstance(prediction, (ClassificationPrediction, BinaryPrediction)):
        return True
    if isinstance(prediction, Distribution) or hasattr(prediction, "epistemic"):
        return False
    given, truth = tensor(prediction, "predictions"), tensor(targets, "targets")
    if given.dim() == 0 or is_binary(given, truth):
        return True
    dim, wanted = options.class_dim, squeezed(truth.shape)
    if -given.dim() <= dim < given.dim() and squeezed(given.movedim(dim, -1).shape[:-1]) == wanted:
        return True
    return squeezed(given.shape[1:]) != wanted


def _are_labels(prediction: Any, targets: ArrayLike, options: MetricOptions) -> bool:
    """As for nll, but numbers in the targets' shape are labels only if they look like labels."""
    if is_pair(prediction) or not predicts_labels(prediction, targets, options):
        return False
    if not isinstance(prediction, (Tensor, list)) and not hasattr(prediction, "__array__"):
        return True
    given, y = tensor(prediction, "predictions"), tensor(targets, "targets")
    if not y.is_floating_point() or not is_binary(given, y):
        return True
    scored = y != options.ignore_index
    if options.mask is not None:
        scored &= as_bool(per_element(options.mask, y.shape, "mask"), "mask").reshape(y.shape).to(y.device)
    y, given = y[scored], given.reshape(scored.shape)[scored]
    return bool(((y == 0) | (y == 1)).all()) and bool(((given >= 0) & (given <= 1)).all())


def _label_metrics(prediction: Any, targets: ArrayLike) -> dict[str, Metric]:
    if _are_binary(prediction, targets):
        return OF_LABELS | {"auroc": _binary_auroc, "aupr": _binary_aupr}
    return OF_LABELS


def _are_binary(prediction: Any, targets: ArrayLike) -> bool:
    if hasattr(prediction, "probs"):
        return isinstance(prediction, BinaryPrediction)
    return is_binary(tensor(prediction, "probabilities"), tensor(targets, "targets"))


def _number_metrics(prediction: Any, targets: ArrayLike) -> dict[str, Metric]:
    names: Sequence[str]
    if is_pair(prediction):
        names = ("coverage", "width", "interval_score")
    elif isinstance(prediction, Distribution) or hasattr(prediction, "aleatoric"):
        names = tuple(OF_NUMBERS)
    elif isinstance(prediction, OutputPrediction) or _is_point(prediction, targets):
        names = ("rmse", "mae", "r2")
    else:  # draws have no density
        names = [name for name in OF_NUMBERS if name != "nll"]
    return {name: OF_NUMBERS[name] for name in names}


def _is_point(prediction: Any, targets: ArrayLike) -> bool:
    return squeezed(tensor(prediction, "predictions").shape) == squeezed(tensor(targets, "targets").shape)


# Rankings


class _OneClass(BadData):
    """Binary targets of one class only."""


def _binary_auroc(prediction: Any, targets: ArrayLike, **common: Any) -> Estimate:
    return _binary_ranking("auroc", prediction, targets, common).auroc()


def _binary_aupr(prediction: Any, targets: ArrayLike, **common: Any) -> Estimate:
    return _binary_ranking("aupr", prediction, targets, common).aupr(stratified=False)


def _binary_ranking(name: str, prediction: Any, targets: ArrayLike, common: Mapping[str, Any]) -> Ranking:
    """Ranking by the probability of 1."""
    found = read_labels(name, prediction, targets, common)
    ones = found.truth == 1
    if bool(ones.all()) or not bool(ones.any()):
        raise _OneClass(f"{name} needs targets of both classes; all {len(ones):,} are of one.")
    return Ranking.of(found.column(1), ones, found.elements)


def _separation(
    prediction: Any, ood: Any, targets: ArrayLike, labels: bool, common: Mapping[str, Any], ood_mask: ArrayLike | None
) -> dict[str, Estimate]:
    """How well uncertainty separates the two; only scored elements count as inside."""
    options = MetricOptions.read("evaluate", common, labels=True)
    if labels:
        members = read_labels("evaluate", prediction, targets, common).elements
        binary = _are_binary(prediction, targets)
        inside, outside = (_entropy(p, binary, options) for p in (prediction, ood))
    else:
        y = tensor(targets, "targets")
        members = elements(y.shape, options, y.device)
        inside, outside = _variance(prediction), _variance(ood)
    found = _detection(inside, outside, members, ood_mask)
    scores = {"ood_auroc": found["auroc"], "ood_aupr": found["aupr_out"], "ood_fpr95": found["fpr95"]}
    own, other = _epistemic(prediction), _epistemic(ood)
    if own is not None and other is not None:
        scores["ood_auroc_epistemic"] = _detection(own, other, members, ood_mask)["auroc"]
    return scores


def _detection(inside: Tensor, outside: Tensor, members: Elements, ood_mask: ArrayLike | None) -> dict[str, Estimate]:
    """Detection with the weights and groups of the scored elements; outside ones have weight 1."""
    options, device = members.options, members.keep.device
    return detection(
        inside.to(device).reshape(-1)[members.keep],
        outside,
        mask=None if ood_mask is None else (None, ood_mask),
        weights=(members.weights, None),
        groups=None if members.group is None else (members.group, None),
        resamples=options.resamples,
        level=options.level,
        seed=options.seed,
    )


def _entropy(prediction: Any, binary: bool, options: MetricOptions) -> Tensor:
    if hasattr(prediction, "entropy"):
        return tensor(prediction.entropy, "entropy")
    probs = tensor(prediction, "probabilities").double()
    return binary_entropy(probs) if binary else entropy_of(probs, options.class_dim)


def _variance(prediction: Any) -> Tensor:
    if isinstance(prediction, Distribution) or hasattr(prediction, "epistemic"):
        return tensor(prediction.variance, "variance")
    draws = tensor(prediction, "draws").double()
    if draws.dim() < 2:
        raise BadOption("ood= needs uncertainties, which point predictions do not have.")
    return draws.var(0)


def _epistemic(prediction: Any) -> Tensor | None:
    try:
        return tensor(prediction.epistemic, "epistemic")
    except (NotDefined, AttributeError):
        return None
