"""What the values of the units are called, for figures, tables and claims."""

from __future__ import annotations

from reproductions.ritter2018.mnist import LAYERED, METHODS
from reproductions.store import Values

SETS = {"notmnist": "notMNIST", "fashion-mnist": "Fashion-MNIST", "kmnist": "KMNIST"}
DETECTORS = {
    "novelty": "whence.novelty",
    "mahalanobis_layers": "Mahalanobis, all layers",
    "neighbours": "nearest neighbours, last features",
    "mahalanobis": "Mahalanobis, last features",
    "variance": "variance of the logits, linearised Kronecker",
    "mutual_information": "mutual information, linearised Kronecker",
    "max_probability": "1 − largest probability, deterministic",
    "energy": "energy, deterministic",
}


def label(name: str) -> str:
    """Of a set of inputs."""
    return SETS.get(name, name)


def seeds(values: Values) -> list[str]:
    """Those for which every method is there."""
    found = {name.split("/")[0] for name in values}
    whole = [s for s in found if all(f"{s}/{method}" in values for method in METHODS)]
    return sorted(whole, key=int)


def outside(values: Values) -> list[str]:
    """Sets of inputs that are no digits; the first is the paper's."""
    return list(values[f"{seeds(values)[0]}/{METHODS[0]}"]["outside"])


def over_seeds(values: Values, unit: str, *path: str) -> list[float]:
    """One figure of a unit, for every seed."""
    found = []
    for seed in seeds(values):
        item = values[f"{seed}/{unit}"]
        for key in path:
            item = item[key]
        found.append(item["value"] if isinstance(item, dict) else item)
    return found


def copy_counts(values: Values) -> list[int]:
    """Numbers of binarised copies that were run."""
    return sorted(int(name.partition("/")[2]) for name in values if name.startswith("copies/"))


def divergences(values: Values) -> list[float]:
    """Weights of the divergence that the factorised Gaussian was trained with, the bound's own first."""
    return sorted((float(name.partition("/")[2]) for name in values if name.startswith("divergence/")), reverse=True)


def methods(values: Values) -> tuple[str, ...]:
    """All that were run for every seed."""
    return (*METHODS, LAYERED) if has_method(values, LAYERED) else METHODS


def has_method(values: Values, name: str) -> bool:
    """Whether a method was run for every seed."""
    return all(f"{seed}/{name}" in values for seed in seeds(values))


def readings(values: Values) -> list[str]:
    return [name.partition("/")[2] for name in values if name.startswith("reading/")]


def chosen_reading(values: Values) -> str | None:
    """The reading of the L2 factor with the highest validation accuracy."""
    known = readings(values)
    return max(known, key=lambda name: values[f"reading/{name}"]["validation"]["accuracy"]["value"]) if known else None
