"""Networks of the sizes that people have, in plain torch with random weights, and data for them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import torch
from torch import Tensor, nn
from torch.nn import functional as F

import whence
from benchmarks.large_networks import Bert, Gpt2, ResNet, ResNet18, UNet, Vit

Batches = list[tuple[Tensor, Tensor]]
TINY_WORDS = 50  # of the vocabulary


def small_cnn(classes: int, tiny: bool) -> nn.Module:
    """Two convolutions and two linear layers for 28 × 28 images; 206,922 weights."""
    a, b, hidden = (4, 6, 16) if tiny else (16, 32, 128)
    return nn.Sequential(
        nn.Conv2d(1, a, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2),
        nn.Conv2d(a, b, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2),
        nn.Flatten(), nn.Linear(b * 49, hidden), nn.ReLU(), nn.Linear(hidden, classes),
    )  # fmt: skip


def resnet18(classes: int, tiny: bool) -> nn.Module:
    return ResNet18(classes, 4, (1, 1)) if tiny else ResNet18(classes)


def resnet50(classes: int, tiny: bool) -> nn.Module:
    return ResNet((1, 1), 4, classes) if tiny else ResNet(classes=classes)


def vit_s(classes: int, tiny: bool) -> nn.Module:
    return Vit(classes, 12, 3, 1, 16, 8) if tiny else Vit(classes)


def vit_b(classes: int, tiny: bool) -> nn.Module:
    return Vit(classes, 16, 4, 1, 16, 8) if tiny else Vit(classes, 768, 12)


def bert(classes: int, tiny: bool) -> nn.Module:
    return Bert(classes, TINY_WORDS, 8, 12, 3, 1) if tiny else Bert(classes)


def gpt2(classes: int, tiny: bool) -> nn.Module:
    return Gpt2(classes, 8, 12, 3, 1) if tiny else Gpt2(classes)


def unet(classes: int, tiny: bool) -> nn.Module:
    return UNet(classes, 4, 1) if tiny else UNet(classes)


@dataclass(frozen=True)
class Sizes:
    """How many examples each work sees."""

    fit: int  # examples that the posterior is fitted to
    batch: int
    inputs: int  # of predict, where, novelty
    held_out: int  # that tune sees, and that novelty is measured relative to
    audit: tuple[int, int, int, int]  # train, validation, test, novel


@dataclass(frozen=True)
class Spec:
    """A network, what it is given, and how much of it."""

    title: str
    make: Callable[[int, bool], nn.Module]
    sizes: Sizes
    shape: tuple[int, ...]  # of one input
    tiny_shape: tuple[int, ...]
    classes: int = 10
    tiny_classes: int = 4
    words: int = 0  # of the vocabulary, where inputs are token ids
    dense: bool = False  # a class for every pixel or token
    steps: int = 0  # of training before anything is measured; on a CPU only if ``light``
    light: bool = False
    likelihood: Callable[[], whence.Likelihood] = field(default=whence.Categorical)


TINY = Sizes(16, 8, 4, 8, (24, 12, 12, 8))
SMALL = Sizes(8_000, 100, 1_000, 1_000, (8_000, 1_000, 1_000, 500))

CIFAR = Sizes(8_000, 250, 1_000, 1_000, (8_000, 1_000, 1_000, 500))
PHOTOS = Sizes(256, 64, 64, 64, (256, 64, 64, 32))
TEXTS = Sizes(256, 32, 64, 64, (256, 64, 64, 32))
TOKENS = Sizes(32, 8, 4, 8, (32, 8, 8, 4))
MAPS = Sizes(64, 16, 8, 16, (64, 16, 16, 8))
PHOTO, SMALL_PHOTO = (3, 224, 224), (3, 16, 16)


def last_classes() -> whence.Likelihood:
    return whence.Categorical(class_dim=-1)


NETWORKS: dict[str, Spec] = {
    "small_cnn": Spec(
        "two convolutions, 28², 10 classes", small_cnn, SMALL, (1, 28, 28), (1, 28, 28), steps=240, light=True
    ),
    "resnet18": Spec("ResNet-18, 32², 10 classes", resnet18, CIFAR, (3, 32, 32), SMALL_PHOTO, steps=64),
    "resnet18_100": Spec("ResNet-18, 32², 100 classes", resnet18, CIFAR, (3, 32, 32), SMALL_PHOTO, 100, 6, steps=64),
    "resnet50": Spec("ResNet-50, 224², 10 classes", resnet50, PHOTOS, PHOTO, (3, 32, 32)),
    "resnet50_1000": Spec("ResNet-50, 224², 1,000 classes", resnet50, PHOTOS, PHOTO, (3, 32, 32), 1000, 12),
    "vit_s": Spec("ViT-S, 224², 10 classes", vit_s, PHOTOS, PHOTO, SMALL_PHOTO),
    "vit_s_1000": Spec("ViT-S, 224², 1,000 classes", vit_s, PHOTOS, PHOTO, SMALL_PHOTO, 1000, 12),
    "vit_b": Spec("ViT-B, 224², 10 classes", vit_b, PHOTOS, PHOTO, SMALL_PHOTO),
    "vit_b_1000": Spec("ViT-B, 224², 1,000 classes", vit_b, PHOTOS, PHOTO, SMALL_PHOTO, 1000, 12),
    "bert": Spec("BERT-base, 128 tokens, 2 classes", bert, TEXTS, (128,), (8,), 2, 2, words=30_522),
    "gpt2": Spec(
        "GPT-2, 256 tokens, a word for each", gpt2, TOKENS, (256,), (4,), 50_257, TINY_WORDS, 50_257, True,
        likelihood=last_classes,
    ),
    "unet": Spec("U-Net, 128², 8 classes for each pixel", unet, MAPS, (3, 128, 128), (3, 8, 8), 8, 3, dense=True),
}  # fmt: skip


class Subject:
    """One network with its data on a device. Data are random, with a pattern for each class."""

    def __init__(self, name: str, device: str = "cpu", tiny: bool = False) -> None:
        spec = NETWORKS[name]
        self.name, self.spec, self.device, self.tiny = name, spec, device, tiny
        self.sizes = TINY if tiny else spec.sizes
        self.shape = spec.tiny_shape if tiny else spec.shape
        self.classes = spec.tiny_classes if tiny else spec.classes
        self.words = min(spec.words, TINY_WORDS) if tiny else spec.words
        self.likelihood = spec.likelihood()
        torch.manual_seed(0)
        self.model = spec.make(self.classes, tiny).to(device)
        self._settle()

    def data(self, count: int, seed: int, novel: bool = False) -> tuple[Tensor, Tensor]:
        """Inputs and targets; novel ones have patterns of their own."""
        gen = torch.Generator().manual_seed(seed)
        words = self.words
        labels = torch.randint(self.classes, (count,), generator=gen)
        if words:
            x = torch.randint(words, (count, *self.shape), generator=gen)
        else:
            x = torch.randn(count, *self.shape, generator=gen) + self._patterns(novel)[labels]
        if self.spec.dense:
            places = self.shape if words else self.shape[1:]
            labels = torch.randint(self.classes, (count, *places), generator=gen)
        return x.to(self.device), labels.to(self.device)

    def batches(self, count: int, seed: int = 1, size: int | None = None) -> Batches:
        x, y = self.data(count, seed)
        size = size or self.sizes.batch
        return list(zip(x.split(size), y.split(size), strict=True))

    def loss(self, x: Tensor, y: Tensor) -> Tensor:
        outputs = self.model(x)
        if self.spec.words and self.spec.dense:  # [N, T, C]
            outputs = outputs.movedim(-1, 1)
        return F.cross_entropy(outputs, y)

    def epoch(self, batches: Batches) -> None:
        """Forward and backward of every batch; no optimiser's step."""
        for x, y in batches:
            self.model.zero_grad(set_to_none=True)
            self.loss(x, y).backward()

    @torch.no_grad()
    def forward(self, x: Tensor) -> list[Tensor]:
        return [self.model(piece) for piece in x.split(self.sizes.batch)]

    def _patterns(self, novel: bool) -> Tensor:
        """One smooth image for each class."""
        gen = torch.Generator().manual_seed(8 if novel else 7)
        coarse = torch.randn(self.classes, self.shape[0], 4, 4, generator=gen)
        return 1.5 * F.interpolate(coarse, self.shape[1:], mode="bilinear")

    def _settle(self) -> None:
        """Statistics of normalisation layers from one batch, then the network's steps of training."""
        norms = [m for m in self.model.modules() if isinstance(m, nn.BatchNorm2d)]
        for norm in norms:
            norm.momentum = 1.0
        if norms:
            self.model.train()
            self.forward(self.data(min(self.sizes.batch, 64), 1)[0])
        self.model.eval()
        if self.spec.steps and (self.spec.light or self.device != "cpu"):
            self._train(3 if self.tiny else self.spec.steps)

    def _train(self, steps: int) -> None:
        batches = self.batches(self.sizes.fit)
        optimiser = torch.optim.Adam(self.model.parameters(), 1e-3)
        for step in range(steps):
            optimiser.zero_grad(set_to_none=True)
            self.loss(*batches[step % len(batches)]).backward()
            optimiser.step()
        self.model.zero_grad(set_to_none=True)
