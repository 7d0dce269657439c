"""Every detector's score of every set; higher is more novel. Nothing here sees which set is novel."""

from __future__ import annotations

import warnings

import torch
from torch import Tensor

import whence
from reproductions.own.detectors.subjects import Subject
from whence.where.combined import known_scores
from whence.where.detectors import scores_of_novelty, scores_of_prediction
from whence.where.examined import NoveltyPrior, examined
from whence.where.novelty import novelty_given
from whence.where.plain_detectors import PlainDetectors

Scores = dict[str, Tensor]  # by detector, [N] each
BATCH = 512


def fitted(subject: Subject) -> whence.Laplace:
    """The posterior of an audit: as it comes, tuned on validation data, which are the reference of novelty."""
    x, y = subject.train
    batches = [(x[i : i + BATCH], y[i : i + BATCH]) for i in range(0, len(x), BATCH)]
    posterior = whence.laplace(subject.network, batches, likelihood="classification", progress=False)
    return posterior.tune(subject.validation, progress=False)


def scores(subject: Subject) -> dict[str, Scores]:
    """By set: validation, test (and which inputs are classified ``right``), novel sets, ``surrogate: …``."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        posterior = fitted(subject)
        plain = PlainDetectors(posterior, subject.train)
        sets = {"validation": subject.validation[0], "test": subject.test[0], **subject.novel}
        sets |= {f"surrogate: {name}": x for name, x in subject.surrogates.items()}
        found = {name: _scores(posterior, plain, x, name == "validation") for name, x in sets.items()}
        x, y = subject.test
        found["test"]["right"] = (_outputs(posterior, x).argmax(1) == y).double().cpu()
    return found


def _scores(posterior: whence.Laplace, plain: PlainDetectors, x: Tensor, is_reference: bool) -> Scores:
    """Novelty, prediction and variance from one pass, as in an audit; then what the plain network gives."""
    reference = posterior.reference
    assert reference is not None
    seen = examined(posterior, x, novelty=NoveltyPrior(reference.precision_for(posterior), reference.probes))
    assert seen.unexplained is not None
    found = scores_of_novelty(novelty_given(reference, seen.unexplained)) | scores_of_prediction(seen.prediction())
    found |= {"variance": seen.own.total} | plain.scores(x)
    if is_reference:  # each input against the others
        found |= known_scores(reference, {})
    return {name: values.double().cpu() for name, values in found.items()}


def _outputs(posterior: whence.Laplace, x: Tensor) -> Tensor:
    with torch.no_grad():
        return torch.cat([posterior.network(piece) for piece in x.split(BATCH)])
