"""Trained networks with their data: images, or one table of UCI."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any

import torch
from torch import Tensor, nn

from reproductions.experiment import Context
from reproductions.own.priors.config import Config
from whence import zoo
from whence.engine.files import digest_of_values, read_tensors, write_tensors
from whence.functional import load_tensors, tensors_of
from whence.training.augment import Compose, Crop, Flip

Pair = tuple[Tensor, Tensor]


@dataclass(frozen=True)
class Subject:
    """A network, and tensors on its device."""

    network: nn.Module
    likelihood: str
    train: Pair
    validation: Pair
    test: Pair
    novel: dict[str, Tensor]

    @property
    def classes(self) -> bool:
        return self.likelihood == "classification"


def subjects(config: Config, name: str, seed: int, context: Context) -> dict[str, Subject]:
    """By data set: one, but for UCI."""
    torch.manual_seed(seed)
    if name == "uci":
        return {table: _uci(config, table, seed, context) for table in config.sets}
    return {"": _images(config, name, seed, context)}


SOURCES = {
    "mlp": "mnist", "lenet5": "fashion-mnist", "batch-norm": "fashion-mnist", "transformer": "fashion-mnist",
    "wrn": "cifar10-subset",
}  # fmt: skip
NOVEL = {
    "mnist": ("fashion-mnist", "kmnist", "notmnist"), "fashion-mnist": ("mnist", "kmnist", "notmnist"),
    "cifar10-subset": ("svhn-recropped",),
}  # fmt: skip


def batch_norm(shape: tuple[int, ...], classes: int) -> nn.Module:
    """Two convolutions with batch normalisation, two linear layers."""
    inside = 32 * (shape[1] // 4) * (shape[2] // 4)
    return nn.Sequential(
        nn.Conv2d(shape[0], 16, 3, padding=1, bias=False), nn.BatchNorm2d(16), nn.ReLU(), nn.MaxPool2d(2),
        nn.Conv2d(16, 32, 3, padding=1, bias=False), nn.BatchNorm2d(32), nn.ReLU(), nn.MaxPool2d(2),
        nn.Flatten(), nn.Linear(inside, 64), nn.ReLU(), nn.Linear(64, classes),
    )  # fmt: skip


BUILDERS: dict[str, Callable[..., nn.Module]] = {
    "mlp": lambda shape, classes: zoo.mlp(shape, classes, hidden=(256, 256)),
    "lenet5": zoo.lenet5,
    "batch-norm": batch_norm,
    "transformer": lambda shape, classes: zoo.transformer(shape, classes, patch=7, dropout=0.0),
    "wrn": lambda shape, classes: zoo.wide_resnet(shape, classes, depth=16, width=4),
}
TRAINING: dict[str, dict[str, Any]] = {
    "mlp": {"optimiser": "adam", "lr": 1e-3},
    "lenet5": {"optimiser": "adam", "lr": 1e-3},
    "batch-norm": {"optimiser": "adam", "lr": 1e-3},
    "transformer": {"optimiser": "adamw", "lr": 1e-3, "weight_decay": 0.05},
    "wrn": {"lr": 0.1, "nesterov": True, "weight_decay": 5e-4, "augment": Compose(Crop(4), Flip()), "amp": True},
    "uci": {
        "epochs": 200,
        "batch_size": 32,
        "optimiser": "adam",
        "lr": 1e-2,
        "weight_decay": 1e-4,
        "schedule": "cosine",
    },
}


def _images(config: Config, name: str, seed: int, context: Context) -> Subject:
    source = config.source or SOURCES[name]
    device = context.device
    size = {what: config.of(name, what) for what in ("train", "validation", "test", "novel", "epochs")}
    whole = zoo.load(source, seed=seed, validation=size["validation"], device=device, progress=False)
    assert whole.train is not None and whole.validation is not None and whole.test is not None
    train = whole.train.take(size["train"])
    network = BUILDERS[name](whole.shape, len(whole.classes)).to(device)
    kept = context.cache / f"priors-{name}-{seed}-{digest_of_values([asdict(config), source])[:16]}.safetensors"
    if kept.exists():
        load_tensors(network, read_tensors(kept)[0])
        network.eval()
    else:
        zoo.train(
            network, train, epochs=size["epochs"], batch_size=128, schedule="cosine", seed=seed,
            capture=device.startswith("cuda"), progress=context.progress, device=device, **TRAINING[name],
        )  # fmt: skip
        context.cache.mkdir(parents=True, exist_ok=True)
        write_tensors(kept, tensors_of(network), {})  # a GPU would train another one for the units that are left
    test = whole.test.take(size["test"]).tensors()
    novel = {} if source in NOVEL else {"transposed": test[0].transpose(2, 3).contiguous()}
    for other in NOVEL.get(source, ()):
        found = zoo.load(other, test_only=other != "svhn-recropped", device=device, progress=False).test
        assert found is not None
        novel[other] = found.like(train).take(size["novel"]).tensors()[0]
    return Subject(network, "classification", train.tensors(), whole.validation.tensors(), test, novel)


def _uci(config: Config, table: str, seed: int, context: Context) -> Subject:
    """Novel inputs are test inputs whose columns were shuffled apart: each value is usual, together they are not."""
    split = {"split": seed} if table.startswith("uci/") else {}
    data = zoo.load(table, seed=seed, validation=config.uci_validation, progress=False, **split)
    assert data.train is not None and data.validation is not None and data.test is not None
    network = zoo.mlp(data.shape, 1, hidden=(50, 50))
    zoo.train(network, data.train, seed=seed, progress=False, device="cpu", **TRAINING["uci"])
    x, y = data.test.tensors()
    generator = torch.Generator().manual_seed(seed)
    apart = torch.stack([column[torch.randperm(len(x), generator=generator)] for column in x.T], 1)
    return Subject(
        network, "regression", data.train.tensors(), data.validation.tensors(), (x, y), {"shuffled columns": apart}
    )
