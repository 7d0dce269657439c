"""Which networks, how many examples, which priors."""

from __future__ import annotations

from dataclasses import dataclass

NETWORKS = ("mlp", "lenet5", "batch-norm", "transformer", "wrn", "uci")
RULES = ("signal", "signal, r = variance", "by layer", "isotropic", "by size", "g-prior")
FLOORS = ("signal, ν = 0", "signal, ν = 0.0001", "signal, ν = 0.001", "signal, ν = 0.1", "signal, ν = 1")


@dataclass(frozen=True)
class Config:
    """Numbers of images; of UCI sets all rows are used."""

    networks: tuple[str, ...] = NETWORKS
    seeds: tuple[int, ...] = (0, 1, 2)
    uci_seeds: tuple[int, ...] = (0, 1, 2, 3, 4)
    rules: tuple[str, ...] = RULES + FLOORS
    wrn_rules: tuple[str, ...] = RULES
    train: int = 10_000
    wrn_train: int = 14_000
    epochs: int = 30
    wrn_epochs: int = 40
    validation: int = 1_000
    wrn_validation: int = 500
    test: int = 5_000
    wrn_test: int = 2_000
    novel: int = 2_000  # of each other data set
    wrn_novel: int = 1_000
    shown: int = 500  # test inputs behind shares
    wrn_shown: int = 100
    sets: tuple[str, ...] = (
        "uci/boston",
        "uci/concrete",
        "uci/energy",
        "uci/wine",
        "uci/yacht",
    )  # their mean is reported
    uci_validation: float = 0.15
    source: str = ""  # of images, instead of the network's own

    def of(self, network: str, what: str) -> int:
        """A number of a network: ``wrn_…`` where it has one of its own."""
        own = f"wrn_{what}"
        return int(getattr(self, own if network == "wrn" and hasattr(self, own) else what))

    def seeds_of(self, network: str) -> tuple[int, ...]:
        return self.uci_seeds if network == "uci" else self.seeds

    def rules_of(self, network: str) -> tuple[str, ...]:
        return self.wrn_rules if network == "wrn" else self.rules


QUICK = Config(
    networks=("mlp", "uci"), seeds=(0, 1), uci_seeds=(0, 1), rules=("signal", "isotropic", "g-prior"), train=300,
    epochs=3, validation=100, test=100, novel=50, shown=20, sets=("cubic",), source="digits",
)  # fmt: skip


def config(quick: bool) -> Config:
    return QUICK if quick else Config()


def units(config: Config) -> list[str]:
    """``network/seed/plain`` and ``network/seed/rule``."""
    return [
        f"{network}/{seed}/{what}"
        for network in config.networks
        for seed in config.seeds_of(network)
        for what in ("plain", *config.rules_of(network))
    ]
