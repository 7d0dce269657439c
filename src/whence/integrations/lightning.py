"""Lightning: a callback that tracks a training, and fits and audits the trained network.

A ``LightningDataModule`` needs nothing from here: it is data for every verb of whence.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

from torch import nn

from whence.engine.sources import defines_loader, opened
from whence.errors import BadData, BadOption, MissingExtra, need
from whence.extras.tracking.records import TrackRecord
from whence.integrations.mlflow import MLflow
from whence.integrations.scalars import of_audit, of_record
from whence.integrations.tensorboard import TensorBoard
from whence.integrations.watch import Watch, whole


def _package() -> Any:
    """The package that is in use, ``lightning`` or ``pytorch_lightning``; one of them is enough."""
    if "pytorch_lightning" in sys.modules and "lightning.pytorch" not in sys.modules:
        return sys.modules["pytorch_lightning"]
    try:
        return need("lightning.pytorch", "lightning")
    except MissingExtra:
        return need("pytorch_lightning", "lightning")


Callback: Any = _package().Callback


class WhenceCallback(Watch, Callback):  # type: ignore[misc]
    """Tracks a training, and at its end fits a posterior, tunes it on the validation data, and audits it.

    Data are those of the trainer: training and validation loaders, and the test loader of a data module. Records and
    the audit go to the trainer's loggers too.

    Args:
        network: the part of the LightningModule whose outputs whence reads: None is the LightningModule itself, a name
            an attribute of it (``"model"``), a function gives it.
        log: whether the trainer's loggers get records and the audit.
        options: of :class:`whence.integrations.watch.Watch`.
    """

    def __init__(
        self, *, network: str | Callable[[Any], nn.Module] | None = None, log: bool = True, **options: Any
    ) -> None:
        super().__init__(**options)
        self._network, self._to_trainer = network, log

    def on_train_start(self, trainer: Any, pl_module: Any) -> None:
        """Start the track."""
        if trainer.is_global_zero:
            if self._to_trainer:
                self._loggers += [_logger(one) for one in trainer.loggers]
                self._to_trainer = False
            self._start(self._part(pl_module), _training_data(trainer))

    def on_train_batch_end(self, trainer: Any, *_: Any, **__: Any) -> None:
        """Count a step; gradients that are accumulated are one."""
        if trainer.is_global_zero and self.track is not None and trainer.global_step > self.track.steps:
            self._step(trainer.global_step)

    def on_train_end(self, trainer: Any, pl_module: Any) -> None:
        """Fit the posterior and audit it."""
        if trainer.is_global_zero:
            sets = {"validation": whole(_only(trainer.val_dataloaders)), "test": _test_data(trainer)}
            self._end(self._part(pl_module), _training_data(trainer), trainer.global_step, **sets)

    def _part(self, module: Any) -> nn.Module:
        if callable(self._network):
            return self._network(module)
        if self._network is not None:
            found = getattr(module, self._network, None)
            if not isinstance(found, nn.Module):
                raise BadOption(f"network={self._network!r} is no part of {type(module).__name__}.")
            return found
        if type(module).forward.__module__.split(".")[0] in ("lightning", "pytorch_lightning"):
            raise BadOption(
                f"{type(module).__name__} has no forward, so whence cannot call it; name the part that it calls: "
                "WhenceCallback(network='model', …)."
            )
        return module  # type: ignore[no-any-return]


def _training_data(trainer: Any) -> Any:
    return whole(_only(trainer.train_dataloader))


def _test_data(trainer: Any) -> Any:
    """The test loader of the trainer's data module, if it has one."""
    data = trainer.datamodule
    return None if data is None or not defines_loader(data, "test") else whole(opened(data, "test"))


def _only(loaders: Any) -> Any:
    """One loader; None if there is none, an error if there are several."""
    found = list(loaders.values()) if isinstance(loaders, dict) else loaders
    if isinstance(found, (list, tuple)):
        if len(found) > 1:
            raise BadData(f"the trainer has {len(found)} loaders here; pass WhenceCallback(validation=…) one of them.")
        return found[0] if found else None
    return found


# The trainer's loggers


class _Metrics:
    """Numbers alone, for any logger."""

    def __init__(self, logger: Any) -> None:
        self.logger = logger

    def record(self, record: TrackRecord) -> None:
        self.logger.log_metrics(of_record(record), step=record.step)

    def audit(self, audit: Any, step: int | None = None) -> None:
        self.logger.log_metrics(of_audit(audit), step=step)


def _logger(logger: Any) -> Any:
    """A logger of Lightning as one of whence: with text or artifacts where it takes them."""
    experiment = getattr(logger, "experiment", None)
    if hasattr(experiment, "add_scalar") and hasattr(experiment, "add_text"):
        return TensorBoard(experiment)
    if hasattr(experiment, "log_artifact") and hasattr(experiment, "log_batch"):
        return MLflow(logger.run_id, client=experiment)
    return _Metrics(logger)
