"""The parts of the data sets that the study uses, and how they are carried to a machine that lacks the whole sets.

Of every image set the first images in the official order are a pool, from which the seed draws training and validation
images; test images never depend on the seed. Of KMNIST and SVHN only test files are used, since only these are commonly
at hand: ``kmnist-test`` and ``svhn-test`` are named as what they are. Their last images are the test part here.

``python -m reproductions.kniebel2020.data FOLDER SET …`` writes these parts alone, losslessly, for a machine with
little room; they are found in a folder ``kniebel2020`` of any data folder (docs/data.md), and checked by their digest.
"""

from __future__ import annotations

import io
import lzma
import sys
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from whence import zoo
from whence.engine.files import digest
from whence.engine.randomness import derived_seed
from whence.errors import BadFile
from whence.training.examples import Examples
from whence.zoo.data.files import roots

FOLDER = "kniebel2020"


@dataclass(frozen=True)
class Part:
    """Which images of which set."""

    source: str  # of the zoo
    pool: int
    test: int
    from_test: bool = False  # the pool and the test part both come from the test files


DIGESTS = {
    "mnist": "c9fec8daf94adfe7d99f95b2eb2bc4e32804520a79f6334126806ea82c28ac4b",
    "fashion-mnist": "16587acd30512e11e42cab760ac22b7062bd1d1ebee3dd7548378c53788aef44",
    "kmnist-test": "b8afc42173b364558207a0290fd2bc7622312a14f35b0b5b1f0c8e5465da7bd1",
    "svhn-test": "a3cb0d777d9e4f6f6245ed2b4ee7c30c4b658040bcb9d7f871a68cc77d4aab40",
    "cifar10-subset": "13d9c2fcb96f091b7c4b00d32d3da289529326fc89799c4c3c3823f703204913",
    "notmnist": "59be1327b449f1e5d5b6c69c49399a9fd096e60ab8d873f3e58fd293b8877d89",
}
PARTS = {
    "mnist": Part("mnist", 11_000, 2_000),
    "fashion-mnist": Part("fashion-mnist", 31_000, 2_000),
    "kmnist-test": Part("kmnist", 8_000, 2_000, from_test=True),
    "svhn-test": Part("svhn-recropped", 4_000, 1_000, from_test=True),
    "cifar10-subset": Part("cifar10-subset", 11_000, 2_000),
    "notmnist": Part("notmnist", 0, 1_000, from_test=True),
    "emnist-letters": Part("emnist-letters", 11_000, 2_000),  # recipes for where these can be had
    "cifar100": Part("cifar100", 11_000, 2_000),
}
NOVEL = {
    "mnist": ("fashion-mnist", "kmnist-test", "notmnist"),
    "fashion-mnist": ("mnist", "kmnist-test", "notmnist"),
    "kmnist-test": ("mnist", "fashion-mnist", "notmnist"),
    "emnist-letters": ("fashion-mnist", "kmnist-test"),
    "svhn-test": ("cifar10-subset",),
    "cifar10-subset": ("svhn-test",),
    "cifar100": ("svhn-test",),
}
Arrays = tuple[Tensor, Tensor, Tensor, Tensor]  # pool and test part: uint8 [N, C, H, W] and int64 [N] each


@dataclass(frozen=True)
class Data:
    """A data set as one network sees it; all parts are normalised alike."""

    train: Examples
    validation: Examples
    test: Examples
    novel: dict[str, Tensor]  # inputs of other data sets
    classes: int

    @property
    def shape(self) -> tuple[int, ...]:
        return self.train.shape


def load(name: str, seed: int, train: int, validation: int, test: int, novel: int, device: str) -> Data:
    """The parts of one network; ``novel`` inputs of each other set."""
    if name not in PARTS:
        return _table(name, seed, train, test, novel, device)
    others = {other: arrays(other) for other in NOVEL[name] if novel}
    return split(arrays(name), name, seed, train, validation, test, others, novel, device)


def split(
    given: Arrays, name: str, seed: int, train: int, validation: int, test: int, others: dict[str, Arrays], novel: int,
    device: str,
) -> Data:  # fmt: skip
    """A pool divided by the seed; the test part and those of other sets are normalised like it."""
    pool_x, pool_y, test_x, test_y = given
    mean, std = statistics(pool_x)
    order = torch.randperm(len(pool_y), generator=torch.Generator().manual_seed(derived_seed(seed, "pool")))
    if train + validation > len(order):
        raise ValueError(f"{name} has {len(order):,} images to train on, not {train:,} + {validation:,}.")

    def examples(x: Tensor, y: Tensor) -> Examples:
        return Examples(x.to(device), y.to(device), mean.to(device), std.to(device))

    held, used = order[:validation], order[validation : validation + train]
    return Data(
        examples(pool_x[used], pool_y[used]), examples(pool_x[held], pool_y[held]),
        examples(test_x, test_y).take(test),
        {other: examples(*found[2:]).take(novel).inputs for other, found in others.items()}, int(pool_y.max()) + 1,
    )  # fmt: skip


def _table(name: str, seed: int, train: int, test: int, novel: int, device: str) -> Data:
    """A small set of the zoo. Novel inputs: each value from another test input, usual alone but not together."""
    whole = zoo.load(name, seed=seed, validation=0.2, device=device, progress=False)
    assert whole.train is not None and whole.validation is not None and whole.test is not None
    x = whole.test.take(test).inputs
    flat = x.flatten(1).cpu()
    order = torch.rand(flat.shape, generator=torch.Generator().manual_seed(seed)).argsort(0)
    apart = flat.gather(0, order).reshape(x.shape).to(x)
    others = {"shuffled columns": apart[:novel], "far away": 4 * x[:novel]} if novel else {}
    return Data(whole.train.take(train), whole.validation, whole.test.take(test), others, len(whole.classes))


def statistics(images: Tensor) -> tuple[Tensor, Tensor]:
    """Mean and standard deviation of each channel in [0, 1], of the first 8,000 images of a pool, [C, 1, 1] each."""
    values = images[:8_000].double() / 255
    mean = values.mean((0, 2, 3))
    std = (values.square().mean((0, 2, 3)) - mean.square()).sqrt()
    return mean.float().view(-1, 1, 1), std.float().view(-1, 1, 1)


# Pools


_read: dict[str, Arrays] = {}


def arrays(name: str) -> Arrays:
    """Pool and test part, read once."""
    if name not in _read:
        _read[name] = read_part(name, DIGESTS.get(name))
    return _read[name]


def read_part(name: str, expected: str | None) -> Arrays:
    """From the folder of parts, else from the whole set; ``expected`` is the digest, where it is known."""
    packed = next((_file(root, name) for root in roots() if _file(root, name).is_file()), None)
    found = _whole(name) if packed is None else _unpacked(packed)
    own = digest(found)
    if expected is not None and own != expected:
        raise BadFile(f"{packed or name}: its images are not those of the study (digest {own[:12]}…).")
    return found


def _file(root: Path, name: str) -> Path:
    return root / FOLDER / f"{name}.npz.xz"


def _whole(name: str) -> Arrays:
    part = PARTS[name]
    if part.from_test:
        only = part.source in ("kmnist", "notmnist")
        found = zoo.load(part.source, test_only=only, progress=False).test
        assert found is not None
        x, y = found.raw, found.targets
        end = part.pool + part.test
        return x[: part.pool], y[: part.pool], x[part.pool : end], y[part.pool : end]
    data = zoo.load(part.source, validation=0, progress=False)
    assert data.train is not None and data.test is not None
    pool, test = data.train.take(part.pool), data.test.take(part.test)
    return pool.raw, pool.targets, test.raw, test.targets


def _unpacked(path: Path) -> Arrays:
    with np.load(io.BytesIO(lzma.decompress(path.read_bytes())), allow_pickle=False) as found:
        pool_x, pool_y, test_x, test_y = (torch.from_numpy(found[key]) for key in ("pool_x", "pool_y", "x", "y"))
    return pool_x, pool_y.long(), test_x, test_y.long()


def pack(folder: Path, name: str, given: Arrays) -> Path:
    """Write the part of a set, compressed."""
    pool_x, pool_y, test_x, test_y = (t.numpy() for t in given)
    stream = io.BytesIO()
    np.savez(stream, pool_x=pool_x, pool_y=pool_y.astype(np.uint8), x=test_x, y=test_y.astype(np.uint8))
    path = _file(folder, name)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(lzma.compress(stream.getvalue(), preset=6))
    return path


def main(arguments: list[str]) -> None:
    folder, *names = arguments
    for name in names or list(DIGESTS):
        path = pack(Path(folder), name, arrays(name))
        print(f"{path}: {path.stat().st_size / 2**20:.1f} MiB, digest {digest(arrays(name))}")


if __name__ == "__main__":
    main(sys.argv[1:])
