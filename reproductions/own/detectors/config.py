"""Which networks, how many examples, which classes are held out."""

from __future__ import annotations

from dataclasses import asdict, dataclass

from whence.engine.files import digest_of_values


@dataclass(frozen=True)
class Config:
    """Numbers of images; every network is trained without the held-out classes."""

    networks: tuple[str, ...] = ("mlp", "lenet5", "batch-norm", "photographs")
    seeds: tuple[int, ...] = (0, 1, 2)
    held_out: tuple[int, ...] = (8, 9)  # the last classes, so that the others keep their numbers
    train: int = 10_000
    epochs: int = 20
    photographs_train: int = 14_000
    validation: int = 1_000
    test: int = 1_500
    novel: int = 1_000  # of each novel set
    source: str = ""  # of images, instead of the network's own

    def of(self, network: str, what: str) -> int:
        """A number of a network: ``photographs_…`` where it has one of its own."""
        own = f"photographs_{what}"
        return int(getattr(self, own if network == "photographs" and hasattr(self, own) else what))

    def file(self, network: str, seed: int) -> str:
        """A name for what belongs to one trained network in the cache; other seeds and networks do not change it."""
        numbers = {k: v for k, v in asdict(self).items() if k not in ("networks", "seeds")}
        return f"detectors-{network}-{seed}-{digest_of_values([numbers])[:16]}"


QUICK = Config(
    networks=("mlp",), seeds=(0, 1), train=600, epochs=4, validation=120, test=100, novel=60, source="digits"
)  # fmt: skip


def config(quick: bool) -> Config:
    return QUICK if quick else Config()


def units(config: Config) -> list[str]:
    """``network/seed``."""
    return [f"{network}/{seed}" for network in config.networks for seed in config.seeds]
