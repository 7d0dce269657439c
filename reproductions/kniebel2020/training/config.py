"""Which trainings are watched, and for how long."""

from __future__ import annotations

from dataclasses import dataclass, replace

from reproductions.kniebel2020.cells import Cell, named

FEW = 3_000  # images, so that the validation loss has its optimum within the training


@dataclass(frozen=True)
class Config:
    cells: tuple[Cell, ...]
    epochs: int = 50
    subset: int = 256  # training examples behind a record
    probe: int = 64  # validation inputs


def _watched(name: str, train: int = FEW) -> Cell:
    return replace(named(name), train=train, novel=0)


def config(quick: bool) -> Config:
    if not quick:
        names = ("mnist-mlp-2", "mnist-lenet5", "fashion-mlp-2", "fashion-cnn", "fashion-cnn-bn", "kmnist-lenet5")
        return Config((_watched("iris-mlp-2", 1_000), *map(_watched, names), _watched("cifar-cnn-bn", 10_000)))
    digits = Cell(
        "digits-mlp-2", "mlp", "digits", "images", {"hidden": (8, 8)}, train=200, test=60, novel=0, seeds=(0, 1)
    )
    iris = replace(digits, name="iris-mlp-1", data="iris", training="table", options={"hidden": (6,)})
    return Config((iris, digits), epochs=7, subset=40, probe=10)


def units(config: Config) -> list[str]:
    """``cell/seed``."""
    return [f"{cell.name}/{seed}" for cell in config.cells for seed in cell.seeds]
