"""What a fit remembers of its data."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any

import torch
from torch import Tensor

from whence.checks import check_finite
from whence.errors import notice
from whence.likelihoods import Gaussian, Likelihood


@dataclass(frozen=True)
class FitRecord:
    """Size, loss and accuracy of the network on the data it was fitted to."""

    data_size: float = 0.0  # examples that the curvature counts
    seen: int = 0  # examples that were read (more, where augmented passes are averaged back)
    loss: float = 0.0  # summed negative log likelihood, with all constants
    targets: float = 0.0  # number of predicted labels or values
    correct: float = 0.0
    confidence: float = 0.0  # summed largest probability
    squares: float = 0.0  # summed squared residuals
    noise: float | None = None  # standard deviation at which a Gaussian's curvature was computed
    output_shape: tuple[int, ...] = ()  # of one example

    @property
    def accuracy(self) -> float | None:
        """Share of right labels on the training data; None for regression."""
        return self.correct / self.targets if self.confidence else None

    @property
    def mean_confidence(self) -> float | None:
        """Mean largest probability on the training data; None for regression."""
        return self.confidence / self.targets if self.confidence else None

    def merged(self, other: FitRecord) -> FitRecord:
        sums = {key: getattr(self, key) + getattr(other, key) for key in SUMS}
        return replace(self, **sums, output_shape=self.output_shape or other.output_shape)

    def scaled(self, factor: float) -> FitRecord:
        """As if every example counted ``factor`` times."""
        return replace(self, **{key: getattr(self, key) * factor for key in SUMS if key != "seen"})

    def with_noise(self, noise: float) -> FitRecord:
        """The same data under a Gaussian with another standard deviation."""
        var = noise**2
        loss = 0.5 * self.squares / var + 0.5 * self.targets * math.log(2 * math.pi * var)
        return replace(self, loss=loss, noise=noise)

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)


SUMS = ("data_size", "seen", "loss", "targets", "correct", "confidence", "squares")


class Recorder:
    """Adds up a :class:`FitRecord` on the device, and looks for outputs that are not what they should be."""

    def __init__(self, likelihood: Likelihood) -> None:
        self.likelihood = likelihood
        self._sums: Tensor | None = None  # in the order of SUMS without the first two, float64, on the device
        self.size = 0
        self._shape: tuple[int, ...] = ()

    def add(self, outputs: Tensor, targets: Tensor, index: int) -> None:
        outputs = outputs.detach()
        check_finite(outputs, "the outputs of the network", index)
        loss = self.likelihood.nll(outputs, targets).sum(dtype=torch.float64)
        found = {"loss": loss, **self._quality(outputs, targets)}
        values = (found.get(key, 0) for key in SUMS[2:])
        new = torch.stack([v if isinstance(v, Tensor) else loss.new_full((), v) for v in values])
        if self._sums is None:
            self._sums = new
        else:
            self._sums = self._sums.to(new.device)  # as it was read from a file
            self._sums += new  # in place, for graphs
        self._shape = self._shape or tuple(outputs.shape[1:])
        self.size += len(outputs)  # last, so that a batch for which memory ran out is not counted

    @property
    def sums(self) -> list[Tensor]:
        """What is added up on the device."""
        return [] if self._sums is None else [self._sums]

    @property
    def record(self) -> FitRecord:
        noise = None
        if isinstance(self.likelihood, Gaussian) and self.likelihood.noise.dim() == 0:
            noise = float(self.likelihood.noise)
        if self._sums is None:
            return FitRecord(noise=noise)
        sums = dict(zip(SUMS[2:], self._sums.tolist(), strict=True))
        return FitRecord(noise=noise, output_shape=self._shape, data_size=self.size, seen=self.size, **sums)

    def state(self) -> dict[str, Tensor]:
        """What was added up so far, to be written."""
        if self._sums is None:
            return {}
        whole = torch.tensor([self.size, *self._shape], dtype=torch.int64)
        return {"sums": self._sums, "size_and_shape": whole}

    def load_state(self, state: Mapping[str, Tensor]) -> None:
        if "sums" in state:
            self._sums = state["sums"]
            self.size, *shape = state["size_and_shape"].tolist()
            self._shape = tuple(shape)

    def _quality(self, outputs: Tensor, targets: Tensor) -> dict[str, Any]:
        flat = self.likelihood.flatten(outputs)
        task = self.likelihood.task
        if task == "classification":
            keep = targets != getattr(self.likelihood, "ignore_index", -100)
            top, label = flat.max(-1)
            confidence = (top - flat.logsumexp(-1)).exp()
            return {
                "targets": keep.sum(dtype=torch.float64),
                "correct": ((label == targets) & keep).sum(dtype=torch.float64),
                "confidence": (confidence * keep).sum(dtype=torch.float64),
            }
        if task == "binary":
            p = flat.sigmoid()
            truth = self.likelihood.flatten(targets)
            return {
                "targets": p.numel(),
                "correct": ((p > 0.5) == (truth > 0.5)).sum(dtype=torch.float64),
                "confidence": torch.maximum(p, 1 - p).sum(dtype=torch.float64),
            }
        if isinstance(self.likelihood, Gaussian):
            return {"targets": outputs.numel(), "squares": (outputs - targets).double().square().sum()}
        return {"targets": targets.numel()}


def warn_if_probabilities(likelihood: Likelihood, outputs: Tensor) -> None:
    """Outputs between 0 and 1 where logits are meant are usually a softmax or sigmoid too many."""
    flat = likelihood.flatten(outputs)
    inside = bool(((flat >= 0) & (flat <= 1)).all())
    if likelihood.task == "classification" and inside and flat.shape[-1] > 1:
        if bool(((flat.sum(-1) - 1).abs() < 1e-3).all()):
            notice(
                "the outputs look like probabilities (they lie in [0, 1] and sum to 1), but logits are meant: remove "
                "the softmax at the end of the network, or the uncertainties will be wrong."
            )
    elif likelihood.task == "classification" and bool(((flat.exp().sum(-1) - 1).abs() < 1e-4).all()):
        return  # log-softmax outputs are valid logits
    elif likelihood.task == "binary" and inside and flat.numel() >= 8:
        notice(
            "the outputs all lie in [0, 1] and look like probabilities, but logits are meant: remove the sigmoid at "
            "the end of the network, or the uncertainties will be wrong."
        )
