"""Which networks on which data."""

from __future__ import annotations

from dataclasses import dataclass

DATA = ("curve", "two-moons", "yacht", "boston", "energy", "concrete", "wine")


@dataclass(frozen=True)
class Config:
    """``size`` training examples of every set at most: the evidence is exact, by a matrix of all their outputs."""

    data: tuple[str, ...] = DATA
    image_data: tuple[str, ...] = ("mnist", "fashion-mnist")
    seeds: tuple[int, ...] = (0, 1, 2)
    image_seeds: tuple[int, ...] = (0, 1, 2, 3, 4)
    size: int = 200
    images: int = 60
    test: int = 500
    depths: tuple[int, ...] = (1, 5, 20)
    widths: tuple[int, ...] = (10, 50)
    activations: tuple[str, ...] = ("tanh", "relu", "sine")
    activation_depth: int = 2
    steps: int = 400
    rate: float = 1e-2
    decay: float = 1e-3  # λ of ½ mean loss + ½ λ ‖θ‖² / N: the prior precision in training
    image_decay: float = 1.0
    image_test: int = 250
    rounds: int = 4  # of images: precisions and the linear model's optimum in turns
    iterations: int = 60  # of L-BFGS, for the precisions and the noise


QUICK = Config(
    data=("curve", "two-moons"), image_data=("digits",), seeds=(0, 1), image_seeds=(0, 1), size=30, images=12,
    test=40, image_test=40, depths=(1, 3), widths=(5, 8),
    activations=("tanh", "relu"), steps=30, rounds=2, iterations=6,
)  # fmt: skip


def config(quick: bool) -> Config:
    return QUICK if quick else Config()


def units(config: Config) -> list[str]:
    """``depth/data/seed``, ``activation/data/seed`` and ``images/data/seed``."""
    depth = [f"depth/{name}/{seed}" for seed in config.seeds for name in config.data]
    activation = [f"activation/{name}/{seed}" for seed in config.seeds for name in config.data]
    images = [f"images/{name}/{seed}" for seed in config.image_seeds for name in config.image_data]
    return [*depth, *activation, *images]
