"""Which networks of the grid have been run, as sentences for the article."""

from __future__ import annotations

from collections.abc import Iterable

from reproductions.kniebel2020.cells import Cell
from reproductions.kniebel2020.grid.config import config, units
from reproductions.store import Values

NETWORKS = {
    "perceptron": "perceptrons", "mlp": "multilayer perceptrons", "lenet5": "LeNet-5",
    "cnn": "a plain convolutional network with and without batch normalisation", "transformer": "a small transformer",
    "vgg": "VGG-11", "wide-resnet": "WRN-16-4",
}  # fmt: skip
DATA = {
    "iris": "Iris", "mnist": "MNIST", "fashion-mnist": "Fashion-MNIST", "kmnist-test": "a part of KMNIST",
    "svhn-test": "a part of SVHN", "cifar10-subset": "a part of CIFAR-10",
}  # fmt: skip
FACTORS = {
    "depth": "depth", "width": "width", "data": "number of examples", "decay": "weight decay",
    "epochs": "length of training",
}  # fmt: skip


def what_was_done(found: Values) -> str:
    """How many networks, which architectures on which data, and what is missing."""
    planned = config(False)
    names = units(planned)
    there = {name.rpartition("/")[0] for name in names if name in found}
    done = [cell for cell in planned.cells if cell.name in there]
    if not done:
        return "Not run yet."
    count = sum(name in found for name in names)
    varied = [cell for cell in done if cell.factor]
    how_many = f"All {count}" if count == len(names) else f"{count} of {len(names)} planned"
    sentences = [
        f"{how_many} networks have been trained and looked into: {_named(NETWORKS, done, 'network')}, on "
        f"{_named(DATA, done, 'data')}; three seeds each, five for Iris."
    ]
    if varied:
        seeds = sum(len(cell.seeds) for cell in varied)
        sentences.append(f"{seeds} of them vary one factor at a time: {_named(FACTORS, varied, 'factor')}.")
    missing = [name for name in dict.fromkeys(name.rpartition("/")[0] for name in names) if name not in there]
    if missing:
        sentences.append(
            f"Not run yet: {_listed(f'`{name}`' for name in missing)}. The answers below are without them."
        )
    return " ".join(sentences)


def _named(words: dict[str, str], cells: list[Cell], attribute: str) -> str:
    there = {getattr(cell, attribute) for cell in cells}
    return _listed(text for key, text in words.items() if key in there)


def _listed(parts: Iterable[str]) -> str:
    *first, last = parts
    return f"{', '.join(first)} and {last}" if first else last
