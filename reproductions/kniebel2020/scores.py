"""How good predictions are: NLL, calibration, errors, and what their uncertainty finds."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from reproductions.kniebel2020.subject import Subject, outputs
from reproductions.store import Values
from whence import metrics
from whence.likelihoods import Categorical
from whence.predictive.recalibration import recalibrated


def plain(subject: Subject) -> Values:
    """The network alone, and with the temperature that validation data prefer."""
    x, y = subject.validation
    found = recalibrated(Categorical(), outputs(subject.network, x), y.cpu())
    temperature = 1.0 if found.factor is None else 1 / float(found.factor)
    logits = {name: outputs(subject.network, part) for name, part in inputs_of(subject).items()}
    labels = subject.test[1].cpu()
    scored = {
        key: of_probabilities({name: (part / t).softmax(-1) for name, part in logits.items()}, labels)
        for key, t in (("plain", 1.0), ("scaled", temperature))
    }
    return scored | {"temperature": temperature}


def inputs_of(subject: Subject) -> dict[str, Tensor]:
    """Test inputs under the empty name, and novel ones under those of their sets."""
    return {"": subject.test[0], **subject.data.novel}


def of_probabilities(
    probabilities: dict[str, Tensor], labels: Tensor, epistemic: dict[str, Tensor] | None = None
) -> Values:
    """Scores of class probabilities by set of inputs; ``""`` are the test inputs."""
    probs = probabilities[""].double().cpu()
    right = probs.argmax(-1) == labels
    entropies = {name: entropy(part) for name, part in probabilities.items()}
    found: Values = {
        "nll": float(-probs.clamp(min=1e-30).log().gather(1, labels[:, None]).mean()),
        "ece": float(metrics.ece(probs, labels, resamples=0)),
        "accuracy": float(right.double().mean()),
        "errors": area(entropies[""][right], entropies[""][~right]),
    }
    novel = [name for name in probabilities if name]
    if novel:
        found["novel"] = mean([area(entropies[""], entropies[name]) for name in novel])
    if novel and epistemic is not None:
        found["novel, epistemic"] = mean([area(epistemic[""], epistemic[name]) for name in novel])
    return found


def of_prediction(prediction: Any, sizes: dict[str, int], labels: Tensor) -> Values:
    """Scores of one prediction for several sets of inputs, one after another."""
    parts = list(sizes.values())
    probs = dict(zip(sizes, prediction.probs.double().cpu().split(parts), strict=True))
    epistemic = dict(zip(sizes, prediction.epistemic.double().cpu().split(parts), strict=True))
    return of_probabilities(probs, labels, epistemic)


def entropy(probs: Tensor) -> Tensor:
    return -torch.xlogy(probs, probs).sum(-1).double().cpu()


def area(inside: Tensor, outside: Tensor) -> float:
    """AUROC; one half where there is nothing to tell apart."""
    if not len(inside) or not len(outside):
        return 0.5
    both = torch.cat([inside, outside])
    return float(metrics.auroc(both, torch.arange(len(both)) >= len(inside), resamples=0))


def mean(values: Sequence[float]) -> float:
    return sum(values) / len(values)
