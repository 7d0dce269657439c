"""Which sets in the plane, and which networks separate them."""

from __future__ import annotations

from dataclasses import dataclass

NETWORKS: dict[str, tuple[int, ...]] = {"one layer": (), "two layers": (16,), "three layers": (16, 16)}
SETS = ("half-plane", "convex set", "arbitrary set")


@dataclass(frozen=True)
class Config:
    sets: tuple[str, ...] = SETS
    networks: tuple[str, ...] = tuple(NETWORKS)
    seeds: tuple[int, ...] = (0, 1, 2, 3, 4)
    train: int = 1_000
    test: int = 4_000
    epochs: int = 200
    side: int = 121  # points on a side of the pictures


def config(quick: bool) -> Config:
    return Config(seeds=(0, 1), train=100, test=100, epochs=4, side=7) if quick else Config()


def units(config: Config) -> list[str]:
    """``set/network/seed``."""
    return [f"{s}/{n}/{seed}" for s in config.sets for n in config.networks for seed in config.seeds]
