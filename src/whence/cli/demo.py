"""``whence demo``: a small network on noisy digits; patches of photographs are the novel inputs."""

from __future__ import annotations

import contextlib
from collections import OrderedDict
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated

import torch
import typer
from torch import Tensor, nn

import whence
from whence.cli import options
from whence.cli.audit import audit_and_write
from whence.cli.options import OUTPUT, option
from whence.cli.output import Output, result_folder
from whence.errors import need

EPILOG = f"Example: [bold]whence demo --out first-look --open[/]\n\n{options.CODES}"
TITLE = "Noisy digits; patches of photographs are novel"

NOISE = 0.8  # so that the network overfits
EPOCHS = 20
PATCHES = 300  # patches of photographs
SIDE = 32  # pixels of a patch, before it is resized to a digit
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


def prepare(seed: int = 0, epochs: int = EPOCHS) -> tuple[nn.Module, Pair, Pair, Pair, Tensor]:
    """A trained network, its training, validation and test data, and out-of-distribution inputs."""
    need("sklearn", "zoo")
    data = whence.zoo.load("digits", seed=seed, validation=0.3)
    assert data.train is not None and data.validation is not None and data.test is not None
    parts = (data.train, data.validation, data.test)
    train, validation, test = (_noisy(part.tensors(), seed, place) for place, part in enumerate(parts))
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        model = network()
        whence.zoo.train(
            model, train, epochs=epochs, batch_size=64, optimiser="adam", lr=3e-3, seed=seed, progress=False
        )
    x = data.train.tensors()[0]
    patches = x.min() + photographs(seed) * (x.max() - x.min())
    return model.eval(), train, validation, test, _noisy((patches, patches), seed, 3)[0]


def photographs(seed: int = 0) -> Tensor:
    """Patches of scikit-learn's two photographs, as grey 8 × 8 images in 0..1."""
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
    """Use one thread: a small network gains little from a second, which is ten times slower on a busy core."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def demo(
    out: Annotated[Path, option(OUTPUT, "DIR", "Folder for audit.html and audit.json.")] = Path("whence-demo"),
    open_page: options.Open = False,
    seed: options.Seed = 0,
    device: options.Device = None,
    quiet: options.Quiet = False,
    as_json: options.Json = False,
    debug: options.Debug = False,
) -> None:
    """Train a small network on embedded data and audit it: the quickest way to see a whence report.

    It learns noisy digits; patches of photographs are the novel inputs. Takes about a minute.
    """
    with Output(quiet, as_json, debug).guarded() as output:
        place = options.parse_device(device)
        with result_folder(out) as folder, _one_thread():
            with output.progress() as on_step:
                on_step("training a small network on digits", 0, 0)
                model, train, validation, test, ood = prepare(seed)
            data = {"train": train, "validation": validation, "test": test, "ood": ood}
            settings = {"likelihood": "classification", "title": TITLE, "seed": seed, "device": place}
            settings["classes"] = [str(digit) for digit in range(10)]
            code = audit_and_write(model, data, settings, folder, None, open_page, output)
    raise typer.Exit(code)
