"""The demonstration: a small network reads digits under noise; pieces of photographs are what it never saw."""

from __future__ import annotations

import contextlib
from collections import OrderedDict
from collections.abc import Iterator
from pathlib import Path

import torch
from torch import Tensor, nn

from whence import zoo
from whence.cli import auditing, outputs
from whence.cli.voice import Voice
from whence.errors import need

NOISE = 0.8  # so that the network overfits
EPOCHS = 20
PATCHES = 300  # pieces of photographs
SIDE = 32  # pixels of a piece, before it is made as small as a digit
Pair = tuple[Tensor, Tensor]


def network() -> nn.Module:
    """Two convolutions and two dense layers."""
    return nn.Sequential(
        OrderedDict(
            conv1=nn.Conv2d(1, 12, 3, padding=1),
            norm=nn.BatchNorm2d(12),
            act1=nn.ReLU(),
            pool=nn.MaxPool2d(2),
            conv2=nn.Conv2d(12, 24, 3, padding=1),
            act2=nn.ReLU(),
            flat=nn.Flatten(),
            hidden=nn.Linear(24 * 16, 64),
            act3=nn.ReLU(),
            head=nn.Linear(64, 10),
        )
    )


def prepare(seed: int = 0) -> tuple[nn.Module, Pair, Pair, Pair, Tensor]:
    """A trained network, its training, validation and test data, and inputs from elsewhere."""
    need("sklearn", "zoo")
    data = zoo.load("digits", seed=seed, validation=0.3)
    assert data.train is not None and data.validation is not None and data.test is not None
    parts = (data.train, data.validation, data.test)
    train, validation, test = (_noisy(part.tensors(), seed, place) for place, part in enumerate(parts))
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        model = network()
        zoo.train(model, train, epochs=EPOCHS, batch_size=64, optimiser="adam", lr=3e-3, seed=seed, progress=False)
    x = data.train.tensors()[0]
    patches = x.min() + photographs(seed) * (x.max() - x.min())
    return model.eval(), train, validation, test, _noisy((patches, patches), seed, 3)[0]


def photographs(seed: int = 0) -> Tensor:
    """Pieces of the two photographs that come with scikit-learn, as grey pictures of 8 × 8 pixels in 0..1."""
    images = need("sklearn.datasets", "zoo").load_sample_images().images
    generator = torch.Generator().manual_seed(seed)
    grey = [torch.from_numpy(image.copy()).float().mean(2) for image in images]
    found = []
    for which, down, across in torch.rand(PATCHES, 3, generator=generator).tolist():
        image = grey[int(which * len(grey))]
        top, left = (int(part * (size - SIDE)) for part, size in zip((down, across), image.shape, strict=True))
        piece = nn.functional.avg_pool2d(image[None, top : top + SIDE, left : left + SIDE], SIDE // 8)
        found.append((piece - piece.min()) / (piece.max() - piece.min()).clamp(min=1))
    return torch.stack(found)


def _noisy(pair: Pair, seed: int, place: int) -> Pair:
    x, y = pair
    return x + NOISE * torch.randn(x.shape, generator=torch.Generator().manual_seed(4 * seed + place + 1)), y


@contextlib.contextmanager
def _one_thread() -> Iterator[None]:
    """A network this small gains little from a second thread, which costs tenfold where the core is busy."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def run(out: Path, seed: int, device: str | None, opened: bool, voice: Voice) -> int:
    """Train, audit, write; returns the exit code."""
    with outputs.folder(out) as folder, _one_thread():
        with voice.progress() as steps:
            steps("training a small network on digits", 0, 0)
            model, train, validation, test, ood = prepare(seed)
        data = {"train": train, "validation": validation, "test": test, "ood": ood}
        settings = {
            "likelihood": "classification",
            "classes": [str(digit) for digit in range(10)],
            "title": "Digits under noise; pieces of photographs are novel",
        }
        order = auditing.Order(model="", out=out, seed=seed, open=opened)
        return auditing.carry_out(model, data, settings, order, voice, folder, device)
