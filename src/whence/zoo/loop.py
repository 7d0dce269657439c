"""A short loop that trains a network. Seed in, seed out: the same seed gives the same weights, resumed or not."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import nn
from tqdm.auto import tqdm

from whence.errors import BadData, BadOption, NotConverged, notice
from whence.functional import load_tensors
from whence.randomness import derived_seed, seed_from
from whence.zoo.checkpoints import Checkpoint, Progress
from whence.zoo.evaluation import evaluation_mode, score
from whence.zoo.feed import Feed, device_of, feed_for, outputs_of
from whence.zoo.objective import Objective
from whence.zoo.settings import Settings
from whence.zoo.step import Step
from whence.zoo.training import Row, Training

Callback = Callable[[nn.Module, Row], Any]


def train(
    network: nn.Module,
    data: Any,
    settings: Settings | None = None,
    *,
    validation: Any = None,
    seed: int | None = 0,
    device: str | torch.device | None = None,
    checkpoint: str | Path | None = None,
    checkpoint_every: float = 30.0,
    callback: Callback | None = None,
    progress: bool = True,
    **changes: Any,
) -> Training:
    """Train ``network`` in place and return it, in evaluation mode, with the history of the training.

    ``data`` is a :class:`DataSet`, :class:`Examples`, a pair of tensors or a loader of batches. ``changes`` are fields
    of :class:`Settings`: ``epochs``, ``lr``, ``schedule`` … With validation data (the set's own, or ``validation=``)
    the history holds its loss; with ``patience`` training stops early and the best weights are put back.

    ``seed`` decides shuffling, augmentation and dropout, and is in the result (``None`` draws one); torch's own random
    state is left as it was. With ``checkpoint``, the state is written there about every ``checkpoint_every`` seconds,
    and a training that was cut off goes on from it to the very same weights. ``callback(network, row)`` is called
    after every epoch.
    """
    settings = (settings or Settings()).with_(**changes)
    seed = seed_from(None) if seed is None else seed
    place = device_of(network) if device is None else usable(device)
    with torch.random.fork_rng([]):  # a loader that shuffles is looked into
        feed = feed_for(data, validation, settings, network, place, explicit=changes)
    network.to(place)
    objective = Objective.of(settings, feed.task)
    _check_first_batch(network, feed, objective)
    optimiser = make_optimiser(network, settings)
    saved = Checkpoint.at(checkpoint, checkpoint_every, settings, seed, network, feed.fingerprints())
    done = Progress() if saved is None else saved.load(network, optimiser)
    if settings.patience is not None and feed.validation is None:
        raise BadOption("patience needs validation data: pass validation=, or load the set with some.")

    step = Step(network, objective, optimiser, settings, place)
    started = time.perf_counter() - done.seconds
    bar = tqdm(range(done.epoch, settings.epochs), desc="training", disable=not progress, leave=False, unit="epoch")
    with _number_formats(network, settings, place, feed):
        for epoch in bar:
            if done.stale(settings):
                break
            mean_loss = _epoch(step, feed, settings, epoch, seed)
            scores = {} if feed.validation is None else score(network, feed.validation, objective.plain())
            row = Row(epoch + 1, _rate(settings, epoch + 1), mean_loss, scores, time.perf_counter() - started)
            done = done.after(row, network, settings)
            bar.set_postfix_str(row.summary())
            if saved is not None:
                saved.offer(done, network, optimiser, last=epoch + 1 == settings.epochs or done.stale(settings))
            if callback is not None:
                network.eval()
                callback(network, row)
    if done.best is not None and settings.patience is not None:
        load_tensors(network, done.best)
    optimiser.zero_grad(set_to_none=True)
    network.eval()
    return Training(
        network, tuple(done.rows), settings, seed, done.best_epoch, time.perf_counter() - started, str(place)
    )


def _epoch(step: Step, feed: Feed, settings: Settings, epoch: int, seed: int) -> float:
    """One pass with steps; the mean loss over its examples."""
    step.network.train()
    total = torch.zeros((), device=feed.device)
    seen, steps = 0, feed.steps
    with _seeded(feed.device, derived_seed(seed, "epoch", epoch)):
        for index, (x, y) in enumerate(feed.epoch(derived_seed(seed, "data", epoch))):
            _set_rate(step.optimiser, _rate(settings, epoch + ((index + 0.5) / steps if steps else 0.5)))
            total.add_(step(x, y), alpha=len(y))
            seen += len(y)
    mean = float(total) / max(seen, 1)
    if not math.isfinite(mean):
        raise NotConverged(
            f"the training loss became {mean} in epoch {epoch + 1} with lr={settings.lr}. Lower it, set clip=1, or "
            "look for NaN in what the loader gives."
        )
    return mean


def _check_first_batch(network: nn.Module, feed: Feed, objective: Objective) -> None:
    """Targets must fit the outputs; a mismatch is told before anything is trained."""
    with torch.no_grad(), evaluation_mode(network), torch.random.fork_rng([]):
        first = feed.first()
        if first is None:
            raise BadData("the training data gave no batch: they are empty.")
        objective.check(outputs_of(network, first[0]), first[1])


def usable(device: str | torch.device) -> torch.device:
    """A device that is there."""
    place = torch.device(device)
    if place.type == "cuda" and not torch.cuda.is_available():
        raise BadOption("device='cuda', but torch finds no GPU here; pass device='cpu'.")
    return place


def make_optimiser(network: nn.Module, settings: Settings) -> torch.optim.Optimizer:
    """Of the trainable parameters; one fused step on a GPU."""
    params = [p for p in network.parameters() if p.requires_grad]
    if not params:
        raise BadOption("the network has no parameter that requires a gradient: there is nothing to train.")
    kinds = [p for p in params if p.dim() > 1], [p for p in params if p.dim() <= 1]
    if settings.decay == "all":
        groups: list[dict[str, Any]] = [{"params": params, "weight_decay": settings.weight_decay}]
    else:
        decays = (settings.weight_decay, 0.0)
        groups = [{"params": ps, "weight_decay": w} for ps, w in zip(kinds, decays, strict=True) if ps]
    fused = all(p.is_cuda and p.is_floating_point() for p in params)
    if settings.optimiser == "sgd":
        return torch.optim.SGD(
            groups, settings.lr, momentum=settings.momentum, nesterov=settings.nesterov, fused=fused or None
        )
    adam = torch.optim.AdamW if settings.optimiser == "adamw" else torch.optim.Adam
    return adam(groups, settings.lr, fused=fused or None)


def _rate(settings: Settings, epoch: float) -> float:
    return settings.lr * settings.schedule.factor(epoch, settings.epochs)


def _set_rate(optimiser: torch.optim.Optimizer, rate: float) -> None:
    for group in optimiser.param_groups:
        group["lr"] = rate


@contextmanager
def _seeded(device: torch.device, seed: int) -> Iterator[None]:
    """torch's own generators start at ``seed`` inside, and are as before outside."""
    index = device.index if device.index is not None else 0
    with torch.random.fork_rng([index] if device.type == "cuda" else []):
        torch.default_generator.manual_seed(seed)
        if device.type == "cuda":
            torch.cuda.default_generators[index].manual_seed(seed)
        yield


@contextmanager
def _number_formats(network: nn.Module, settings: Settings, device: torch.device, feed: Feed) -> Iterator[None]:
    """On a GPU TensorFloat-32 products and tuned convolutions; with ``amp`` channels-last weights. All put back."""
    before = torch.get_float32_matmul_precision(), torch.backends.cudnn.benchmark
    if settings.amp and device.type != "cuda":
        notice(f"amp=True is for a GPU; on {device.type} the network is trained in its own precision.")
    last = settings.amp and device.type == "cuda" and feed.images
    try:
        if device.type == "cuda":
            torch.set_float32_matmul_precision("high")
            torch.backends.cudnn.benchmark = True
        if last:
            network.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
        yield
    finally:
        torch.set_float32_matmul_precision(before[0])
        torch.backends.cudnn.benchmark = before[1]
        if last:
            network.to(memory_format=torch.contiguous_format)  # type: ignore[call-overload]
