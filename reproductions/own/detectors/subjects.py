"""Networks trained without two classes, and inputs that they never saw.

Novel sets: the held-out classes, other data sets, and for photographs changed images. Surrogates are made from
validation inputs alone; a rule that may see no novel data can use them.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from reproductions.experiment import Context
from reproductions.own.detectors.config import Config
from reproductions.own.priors.subjects import BUILDERS as SMALL
from reproductions.own.priors.subjects import TRAINING as TRAINING_OF_SMALL
from whence import zoo
from whence.engine.files import read_tensors, write_tensors
from whence.functional import load_tensors, tensors_of
from whence.training.augment import Flip
from whence.training.examples import Examples

Pair = tuple[Tensor, Tensor]
HELD_OUT = "held-out classes"


@dataclass(frozen=True)
class Subject:
    """A network, and tensors on its device."""

    network: nn.Module
    train: Pair
    validation: Pair
    test: Pair
    novel: dict[str, Tensor]
    surrogates: dict[str, Tensor]


SOURCES = {"mlp": "mnist", "lenet5": "mnist", "batch-norm": "fashion-mnist", "photographs": "cifar10-subset"}
NOVEL = {
    "mnist": ("fashion-mnist", "kmnist", "notmnist"), "fashion-mnist": ("mnist", "kmnist", "notmnist"),
    "cifar10-subset": ("svhn-recropped",),
}  # fmt: skip
BUILDERS: dict[str, Callable[..., nn.Module]] = {**SMALL, "photographs": zoo.lenet5}
TRAINING = {**TRAINING_OF_SMALL, "photographs": {**TRAINING_OF_SMALL["lenet5"], "augment": Flip()}}


# Changed images: values in [0, 1], [N, C, H, W]


def _grey(x: Tensor) -> Tensor:
    weights = x.new_tensor([0.299, 0.587, 0.114]).view(1, 3, 1, 1)
    return (x * weights).sum(1, keepdim=True).expand_as(x)


def _blurred(x: Tensor) -> Tensor:
    """A Gaussian blur of standard deviation 1.5 pixels."""
    at = torch.arange(-4, 5, dtype=x.dtype)
    line = torch.exp(-at.square() / (2 * 1.5**2))
    line = line / line.sum()
    kernel = (line[:, None] * line).expand(x.shape[1], 1, 9, 9)
    return F.conv2d(F.pad(x, (4, 4, 4, 4), mode="reflect"), kernel, groups=x.shape[1])


def _noisy(x: Tensor) -> Tensor:
    noise = torch.randn(x.shape, generator=torch.Generator().manual_seed(0), dtype=x.dtype)
    return (x + 0.1 * noise).clamp(0, 1)


CHANGES: dict[str, Callable[[Tensor], Tensor]] = {
    "grey": _grey, "inverted": lambda x: 1 - x, "blurred": _blurred, "noise": _noisy
}  # fmt: skip


def _changed(examples: Examples, how: Callable[[Tensor], Tensor]) -> Tensor:
    """The examples as a network gets them, changed before they are normalised."""
    assert examples.mean is not None and examples.std is not None
    picture = examples.raw.dtype == torch.uint8
    top = 1.0 if picture else float(examples.raw.max())
    values = examples.raw.float() / (examples.scale if picture else top)
    return ((how(values) * top - examples.mean) / examples.std).to(examples.dtype)


# Surrogates: validation inputs [N, …] and their labels


def _mixed(x: Tensor, y: Tensor, draw: torch.Generator) -> Tensor:
    """The mean of each input and one of another class."""
    others = torch.stack([_pick((y != label).nonzero().flatten(), draw) for label in y])
    return (x + x[others]) / 2


def _pick(places: Tensor, draw: torch.Generator) -> Tensor:
    return places[int(torch.randint(len(places), (1,), generator=draw))]


def _apart(x: Tensor, y: Tensor, draw: torch.Generator) -> Tensor:
    """Every value from another input: each is usual in its place, together they are not."""
    flat = x.flatten(1)
    order = torch.rand(flat.shape, generator=draw).argsort(0)
    return flat.gather(0, order).reshape(x.shape)


def _halves(x: Tensor, y: Tensor, draw: torch.Generator) -> Tensor:
    """The upper half of each image with the lower half of one of another class."""
    others = torch.stack([_pick((y != label).nonzero().flatten(), draw) for label in y])
    middle = x.shape[-2] // 2
    return torch.cat([x[..., :middle, :], x[others][..., middle:, :]], -2)


SURROGATES = {"mixed": _mixed, "halves": _halves, "apart": _apart}


def subject(config: Config, name: str, seed: int, context: Context) -> Subject:
    """The network of a seed, trained or from the cache."""
    torch.manual_seed(seed)
    source, device = config.source or SOURCES[name], context.device
    size = {what: config.of(name, what) for what in ("train", "validation", "test", "novel", "epochs")}
    whole = zoo.load(source, seed=seed, validation=0.1, device=device, progress=False)
    assert whole.train is not None and whole.validation is not None and whole.test is not None
    known = {"train": whole.train, "validation": whole.validation, "test": whole.test}
    known = {part: some.take(~_among(some, config.held_out)) for part, some in known.items()}
    train = known["train"].take(size["train"])
    network = BUILDERS[name](whole.shape, len(whole.classes) - len(config.held_out)).to(device)
    kept = context.cache / f"{config.file(name, seed)}.safetensors"
    if kept.exists():
        load_tensors(network, read_tensors(kept)[0])
        network.eval()
    else:
        zoo.train(
            network, train, epochs=size["epochs"], batch_size=128, schedule="cosine", seed=seed,
            capture=device.startswith("cuda"), progress=context.progress, device=device, **TRAINING[name],
        )  # fmt: skip
        context.cache.mkdir(parents=True, exist_ok=True)
        write_tensors(kept, tensors_of(network), {})
    x, y = known["validation"].take(size["validation"]).tensors()
    draw = torch.Generator().manual_seed(seed)
    made = {key: change(x.cpu(), y.cpu(), draw).to(device) for key, change in SURROGATES.items()}
    others = known["test"].take(slice(size["test"], size["test"] + size["novel"]))  # none of them is a test input
    novel = {HELD_OUT: whole.test.take(_among(whole.test, config.held_out)).take(size["novel"]).tensors()[0]}
    return Subject(
        network, train.tensors(), (x, y), known["test"].take(size["test"]).tensors(),
        novel | _others(source, train, others, size["novel"], device), made,
    )  # fmt: skip


def _among(examples: Examples, labels: tuple[int, ...]) -> Tensor:
    return torch.isin(examples.targets, torch.tensor(labels, device=examples.targets.device))


def _others(source: str, train: Examples, inside: Examples, count: int, device: str) -> dict[str, Tensor]:
    """Other data sets, normalised like the training data; changed images of photographs and of small digits."""
    found: dict[str, Tensor] = {}
    for other in NOVEL.get(source, ()):
        test = zoo.load(other, test_only=other != "svhn-recropped", device=device, progress=False).test
        assert test is not None
        found[other] = test.like(train).take(count).tensors()[0]
    colours = inside.shape[0] == 3
    changes = CHANGES if colours else {"inverted": CHANGES["inverted"]} if not found else {}
    return found | {name: _changed(inside, how) for name, how in changes.items()}
