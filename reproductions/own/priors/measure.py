"""What one prior gives on one network: untuned, tuned, where, pruned; and the plain network beside it."""

from __future__ import annotations

import math
import warnings
from typing import Any

import torch
from torch import Tensor

import whence
from reproductions.own.priors.config import Config
from reproductions.own.priors.rules import prior_of
from reproductions.own.priors.subjects import Subject
from reproductions.store import Values
from whence import metrics

PRUNED = 0.9
LEVELS = tuple(i / 10 for i in range(1, 10))
BATCH = 250
TEMPERATURES = torch.logspace(-1, 1.5, 251, dtype=torch.float64)


def fitted(subject: Subject) -> whence.Laplace:
    batches = list(zip(*(part.split(BATCH) for part in subject.train), strict=True))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return whence.laplace(subject.network, batches, likelihood=subject.likelihood, progress=False)  # type: ignore[arg-type]


def measured(config: Config, name: str, rule: str, subject: Subject, posterior: whence.Laplace) -> Values:
    """Everything about one prior on one network."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        untuned = posterior.with_prior(prior_of(rule, posterior, subject))
        tuned = untuned.tune(subject.validation, progress=False, reference=False)
        found: Values = {"untuned": _scores(untuned, subject), "tuned": _scores(tuned, subject) | _chosen(tuned)}
        if rule == "signal":
            deep = posterior.with_prior(whence.Relative(len(posterior.blocks)))
            found["untuned, τ = number of blocks"] = _scores(deep, subject)
        where = tuned.where(subject.test[0][: config.of(name, "shown")])
        columns = ("name", "variance_share", "prior_share", "explained")
        found["layers"] = [{c: getattr(row, c) for c in columns} for row in where.layers]
        found["pruned"] = _quality_of(whence.prune(tuned, PRUNED), subject)
    return found


def plain(subject: Subject) -> Values:
    """The network alone, and with what validation data can do for it without a posterior."""
    found: Values
    if not subject.classes:
        residuals = {part: _residuals(subject, part) for part in ("train", "validation", "test")}
        noises = {key: residuals[part].square().mean() for key, part in (("plain", "train"), ("scaled", "validation"))}
        test = residuals["test"]
        found = {key: _gaussian(test, noise.expand_as(test)) for key, noise in noises.items()}
        return found | {"pruned by size": _by_size(subject)}
    network, (x, y) = subject.network, subject.test
    validation, logits = (_outputs(network, part) for part in (subject.validation[0], x))
    outside = {name: _outputs(network, part) for name, part in subject.novel.items()}
    temperature = _temperature(validation, subject.validation[1].cpu())
    found = {}
    for key, t in (("plain", 1.0), ("scaled", temperature)):
        novel = {name: (part / t).softmax(-1) for name, part in outside.items()}
        found[key] = _classes((logits / t).softmax(-1), y, novel, None)
    return found | {"temperature": temperature, "pruned by size": _by_size(subject)}


def _residuals(subject: Subject, part: str) -> Tensor:
    x, y = getattr(subject, part)
    return _outputs(subject.network, x) - y.double().cpu().reshape(-1, 1)


def _outputs(network: torch.nn.Module, x: Tensor) -> Tensor:
    with torch.no_grad():
        return torch.cat([network(part).double().cpu() for part in x.split(500)])


def _temperature(logits: Tensor, labels: Tensor) -> float:
    losses = torch.stack([torch.nn.functional.cross_entropy(logits / t, labels) for t in TEMPERATURES])
    return float(TEMPERATURES[losses.argmin()])


def _by_size(subject: Subject) -> float:
    """Quality after the smallest weights were pruned, of all layers together."""
    posterior = whence.laplace(
        subject.network, [(subject.train[0][:50], subject.train[1][:50])], likelihood=subject.likelihood,  # type: ignore[arg-type]
        structure="diag", progress=False,
    )  # fmt: skip
    return _quality_of(whence.prune(posterior, PRUNED, by="magnitude"), subject)


def _quality_of(network: torch.nn.Module, subject: Subject) -> float:
    """Accuracy, or the root mean square error."""
    outputs, y = _outputs(network, subject.test[0]), subject.test[1].cpu()
    if subject.classes:
        return float((outputs.argmax(-1) == y).double().mean())
    return float((outputs - y.double().reshape(-1, 1)).square().mean().sqrt())


def _scores(posterior: whence.Laplace, subject: Subject) -> Values:
    predictions = {name: _predict(posterior, x) for name, x in {"": subject.test[0], **subject.novel}.items()}
    test = predictions.pop("")
    if subject.classes:
        novel = {name: p.probs.double().cpu() for name, p in predictions.items()}
        return _classes(test.probs.double().cpu(), subject.test[1], novel, test.entropy.double().cpu())
    y = subject.test[1].double().cpu().reshape(-1, 1)
    found = _gaussian(test.mean.double().cpu() - y, test.variance.double().cpu())
    (novel_name, novel_one), *_ = predictions.items()
    return found | {"auroc": {novel_name: _auroc(test.variance[:, 0], novel_one.variance[:, 0])}}


def _predict(posterior: whence.Laplace, x: Tensor) -> Any:
    return posterior.predict(list(x.split(BATCH)))


def _classes(probs: Tensor, labels: Tensor, novel: dict[str, Tensor], entropy: Tensor | None) -> Values:
    labels = labels.cpu()
    inside = _entropy(probs) if entropy is None else entropy
    return {
        "nll": float(-probs.clamp(min=1e-30).log().gather(1, labels[:, None]).mean()),
        "ece": float(metrics.ece(probs, labels, resamples=0)),
        "accuracy": float((probs.argmax(-1) == labels).double().mean()),
        "auroc": {name: _auroc(inside, _entropy(p)) for name, p in novel.items()},
    }


def _gaussian(residuals: Tensor, variance: Tensor) -> Values:
    """In place of the ECE the mean difference between the levels of central intervals and their coverage."""
    z = residuals.abs() / variance.sqrt()
    covered = [float((z < math.sqrt(2) * float(torch.erfinv(torch.tensor(level)))).double().mean()) for level in LEVELS]
    return {
        "nll": float((0.5 * (residuals.square() / variance + variance.log() + math.log(2 * math.pi))).mean()),
        "ece": sum(abs(c - level) for c, level in zip(covered, LEVELS, strict=True)) / len(LEVELS),
        "rmse": float(residuals.square().mean().sqrt()),
    }


def _entropy(probs: Tensor) -> Tensor:
    return -(probs * probs.clamp(min=1e-30).log()).sum(-1)


def _auroc(inside: Tensor, outside: Tensor) -> float:
    scores = torch.cat([inside, outside]).double().cpu()
    return float(metrics.auroc(scores, torch.arange(len(scores)) >= len(inside), resamples=0))


def _chosen(posterior: whence.Laplace) -> Values:
    assert posterior.tuning is not None
    given = posterior.prior_precision
    tau = given.tau if isinstance(given, whence.Relative) else given
    return {"tau": float(tau), "data_scale": posterior.data_scale}  # type: ignore[arg-type]
