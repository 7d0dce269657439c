"""Novelty by layer, in and out of distribution, compared with other detectors."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Literal

import torch
from torch import Tensor

from whence.auditing.context import LABELS, Context
from whence.auditing.data import read_examples
from whence.errors import MissingExtra, NotDefined, notice
from whence.report.record.common import Estimate
from whence.report.record.sections import Detector, Histogram, LayerQuantiles, Novelty, NoveltyOfSet
from whence.where.detectors import detector_table, scores_of_prediction, table_of
from whence.where.novelty import Novelty as Found
from whence.where.novelty import novelty_given

QUANTILES = (0.05, 0.25, 0.5, 0.75, 0.95)
BINS = 20
TRAINED = 5_000  # training inputs for the other detectors
DETECTORS = {
    "novelty": "whence novelty",
    "entropy": "entropy",
    "mutual_information": "mutual information",
    "variance": "predictive variance",
    "max_probability": "maximum probability",
    "energy": "energy",
    "mahalanobis": "Mahalanobis, last features",
    "mahalanobis_layers": "Mahalanobis, all layers",
    "neighbours": "nearest neighbours, last features",
}


def novelty(context: Context) -> Novelty:
    """Quantiles of the unexplained part, p-values, and AUROCs if there is out-of-distribution data."""
    context.posterior.as_laplace("novelty")
    reference = context.reference
    if reference is None:
        raise NotDefined("no validation data were given, relative to which novelty is measured.")
    context.need("test")
    level = max(0.01, 1 / (reference.size + 1))
    sets = {
        name: novelty_given(reference, unexplained)
        for name in ("test", "ood")
        if context.has(name) and (unexplained := context.examined(name).unexplained) is not None
    }
    layers = _quantiles(reference.names, reference.unexplained, None)
    described = [NoveltyOfSet("reference", "Validation data", reference.size, None, layers, None)]
    described += [_set(name, found, level) for name, found in sets.items()]  # type: ignore[arg-type]
    detectors = _detectors(context, sets) if "ood" in sets else None
    return Novelty(reference.size, reference.names, level, tuple(described), detectors, tuple(_words(sets, level)))


def _quantiles(names: tuple[str, ...], unexplained: Tensor, flagged: Tensor | None) -> tuple[LayerQuantiles, ...]:
    columns = torch.quantile(unexplained, torch.tensor(QUANTILES, dtype=torch.float64), dim=0).tolist()  # [5, B]
    parts = [None] * len(names) if flagged is None else flagged.tolist()
    return tuple(map(LayerQuantiles, names, *columns, parts))


def _set(key: Literal["test", "ood"], found: Found, level: float) -> NoveltyOfSet:
    edges = torch.linspace(0, 1, BINS + 1, dtype=torch.float64)
    counts = torch.histogram(found.p_value.double().cpu().clamp(0, 1), edges).hist
    layers = _quantiles(found.names, found.unexplained, (found.p_values <= level).double().mean(0))
    histogram = Histogram(tuple(edges.tolist()), tuple(int(count) for count in counts))
    return NoveltyOfSet(key, LABELS[key], len(found), _flagged(found, level), layers, histogram)


def _flagged(found: Found, level: float) -> float:
    return float((found.p_value <= level).double().mean())


def _detectors(context: Context, sets: dict[str, Found]) -> tuple[Detector, ...]:
    """Include detectors that need training data, where possible."""
    train = None if context.train is None else read_examples(context.train, "train", TRAINED)
    pair = None if train is None or train.targets is None else train.pair
    posterior = context.posterior.as_laplace("novelty")
    inputs = (context.profiled["test"].inputs, context.profiled["ood"].inputs)
    known = [_scores(context, name, found) for name, found in sets.items()]
    try:
        table = detector_table(posterior, inputs, known, pair)
    except MissingExtra as error:
        notice(f"the detectors that need training data were skipped: {error}")
        table = detector_table(posterior, inputs, known, None)
    except NotDefined as error:
        notice(f"the detectors of the plain network were skipped: {error}")
        table = table_of(known)
    rows = ((row.detector, Estimate.of(row.auroc), Estimate.of(row.fpr95)) for row in table.rows)
    return tuple(
        Detector(name, DETECTORS.get(name, name), auroc, fpr95) for name, auroc, fpr95 in rows if auroc and fpr95
    )


def _scores(context: Context, name: str, found: Found) -> dict[str, Tensor]:
    """What the posterior says about the profiled inputs of a set."""
    scores = {"novelty": found.score}
    if context.posterior.likelihood.has_labels:
        index = context.profiled_index(name)
        whole = scores_of_prediction(context.prediction(name))
        scores |= {key: value[index] for key, value in whole.items()}
    return scores | {"variance": context.total_variance(name)}


def _words(sets: dict[str, Found], level: float) -> Iterator[str]:
    yield (
        f"At p ≤ {level:.2g}, {_flagged(sets['test'], level):.1%} of the test inputs are flagged as novel "
        f"({level:.0%} are expected)."
    )
    if "ood" in sets:
        found = sets["ood"]
        yield f"Of the out-of-distribution inputs, {_flagged(found, level):.1%} are flagged."
        first = [name for name, flag in zip(found.layer, (found.p_value <= level).tolist(), strict=True) if flag]
        if first:
            most = max(set(first), key=first.count)
            part = first.count(most) / len(first)
            yield f"Most of these differ most from the training data in `{most}` ({part:.0%})."
