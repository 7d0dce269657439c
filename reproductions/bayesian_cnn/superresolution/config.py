"""Images, factors and methods."""

from __future__ import annotations

from dataclasses import dataclass

METHODS = ("bicubic", "plain", "dropout", "variational", "laplace")


@dataclass(frozen=True)
class Task:
    """Images of ``side`` × ``side`` from those a factor smaller."""

    name: str
    data: str
    factor: int
    side: int
    train: int
    channels: int = 1
    seeds: tuple[int, ...] = (0, 1, 2)


@dataclass(frozen=True)
class Config:
    """An ESPCN-like network; lists are choices of which validation data take one."""

    tasks: tuple[Task, ...]
    methods: tuple[str, ...] = METHODS
    width: tuple[int, int] = (32, 16)  # filters of the two hidden layers
    epochs: int = 12
    variational_epochs: int = 8
    rates: tuple[float, ...] = (1e-3, 4e-3)  # of Adam
    dropout: tuple[float, ...] = (0.02, 0.1)
    kl_weights: tuple[float, ...] = (1.0, 30.0)
    validation: int = 500
    test: int = 500
    draws: int = 30
    mapped: int = 3  # test images whose maps are kept, of the first seed


def config(quick: bool) -> Config:
    if quick:
        tiny = Task("digits-x2", "digits", 2, 16, 600, seeds=(0, 1))
        return Config((tiny,), width=(8, 8), epochs=5, variational_epochs=2, rates=(4e-3,), dropout=(0.1,),
                      kl_weights=(1.0,), validation=50, test=50, draws=8, mapped=1)  # fmt: skip
    return Config((Task("fashion-x3", "fashion", 3, 27, 10_000), Task("cifar-x2", "cifar", 2, 32, 10_000, 3)))


def units(config: Config) -> list[str]:
    """``task/method/seed``; bicubic interpolation has no seed but that of the test images, which are the same."""
    return [
        f"{t.name}/{m}/{s}" for t in config.tasks for m in config.methods for s in (t.seeds if m != "bicubic" else (0,))
    ]
