"""All metrics that suit a prediction, in one go."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Unpack

import torch
from torch import Tensor
from torch.distributions import Distribution

from whence.errors import BadData, BadOption, NotDefined, one_of
from whence.metrics.calibration import classwise_ece, ece, mce
from whence.metrics.classification import accuracy, brier
from whence.metrics.detection import aupr, auroc, detection
from whence.metrics.elements import LABEL_KEYWORDS, ArrayLike, ForLabels, Options, fit, read, squeezed, tensor, truth
from whence.metrics.estimate import Estimate
from whence.metrics.labels import is_binary
from whence.metrics.loss import nll, predicts_labels, refuse_class_keywords
from whence.metrics.regression import coverage, crps, interval_score, is_pair, mae, rmse, width
from whence.metrics.selective import aurc, selective_accuracy
from whence.metrics.tables import frame, text
from whence.predictive.predictions import BinaryPrediction, OutputPrediction, binary_entropy, entropy_of

Metric = Callable[..., Estimate]

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
    "nll": nll,
    "crps": crps,
    "coverage": coverage,
    "width": width,
    "interval_score": interval_score,
}
OF_BINARY: dict[str, Metric] = {"auroc": auroc, "aupr": aupr}


class Scores(Mapping[str, Estimate]):
    """Metrics by name, in order; prints as a table."""

    def __init__(self, scores: Mapping[str, Estimate]) -> None:
        self._scores = dict(scores)

    def __getitem__(self, name: str) -> Estimate:
        if name not in self._scores:
            raise KeyError(f"{name!r} was not evaluated; there are {', '.join(self._scores)}.")
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
        scores = list(self._scores.values())
        columns: dict[str, list[Any]] = {"metric": list(self._scores), "value": [float(s) for s in scores]}
        columns |= {"low": [s.low for s in scores], "high": [s.high for s in scores]}
        return frame(columns | {"count": [s.count for s in scores]})

    def __repr__(self) -> str:
        rows = []
        for name, score in self._scores.items():
            value, _, interval = str(score).partition(" ")
            rows.append([name, value, interval, f"{score.count:,}"])
        level = next((f"{100 * s.level:g} % interval" for s in self._scores.values()), "interval")
        return text(["metric", "value", level, "count"], rows)


def evaluate(
    prediction: Any,
    targets: ArrayLike,
    *,
    metrics: Sequence[str] | None = None,
    ood: Any = None,
    **common: Unpack[ForLabels],
) -> Scores:
    """Score a prediction by all metrics that suit it, or by those named in ``metrics``.

    ``ood``: a prediction of the same kind for inputs from elsewhere; adds how well entropy (of numbers: variance)
    and epistemic uncertainty, where there is one, tell them apart.
    """
    options = read("evaluate", common, labels=True)
    of_labels = _is_labels(prediction, targets, options)
    known = _suited(prediction, targets, of_labels)
    if isinstance(metrics, str):
        raise BadOption(f"metrics={metrics!r} is one name; pass a list: [{metrics!r}].")
    names = list(known) if metrics is None else [one_of(name, known, "metric of this prediction") for name in metrics]
    keywords: dict[str, Any] = dict(common)
    if not of_labels:
        refuse_class_keywords(common)
        keywords = {key: value for key, value in keywords.items() if key not in LABEL_KEYWORDS}
    scores: dict[str, Estimate] = {}
    for name in names:
        try:
            if name in OF_BINARY:
                scores[name] = _ranking(name, prediction, targets, options)
            else:
                scores[name] = known[name](prediction, targets, **keywords)
        except (NotDefined, _OneClass):
            if metrics is not None:
                raise
    if ood is not None:
        scores |= _outside(prediction, ood, targets, options, of_labels)
    return Scores(scores)


def _suited(prediction: Any, targets: ArrayLike, of_labels: bool) -> dict[str, Metric]:
    """The metrics that the kind of prediction allows."""
    if of_labels:
        return OF_LABELS | OF_BINARY if _binary(prediction, targets) else OF_LABELS
    if is_pair(prediction):
        return {name: OF_NUMBERS[name] for name in ("coverage", "width", "interval_score")}
    if isinstance(prediction, Distribution) or hasattr(prediction, "aleatoric"):
        return OF_NUMBERS
    if isinstance(prediction, OutputPrediction) or _is_point(prediction, targets):
        return {name: OF_NUMBERS[name] for name in ("rmse", "mae")}
    return {name: metric for name, metric in OF_NUMBERS.items() if name != "nll"}


def _is_point(prediction: Any, targets: ArrayLike) -> bool:
    return squeezed(tensor(prediction, "predictions").shape) == squeezed(tensor(targets, "targets").shape)


class _OneClass(BadData):
    """Binary targets of one class only."""


def _is_labels(prediction: Any, targets: ArrayLike, options: Options) -> bool:
    """As for nll; but numbers in the targets' shape are labels only if they look like it."""
    if is_pair(prediction) or not predicts_labels(prediction, targets, options):
        return False
    if not isinstance(prediction, (Tensor, list)) and not hasattr(prediction, "__array__"):
        return True
    given, y = tensor(prediction, "predictions"), tensor(targets, "targets")
    if not y.is_floating_point() or not is_binary(given, y):
        return True
    counted = _counted(y, options)
    y, given = y[counted], given.reshape(counted.shape)[counted]
    return bool(((y == 0) | (y == 1)).all()) and bool(((given >= 0) & (given <= 1)).all())


def _binary(prediction: Any, targets: ArrayLike) -> bool:
    if isinstance(prediction, BinaryPrediction):
        return True
    if hasattr(prediction, "probs"):
        return False
    return is_binary(tensor(prediction, "probabilities"), tensor(targets, "targets"))


def _probs(prediction: Any) -> Tensor:
    return tensor(prediction.probs if hasattr(prediction, "probs") else prediction, "probabilities")


def _ranking(name: str, prediction: Any, targets: ArrayLike, options: Options) -> Estimate:
    """AUROC or average precision of the probability of 1."""
    probs = _probs(prediction)
    y = tensor(targets, "targets").to(probs.device)
    counted = _counted(y, options)
    ones = truth(torch.where(counted, y, 0), "targets")
    weights = fit(options.weights if options.weights is not None else torch.ones(y.shape), y.shape, "weights")
    weights = weights.to(y.device, torch.float64).reshape(y.shape)
    if options.class_weights is not None:
        weights = weights * tensor(options.class_weights, "class_weights").to(weights)[ones.long()]
    left = ones[counted & (weights > 0)]
    if not (bool(left.any()) and bool((~left).any())):
        raise _OneClass(f"{name} needs targets of both classes; there is one among {left.numel()}.")
    keywords = {"groups": options.groups, "resamples": options.resamples, "level": options.level, "seed": options.seed}
    return OF_BINARY[name](probs.reshape(y.shape), ones, mask=counted, weights=weights, **keywords)


def _counted(y: Tensor, options: Options) -> Tensor:
    """Neither masked nor ignored, in the shape of the targets."""
    counted = y != options.ignore_index
    if options.mask is None:
        return counted
    return counted & truth(fit(options.mask, y.shape, "mask"), "mask").reshape(y.shape).to(y.device)


def _outside(prediction: Any, ood: Any, targets: ArrayLike, options: Options, of_labels: bool) -> dict[str, Estimate]:
    """How well uncertainty tells the two apart; only elements that count stand for the inside."""
    y = tensor(targets, "targets")
    counted = _counted(y, options) if of_labels or options.mask is not None else None
    common: dict[str, Any] = {"resamples": options.resamples, "level": options.level, "seed": options.seed}

    def pair(of_inside: Any) -> tuple[Any, None] | None:
        return None if of_inside is None else (of_inside, None)

    weights = _class_weighted(y, counted, options) if options.class_weights is not None else options.weights
    common |= {"mask": pair(counted), "weights": pair(weights), "groups": pair(options.groups)}
    if of_labels:
        binary = _binary(prediction, targets)
        totals = [_entropy(p, binary, options) for p in (prediction, ood)]
    else:
        totals = [_uncertainty(p) for p in (prediction, ood)]
    found = detection(*totals, **common)
    scores = {"ood_auroc": found["auroc"], "ood_aupr": found["aupr_out"], "ood_fpr95": found["fpr95"]}
    inside, outside = _epistemic(prediction), _epistemic(ood)
    if inside is not None and outside is not None:
        scores["ood_auroc_epistemic"] = detection(inside, outside, **common)["auroc"]
    return scores


def _class_weighted(y: Tensor, counted: Tensor | None, options: Options) -> Tensor:
    """Weights of the elements times those of their true classes."""
    per_class = tensor(options.class_weights, "class_weights").double()
    index = torch.where(counted, y, 0).long() if counted is not None else y.long()
    weights = (
        torch.ones(y.shape) if options.weights is None else fit(options.weights, y.shape, "weights").reshape(y.shape)
    )
    return weights.double().to(y.device) * per_class.to(y.device)[index]


def _entropy(prediction: Any, binary: bool, options: Options) -> Tensor:
    if hasattr(prediction, "entropy"):
        return tensor(prediction.entropy, "entropy")
    probs = tensor(prediction, "probabilities").double()
    return binary_entropy(probs) if binary else entropy_of(probs, options.class_dim)


def _uncertainty(prediction: Any) -> Tensor:
    if isinstance(prediction, Distribution) or hasattr(prediction, "epistemic"):
        return tensor(prediction.variance, "variance")
    draws = tensor(prediction, "draws").double()
    if draws.dim() < 2:
        raise BadOption("ood= needs uncertainties; point predictions have none.")
    return draws.var(0)


def _epistemic(prediction: Any) -> Tensor | None:
    try:
        return tensor(prediction.epistemic, "epistemic")
    except (NotDefined, AttributeError):
        return None
