"""Attacks, methods and variants of the curvature."""

from __future__ import annotations

from dataclasses import dataclass, field

from reproductions.ritter2018 import mnist

UNTARGETED, TARGETED = "untargeted", "targeted"
PLAIN = "plain gradient"  # as automatic differentiation gives it in single precision
CHECKED = (mnist.DETERMINISTIC, mnist.DROPOUT, mnist.DIAGONAL, mnist.KRONECKER)  # the methods that it is tried on


@dataclass(frozen=True)
class Variant:
    """Another curvature for the Kronecker posterior (appendix C)."""

    curvature: str  # "ggn": exact; "kfra": the activation Hessian averaged over a batch
    copies: int  # binarised copies; 0: the grey images once
    batch: int = 100


@dataclass(frozen=True)
class Config:
    """``steps`` are fractions of each pixel's range; ``updates`` of size ``step`` are made in the targeted attack."""

    setup: mnist.Setup = field(default_factory=mnist.Setup)
    inputs: int = 2_000  # of the test set, from its beginning
    batch: int = 1_000
    steps: tuple[float, ...] = (0.0, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.25, 0.3, 0.4, 0.5)
    target: int = 0
    step: float = 1e-2
    updates: int = 60
    variants: dict[str, Variant] = field(
        default_factory=lambda: {
            "augmented, batches": Variant("kfra", 10),
            "not augmented, batches": Variant("kfra", 0),
            "not augmented, exact": Variant("ggn", 0, 500),
        }
    )
    check_inputs: int = 300  # of the attack in plain torch
    check_draws: int = 20
    check_updates: int = 40


def config(quick: bool) -> Config:
    if not quick:
        return Config()
    few = {"augmented, batches": Variant("kfra", 2), "not augmented, batches": Variant("kfra", 0),
           "not augmented, exact": Variant("ggn", 0)}  # fmt: skip
    return Config(mnist.QUICK, 60, 60, (0.0, 0.1, 0.3), 0, 0.05, 6, few, 40, 10, 6)


def units(config: Config) -> list[str]:
    """``seed/attack/method``; variants are named in brackets."""
    names = [*mnist.METHODS, *(f"{mnist.KRONECKER} ({name})" for name in config.variants)]
    attacks = (UNTARGETED, TARGETED)
    found = []
    for seed in config.setup.seeds:
        found += [f"{seed}/{attack}/{name}" for name in names for attack in attacks]
        found += [f"{seed}/{PLAIN}/{name}" for name in CHECKED]
    return found + [f"{seed}/check" for seed in config.setup.seeds]
