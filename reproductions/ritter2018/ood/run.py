"""Every method on digits and on what is none.

Index legend: N inputs, C classes.
"""

from __future__ import annotations

import math
from dataclasses import replace
from functools import partial
from typing import Any

import torch
from torch import Tensor

import whence
from reproductions.experiment import Context
from reproductions.ritter2018.mnist import (
    DETERMINISTIC,
    DIAGONAL,
    FACTORISED,
    KRONECKER,
    LAYERED,
    LINEARISED,
    METHODS,
    Method,
    Subject,
)
from reproductions.ritter2018.ood.check import check
from reproductions.ritter2018.ood.config import BATCH, MEAN, SLOW, Config
from reproductions.store import Results, Values
from whence import metrics, zoo

RANKS = (1, 3, 10, 30, 100, 300, 1_000, 3_000, 10_000, 30_000, 100_000)  # of eigenvalues that are reported


def run(config: Config, results: Results, context: Context) -> None:
    first = Subject(config.setup, config.readings_seed, context)
    for name in config.readings:
        results.unit(f"reading/{name}", partial(reading, first, name, config))
    for seed in config.setup.seeds:
        subject = Subject(config.setup, seed, context)
        for name in METHODS:
            results.unit(f"{seed}/{name}", partial(evaluate, subject, name, config))
        results.unit(f"{seed}/regularisation", partial(regularisation, subject, config))
        results.unit(f"{seed}/detectors", partial(detectors, subject, config))
        results.unit(f"{seed}/check", partial(check, subject, config))
    copied = Subject(config.setup, config.copies_seed, context)
    for count in config.copies:
        results.unit(f"copies/{count}", partial(copies, copied, count, config))
    fewer = replace(config.setup, copies=config.layered_copies)
    for seed in config.setup.seeds:
        results.unit(f"{seed}/{LAYERED}", partial(evaluate, Subject(fewer, seed, context), LAYERED, config))
    subject = Subject(config.setup, config.divergence_seed, context)
    for weight in config.divergence:
        results.unit(f"divergence/{weight:g}", partial(divergence, subject, {"kl_weight": weight}, config))
    results.unit(SLOW, partial(divergence, subject, config.slow, config))


# One method


def evaluate(subject: Subject, name: str, config: Config) -> Values:
    """How good it is on digits, how uncertain elsewhere, and how well that tells the two apart."""
    method = subject.method(name)
    x, y = _test(subject).tensors()
    inside = predict(method, x, config)
    value: Values = {"test": quality(inside, y, config) | spread(inside.entropy, config), "outside": {}}
    for other in config.setup.outside:
        outside = predict(method, subject.outside(other).inputs, config)
        found = spread(outside.entropy, config)
        found["by_entropy"] = detection(inside.entropy, outside.entropy, config)
        if name != DETERMINISTIC:
            found["by_epistemic"] = detection(inside.epistemic, outside.epistemic, config)
        value["outside"][other] = found
    if name == FACTORISED:
        value["kl_weight"] = config.setup.variational["kl_weight"]
    return value


def predict(method: Method, x: Tensor, config: Config) -> Any:
    return method.predict(x, config.setup.draws, config.draws_seed)


def quality(prediction: Any, y: Tensor, config: Config) -> Values:
    wanted = {"accuracy": metrics.accuracy, "nll": metrics.nll, "ece": metrics.ece, "brier": metrics.brier}
    return {name: estimate(metric(prediction, y, resamples=config.resamples)) for name, metric in wanted.items()}


def spread(entropy: Tensor, config: Config, classes: int = 10) -> Values:
    """Mean entropy, its inverse distribution function, and how many predictions are certain or nearly open.

    ``curve`` is the share of inputs with at least the entropy h, for h evenly from 0 to log C.
    """
    values = entropy.double().cpu().clamp(min=0).sort().values
    most, n = math.log(classes), len(entropy)
    grid = torch.linspace(0, most, config.grid, dtype=torch.float64)
    return {
        "mean_entropy": float(values.mean()),
        "mean_entropy_se": float(values.std()) / math.sqrt(n),
        "certain": float((values < config.certain).double().mean()),
        "high": float((values >= most / 2).double().mean()),
        "curve": (1 - torch.searchsorted(values, grid).double() / n).tolist(),
    }


def detection(inside: Tensor, outside: Tensor, config: Config) -> Values:
    scores = torch.cat([inside, outside]).double()
    novel = torch.arange(len(scores), device=scores.device) >= len(inside)
    options = {"resamples": config.resamples}
    return {
        "auroc": estimate(metrics.auroc(scores, novel, **options)),
        "fpr95": estimate(metrics.fpr95(scores, novel, **options)),
    }


def estimate(found: metrics.Estimate) -> Values:
    return {"value": float(found), "low": found.low, "high": found.high}


# Hyperparameters


def regularisation(subject: Subject, config: Config) -> Values:
    """What tuning chose for each Laplace, what it would be without, and how far it is from the plain network."""
    sets = {"test": _test(subject).inputs, config.setup.outside[0]: subject.outside(config.setup.outside[0]).inputs}
    plain = {key: predict(subject.method(DETERMINISTIC), x, config) for key, x in sets.items()}
    value: Values = {}
    for name in (DIAGONAL, KRONECKER, LINEARISED):
        method = subject.method(name)
        assert isinstance(method.posterior, whence.Laplace)
        value[name] = hyperparameters(method.posterior)
        untuned = method.posterior.with_prior(trained_prior(subject)).with_data_scale(1.0)
        bare = predict(replace(method, posterior=untuned), sets["test"], config)
        value[name] |= {
            "std": rms_std(method.posterior),
            "untuned_std": rms_std(untuned),
            "untuned": quality(bare, _test(subject).targets, config),
            "distance": {
                key: estimate(
                    metrics.total_variation(predict(method, x, config), plain[key], resamples=config.resamples)
                )
                for key, x in sets.items()
            },
        }
    return value


def trained_prior(subject: Subject) -> float:
    """The prior precision that the weight decay beside the mean loss amounts to."""
    train = subject.data.train
    assert train is not None
    return subject.recipe.settings.weight_decay * train.size


def hyperparameters(posterior: whence.Laplace) -> Values:
    """Prior precision δ, data scale s, and how many decades of δ / s and of s were tried beyond them."""
    assert posterior.tuning is not None
    trials = posterior.tuning.trials
    ratio, scale = posterior.prior_precision / posterior.data_scale, posterior.data_scale  # type: ignore[operator]
    # The untuned posterior that tuning starts from has a prior precision and a data scale of 1.
    ratios, scales = [t.prior_factor / t.data_scale for t in trials], [t.data_scale for t in trials]
    return {
        "prior_precision": float(posterior.prior_precision),  # type: ignore[arg-type]
        "data_scale": scale,
        "score": posterior.tuning.score,
        "trials": len(trials),
        "decades_below": math.log10(ratio / min(ratios)),
        "decades_above": math.log10(max(ratios) / ratio),
        "scale_decades_below": math.log10(scale / min(scales)),
        "scale_decades_above": math.log10(max(scales) / scale),
    }


def rms_std(posterior: whence.Laplace) -> float:
    """Root mean square standard deviation of a weight."""
    variances = posterior.variance().values()
    return math.sqrt(sum(float(v.double().sum()) for v in variances) / sum(v.numel() for v in variances))


# Detectors


def detectors(subject: Subject, config: Config) -> Values:
    """AUROC and FPR95 of ``whence.novelty`` and of the detectors beside it; the reference is validation data."""
    posterior = subject.laplace("kron", tuned="linearised")
    validation, train = subject.data.validation, subject.data.train
    assert validation is not None and train is not None
    sets = [_test(subject).inputs, *(subject.outside(name).inputs for name in config.setup.outside)]
    reference = whence.reference_of(posterior, validation)
    every = whence.detectors(posterior, torch.cat(sets), train=train, reference=reference)
    pieces = {name: scores.to(sets[0].device).split([len(x) for x in sets]) for name, scores in every.items()}
    return {
        other: {name: detection(inside, outside[place], config) for name, (inside, *outside) in pieces.items()}
        for place, other in enumerate(config.setup.outside)
    }


# Readings of the L2 factor


def reading(subject: Subject, name: str, config: Config) -> Values:
    """The network trained with the L2 factor read in one way; validation data choose the reading."""
    train = subject.data.train
    assert train is not None and subject.data.validation is not None
    by = {MEAN: 1, BATCH: subject.recipe.settings.batch_size}.get(name, train.size)
    decay = config.l2 / by
    network = zoo.trained(
        subject.recipe, seed=subject.seed, data=subject.data, device=subject.context.device,
        cache=subject.context.cache / "weights", progress=False, weight_decay=decay,
    ).network  # fmt: skip
    plain = whence.ensemble([network], likelihood="classification")
    value: Values = {"weight_decay": decay, "train_accuracy": zoo.evaluate(network, train)["accuracy"]}
    for part, examples in (("validation", subject.data.validation), ("test", _test(subject))):
        x, y = examples.tensors()
        value[part] = quality(plain.predict(x), y, config)
    return value


# Binarised copies


def copies(subject: Subject, count: int, config: Config) -> Values:
    """The Kronecker posterior of section 5.2 with its curvature over ``count`` binarised copies of each image."""
    fitted = subject.laplace("kron", tuned=None, copies=count)
    posterior = subject.laplace("kron", damping="factored", copies=count)
    method = Method(KRONECKER, posterior, {"method": "sampled"}, subject.context.device)
    x, y = _test(subject).tensors()
    inside = predict(method, x, config)
    outside = predict(method, subject.outside(config.setup.outside[0]).inputs, config)
    return {
        "layers": curvature(fitted),
        "test": quality(inside, y, config),
        "outside": spread(outside.entropy, config) | {"by_entropy": detection(inside.entropy, outside.entropy, config)},
        "std": rms_std(posterior),
        **hyperparameters(posterior),
    }


def curvature(posterior: whence.Laplace) -> Values:
    """Traces of the Kronecker factors, and some eigenvalues of their product, by layer."""
    spectrum = posterior.where().spectrum
    value: Values = {}
    for block, structure in zip(posterior.blocks, posterior.curvature.structures, strict=True):
        factors = structure.tensors()
        trace_a = factors["inputs"].diagonal(dim1=-2, dim2=-1).sum() / factors["count"].sum()
        rows = [row for row in spectrum.rows() if row["name"] == block.name]
        ranks = [rank for rank in RANKS if rank <= rows[-1]["rank"]]
        near = [min(rows, key=lambda row: abs(row["rank"] - rank)) for rank in ranks]
        value[block.name] = {
            "trace_inputs": float(trace_a),
            "trace_gradients": float(factors["grads"].diagonal(dim1=-2, dim2=-1).sum()),
            "eigenvalues": {str(row["rank"]): row["curvature"] for row in near},
        }
    return value


# The factorised Gaussian


def divergence(subject: Subject, changes: dict[str, float], config: Config) -> Values:
    """The factorised Gaussian trained in another way, and what the bound says of it."""
    posterior = subject.factorised(**changes)
    method = Method(FACTORISED, posterior, {}, subject.context.device)
    x, y = _test(subject).tensors()
    outside = predict(method, subject.outside(config.setup.outside[0]).inputs, config)
    data = subject.train.augmented(1, seed=config.draws_seed)
    generator = torch.Generator().manual_seed(config.draws_seed)
    bound = posterior.elbo(data, num_samples=config.bound_draws, generator=generator)
    size = subject.train.size
    assert subject.data.validation is not None
    inputs, targets = subject.data.validation.tensors()
    return {
        "validation": quality(predict(method, inputs, config), targets, config),
        "test": quality(predict(method, x, config), y, config),
        "outside": spread(outside.entropy, config),
        "bound": bound.value / size,  # nats for each training image
        "bound_se": bound.standard_error / size,
        "divergence": bound.kl / size,
        "bound_by_epoch": [-(row.nll + row.kl) / size for row in posterior.history],
    }


def _test(subject: Subject) -> zoo.Examples:
    test = subject.data.test
    assert test is not None
    return test
