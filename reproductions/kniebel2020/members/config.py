"""Many weak networks against a strong one."""

from __future__ import annotations

from dataclasses import dataclass, replace

from reproductions.kniebel2020.cells import Cell, named

KINDS = ("small", "few examples")  # how members are weak: few hidden units, or few training examples each


@dataclass(frozen=True)
class Config:
    cells: tuple[Cell, ...]  # the strong networks
    hidden: int = 6  # units of a small member
    examples: int = 250  # of a member that sees few
    members: tuple[int, ...] = (1, 2, 5, 10, 20, 40)


def config(quick: bool) -> Config:
    if not quick:
        return Config(tuple(named(name) for name in ("mnist-mlp-2", "fashion-mlp-2", "kmnist-mlp-2")))
    digits = Cell(
        "digits-mlp-2", "mlp", "digits", "images", {"hidden": (16, 16)}, {"epochs": 4}, train=300, test=60, novel=30,
        seeds=(0, 1),
    )  # fmt: skip
    return Config((digits, replace(digits, name="digits-mlp-1", options={"hidden": (16,)})), 4, 60, (1, 3))


def units(config: Config) -> list[str]:
    """``cell/seed/kind``."""
    return [f"{cell.name}/{seed}/{kind}" for cell in config.cells for seed in cell.seeds for kind in KINDS]
