"""Everything that decides a number of section 5.4."""

from __future__ import annotations

from dataclasses import dataclass, replace

from reproductions.ritter2018.mnist import DETERMINISTIC, DIAGONAL, DROPOUT, KRONECKER, LINEARISED


@dataclass(frozen=True)
class Config:
    """Networks, splits, posteriors. The paper's sizes are depth 22, width 8, 200 epochs and 5,000 copies."""

    recipe: str = "cifar10-wrn16-4"  # of the zoo; what follows changes it
    data: str = "cifar10"
    depth: int = 16
    width: float = 4
    shortcut: str = "2x2"
    dropouts: tuple[float, ...] = (0.3, 0.0)
    epochs: int = 40
    batch_size: int = 256
    lr: float = 0.2
    amp: bool = True  # trained in bfloat16 where that is safe; curvature is summed in single precision
    tf32: bool = True  # matrix products of predictions in TF32 on a GPU, as its convolutions are by default
    crop: int = 4  # pixels by which images are shifted at most, in training and for the curvature; and mirrored
    seeds: tuple[int, ...] = (0, 1, 2)

    validation: tuple[int, int] = (0, 5_000)  # of the test images, as the paper has it
    reported: tuple[int, int] = (5_000, 10_000)
    tuning_images: int = 1_000  # the first of the validation images, on which hyperparameters are tuned
    outside: str = "svhn-recropped"
    outside_images: int = 3_000

    copies: int = 2  # augmented copies of each image that the curvature is averaged over
    batch: int = 512  # of the curvature
    draws: int = 30
    tuning_draws: int = 10
    data_scale: bool | str = "auto"  # whether the size of the data is tuned too: where it helps significantly
    novelty_images: int = 2_000  # of each set; the reference are the images that were tuned on
    shown: int = 8  # images in the strip
    resamples: int = 400


QUICK = replace(
    Config(), data="digits", depth=10, width=0.5, epochs=4, batch_size=64, lr=0.1, amp=False, crop=1, seeds=(0, 1),
    validation=(0, 120), reported=(120, 200), tuning_images=40, outside="turned", outside_images=60, copies=1,
    batch=512, draws=6, tuning_draws=3, data_scale=False, novelty_images=30, shown=4, resamples=200,
)  # fmt: skip


def config(quick: bool) -> Config:
    return QUICK if quick else Config()


def label(dropout: float) -> str:
    """Of a network, in the names of units."""
    return "dropout" if dropout else "plain"


def methods(dropout: float) -> tuple[str, ...]:
    """Ways to predict with a network."""
    return (DETERMINISTIC, *((DROPOUT,) if dropout else ()), DIAGONAL, KRONECKER, LINEARISED)


def units(config: Config) -> list[str]:
    """``network/seed/what``, in the order of the run."""
    found = []
    for seed in config.seeds:
        for dropout in config.dropouts:
            names = methods(dropout)
            whats = ["train", "fit/kron", "fit/diag", *(f"tune/{m}" for m in (DIAGONAL, KRONECKER, LINEARISED))]
            whats += [*(f"measure/{m}" for m in names), "novelty"]
            whats += ["surest"] if seed == config.seeds[0] else []
            found += [f"{label(dropout)}/{seed}/{what}" for what in whats]
    return found
