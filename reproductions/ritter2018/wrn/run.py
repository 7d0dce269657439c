"""Section 5.4: each network is trained, given its posteriors, and measured; every step is a unit."""

from __future__ import annotations

from functools import partial
from typing import Literal

import whence
from reproductions.experiment import Context
from reproductions.ritter2018.mnist import DETERMINISTIC, DIAGONAL, KRONECKER, LINEARISED
from reproductions.ritter2018.wrn import measure
from reproductions.ritter2018.wrn.config import Config, label, methods
from reproductions.ritter2018.wrn.subject import How, Subject, coarse_products
from reproductions.store import Results, Values

Damping = Literal["exact", "factored"]
TUNED: dict[str, tuple[Literal["kron", "diag"], Damping, How]] = {
    DIAGONAL: ("diag", "exact", "sampled"),
    KRONECKER: ("kron", "factored", "sampled"),
    LINEARISED: ("kron", "exact", "linearised"),
}


def run(config: Config, results: Results, context: Context) -> None:
    for seed in config.seeds:  # outermost: a run that is cut off has both kinds of network
        for dropout in config.dropouts:
            subject = Subject(config, seed, dropout, context)
            name = f"{label(dropout)}/{seed}"
            results.unit(f"{name}/train", partial(_train, subject))
            for structure in ("kron", "diag"):
                results.unit(f"{name}/fit/{structure}", partial(_fit, subject, structure))
            with coarse_products(config.tf32):
                _asked(results, subject, name, first=seed == config.seeds[0])


def _asked(results: Results, subject: Subject, name: str, *, first: bool) -> None:
    """What is asked of the posteriors of one network."""
    for method in TUNED:
        results.unit(f"{name}/tune/{method}", partial(_tune, subject, method))
    for method in methods(subject.dropout):
        results.unit(f"{name}/measure/{method}", partial(_measure, subject, method))
    results.unit(f"{name}/novelty", partial(_novelty, subject))
    if first:
        results.unit(f"{name}/surest", partial(_surest, subject))


def _train(subject: Subject) -> Values:
    training = subject.training
    assert subject.data.train is not None
    return {
        "examples": subject.data.train.size,
        "epochs": len(training.history),
        "loss": training.history[-1].loss,
        "seconds_of_training": training.seconds,
        "device_of_training": training.device,
        "weights": sum(p.numel() for p in training.network.parameters()),
    }


def _fit(subject: Subject, structure: Literal["kron", "diag"]) -> Values:
    posterior = subject.fitted(structure)
    kinds: dict[str, dict[str, int]] = {}
    for row in posterior.structures.values():
        of_kind = kinds.setdefault(row.kind, {})
        of_kind[row.structure] = of_kind.get(row.structure, 0) + 1
    record = posterior.record
    return {
        "structures": kinds,
        "weights": posterior.parameters,
        "data_size": record.data_size,
        "accuracy": record.accuracy,
        "mean_confidence": record.mean_confidence,
    }


def _tune(subject: Subject, method: str) -> Values:
    structure, damping, how = TUNED[method]
    found = subject.tuned(structure, damping, how)
    # What the prior counts beside one training example: δ / (s N).
    return found | {"per_example": found["prior_precision"] / found["data_scale"] / subject.train.size}


def _measure(subject: Subject, method: str) -> Values:
    config = subject.config
    x, y = subject.test.tensors()
    plain = subject.method(DETERMINISTIC).predict(x, 1)
    found = subject.method(method)
    within = found.predict(x, config.draws, subject.seed)
    beyond = found.predict(subject.outside.inputs, config.draws, subject.seed)
    return {
        "inside": measure.inside(within, y, plain, config.resamples),
        "outside": measure.outside(beyond, within, config.resamples),
    }


def _novelty(subject: Subject) -> Values:
    """The layer-by-layer profile of ``whence.novelty``, which no tuning changes."""
    count, posterior = subject.config.novelty_images, subject.fitted("kron")
    reference = whence.reference_of(posterior, subject.tuning)
    within, beyond = (
        whence.novelty(posterior, part.take(count).inputs, reference=reference)
        for part in (subject.test, subject.outside)
    )
    flagged = {"flagged_inside": within.flag(0.05), "flagged_outside": beyond.flag(0.05)}
    return measure.told(within.score, beyond.score, subject.config.resamples) | {
        name: measure.average(which.double()) for name, which in flagged.items()
    }


def _surest(subject: Subject) -> Values:
    """The images of another kind that the plain network is most sure about: its label and confidence, and theirs."""
    config, part = subject.config, subject.outside
    before = subject.method(DETERMINISTIC).predict(part.inputs, 1)
    certain = before.logit_mean.double().log_softmax(1).amax(1)  # many probabilities are 1 in single precision
    rows = certain.argsort(descending=True, stable=True)[: config.shown]
    few = part.take(rows)
    after = {
        name: subject.method(name).predict(few.inputs, config.draws, subject.seed) for name in methods(subject.dropout)
    }
    names = subject.data.classes
    return {
        "sets": {"inside": config.data, "outside": config.outside},
        "shape": list(few.shape),
        "images": [measure.packed(image) for image in few.raw],
        "labels": {name: [names[i] for i in p.labels.tolist()] for name, p in after.items()},
        "confidence": {name: p.probs.amax(1).tolist() for name, p in after.items()},
    }
