"""Novelty by layer, in and out of distribution, and the detectors beside it."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from whence.auditing.context import Context
from whence.auditing.plain import estimate, number, numbers
from whence.auditing.sets import hold
from whence.auditing.shown import reference_for
from whence.errors import MissingExtra, NotDefined, notice
from whence.where.detectors import DetectorTable, compare_detectors
from whence.where.novelty import Novelty, novelty

QUANTILES = (0.05, 0.25, 0.5, 0.75, 0.95)
BINS = 20
TRAINED = 5_000  # training inputs that the other detectors are given
LABELS = {
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


def novel(context: Context) -> dict[str, Any]:
    """Quantiles of what is unexplained, p-values, and AUROCs where there is a set from elsewhere."""
    context.need_closed_forms("novelty")
    reference = reference_for(context)
    if reference is None:
        raise NotDefined("no validation data were given, against which novelty is held.")
    context.need("test")
    sets = {"test": novelty(context.posterior, context.profiled["test"].inputs, reference=reference)}
    if context.has("ood"):
        sets["ood"] = novelty(context.posterior, context.profiled["ood"].inputs, reference=reference)
    level = max(0.01, 1 / (reference.size + 1))
    table = _detectors(context, reference) if "ood" in sets else None
    labels = {"test": "Test data", "ood": "Out of distribution"}
    described = [_reference(reference)]
    described += [_set(key, labels[key], found, level) for key, found in sets.items()]
    return {
        "reference": reference.size,
        "names": list(reference.names),
        "level": number(level),
        "sets": described,
        "detectors": None if table is None else [_row(r) for r in table.rows],
        "words": _words(sets, level),
    }


def _row(row: Any) -> dict[str, Any]:
    label = LABELS.get(row.detector, row.detector)
    return {"name": row.detector, "label": label, "auroc": estimate(row.auroc), "fpr95": estimate(row.fpr95)}


def _quantiles(names: tuple[str, ...], unexplained: Tensor, flagged: Tensor | None) -> list[dict[str, Any]]:
    q = torch.quantile(unexplained, torch.tensor(QUANTILES, dtype=torch.float64), dim=0)  # [5, B]
    found = []
    for b, name in enumerate(names):
        row: dict[str, Any] = {"name": name}
        row |= {f"q{int(100 * level):02d}": number(q[i, b]) for i, level in enumerate(QUANTILES)}
        found.append(row | {"flagged": None if flagged is None else number(flagged[b])})
    return found


def _reference(reference: Any) -> dict[str, Any]:
    return {
        "key": "reference",
        "label": "Validation data",
        "inputs": reference.size,
        "flagged": None,
        "layers": _quantiles(reference.names, reference.unexplained, None),
        "p_values": None,
    }


def _set(key: str, label: str, found: Novelty, level: float) -> dict[str, Any]:
    edges = torch.linspace(0, 1, BINS + 1, dtype=torch.float64)
    counts = torch.histogram(found.p_value.double().cpu().clamp(0, 1), edges).hist
    return {
        "key": key,
        "label": label,
        "inputs": len(found),
        "flagged": number((found.p_value <= level).double().mean()),
        "layers": _quantiles(found.names, found.unexplained, (found.p_values <= level).double().mean(0)),
        "p_values": {"edges": numbers(edges), "counts": [int(c) for c in counts]},
    }


def _detectors(context: Context, reference: Any) -> DetectorTable | None:
    """With those that need training data, where they can be had."""
    train = None if context.train is None else hold(context.train, "train", TRAINED)
    pair = None if train is None or train.targets is None else train.pair
    inside, outside = (context.profiled[name].pair for name in ("test", "ood"))
    try:
        return compare_detectors(context.posterior, inside, outside, train=pair, reference=reference)
    except MissingExtra as error:
        notice(f"the detectors that need training data were left out: {error}")
        return compare_detectors(context.posterior, inside, outside, train=None, reference=reference)


def _words(sets: dict[str, Novelty], level: float) -> list[str]:
    words = []
    flagged = float((sets["test"].p_value <= level).double().mean())
    words.append(
        f"At p ≤ {level:.2g}, {flagged:.1%} of the test inputs are flagged as novel ({level:.0%} are expected)."
    )
    if "ood" in sets:
        found = sets["ood"]
        novel_ones = found.p_value <= level
        words.append(f"Of the out-of-distribution inputs {float(novel_ones.double().mean()):.1%} are.")
        firsts = [name for name, flag in zip(found.layer, novel_ones.tolist(), strict=True) if flag]
        if firsts:
            most = max(set(firsts), key=firsts.count)
            words.append(f"The layer that notices most of them is {most!r} ({firsts.count(most) / len(firsts):.0%}).")
    return words
