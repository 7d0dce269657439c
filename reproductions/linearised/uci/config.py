"""Which tables and splits, how networks are trained, which hyperparameters are tried."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from reproductions.linearised.stack import Schedule

SETS = ("yacht", "boston", "energy", "concrete", "wine", "kin8nm", "power", "naval", "protein")
STANDARD = dict.fromkeys(SETS, 20) | {"naval": 10, "protein": 5}  # published: 20 of naval, 5 of protein
GAPS = {
    "yacht": 6, "boston": 13, "energy": 8, "concrete": 8, "wine": 11, "kin8nm": 5, "power": 4, "naval": 5, "protein": 5,
}  # published: 8 of kin8nm, 16 of naval, 9 of protein  # fmt: skip
HMC = ("yacht", "boston", "energy")
LARGE = ("kin8nm", "power", "naval", "protein")


@dataclass(frozen=True)
class Config:
    """Numbers of splits by set; ``group`` splits are one unit of work, and their networks are trained together."""

    standard: Mapping[str, int] = field(default_factory=lambda: STANDARD)
    gap: Mapping[str, int] = field(default_factory=lambda: GAPS)
    hmc: tuple[str, ...] = HMC
    hmc_splits: int = 2
    group: int = 10
    large_group: int = 5
    hidden: int = 50
    members: int = 5
    longer: int = 5  # times the steps, of one network whose training costs as much as the ensemble's
    steps: int = 1500
    batch: int = 64
    large_steps: int = 2500
    large_batch: int = 128
    decays: tuple[float, ...] = (1e-5, 1e-4, 1e-3, 1e-2)  # λ of ½ mean (y − f)² + ½ λ ‖θ‖², standardised units
    dropouts: tuple[float, ...] = (0.005, 0.03)
    priors: tuple[float, ...] = (1.0, 10.0)  # precisions, of variational inference
    collections: int = 30  # of SWAG, one after every 20 further steps
    swag_rate: float = 3e-3
    draws: int = 50
    hmc_warmup: int = 300
    hmc_draws: int = 300

    def schedule(self, name: str) -> Schedule:
        large = name in LARGE
        return Schedule(self.large_steps if large else self.steps, self.large_batch if large else self.batch)

    def refines(self, name: str) -> bool:
        """Whether the linear model's optimum is computed: its conjugate gradients take long on large tables."""
        return name not in LARGE


QUICK = Config(
    standard={"synthetic-1": 2}, gap={"synthetic-1": 2}, hmc=("synthetic-1",), group=2, hidden=10, members=3, longer=2,
    steps=100, batch=32, decays=(1e-4, 1e-3), dropouts=(0.05,), priors=(1.0,), collections=5, draws=10, hmc_warmup=10,
    hmc_draws=10,
)  # fmt: skip


def config(quick: bool) -> Config:
    return QUICK if quick else Config()


def groups(config: Config, kind: str, name: str) -> list[tuple[int, ...]]:
    """The splits of each unit."""
    count = config.standard[name] if kind == "standard" else config.gap[name]
    size = config.large_group if name in LARGE else config.group
    return [tuple(range(i, min(i + size, count))) for i in range(0, count, size)]


def units(config: Config) -> list[str]:
    """``kind/set/group``, and ``hmc/set``."""
    found = []
    for kind in ("standard", "gap"):
        names = config.standard if kind == "standard" else config.gap
        found += [f"{kind}/{name}/{i}" for name in names for i in range(len(groups(config, kind, name)))]
    return [*found, *(f"hmc/{name}" for name in config.hmc)]
