"""The data sets, as raw images that every network of a cell sees alike.

``cifar`` is 20,000 training and 5,000 test images of CIFAR-10, which are commonly carried; ``svhn`` are 5,000 test
digits. The official test parts are used for tests alone; validation images are drawn from the training part by the
seed. The small version has the 8 × 8 digits of scikit-learn, enlarged.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cache

import torch
from torch import Tensor

from whence import zoo
from whence.engine.randomness import derived_seed
from whence.errors import WhenceError
from whence.training.examples import Examples

NAMES = {"mnist": "mnist", "fashion": "fashion-mnist", "cifar": "cifar10-subset", "digits": "digits"}
VALIDATION = {"mnist": 5000, "fashion": 5000, "cifar": 2000, "digits": 0.2}
NOVEL = {
    "mnist": ("fashion-mnist", "kmnist", "notmnist"), "fashion": ("mnist", "kmnist", "notmnist"),
    "cifar": ("svhn-recropped",), "digits": (),
}  # fmt: skip
TEST_FILES = ("kmnist", "notmnist", "mnist", "fashion-mnist")  # of which novel inputs need no training part


@dataclass(frozen=True)
class Data:
    """All parts are normalised alike; ``novel`` are inputs of other sets."""

    train: Examples
    validation: Examples
    test: Examples
    novel: dict[str, Tensor]
    classes: int

    @property
    def shape(self) -> tuple[int, ...]:
        return self.train.shape


def load(name: str, seed: int, device: str, side: int, fraction: float = 1.0, novel: int = 2000) -> Data:
    """Images of ``side`` × ``side``; a fraction of the training images by the seed; ``novel`` of each other set."""
    found = _read(name, seed)
    train, validation, test = (_ready(part, side, device) for part in (found.train, found.validation, found.test))
    if fraction < 1:
        order = torch.randperm(train.size, generator=torch.Generator().manual_seed(derived_seed(seed, "fraction")))
        rows = order[: max(1, round(fraction * train.size))].to(device)
        train = train.with_(raw=train.raw[rows], targets=train.targets[rows])
    others = {}
    for other in NOVEL[name] if novel else ():
        part = _other(other)
        if part is not None:
            others[other] = _like(part, test, side, device, novel)
    if name == "digits" and novel:
        others = {"inverted": -test.take(novel).inputs}
    return Data(train, validation, test, others, len(found.classes))


@cache
def _read(name: str, seed: int) -> zoo.DataSet:
    return zoo.load(NAMES[name], seed=seed, validation=VALIDATION[name], progress=False)


@cache
def _other(name: str) -> Examples | None:
    """Test images of another set; None where its files are not at hand."""
    try:
        return zoo.load(name, test_only=name in TEST_FILES, progress=False, download=False).test
    except WhenceError:
        return None


def _ready(part: Examples | None, side: int, device: str) -> Examples:
    """In the wanted size, with black edges or enlarged, on the device, never augmented."""
    assert part is not None
    return replace(part.with_(raw=resized(part.raw, side), augment=None), batch_size=500).to(device)


def _like(part: Examples, other: Examples, side: int, device: str, count: int) -> Tensor:
    """Inputs normalised like another set's."""
    return other.with_(raw=resized(part.raw[:count], side).to(device), targets=part.targets[:count].to(device)).inputs


def resized(raw: Tensor, side: int) -> Tensor:
    """Enlarged by whole numbers where that fits, else with zeros around; cut at the middle if too large."""
    have = raw.shape[-1]
    times = max(1, side // have)
    raw = raw.repeat_interleave(times, -1).repeat_interleave(times, -2)
    have *= times
    if have >= side:
        first = (have - side) // 2
        return raw[..., first : first + side, first : first + side].contiguous()
    before = (side - have) // 2
    after = side - have - before
    return torch.nn.functional.pad(raw, (before, after, before, after))
