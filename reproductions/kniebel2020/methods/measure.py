"""Do methods agree on where the uncertainty is, and with Hamiltonian Monte Carlo?

Index legend: S draws, N inputs, C classes, L layers, P weights.
"""

from __future__ import annotations

import warnings
from itertools import combinations
from typing import Any

import torch
from torch import Tensor

import whence
from reproductions.kniebel2020 import scores
from reproductions.kniebel2020.methods.posteriors import Case
from reproductions.kniebel2020.weights import chosen
from reproductions.store import Values
from whence.where.activations import disagreement
from whence.where.sampled import weight_shares
from whence.where.weights import spearman

TINY = 1e-12


def measured(case: Case) -> Values:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        methods = case.methods()
        x, y = case.subject.data.test.take(case.config.compared).tensors()
        predicted = {name: predictions(method, x, case) for name, method in methods.items()}
        found: Values = {"precision": case.precision}
        found["scores"] = {name: scored(p, y) for name, p in predicted.items()}
        found["layers"], found["where"] = where_by(methods, x)
        found["disagreement"] = {name: apart(method, x, case) for name, method in methods.items()}
        found["variance"] = compared({name: spread(p) for name, p in predicted.items()})
        found["weights"] = of_weights(methods)
        return found


def predictions(method: whence.Posterior, x: Tensor, case: Case) -> Tensor:
    """Probabilities of draws, [S, N, C]; those of the linearised network for Laplace, as it predicts."""
    generator = torch.Generator().manual_seed(case.seed)
    if isinstance(method, whence.Laplace):
        return method.predict(x).samples.double().cpu()  # type: ignore[attr-defined]
    draws = len(method) if isinstance(method, whence.Ensemble) else case.config.draws
    return method.draw(draws, generator=generator).outputs(x).softmax(-1).double().cpu()


def scored(samples: Tensor, labels: Tensor) -> Values:
    return scores.of_probabilities({"": samples.mean(0)}, labels.cpu())


def spread(samples: Tensor) -> Tensor:
    """Variance of the probabilities over draws, summed over classes, [N]."""
    return samples.var(0, correction=0).sum(-1)


# Where


def where_by(methods: dict[str, whence.Posterior], x: Tensor) -> tuple[list[str], Values]:
    """Shares and explained of every layer; of dropout by the layer that reads what was dropped."""
    layers: list[str] = []
    found: Values = {}
    for name, method in methods.items():
        if isinstance(method, whence.Laplace):
            where = method.where(x)
            layers = layers or [row.name for row in where.layers]
            found[name] = {"share": [r.variance_share for r in where.layers]}
            found[name]["explained"] = [r.explained for r in where.layers]
            if name == "laplace kron":
                found["laplace kron, drawn"] = {"share": _normed(weight_shares(method, x).share.tolist())}
        elif isinstance(method, (whence.Variational, whence.Swag)):
            rows = {row.name: row for row in method.where(x).layers}
            found[name] = {"share": _normed([float(rows[n].variance_share or 0.0) for n in layers])}
            if isinstance(method, whence.Variational):
                found[name]["explained"] = [float(rows[n].explained or 0.0) for n in layers]
        elif isinstance(method, whence.Dropout):
            found[name] = {"sites": [[row.name, row.variance_share] for row in method.where(x).layers]}
    return layers, found


def _normed(shares: list[float]) -> list[float]:
    """Shares by draws do not add up to 1, because layers interact."""
    total = sum(shares) or 1.0
    return [share / total for share in shares]


def apart(method: whence.Posterior, x: Tensor, case: Case) -> Values:
    """1 − CKA of every layer's outputs between draws: defined for every method, and blind to permuted units."""
    generator = torch.Generator().manual_seed(case.seed)
    count = len(method) if isinstance(method, whence.Ensemble) else case.config.drawn
    modules = method.draw(count, generator=generator).modules()  # type: ignore[attr-defined]
    table = disagreement(modules, x)
    return {name: value for name, value in zip(table["name"], table["disagreement"], strict=True) if value is not None}


# Comparisons


def compared(values: dict[str, Tensor]) -> Values:
    """Every pair: rank correlation, and the mean logarithm of the ratio of first to second."""
    found: Values = {}
    for (one, a), (other, b) in combinations(values.items(), 2):
        ratio = (a.clamp(min=TINY) / b.clamp(min=TINY)).log().mean()
        found[f"{one} | {other}"] = {"rank": spearman(a, b), "log ratio": float(ratio)}
    return found


def of_weights(methods: dict[str, whence.Posterior]) -> Values:
    """Standard deviations of weights, within layers: pairs of methods; of a perceptron also with the chains."""
    stds: dict[str, dict[str, Tensor]] = {}
    for name, method in methods.items():
        if isinstance(method, whence.Hmc):
            if len(method.layers()) == 1:  # no hidden units that could be permuted
                drawn = {n: v.flatten(0, 1).std(0) for n, v in method.draws.items()}
                stds[name] = _by_layer(method, drawn)
        elif method.over_weights:
            stds[name] = _by_layer(method, {n: v.sqrt() for n, v in method.as_weights("std").variance().items()})
    found: Values = {}
    for (one, a), (other, b) in combinations(stds.items(), 2):
        shared = [layer for layer in a if layer in b]
        pairs = [compared({"a": a[layer], "b": b[layer]})["a | b"] for layer in shared]
        found[f"{one} | {other}"] = {key: scores.mean([pair[key] for pair in pairs]) for key in ("rank", "log ratio")}
    return found


def _by_layer(method: Any, values: dict[str, Tensor]) -> dict[str, Tensor]:
    """The same part of every layer's weights for every method."""
    found = {}
    for layer, names in method.layers().items():
        flat = torch.cat([values[n].double().cpu().flatten() for n in sorted(names)])
        found[layer] = flat[chosen(len(flat))]
    return found
