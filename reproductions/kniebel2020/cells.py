"""The networks of the study: architectures on data sets, and how each is trained."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from torch import nn

from whence import zoo
from whence.training.augment import Compose, Crop, Flip


@dataclass(frozen=True)
class Cell:
    """One architecture on one data set; ``factor`` is what a variation of the cell ``base`` changes."""

    name: str
    network: str
    data: str
    training: str
    options: dict[str, Any] = field(default_factory=dict)  # of the network
    changes: dict[str, Any] = field(default_factory=dict)  # of the training
    train: int = 10_000
    validation: int = 1_000
    test: int = 2_000
    novel: int = 500  # of each other set
    profiled: int = 300  # test inputs behind shares
    seeds: tuple[int, ...] = (0, 1, 2)
    factor: str = ""
    base: str = ""

    def build(self, shape: Sequence[int], classes: int) -> nn.Module:
        return BUILDERS[self.network](tuple(shape), classes, **self.options)

    @property
    def settings(self) -> dict[str, Any]:
        """Of ``zoo.train``."""
        return TRAINING[self.training] | self.changes

    @property
    def augment(self) -> Any:
        """That of photographs; house numbers are not mirrored."""
        if self.data not in PHOTOGRAPHS:
            return None
        return Crop(4) if self.data == "svhn-test" else Compose(Crop(4), Flip())

    def varied(self, factor: str, value: str, **changes: Any) -> Cell:
        """A variation of one factor."""
        return replace(self, name=f"{self.name}, {factor} {value}", factor=factor, base=self.name, **changes)


def cnn(
    shape: tuple[int, ...], classes: int, *, channels: Sequence[int] = (16, 32), dense: int = 64,
    batch_norm: bool = False,
) -> nn.Module:  # fmt: skip
    """3 × 3 convolutions, each with maximum pooling behind it; a linear layer, a head."""
    layers: OrderedDict[str, nn.Module] = OrderedDict()
    before, height, width = shape
    for index, units in enumerate(channels, start=1):
        layers[f"conv{index}"] = nn.Conv2d(before, units, 3, padding=1, bias=not batch_norm)
        if batch_norm:
            layers[f"norm{index}"] = nn.BatchNorm2d(units)
        layers |= {f"act{index}": nn.ReLU(), f"pool{index}": nn.MaxPool2d(2)}
        before, height, width = units, height // 2, width // 2
    layers["flatten"] = nn.Flatten()
    layers["dense"] = nn.Linear(before * height * width, dense)
    layers |= {"act": nn.ReLU(), "head": nn.Linear(dense, classes)}
    return nn.Sequential(layers)


BUILDERS: dict[str, Callable[..., nn.Module]] = {
    "perceptron": zoo.perceptron, "mlp": zoo.mlp, "lenet5": zoo.lenet5, "cnn": cnn, "vgg": zoo.vgg,
    "wide-resnet": zoo.wide_resnet, "transformer": zoo.transformer,
}  # fmt: skip
ADAM = {"epochs": 20, "batch_size": 128, "optimiser": "adam", "lr": 1e-3, "weight_decay": 1e-4}
TRAINING: dict[str, dict[str, Any]] = {
    "table": ADAM | {"epochs": 200, "batch_size": 32, "lr": 1e-2, "weight_decay": 1e-3},
    "images": ADAM,
    "photographs": ADAM | {"epochs": 30},
    "attention": ADAM | {"epochs": 30, "optimiser": "adamw", "weight_decay": 0.05},
    "deep": {"epochs": 30, "batch_size": 128, "lr": 0.1, "nesterov": True, "weight_decay": 5e-4, "amp": True},
}
PHOTOGRAPHS = ("svhn-test", "cifar10-subset", "cifar100")


def iris() -> list[Cell]:
    table = Cell("iris-perceptron", "perceptron", "iris", "table", train=1_000, seeds=(0, 1, 2, 3, 4))
    deeper = [
        replace(table, name=f"iris-mlp-{depth}", network="mlp", options={"hidden": (16,) * depth})
        for depth in (1, 2, 3)
    ]
    return [table, *deeper]


def _mlp(data: str, depth: int, width: int = 256) -> Cell:
    name = f"{data.removesuffix('-mnist').removesuffix('-test')}-mlp-{depth}"
    return Cell(name, "mlp", data, "images", {"hidden": (width,) * depth})


def grey() -> list[Cell]:
    """Images of 28 × 28 pixels."""
    mlp = _mlp("fashion-mnist", 2)
    plain = Cell("fashion-cnn", "cnn", "fashion-mnist", "images")
    kmnist = {"train": 7_000}
    return [
        Cell("mnist-perceptron", "perceptron", "mnist", "images"),
        *(_mlp("mnist", depth) for depth in (1, 2, 3)),
        Cell("mnist-lenet5", "lenet5", "mnist", "images"),
        Cell("mnist-transformer", "transformer", "mnist", "attention", {"patch": 7}),
        mlp,
        Cell("fashion-lenet5", "lenet5", "fashion-mnist", "images"),
        plain,
        replace(plain, name="fashion-cnn-bn", options={"batch_norm": True}),
        replace(_mlp("kmnist-test", 2), **kmnist),
        Cell("kmnist-lenet5", "lenet5", "kmnist-test", "images", **kmnist),
    ]


def coloured() -> list[Cell]:
    """Images of 32 × 32 pixels in colour."""
    few: dict[str, Any] = {"validation": 500, "test": 1_000, "profiled": 100, "novel": 300}
    three: dict[str, Any] = {"channels": (32, 64, 128), "dense": 128}
    plain = Cell("cifar-cnn", "cnn", "cifar10-subset", "photographs", three)
    numbers: dict[str, Any] = {"data": "svhn-test", "train": 3_500, "validation": 500, "test": 1_000}
    normed = three | {"batch_norm": True}
    return [
        replace(plain, name="svhn-cnn", **numbers),
        replace(plain, name="svhn-cnn-bn", options=normed, **numbers),
        plain,
        replace(plain, name="cifar-cnn-bn", options=normed),
        Cell("cifar-transformer", "transformer", "cifar10-subset", "attention", **few),
        Cell("cifar-vgg11", "vgg", "cifar10-subset", "deep", {"depth": 11}, **few),
        Cell("cifar-wrn16-4", "wide-resnet", "cifar10-subset", "deep", {"depth": 16, "width": 4}, **few),
    ]


def variations() -> list[Cell]:
    """One factor at a time, for the regression over the grid."""
    mlp, plain = _mlp("fashion-mnist", 2), Cell("fashion-cnn", "cnn", "fashion-mnist", "images")
    return [
        mlp.varied("depth", "1", options={"hidden": (256,)}),
        mlp.varied("depth", "4", options={"hidden": (256,) * 4}),
        mlp.varied("width", "64", options={"hidden": (64, 64)}),
        mlp.varied("width", "1024", options={"hidden": (1024, 1024)}),
        mlp.varied("data", "1000", train=1_000),
        mlp.varied("data", "30000", train=30_000),
        mlp.varied("decay", "0.001", changes={"weight_decay": 1e-3}),
        mlp.varied("epochs", "80", changes={"epochs": 80}),
        plain.varied("width", "4 times", options={"channels": (64, 128), "dense": 256}),
        plain.varied("data", "1000", train=1_000),
        plain.varied("data", "30000", train=30_000),
        plain.varied("decay", "0.001", changes={"weight_decay": 1e-3}),
        plain.varied("epochs", "5", changes={"epochs": 5}),
        plain.varied("epochs", "80", changes={"epochs": 80}),
    ]


def elsewhere() -> list[Cell]:
    """Recipes for sets that have to be downloaded: see ``elsewhere.py``."""
    return [
        Cell("emnist-lenet5", "lenet5", "emnist-letters", "images"),
        Cell("cifar100-wrn16-4", "wide-resnet", "cifar100", "deep", {"depth": 16, "width": 4}, profiled=50, novel=200),
    ]


def all_cells() -> tuple[Cell, ...]:
    return (*iris(), *grey(), *coloured(), *variations())


def named(name: str) -> Cell:
    """A cell of the grid by its name."""
    return next(cell for cell in (*all_cells(), *elsewhere()) if cell.name == name)
