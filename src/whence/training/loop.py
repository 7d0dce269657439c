"""The training loop: epochs of steps, learning rates, history, early stopping, checkpoints.

Every epoch has its own seeds, derived from (seed, epoch). So there is no random state to save, and a resumed
training gives the same bits.
"""

from __future__ import annotations

import math
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any, ClassVar, Generic, TypeVar

import torch
from torch import Tensor

from whence.engine.batches import Inputs
from whence.engine.checks import DeferredChecks
from whence.engine.graphs import BatchNumber
from whence.engine.progress import progress_bar
from whence.engine.randomness import derived_seed, seeded
from whence.training.schedules import Schedule
from whence.training.step import ForwardBackward, LossValues

if TYPE_CHECKING:
    from whence.training.checkpoint import TrainingCheckpoint

Tensors = dict[str, Tensor]


class EpochRecord(ABC):
    """The record of an epoch: a frozen dataclass."""

    __dataclass_fields__: ClassVar[dict[str, Any]]
    epoch: int  # from 1
    lr: float  # at its end
    seconds: float  # time of the training so far

    @abstractmethod
    def summary(self) -> str:
        """A short text for the progress bar."""


R = TypeVar("R", bound=EpochRecord)


class Trainable(ABC, Generic[R]):
    """What a kind of training supplies to :func:`run`."""

    label: str = "training"  # of the progress bar
    record: ClassVar[type[EpochRecord]]  # of an epoch
    optimiser: torch.optim.Optimizer
    device: torch.device
    seed: int
    steps: int | None  # steps per epoch, if known

    @cached_property
    def batch_number(self) -> BatchNumber:
        """The number of the batch, for errors."""
        return BatchNumber()

    @abstractmethod
    def begin(self, epoch: int) -> Iterator[tuple[Inputs, Tensor]]:
        """Prepare an epoch, and return its batches."""

    def before_step(self, epoch: int, index: int) -> None:
        """Set what differs between steps. In a CUDA graph ``loss`` runs once, and only its tensors may change."""

    @abstractmethod
    def loss(self, inputs: Inputs, targets: Tensor) -> LossValues:
        """The loss to differentiate, and the values to record."""

    @abstractmethod
    def before_update(self, values: Tensor, targets: Tensor) -> None:
        """Record the values of a step; clip gradients."""

    @abstractmethod
    def end(self, epoch: int, lr: float) -> R:
        """The record of an epoch; raises :class:`NotConverged` if its loss is not finite."""

    def quality(self, record: R) -> float | None:
        """Quality of an epoch on validation data, higher is better; None without validation data."""
        return None

    @abstractmethod
    def state(self) -> Tensors:
        """Everything that training changes, except the optimiser."""

    @abstractmethod
    def load_state(self, tensors: Tensors) -> None:
        """The inverse of :meth:`state`; raises RuntimeError if names or shapes differ."""

    def context(self) -> AbstractContextManager[Any]:
        """Entered for the whole training."""
        return nullcontext()

    def finish(self) -> None:
        """Called once at the end."""


@dataclass(frozen=True)
class Progress(Generic[R]):
    """Progress of a training: the epochs so far, and the best of them on validation data."""

    records: tuple[R, ...] = ()
    best: Tensors | None = None  # the state at the best epoch, if training may return to it
    best_epoch: int | None = None

    @property
    def seconds(self) -> float:
        return self.records[-1].seconds if self.records else 0.0

    def after(self, record: R, trainable: Trainable[R], keep_best: bool) -> Progress[R]:
        """The progress after one more epoch."""
        more = replace(self, records=(*self.records, record))
        quality = trainable.quality(record)
        best = None if self.best_epoch is None else trainable.quality(self.records[self.best_epoch - 1])
        if quality is None or not quality > (-math.inf if best is None else best):  # NaN is never better
            return more
        state = {k: v.detach().clone() for k, v in trainable.state().items()} if keep_best else None
        return replace(more, best=state, best_epoch=record.epoch)

    def stale(self, patience: int | None) -> bool:
        """Whether validation has not improved for ``patience`` epochs."""
        if patience is None or self.best_epoch is None:
            return False
        return len(self.records) - self.best_epoch >= patience


@dataclass(frozen=True)
class Plan:
    """Number of epochs, and learning rates: the optimiser's times the factor of the schedule."""

    epochs: int
    schedule: Schedule
    patience: int | None = None  # epochs without a better validation value before it stops
    rate_at: float = 0.5  # position within a step at which its learning rate is evaluated, 0 (start) to 1
    capture: bool = False  # steps as a CUDA graph
    or_eager: bool = False  # whether a step that cannot be captured is computed eagerly, or is an error


def run(
    trainable: Trainable[R],
    plan: Plan,
    *,
    checkpoint: TrainingCheckpoint | None = None,
    callback: Callable[[R], Any] | None = None,
    progress: bool = True,
) -> Progress[R]:
    """Train in place. With ``patience``, the state of the best epoch is restored at the end."""
    optimiser = trainable.optimiser
    rates = [group["lr"] for group in optimiser.param_groups]
    done: Progress[R] = Progress() if checkpoint is None else checkpoint.resume(trainable, plan.epochs)
    started = time.perf_counter() - done.seconds
    gradients = ForwardBackward(
        trainable.loss, optimiser, trainable.device, plan.capture, plan.or_eager, trainable.batch_number
    )
    epochs = range(len(done.records), plan.epochs)
    bar = progress_bar(epochs, label=trainable.label, unit="epoch", shown=progress, delay=0)
    with trainable.context(), bar:
        for epoch in bar:
            if done.stale(plan.patience):
                break
            _epoch(trainable, gradients, plan, rates, epoch)
            record = trainable.end(epoch, rates[0] * plan.schedule.factor(epoch + 1, plan.epochs))
            record = replace(record, seconds=time.perf_counter() - started)
            done = done.after(record, trainable, plan.patience is not None)
            bar.set_postfix_str(record.summary())
            if checkpoint is not None:
                checkpoint.offer(done, trainable, last=epoch + 1 == plan.epochs or done.stale(plan.patience))
            if callback is not None:
                callback(record)
    if done.best is not None and plan.patience is not None:
        trainable.load_state(done.best)
    optimiser.zero_grad(set_to_none=True)
    trainable.finish()
    return done


def _epoch(trainable: Trainable[Any], gradients: ForwardBackward, plan: Plan, rates: list[float], epoch: int) -> None:
    """One epoch."""
    with DeferredChecks(), seeded(derived_seed(trainable.seed, "epoch", epoch)):
        for index, (inputs, targets) in enumerate(trainable.begin(epoch)):
            part = (index + plan.rate_at) / trainable.steps if trainable.steps else 0.5
            factor = plan.schedule.factor(epoch + part, plan.epochs)
            for group, rate in zip(trainable.optimiser.param_groups, rates, strict=True):
                group["lr"] = rate * factor
            trainable.before_step(epoch, index)
            trainable.before_update(gradients(inputs, targets, index), targets)
            trainable.optimiser.step()
