"""Which tables and images, how networks are trained, when the evidence is asked."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from reproductions.linearised.stack import Schedule
from reproductions.linearised.uci.config import GAPS, LARGE, STANDARD


@dataclass(frozen=True)
class Config:
    """Numbers of splits by set; ``group`` splits are one unit of work, and their networks are trained together."""

    standard: Mapping[str, int] = field(default_factory=lambda: STANDARD)
    gap: Mapping[str, int] = field(default_factory=lambda: GAPS)
    group: int = 5
    hidden: int = 50
    steps: int = 1500
    batch: int = 64
    large_steps: int = 2500
    large_batch: int = 128
    decays: tuple[float, ...] = (1e-5, 3e-5, 1e-4, 3e-4, 1e-3, 3e-3, 1e-2)  # λ of ½ mean (y − f)² + ½ λ ‖θ‖²
    burn_in: float = 0.2  # of the steps, before the first update
    usual: float = 1e-4  # the decay of networks whose evidence is asked after training alone
    usual_precision: float = 1.0  # of images
    updates: int = 8  # after the burn-in, the last one at the end
    looks: int = 60  # at the validation error, for early stopping
    starts: tuple[str, ...] = ("yacht", "concrete")  # standard splits on which other starts are tried
    start_splits: int = 3
    images: tuple[str, ...] = ("mnist", "fashion-mnist")
    labels: tuple[int, ...] = (100, 1000)
    seeds: int = 5
    networks: tuple[str, ...] = ("fully connected", "convolutions")
    image_steps: int = 400
    image_batch: int = 50
    image_rate: float = 3e-3
    precisions: tuple[float, ...] = (0.01, 0.1, 1.0, 10.0, 100.0)  # δ of −log p(D) + ½ δ ‖θ‖²
    exact: int = 100  # labels up to which the predictive is also computed without Kronecker factors
    test: int = 1000

    def schedule(self, name: str) -> Schedule:
        large = name in LARGE
        return Schedule(self.large_steps if large else self.steps, self.large_batch if large else self.batch)

    def moments(self, steps: int) -> list[int]:
        """After which steps the evidence is asked."""
        first = round(self.burn_in * steps)
        return [first + round((steps - first) * (i + 1) / self.updates) for i in range(self.updates)]


QUICK = Config(
    standard={"synthetic-1": 2}, gap={"synthetic-1": 2}, group=2, hidden=8, steps=60, batch=32, decays=(1e-4, 1e-2),
    updates=2, looks=6, starts=("synthetic-1",), start_splits=2,
    images=("digits",), labels=(30, 60), exact=30, seeds=2, image_steps=30, image_batch=20,
    precisions=(0.1, 10.0), test=100,
)  # fmt: skip


def config(quick: bool) -> Config:
    return QUICK if quick else Config()


def groups(config: Config, kind: str, name: str) -> list[tuple[int, ...]]:
    """The splits of each unit."""
    count = config.standard[name] if kind == "standard" else config.gap[name]
    return [tuple(range(i, min(i + config.group, count))) for i in range(0, count, config.group)]


def units(config: Config) -> list[str]:
    """``kind/set/group``, ``start/set/0`` and ``images/set-labels/seed``: the first of everything, then the second."""
    counts = {f"{kind}/{name}": len(groups(config, kind, name)) for kind, names in (
        ("standard", config.standard), ("gap", config.gap)
    ) for name in names}  # fmt: skip
    counts |= {f"start/{name}": 1 for name in config.starts}
    counts |= {f"images/{name}-{labels}": config.seeds for name in config.images for labels in config.labels}
    return [f"{case}/{i}" for i in range(max(counts.values())) for case, count in counts.items() if i < count]
