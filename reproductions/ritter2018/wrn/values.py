"""Numbers of the units by network, method and seed."""

from __future__ import annotations

from typing import Any

from reproductions.ritter2018.mnist import DETERMINISTIC, DIAGONAL, DROPOUT, KRONECKER, LINEARISED
from reproductions.store import Values

NETWORKS = {"dropout": "with dropout", "plain": "without dropout"}
ORDER = (DETERMINISTIC, DROPOUT, DIAGONAL, KRONECKER, LINEARISED)


def networks(units: Values) -> list[str]:
    """Those that were run."""
    return [name for name in NETWORKS if any(key.startswith(f"{name}/") for key in units)]


def seeds(units: Values, network: str) -> list[str]:
    """Seeds of a network."""
    return sorted({key.split("/")[1] for key in units if key.startswith(f"{network}/")}, key=int)


def methods(units: Values, network: str) -> list[str]:
    """Ways to predict that were measured."""
    first = seeds(units, network)[0]
    return [name for name in ORDER if f"{network}/{first}/measure/{name}" in units]


def measured(units: Values, network: str, method: str, part: str, what: str) -> list[Any]:
    """One measure for each seed: a number, or a curve."""
    found = [units[f"{network}/{seed}/measure/{method}"][part][what] for seed in seeds(units, network)]
    return [value["value"] if isinstance(value, dict) else value for value in found]


def tuned(units: Values, network: str, method: str, what: str) -> list[Any]:
    """One hyperparameter for each seed."""
    return [units[f"{network}/{seed}/tune/{method}"][what] for seed in seeds(units, network)]


def novelty(units: Values, network: str, what: str) -> list[float]:
    return [units[f"{network}/{seed}/novelty"][what]["value"] for seed in seeds(units, network)]
