"""``whence.swag``: go on training at a constant rate, and collect the weights."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

import torch
from torch import nn

from whence.copies import copy_module
from whence.engine.checkpoint import COLLECTION, TRAINING, CheckpointFile
from whence.errors import BadFile, BadOption
from whence.functional import Network, tensors_of
from whence.likelihoods import Gaussian, Likelihood, resolve
from whence.posteriors.ensembles.build import guarded
from whence.posteriors.ensembles.loss import MeanNll
from whence.posteriors.swag.collect import SwagCollector
from whence.posteriors.swag.posterior import Swag
from whence.randomness import resolve_seed


@torch.inference_mode(False)
def swag(
    model: nn.Module,
    data: Any,
    *,
    likelihood: Likelihood | Literal["classification", "binary", "regression"],
    epochs: int = 20,
    lr: float = 0.01,
    rank: int = 20,
    every: int = 1,
    momentum: float = 0.9,
    weight_decay: float = 0.0,
    batch_size: int | None = None,
    scale: float = 1.0,
    seed: int | None = None,
    generator: torch.Generator | None = None,
    device: torch.device | str | None = None,
    checkpoint: str | Path | None = None,
    progress: bool = True,
    **settings: Any,
) -> Swag:
    """Train a copy of a trained network further, and make the weights it passes through a Gaussian.

    Args:
        model: a trained network; it is copied, and never changed.
        data: the training data, as for :func:`whence.zoo.train`.
        likelihood: the mean negative log likelihood is minimised; with ``"regression"`` the noise is the root mean
            square of the training residuals at the mean weights.
        epochs: of further training.
        lr: constant; high enough that the weights move about (the paper takes a tenth to a half of the first rate).
        rank: how many of the last deviations from the mean are kept, K; 0 for a diagonal covariance.
        every: collect after every so many epochs.
        momentum, weight_decay, batch_size, **settings: as in :class:`whence.zoo.Settings`.
        scale: of the covariance; 1 is the paper's.
        seed: of the shuffles, augmentations and dropout (0); or a ``generator`` that one is drawn from.
        device: where to train; by default where the model is.
        checkpoint: a file; an interrupted training goes on from it to the same posterior.
        progress: whether to show a progress bar.
    """
    from whence.zoo import DataSet, Settings, train

    seed = resolve_seed(seed, generator)
    for name, value in (("epochs", epochs), ("every", every)):
        if isinstance(value, bool) or not isinstance(value, int) or value < 1:
            raise BadOption(f"{name}={value} must be a whole number, at least 1.")
    if epochs // every < 2:
        raise BadOption(f"epochs={epochs} with every={every} collects {epochs // every} times; 2 are the least.")
    resolved, estimate = resolve(likelihood)
    if isinstance(data, DataSet):
        data = data.train
    loss = MeanNll(Gaussian(1.0) if estimate else resolved)
    chosen = {"epochs": epochs, "lr": lr, "momentum": momentum, "weight_decay": weight_decay, **settings}
    plan = Settings().with_(loss=loss, **chosen)
    start = Network.snapshot(model)
    start = start if device is None else start.to(device)
    copied = copy_module(start.module)
    collector = SwagCollector(copied, rank)
    beside = None if checkpoint is None else Beside(Path(checkpoint), collector, every, start.hash)
    if beside is not None:
        beside.resume()

    def after(_network: nn.Module, row: Any) -> None:
        if row.epoch % every == 0:
            collector.collect()
        if beside is not None:
            beside.write(row.epoch)

    more: dict[str, Any] = {} if batch_size is None else {"batch_size": batch_size}
    keeping: dict[str, Any] = {"checkpoint": checkpoint, "checkpoint_every": 0.0}
    with guarded():  # a loader that shuffles draws from torch's own generator
        done = train(copied, data, plan, seed=seed, callback=after, progress=progress, **keeping, **more)
    history = [row.to_dict() for row in done.history]
    found = collector.posterior(likelihood, data, scale=scale, seed=seed, history=history)
    return replace(found, start=start)


class Beside:
    """What was collected, in a file beside the checkpoint of the training."""

    def __init__(self, checkpoint: Path, collector: SwagCollector, every: int, start: str) -> None:
        self.checkpoint, self.collector, self.every = checkpoint, collector, every
        self.start = start  # hash of the weights that the training goes on from
        self.path = checkpoint.with_name(checkpoint.name + ".swag")

    def write(self, epoch: int) -> None:
        self.collector.write(self.path, {"epoch": epoch, "every": self.every, "start": self.start})

    def resume(self) -> None:
        """Bring the collector to where the training stands; a break between the two files is made good."""
        if not self.checkpoint.exists():
            self.path.unlink(missing_ok=True)
            if self.path.absolute().parent.is_dir():
                self.write(0)  # so that a break before the first collection leaves the hash, too
            return
        tensors, meta = CheckpointFile(self.checkpoint, TRAINING).existing()
        trained, collected = len(meta["rows"]), 0
        weights = {k.removeprefix("network."): v for k, v in tensors.items() if k.startswith("network.")}
        self._check(weights)
        if self.path.exists():
            saved, its = CheckpointFile(self.path, COLLECTION).existing()
            if its.get("start", self.start) != self.start:
                raise BadFile(
                    f"the checkpoint {self.checkpoint} is of another network: its training started from other weights "
                    "than this network has. Go on with the same network, or remove the file."
                )
            for name, mine in (("rank", self.collector.rank), ("every", self.every)):
                if its[name] != mine:
                    raise BadOption(f"the checkpoint {self.path} was made with {name}={its[name]}, not {mine}.")
            self.collector.read(saved, its)
            collected = its["epoch"]
        if trained - collected == 1:
            self.collector.model.load_state_dict(weights)
            if trained % self.every == 0:
                self.collector.collect()
            self.write(trained)
        elif trained != collected:
            raise BadFile(
                f"the checkpoint {self.checkpoint} is at epoch {trained} and {self.path.name} at {collected}; remove "
                "both to start anew."
            )

    def _check(self, weights: dict[str, Any]) -> None:
        own = {k: tuple(v.shape) for k, v in tensors_of(self.collector.model).items()}
        its = {k: tuple(v.shape) for k, v in weights.items()}
        wrong = next((n for n in {**own, **its} if own.get(n) != its.get(n)), None)
        if wrong is not None:
            here, there = (list(d[wrong]) if wrong in d else "missing" for d in (own, its))
            raise BadFile(
                f"the checkpoint {self.checkpoint} is of another network: {wrong!r} is {here} here and {there} in it."
            )
