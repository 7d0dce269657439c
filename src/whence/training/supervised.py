"""``whence.zoo.train``: trains a network on examples with targets; and ``whence.zoo.evaluate``."""

from __future__ import annotations

import math
from collections.abc import Callable, Container, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Self

import torch
from torch import Tensor, nn

from whence.engine.batches import Inputs, check_finite
from whence.engine.checkpoint import TRAINING, CheckpointFile
from whence.engine.contexts import capturing
from whence.engine.randomness import derived_seed, preserved_random_state, seed_from
from whence.errors import BadData, BadOption, NotConverged, explains_keywords, need, notice
from whence.functional import load_tensors, tensors_of
from whence.training.checkpoint import TrainingCheckpoint
from whence.training.examples import Splits, training_parts
from whence.training.feed import DatasetFeed, ExamplesFeed, Feed, as_feed, device_of, outputs_of
from whence.training.loop import EpochRecord, Plan, Tensors, Trainable, run
from whence.training.losses import Loss, LossFunction, absolute_sum, evaluation_mode, resolve_loss, score
from whence.training.settings import Optimiser, Settings
from whence.training.step import LossValues

if TYPE_CHECKING:
    from whence.zoo.data import DataSet
    from whence.zoo.recipes import Recipe


@dataclass(frozen=True)
class SupervisedEpoch(EpochRecord):
    """One epoch: the mean training loss, and scores on validation data."""

    epoch: int
    lr: float
    loss: float
    validation: dict[str, float] = field(default_factory=dict)
    seconds: float = 0.0

    def summary(self) -> str:
        scores = "".join(f", validation {name} {value:.4g}" for name, value in self.validation.items())
        return f"loss {self.loss:.4g}{scores}"

    def to_dict(self) -> dict[str, float]:
        scores = {f"validation_{name}": value for name, value in self.validation.items()}
        return {"epoch": self.epoch, "lr": self.lr, "loss": self.loss, **scores, "seconds": self.seconds}


@dataclass(frozen=True)
class Training:
    """A trained network, in evaluation mode, with its history."""

    network: nn.Module
    history: tuple[SupervisedEpoch, ...]
    settings: Settings
    seed: int
    best_epoch: int | None  # on validation data
    seconds: float
    device: str
    recipe: Recipe | None = None
    data: DataSet | None = field(default=None, repr=False)
    from_cache: bool = False

    def __repr__(self) -> str:
        name = type(self.network).__name__ if self.recipe is None else self.recipe.name
        lines = [
            f"Training of {name}: {len(self.history)} of {self.settings.epochs} epochs in {self.seconds:.1f} s "
            f"on {self.device}, seed {self.seed}" + (", read from the cache" if self.from_cache else "")
        ]
        if self.history:
            lines.append(f"  last epoch: {self.history[-1].summary()}")
        if self.best_epoch is not None:
            best = self.history[self.best_epoch - 1]
            lines.append(f"  best on validation data: epoch {self.best_epoch} ({best.summary()})")
        return "\n".join(lines)

    def to_pandas(self) -> Any:
        """The history, one row for each epoch."""
        return need("pandas", "pandas").DataFrame([record.to_dict() for record in self.history])


Callback = Callable[[nn.Module, SupervisedEpoch], Any]
Groups = list[dict[str, Any]]  # of parameters


@explains_keywords
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
    the history includes its loss; with ``patience`` training stops early and the best weights are restored.

    ``seed`` determines shuffling, augmentation and dropout, and is in the result (``None`` draws one); torch's random
    state does not change. With ``checkpoint``, the state is saved there about every ``checkpoint_every`` seconds,
    and an interrupted training resumes from it with exactly the same weights. ``callback(network, record)`` is
    called after every epoch.
    """
    settings = (settings or Settings()).with_(**changes)
    seed = seed_from(None) if seed is None else seed
    data, validation = training_parts(data, validation)
    training = SupervisedTraining.of(network, data, validation, settings, seed, changes, device)
    saved = None if checkpoint is None else training.checkpoint(checkpoint, checkpoint_every)

    def after(record: SupervisedEpoch) -> None:
        if callback is not None:
            network.eval()
            callback(network, record)

    done = run(training, training.plan(), checkpoint=saved, callback=after, progress=progress)
    return Training(network, done.records, settings, seed, done.best_epoch, done.seconds, str(training.device))


def evaluate(network: nn.Module, data: Any, *, loss: str | LossFunction | None = None) -> dict[str, float]:
    """``loss`` and ``accuracy`` of labels; ``loss`` and ``rmse`` of numbers. The network is not changed.

    ``data`` as for ``train``; for a :class:`DataSet` its test part. ``loss`` as in :class:`Settings`.
    For intervals, calibration and more see ``whence.metrics``.
    """
    part = data.test if isinstance(data, Splits) else data
    if part is None:
        raise BadData(f"{data.name} has no test part here.")
    with preserved_random_state():  # a loader may shuffle
        feed = as_feed(part, "data", network, device_of(network))
        return score(network, feed, resolve_loss(Settings(loss=loss), feed.first()[1]))


DESCRIBED = {
    "shapes": "another network",
    "network": "another network",
    "start": "another network: its training started from other weights",
    "data": "other data",
}  # names of what a checkpoint belongs to


class SupervisedTraining(Trainable[SupervisedEpoch]):
    """Minimises the mean loss of a network over examples with targets."""

    record: ClassVar = SupervisedEpoch

    def __init__(
        self, network: nn.Module, feed: Feed, validation: Feed | None, loss: Loss, settings: Settings, seed: int
    ) -> None:
        self.network, self.feed, self.validation, self.objective = network, feed, validation, loss
        self.settings, self.seed = settings, seed
        self.device, self.steps = feed.device, feed.steps
        self.optimiser = make_optimiser(network, settings)
        self._total, self._seen = torch.zeros(()), 0

    @classmethod
    def of(
        cls,
        network: nn.Module,
        data: Any,
        validation: Any,
        settings: Settings,
        seed: int,
        explicit: Container[str] = (),
        device: str | torch.device | None = None,
        **own: Any,
    ) -> Self:
        """A training that is ready to run; ``explicit`` are the settings given by the caller, ``own`` the class's."""
        place = device_of(network) if device is None else available(device)
        with preserved_random_state():  # for loaders that shuffle
            feed = training_feed(data, settings, network, place, explicit)
            scored = None
            if validation is not None:
                scored = as_feed(validation, "validation", network, place, settings.batch_size)
            inputs, targets = feed.first()
        if settings.patience is not None and scored is None:
            raise BadOption("patience needs validation data: pass validation=, or load the set with some.")
        network.to(place)
        loss = resolve_loss(settings, targets)
        with torch.no_grad(), evaluation_mode(network), preserved_random_state():
            loss.check(outputs_of(network, inputs), targets)
        return cls(network, feed, scored, loss, settings, seed, **own)

    def plan(self) -> Plan:
        settings = self.settings
        return Plan(settings.epochs, settings.schedule, settings.patience, capture=settings.capture)

    def checkpoint(self, path: str | Path, every: float = 30.0) -> TrainingCheckpoint:
        return TrainingCheckpoint(CheckpointFile.at(path, TRAINING), self.identity(), DESCRIBED, every)

    def identity(self) -> dict[str, Any]:
        """Identifies the training of a checkpoint."""
        settings = self.settings.spec()
        epochs = settings.pop("epochs")
        if self.settings.schedule.depends_on_length:  # otherwise a longer training starts the same way
            settings["epochs"] = epochs
        data = [feed.fingerprint() for feed in (self.feed, self.validation) if feed is not None]
        return {"network": repr(self.network), "data": data, **settings, "seed": self.seed}

    def begin(self, epoch: int) -> Iterator[tuple[Inputs, Tensor]]:
        self.network.train()
        self._total, self._seen = torch.zeros((), device=self.device), 0
        return self.feed.epoch(derived_seed(self.seed, "data", epoch))

    def loss(self, inputs: Inputs, targets: Tensor) -> LossValues:
        half = self.settings.amp and self.device.type == "cuda"
        with torch.autocast("cuda", torch.bfloat16, cache_enabled=not capturing()) if half else nullcontext():
            value = self.objective(outputs_of(self.network, inputs), targets)
        if not self.settings.l1:
            return value, value
        penalty = absolute_sum(p for p in self.network.parameters() if p.requires_grad)
        return value + self.settings.l1 * penalty, value

    def before_update(self, values: Tensor, targets: Tensor) -> None:
        self._total.add_(values, alpha=len(targets))
        self._seen += len(targets)
        if self.settings.clip is not None:
            nn.utils.clip_grad_norm_(self.network.parameters(), self.settings.clip)

    def end(self, epoch: int, lr: float) -> SupervisedEpoch:
        mean = float(self._total) / max(self._seen, 1)
        if not math.isfinite(mean):
            raise NotConverged(
                f"the training loss became {mean} in epoch {epoch + 1} with lr={self.settings.lr}. Lower it, set "
                "clip=1, or check the data for very large values."
            )
        scores = (
            {} if self.validation is None else score(self.network, self.validation, self.objective.for_validation())
        )
        return SupervisedEpoch(epoch + 1, lr, mean, scores)

    def quality(self, record: SupervisedEpoch) -> float | None:
        name = self.settings.monitor
        if not record.validation:
            return None
        if name not in record.validation:
            raise BadOption(f"monitor={name!r} is not measured here; measured: {', '.join(record.validation)}.")
        return record.validation[name] if name == "accuracy" else -record.validation[name]

    def state(self) -> Tensors:
        return tensors_of(self.network)

    def load_state(self, tensors: Tensors) -> None:
        load_tensors(self.network, tensors)

    def finish(self) -> None:
        self.network.eval()

    @contextmanager
    def context(self) -> Iterator[None]:
        """Use fast kernels, and channels-last weights for images with ``amp``; restored afterwards."""
        if self.settings.amp and self.device.type != "cuda":
            notice(f"amp=True applies only to a GPU; on {self.device.type} training uses the network's precision.")
        images = isinstance(self.feed, ExamplesFeed) and self.feed.examples.raw.dim() == 4
        channels_last = self.settings.amp and self.device.type == "cuda" and images
        with fast_kernels(self.device):
            try:
                if channels_last:
                    self.network.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
                yield
            finally:
                if channels_last:
                    self.network.to(memory_format=torch.contiguous_format)  # type: ignore[call-overload]


@contextmanager
def fast_kernels(device: torch.device) -> Iterator[None]:
    """TensorFloat-32 products and tuned convolutions on a GPU; restored afterwards."""
    before = torch.get_float32_matmul_precision(), torch.backends.cudnn.benchmark
    try:
        if device.type == "cuda":
            torch.set_float32_matmul_precision("high")
            torch.backends.cudnn.benchmark = True
        yield
    finally:
        torch.set_float32_matmul_precision(before[0])
        torch.backends.cudnn.benchmark = before[1]


def training_feed(
    data: Any, settings: Settings, network: nn.Module, device: torch.device, explicit: Container[str]
) -> Feed:
    """Batches of the training data; settings that a loader would ignore are refused."""
    feed = as_feed(data, "data", network, device, settings.batch_size)
    if isinstance(feed, ExamplesFeed):
        examples = feed.examples
        check_finite(examples.raw, "data: the inputs", 0)
        check_finite(examples.targets, "data: the targets", 0)
        augment = examples.augment if settings.augment is None else settings.augment or None
        return ExamplesFeed(examples.with_(augment=augment), settings.batch_size)
    for option in ("augment",) if isinstance(feed, DatasetFeed) else ("batch_size", "augment"):
        if option in explicit or getattr(settings, option) != getattr(Settings(), option):
            raise BadOption(f"{option} is set by the loader; to set it here, pass a pair of tensors.")
    return feed


def make_optimiser(network: nn.Module, settings: Settings) -> torch.optim.Optimizer:
    """The optimiser of the trainable parameters; fused on a GPU."""
    params = [p for p in network.parameters() if p.requires_grad]
    if not params:
        raise BadOption("the network has no parameter that requires a gradient, so there is nothing to train.")
    smallest = DECAYED[settings.decay]
    decayed, others = [p for p in params if p.dim() >= smallest], [p for p in params if p.dim() < smallest]
    groups = [{"params": ps, "weight_decay": w} for ps, w in ((decayed, settings.weight_decay), (others, 0.0)) if ps]
    fused = all(p.is_cuda and p.is_floating_point() for p in params) or None
    return OPTIMISERS[Optimiser(settings.optimiser)](groups, settings, fused)


def _sgd(groups: Groups, settings: Settings, fused: bool | None) -> torch.optim.Optimizer:
    return torch.optim.SGD(groups, settings.lr, momentum=settings.momentum, nesterov=settings.nesterov, fused=fused)


def _adam(groups: Groups, settings: Settings, fused: bool | None) -> torch.optim.Optimizer:
    return torch.optim.Adam(groups, settings.lr, fused=fused)


def _adamw(groups: Groups, settings: Settings, fused: bool | None) -> torch.optim.Optimizer:
    return torch.optim.AdamW(groups, settings.lr, fused=fused)


OPTIMISERS: dict[Optimiser, Callable[[Groups, Settings, bool | None], torch.optim.Optimizer]] = {
    Optimiser.SGD: _sgd,
    Optimiser.ADAM: _adam,
    Optimiser.ADAMW: _adamw,
}
DECAYED = {"all": 0, "weights": 2}  # dimensions from which a parameter is decayed


def available(device: str | torch.device) -> torch.device:
    """The device; an error for a GPU that does not exist."""
    place = torch.device(device)
    if place.type == "cuda" and not torch.cuda.is_available():
        raise BadOption("device='cuda', but torch finds no GPU here; pass device='cpu'.")
    return place
