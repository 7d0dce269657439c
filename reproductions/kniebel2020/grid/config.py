"""Which networks, and with which seeds."""

from __future__ import annotations

from dataclasses import dataclass, replace

from reproductions.kniebel2020.cells import Cell, all_cells, elsewhere


@dataclass(frozen=True)
class Config:
    cells: tuple[Cell, ...]


DIGITS = Cell(
    "digits-mlp-2", "mlp", "digits", "images", {"hidden": (12, 12)}, {"epochs": 4}, train=300, test=60, novel=30,
    profiled=20, seeds=(0, 1),
)  # fmt: skip
IRIS = replace(
    DIGITS, name="iris-perceptron", network="perceptron", data="iris", training="table", options={},
    changes={"epochs": 15},
)  # fmt: skip
QUICK = Config(
    (
        IRIS,
        replace(IRIS, name="iris-mlp-1", network="mlp", options={"hidden": (6,)}),
        DIGITS,
        replace(
            DIGITS, name="digits-cnn-bn", network="cnn", options={"channels": (3, 4), "dense": 6, "batch_norm": True}
        ),
        DIGITS.varied("width", "24", options={"hidden": (24, 24)}),
    )
)


def config(quick: bool) -> Config:
    return QUICK if quick else Config(all_cells())


def units(config: Config) -> list[str]:
    """``cell/seed``."""
    return [f"{cell.name}/{seed}" for cell in config.cells for seed in cell.seeds]


def downloadable() -> Config:
    """The cells of sets that have to be downloaded, for a study of one's own."""
    return Config(tuple(elsewhere()))
