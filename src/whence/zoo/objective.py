"""What is minimised and what is scored: the loss of a task, with targets brought into the outputs' shape."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor
from torch.nn import functional as F

from whence.errors import BadData, BadOption
from whence.likelihoods import Bernoulli, Categorical
from whence.zoo.settings import Loss, Settings

IGNORED = -100  # class labels that do not count, as in torch
TASKS = {"cross-entropy": "classification", "squared": "regression", "binary": "binary"}


@dataclass(frozen=True)
class Objective:
    """A task: ``"classification"`` (N × C × …), ``"binary"`` (one logit for each label), ``"regression"`` or own."""

    task: str
    own: Loss | None = None  # the user's loss: a mean over the batch
    smoothing: float = 0.0

    @classmethod
    def of(cls, settings: Settings, task: str) -> Objective:
        """What the settings ask for; ``task`` is that of the data, where they ask for nothing."""
        if settings.label_smoothing and (
            callable(settings.loss) or TASKS.get(settings.loss or "", task) != "classification"
        ):
            raise BadOption(f"label_smoothing goes with cross-entropy only, not with {settings.loss or task!r}.")
        if callable(settings.loss):
            return cls("own", settings.loss)
        return cls(TASKS[settings.loss] if settings.loss else task, None, settings.label_smoothing)

    def plain(self) -> Objective:
        """Without label smoothing: what validation data are scored by."""
        return replace(self, smoothing=0.0)

    def check(self, outputs: Tensor, targets: Tensor) -> None:
        """Refuse targets that do not fit; done for the first batch, since it looks at values."""
        if self.task == "classification":
            Categorical().check(outputs, targets)
        elif self.task == "binary":
            Bernoulli().check(outputs, self.fit(outputs, targets))
        elif self.task == "regression":
            self.fit(outputs, targets)

    def fit(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """Targets in the shape that the loss wants: that of the outputs, or without their class dimension."""
        if self.task == "own":
            return targets
        if self.task == "classification":
            wanted = (*outputs.shape[:1], *outputs.shape[2:])
            return targets.reshape(wanted) if tuple(targets.shape) != wanted else targets
        if targets.shape == outputs.shape:
            return targets.to(outputs.dtype)
        if _without_ones(targets) != _without_ones(outputs):
            raise BadData(
                f"targets of shape {list(targets.shape)} do not fit outputs of shape {list(outputs.shape)}: one "
                "for each output is expected."
            )
        return targets.reshape(outputs.shape).to(outputs.dtype)

    def counted(self, targets: Tensor) -> Tensor:
        """How many elements the mean loss is over."""
        if self.task == "classification":
            return (targets != IGNORED).sum()
        return torch.tensor(len(targets) if self.task == "own" else targets.numel(), device=targets.device)

    def loss(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """Mean over the elements that count; 0 where none does."""
        if self.own is not None:
            return self.own(outputs, targets)
        targets = self.fit(outputs, targets)
        if self.task == "classification":
            total = F.cross_entropy(
                outputs, targets, reduction="sum", ignore_index=IGNORED, label_smoothing=self.smoothing
            )
            return total / self.counted(targets).clamp(min=1)
        if self.task == "binary":
            return F.binary_cross_entropy_with_logits(outputs, targets)
        return F.mse_loss(outputs, targets)

    def score(self, outputs: Tensor, targets: Tensor) -> tuple[str, Tensor] | None:
        """``("accuracy", hits)`` or ``("rmse", squared errors)``, summed over what counts; or None."""
        if self.task == "own":
            kind = "regression" if targets.is_floating_point() else "classification"
            fits = targets.shape == outputs.shape if kind == "regression" else outputs.dim() == targets.dim() + 1
            return replace(self, task=kind, own=None).score(outputs, targets) if fits else None
        targets = self.fit(outputs, targets)
        if self.task == "classification":
            return "accuracy", (outputs.argmax(1) == targets).sum()
        if self.task == "binary":
            return "accuracy", ((outputs > 0) == (targets > 0.5)).sum()
        return "rmse", (outputs - targets).square().sum()


def _without_ones(t: Tensor) -> tuple[int, ...]:
    return (*t.shape[:1], *(n for n in t.shape[1:] if n != 1))
