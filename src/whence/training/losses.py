"""Training losses, with targets reshaped to the outputs, and scores for reports."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from whence.engine.contexts import capturing
from whence.errors import BadData, BadOption
from whence.functional import Network
from whence.likelihoods import Bernoulli, Categorical, Gaussian, HeteroscedasticGaussian, Likelihood
from whence.likelihoods.base import match_shape
from whence.training.feed import Feed, outputs_of

if TYPE_CHECKING:
    from whence.training.settings import Settings

LossFunction = Callable[[Tensor, Tensor], Tensor]
IGNORED = -100  # ignored class labels, as in torch


def absolute_sum(parameters: Iterable[Tensor]) -> Tensor:
    """Σ|w| over matrices and filters; biases and normalisation have fewer than two dimensions."""
    sums = [p.abs().sum() for p in parameters if p.dim() > 1]
    if not sums:
        raise BadOption("l1= penalises matrices and filters, and none of the trained parameters is one; omit it.")
    return torch.stack(sums).sum()


class Loss(ABC):
    """A mean over the elements that are not ignored."""

    @abstractmethod
    def __call__(self, outputs: Tensor, targets: Tensor) -> Tensor: ...

    @abstractmethod
    def check(self, outputs: Tensor, targets: Tensor) -> None:
        """Refuse invalid targets. It reads values, so it is called only for the first batch."""

    @abstractmethod
    def count(self, targets: Tensor) -> Tensor:
        """Number of elements that the mean is over."""

    @abstractmethod
    def score(self, outputs: Tensor, targets: Tensor) -> tuple[str, Tensor] | None:
        """``("accuracy", hits)`` or ``("rmse", squared errors)``, summed over the elements; None if neither applies."""

    def for_validation(self) -> Loss:
        """The loss for validation data."""
        return self


@dataclass(frozen=True)
class CrossEntropy(Loss):
    """Cross-entropy of outputs (N, C, …) and class labels (N, …)."""

    label_smoothing: float = 0.0

    def __call__(self, outputs: Tensor, targets: Tensor) -> Tensor:
        labels = _labels(outputs, targets)
        total = F.cross_entropy(
            outputs, labels, reduction="sum", ignore_index=IGNORED, label_smoothing=self.label_smoothing
        )
        return total / self.count(labels).clamp(min=1)

    def check(self, outputs: Tensor, targets: Tensor) -> None:
        Categorical().check(outputs, targets)

    def count(self, targets: Tensor) -> Tensor:
        return (targets != IGNORED).sum()

    def score(self, outputs: Tensor, targets: Tensor) -> tuple[str, Tensor]:
        return "accuracy", (outputs.argmax(1) == _labels(outputs, targets)).sum()

    def for_validation(self) -> Loss:
        return CrossEntropy()


class SquaredError(Loss):
    """Squared error with one target per output."""

    def __call__(self, outputs: Tensor, targets: Tensor) -> Tensor:
        return F.mse_loss(outputs, _numbers(outputs, targets))

    def check(self, outputs: Tensor, targets: Tensor) -> None:
        _numbers(outputs, targets)

    def count(self, targets: Tensor) -> Tensor:
        return torch.tensor(targets.numel(), device=targets.device)

    def score(self, outputs: Tensor, targets: Tensor) -> tuple[str, Tensor]:
        return "rmse", (outputs - _numbers(outputs, targets)).square().sum()


class BinaryCrossEntropy(SquaredError):
    """Binary cross-entropy of one logit per label 0 or 1."""

    def __call__(self, outputs: Tensor, targets: Tensor) -> Tensor:
        return F.binary_cross_entropy_with_logits(outputs, _numbers(outputs, targets))

    def check(self, outputs: Tensor, targets: Tensor) -> None:
        Bernoulli().check(outputs, _numbers(outputs, targets))

    def score(self, outputs: Tensor, targets: Tensor) -> tuple[str, Tensor]:
        return "accuracy", ((outputs > 0) == (_numbers(outputs, targets) > 0.5)).sum()


@dataclass(frozen=True)
class CustomLoss(Loss):
    """The user's own function: a mean over the examples of a batch."""

    function: LossFunction

    def __call__(self, outputs: Tensor, targets: Tensor) -> Tensor:
        return self.function(outputs, targets)

    def check(self, outputs: Tensor, targets: Tensor) -> None:
        pass

    def count(self, targets: Tensor) -> Tensor:
        return torch.tensor(len(targets), device=targets.device)

    def score(self, outputs: Tensor, targets: Tensor) -> tuple[str, Tensor] | None:
        if targets.is_floating_point():
            return SquaredError().score(outputs, targets) if targets.shape == outputs.shape else None
        return CrossEntropy().score(outputs, targets) if outputs.dim() == targets.dim() + 1 else None


BY_NAME: dict[str, type[Loss]] = {
    "cross-entropy": CrossEntropy, "squared": SquaredError, "binary": BinaryCrossEntropy,
}  # fmt: skip


def resolve_loss(settings: Settings, targets: Tensor) -> Loss:
    """The loss of the settings; by default cross-entropy for class labels, squared error for numbers."""
    if callable(settings.loss):
        loss: Loss = CustomLoss(settings.loss)
    else:
        loss = BY_NAME[settings.loss or ("squared" if targets.is_floating_point() else "cross-entropy")]()
    if not settings.label_smoothing:
        return loss
    if not isinstance(loss, CrossEntropy):
        raise BadOption(f"label_smoothing applies only to cross-entropy, not to {type(loss).__name__}.")
    return CrossEntropy(settings.label_smoothing)


def _labels(outputs: Tensor, targets: Tensor) -> Tensor:
    """Class labels in the shape of the outputs without their class dimension."""
    wanted = (*outputs.shape[:1], *outputs.shape[2:])
    return targets.reshape(wanted) if tuple(targets.shape) != wanted else targets


def _numbers(outputs: Tensor, targets: Tensor) -> Tensor:
    """Numbers in the shape of the outputs; dimensions of size one may be missing."""
    if targets.shape == outputs.shape:
        return targets.to(outputs.dtype)
    mine, its = ((*t.shape[:1], *(n for n in t.shape[1:] if n != 1)) for t in (targets, outputs))
    if mine != its:
        raise BadData(
            f"targets of shape {list(targets.shape)} do not match outputs of shape {list(outputs.shape)}: pass one "
            "for each output."
        )
    return targets.reshape(outputs.shape).to(outputs.dtype)


# Likelihoods


@dataclass(frozen=True)
class MeanNegativeLogLikelihood:
    """Mean negative log likelihood over the examples that are not ignored: a loss function for :class:`Settings`."""

    likelihood: Likelihood

    def __call__(self, outputs: Tensor, targets: Tensor) -> Tensor:
        if outputs.is_cuda and capturing():  # a graph cannot read values
            return self.of_checked(outputs, self._shaped(outputs, targets))
        return self.of_checked(outputs, self.likelihood.check(outputs, targets))

    def _shaped(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """Targets in the shape of ``likelihood.check``, without checking their values."""
        if isinstance(self.likelihood, Categorical):
            return targets.squeeze(-1).long() if targets.dim() == outputs.dim() else targets.long()
        if isinstance(self.likelihood, HeteroscedasticGaussian):
            outputs = self.likelihood.halves(outputs)[0]
        return match_shape(outputs, targets, type(self.likelihood).__name__, 0)

    def of_checked(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """The loss for targets that ``likelihood.check`` has accepted."""
        counts = self.likelihood.counts(targets)
        total = self.likelihood.nll(outputs, targets).sum()
        return total / (len(outputs) if counts is None else counts.sum().clamp(min=1))


def residual_noise(networks: Iterable[Network], data: Any) -> Gaussian:
    """A Gaussian whose noise is the root mean square of the residuals, over the examples and the networks."""
    squares, count = 0.0, 0
    with torch.no_grad():
        for network in networks:
            for batch in network.read(data):
                outputs = network(batch.inputs)
                off = outputs - Gaussian().check(outputs, batch.targets, batch.index)
                squares, count = squares + float(off.double().square().sum()), count + off.numel()
    return Gaussian(max(math.sqrt(squares / count), 1e-12))


# Scores


@torch.no_grad()
def score(network: nn.Module, feed: Feed, loss: Loss) -> dict[str, float]:
    """``loss``, and ``accuracy`` or ``rmse``: means over all elements that are not ignored."""
    totals = torch.zeros(3, dtype=torch.float64, device=feed.device)  # loss, hits or squares, elements
    name: str | None = None
    with evaluation_mode(network), torch.random.fork_rng([]):
        for index, (inputs, targets) in enumerate(feed.in_order()):
            outputs = outputs_of(network, inputs)
            if index == 0:
                loss.check(outputs, targets)
            count = loss.count(targets)
            name, hits = loss.score(outputs, targets) or (None, count.new_zeros(()))
            totals += torch.stack([loss(outputs, targets).double() * count, hits.double(), count.double()])
    total, hit, elements = totals.tolist()
    if elements == 0:
        raise BadData("there is nothing to evaluate: every element is ignored.")
    scores = {"loss": total / elements}
    if name is not None:
        scores[name] = hit / elements if name == "accuracy" else (hit / elements) ** 0.5
    return scores


@contextmanager
def evaluation_mode(network: nn.Module) -> Iterator[None]:
    """Put every module into evaluation mode; restore the modes afterwards."""
    modes = [(module, module.training) for module in network.modules()]
    try:
        network.eval()
        yield
    finally:
        for module, mode in modes:
            module.training = mode
