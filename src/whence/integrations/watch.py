"""What a callback does in any framework: track the training, and at its end fit a posterior and audit it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from torch import nn
from torch.utils.data import DataLoader, Dataset, DistributedSampler, IterableDataset

from whence.auditing import Audit, audit
from whence.errors import BadOption
from whence.extras.tracking.track import Track, track
from whence.integrations.scalars import Logger
from whence.likelihoods import Likelihood, LikelihoodName, resolve
from whence.posteriors.laplace.front import laplace
from whence.posteriors.laplace.posterior import Laplace

Options = bool | Mapping[str, Any]


class Watch:
    """The part of a callback that does not depend on the framework.

    Args:
        likelihood: as for :func:`whence.laplace`.
        track: whether to track the training, or options of :func:`whence.track`.
        fit: whether to fit a posterior to the trained network, or options of :func:`whence.laplace`. It is tuned if
            there are validation data.
        audit: whether to audit it, or options of :func:`whence.audit`, such as ``{"quick": True}``.
        validation, test, ood: data for tuning and for the audit, where the framework does not supply them.
        folder: where to write ``track.jsonl``, ``posterior.safetensors``, ``audit.json`` and ``audit.html``.
        loggers: such as :class:`whence.integrations.tensorboard.TensorBoard`.

    ``track``, ``posterior`` and ``audit`` are the results; None until they are made.
    """

    def __init__(
        self,
        *,
        likelihood: Likelihood | LikelihoodName,
        track: Options = True,
        fit: Options = True,
        audit: Options = True,
        validation: Any = None,
        test: Any = None,
        ood: Any = None,
        folder: str | Path | None = None,
        loggers: Sequence[Logger] = (),
    ) -> None:
        resolve(likelihood)
        self._likelihood = likelihood
        asked = {"track": track, "fit": fit, "audit": audit}
        self._asked = {name: _options(given, name) for name, given in asked.items()}
        if self._asked["audit"] is not None and self._asked["fit"] is None:
            raise BadOption("audit= needs the posterior of fit=; pass audit=False too.")
        self._sets = {"validation": validation, "test": test, "ood": ood}
        self._folder = None if folder is None else Path(folder)
        self._loggers = list(loggers)
        self.track: Track | None = None
        self.posterior: Laplace | None = None
        self.audit: Audit | None = None

    def _start(self, network: nn.Module, train: Any) -> None:
        """Before the first step."""
        options = self._asked["track"]
        if self._folder is not None:
            self._folder.mkdir(parents=True, exist_ok=True)
        if options is not None:
            path = None if self._folder is None else self._folder / "track.jsonl"
            self.track = track(network, train, likelihood=self._likelihood, **{"path": path, **options})

    def _step(self, number: int) -> None:
        """After a step of the training."""
        if self.track is not None:
            self._log(self.track.step(number))

    def _log(self, record: Any) -> None:
        for logger in self._loggers if record is not None and not record.error else ():
            logger.record(record)

    def _end(self, network: nn.Module, train: Any, step: int, **sets: Any) -> None:
        """After the last step; ``sets`` are the framework's data, and options of the audit."""
        if self.track is not None and (not self.track.records or self.track.records[-1].step < step):
            self.track.step(step)
            if self.track.records[-1].step < step:
                self._log(self.track.record())
        options = self._asked["fit"]
        if options is None:
            return
        given = {name: value for name, value in self._sets.items() if value is not None}
        sets = {name: value for name, value in {**sets, **given}.items() if value is not None}
        known = {"likelihood": self._likelihood, "validation": sets.get("validation"), "progress": False}
        self.posterior = laplace(network, train, **{**known, **options})
        if self._folder is not None:
            self.posterior.save(self._folder / "posterior.safetensors")
        wanted = self._asked["audit"]
        if wanted is not None:
            self._audit(train, step, {"progress": False, **sets, **wanted})

    def _audit(self, train: Any, step: int, options: dict[str, Any]) -> None:
        self.audit = audit(self.posterior, train, **options)
        if self._folder is not None:
            self.audit.json(self._folder / "audit.json")
            self.audit.html(self._folder / "audit.html")
        for logger in self._loggers:
            logger.audit(self.audit, step)


def _options(given: Options, name: str) -> dict[str, Any] | None:
    """Options as a dictionary; None for False."""
    if isinstance(given, bool):
        return {} if given else None
    if not isinstance(given, Mapping):
        raise BadOption(f"{name}={given!r} must be True, False, or a mapping of options.")
    return dict(given)


def whole(loader: Any, batch_size: int | None = None) -> Any:
    """All the data of a loader that gives one process its part, or that accelerate has prepared; others unchanged."""
    if not isinstance(loader, DataLoader) or isinstance(loader.dataset, IterableDataset):
        return loader
    prepared = type(loader).__module__.split(".")[0] == "accelerate"
    if not prepared and not isinstance(loader.sampler, DistributedSampler):
        return loader
    return like(loader, loader.dataset, batch_size)


def like(loader: DataLoader[Any], dataset: Dataset[Any], batch_size: int | None = None) -> DataLoader[Any]:
    """A loader of a data set, in order, which makes its batches as another loader does."""
    size = batch_size or loader.batch_size or getattr(loader.batch_sampler, "batch_size", None) or 1
    return DataLoader(dataset, size, collate_fn=loader.collate_fn)
