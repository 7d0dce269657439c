"""One network: where its uncertainty is, by two structures and more, under three priors.

Index legend: N inputs, L layers.
"""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from typing import Any, Literal

import torch
from torch import Tensor

import whence
from reproductions.kniebel2020 import scores, weights
from reproductions.kniebel2020.subject import Subject
from reproductions.store import Values
from whence.posteriors.laplace.layer_subset import restricted_to_layers
from whence.where.examined import FACTORS, KeptMoments
from whence.where.one_pass import Asked, examine
from whence.where.shares import Shares
from whence.where.weights import spearman

Structure = Literal["full", "block", "kron", "ekfac", "diag", "lowrank"]
BOTH: tuple[Structure, ...] = ("kron", "diag")  # on all networks
EKFAC_UP_TO = 100_000  # weights
DENSE_UP_TO = 1_000
NESTED = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48)  # numbers of layers that are tried
SAME_NLL = 1e-3
COVER = 0.95


def structures_of(parameters: int) -> tuple[Structure, ...]:
    """Which structures a network of this size gets."""
    more: tuple[Structure, ...] = ("ekfac",) if parameters <= EKFAC_UP_TO else ()
    return (*BOTH, *more, *(("block", "full") if parameters <= DENSE_UP_TO else ()))  # type: ignore[arg-type]


def measured(subject: Subject) -> Values:
    """Everything that the questions ask about one network."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        found: Values = {**scores.plain(subject), "structures": {}, "tau": {}, "enough": {}}
        fitted = fit(subject, "kron")
        found["network"] = described(fitted)
        for structure in structures_of(found["network"]["parameters"]):
            posterior = fitted if structure == "kron" else fit(subject, structure)
            found["structures"][structure] = under_priors(posterior, subject, structure in BOTH)
            if structure in BOTH:
                tuned = posterior.tune(subject.validation, data_scale=False, reference=False, progress=False)
                tau = found["tau"][structure] = tuned.prior_precision.tau  # type: ignore[union-attr]
                kept = moments({f: tuned.with_prior(whence.Relative(f * tau)) for f in FACTORS}, everything(subject))
                found["enough"][structure] = {f"{f:g}": last_alone(own, subject) for f, own in kept.items()}
                if structure == "kron":
                    found["sets"] = smallest(tuned, kept[1.0], subject)
                    found["pixels"] = pixels(posterior, subject)
    return found


def fit(subject: Subject, structure: Structure) -> whence.Laplace:
    """Under the relative prior at τ = 1, which is the same statement about every network."""
    return whence.laplace(
        subject.network, subject.train, likelihood="classification", structure=structure, progress=False
    )


def described(posterior: whence.Laplace) -> Values:
    """The layers, in their order; those with a weight matrix have a place from 0 to 1."""
    matrices = [b.name for b in posterior.blocks if b.form is not None]
    widths = [b.form.pairs * b.form.outputs for b in posterior.blocks if b.form is not None]
    place = {name: i / max(len(matrices) - 1, 1) for i, name in enumerate(matrices)}
    return {
        "parameters": posterior.parameters,
        "depth": len(matrices),
        "width": float(torch.tensor(widths[:-1] or widths).double().log().mean().exp()),  # of hidden layers
        "accuracy": posterior.record.accuracy,
        "layers": [
            {"name": b.name, "kind": b.kind, "parameters": b.size, "place": place.get(b.name)} for b in posterior.blocks
        ],
    }


def under_priors(posterior: whence.Laplace, subject: Subject, whole: bool) -> Values:
    """Tables under τ = 0.1, 1 and 10; ``whole``: with everything, not the columns alone."""
    x, y = subject.data.test.take(subject.cell.profiled).tensors()
    asked = {factor: posterior.with_prior(whence.Relative(factor)) for factor in FACTORS}
    shares = examine(x, Asked(asked))
    found: Values = {}
    for factor, own in asked.items():
        layers = weights.layers_of(own)
        found[f"{factor:g}"] = tables(layers, shares[factor], y.cpu() if whole else None)
        if whole and factor == 1.0:
            found["quantiles"] = {
                what: [weights.quantiles(layer, what) for layer in layers] for what in ("std", "identified")
            }
    if whole and subject.data.novel:
        found["novel"] = for_novel(asked, subject)
    if whole:
        variance = posterior.prior_variance()
        std = [float(b.gather(variance).double().mean().sqrt()) for b in posterior.blocks]
        found["prior"] = {"share": shares[1.0].over_inputs().prior_share.tolist(), "std": std}
        found["curvature"] = curvatures(layers)
    return found


def for_novel(asked: dict[float, whence.Laplace], subject: Subject) -> Values:
    """Explained and shares for a few inputs of every other set."""
    few = max(1, subject.cell.profiled // (2 * len(subject.data.novel)))
    x = torch.cat([part[:few] for part in subject.data.novel.values()])
    found = {factor: shares.over_inputs() for factor, shares in examine(x, Asked(asked)).items()}
    return {
        f"{factor:g}": {"explained": sums.explained.tolist(), "share": sums.variance_share.tolist()}
        for factor, sums in found.items()
    }


def tables(layers: list[weights.Layer], found: Shares, labels: Tensor | None) -> Values:
    """Columns by layer, effect sizes and rank correlations; with ``labels`` everything, else the columns alone."""
    sums = found.over_inputs()
    columns: Values = {
        "std": [float(layer.std.square().mean().sqrt()) for layer in layers],
        "identified": [float(layer.identified.mean()) for layer in layers],
        "explained": sums.explained.tolist(),
        "share": sums.variance_share.tolist(),
    }
    if labels is None:
        return columns
    known = ("std", "identified")
    return columns | {
        "between": {what: weights.between(layers, what) for what in known},
        "inside": {what: [weights.inside(layer, what) for layer in layers] for what in known},
        "size": {
            what: {
                "layers": [weights.with_size([layer], what) for layer in layers],
                "all": weights.with_size(layers, what),
            }
            for what in known
        },
        "head": layers[-1].by_unit("identified").tolist(),
        "unidentified": [weights.unidentified(layer)[0] for layer in layers],
        "classes": of_classes(found, labels),
    }


def curvatures(layers: list[weights.Layer]) -> Values:
    """What holds no prior."""
    of = ("curvature", "relative_curvature")
    return {
        **{what: [float(layer.of(what).mean()) for layer in layers] for what in of},
        "between": {what: weights.between(layers, what) for what in of},
        "inside": {what: [weights.inside(layer, what) for layer in layers] for what in of},
        "size": weights.with_size(layers, "curvature"),
        "units": [layer.units for layer in layers],
        "dead": [weights.unidentified(layer)[1] for layer in layers],
    }


def of_classes(found: Shares, labels: Tensor) -> Values:
    """By class: explained in the whole network, and the identified mean of the output row of each class."""
    classes = labels.unique().tolist()
    left = [float(found.variance[labels == c].sum() / found.prior[labels == c].sum()) for c in classes]
    assert found.outputs is not None
    right = (found.outputs.argmax(1).cpu() == labels).double()
    return {"explained": [1 - value for value in left], "accuracy": [float(right[labels == c].mean()) for c in classes]}


# Is the last layer enough?


def last_of(posterior: whence.Laplace) -> str:
    return next(b.name for b in reversed(posterior.blocks) if b.form is not None)


def everything(subject: Subject) -> Tensor:
    """Test inputs, then novel ones."""
    return torch.cat(list(scores.inputs_of(subject).values()))


def moments(posteriors: dict[float, whence.Laplace], x: Tensor) -> dict[float, KeptMoments]:
    """Of the outputs under several priors, by one pass."""
    kept = {key: KeptMoments(posterior, x) for key, posterior in posteriors.items()}
    first = next(iter(posteriors.values()))
    examine(x, Asked({"": first}, moments=posteriors), None, lambda key, piece: kept[key].add(piece))
    return kept


def scored(prediction: Any, subject: Subject) -> Values:
    """Scores of a prediction for :func:`everything`."""
    sizes = {name: len(part) for name, part in scores.inputs_of(subject).items()}
    return scores.of_prediction(prediction, sizes, subject.test[1].cpu())


def last_alone(kept: KeptMoments, subject: Subject) -> Values:
    """Scores of all layers and of the last alone."""
    last = kept.prediction([last_of(kept.posterior)])
    return {"all": scored(kept.collected.prediction(), subject), "last": scored(last, subject)}


def smallest(posterior: whence.Laplace, outside: KeptMoments, subject: Subject) -> Values:
    """Chosen on validation data: layers by their share, and how many of them predict as well as all."""
    x, y = subject.validation
    inside = moments({1.0: posterior}, x)[1.0]
    share = examine(x[: subject.cell.profiled], Asked({"": posterior}))[""].over_inputs().variance_share
    order = share.argsort(descending=True).tolist()
    names, sizes = [b.name for b in posterior.blocks], [b.size for b in posterior.blocks]
    nested = [n for n in NESTED if n < len(names)] + [len(names)]
    losses = [loss(inside.prediction([names[i] for i in order[:n]]), y) for n in nested]
    best = next(n for n, value in zip(nested, losses, strict=True) if value <= losses[-1] + SAME_NLL)
    cover = int((share[order].cumsum(0) < COVER).sum()) + 1
    found: Values = {"validation": dict(zip(map(str, nested), losses, strict=True))}
    for name, count in (("as good", best), ("95% of the variance", cover)):
        some = [names[i] for i in order[:count]]
        weight = sum(sizes[i] for i in order[:count]) / posterior.parameters
        found[name] = {"layers": some, "weights": weight, **scored(outside.prediction(some), subject)}
    last = last_of(posterior)
    tuned = restricted_to_layers(posterior, [last]).tune((x, y), data_scale=False, reference=False, progress=False)
    alone = moments({1.0: tuned}, everything(subject))[1.0].collected.prediction()
    found["last, tuned by itself"] = {
        "layers": [last], "weights": sizes[names.index(last)] / posterior.parameters,
        "tau": tuned.prior_precision.tau, **scored(alone, subject),  # type: ignore[union-attr]
    }  # fmt: skip
    return found


def loss(prediction: Any, labels: Tensor) -> float:
    probs = prediction.probs.double().cpu()
    return float(-probs.clamp(min=1e-30).log().gather(1, labels.cpu()[:, None]).mean())


# The edges of images


def pixels(posterior: whence.Laplace, subject: Subject) -> Values | None:
    """Of a first layer that reads pixels: is a pixel's weight better known in the middle than at the edge?"""
    first = next(b for b in posterior.blocks if b.form is not None)
    shape = subject.data.shape
    if len(shape) != 3 or first.form is None or first.form.inputs != torch.Size(shape).numel():
        return None
    found: Values = {}
    activity = subject.data.train.raw.double().div(255).square().mean(0).flatten().cpu()
    near = edge(shape[1:]).flatten().repeat(shape[0])
    for factor in FACTORS:
        own = weights.layers_of(posterior.with_prior(whence.Relative(factor)))
        layer = next(layer for layer in own if layer.name == first.name)
        native = first.form.pack(layer.identified.cpu())[0, :, : first.form.inputs]  # [O, D]
        by_pixel = native.mean(0)
        found[f"{factor:g}"] = {
            "edge": float(by_pixel[near].mean()), "middle": float(by_pixel[~near].mean()),
            "activity": spearman(by_pixel, activity),
        }  # fmt: skip
        if factor == 1.0 and subject.seed == 0 and not subject.cell.factor:
            found["map"] = [float(f"{v:.3g}") for v in by_pixel.tolist()]
    return found


def edge(shape: Sequence[int]) -> Tensor:
    """Which pixels are near the border: 4 of 28 on each side."""
    width = max(1, shape[0] // 7)
    near = torch.ones(tuple(shape), dtype=torch.bool)
    near[width:-width, width:-width] = False
    return near
