"""The networks and their data: plain modules, random, from fixed seeds, the same in every process."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.utils.data import BatchSampler, DataLoader, SequentialSampler, TensorDataset


def mlp(bias: bool = True, width: int = 1024, hidden: int = 2) -> nn.Sequential:
    """784-1024-1024-10, 1,863,690 weights; or deeper."""
    layers: list[nn.Module] = [nn.Linear(784, width, bias=bias), nn.ReLU()]
    for _ in range(hidden - 1):
        layers += [nn.Linear(width, width, bias=bias), nn.ReLU()]
    return nn.Sequential(*layers, nn.Linear(width, 10, bias=bias))


def lenet(bias: bool = True) -> nn.Sequential:
    """LeNet-5 with ReLU and max pooling, 61,706 weights."""
    return nn.Sequential(
        nn.Conv2d(1, 6, 5, padding=2, bias=bias),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(6, 16, 5, bias=bias),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Linear(400, 120, bias=bias),
        nn.ReLU(),
        nn.Linear(120, 84, bias=bias),
        nn.ReLU(),
        nn.Linear(84, 10, bias=bias),
    )


def vgg(bias: bool = True) -> nn.Sequential:
    """VGG-11 for 32 × 32 images, one linear layer, 9,225,610 weights."""
    layers: list[nn.Module] = []
    channels = 3
    for width, pool in [(64, 1), (128, 1), (256, 0), (256, 1), (512, 0), (512, 1), (512, 0), (512, 1)]:
        layers += [nn.Conv2d(channels, width, 3, padding=1, bias=bias), nn.ReLU()]
        layers += [nn.MaxPool2d(2)] if pool else []
        channels = width
    return nn.Sequential(*layers, nn.Flatten(), nn.Linear(512, 10, bias=bias))


class Residual(nn.Module):
    """Two convolutions after normalisation, and a shortcut."""

    def __init__(self, inputs: int, outputs: int, stride: int) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.BatchNorm2d(inputs), nn.BatchNorm2d(outputs)
        self.relu1, self.relu2 = nn.ReLU(), nn.ReLU()
        self.conv1 = nn.Conv2d(inputs, outputs, 3, stride, 1, bias=False)
        self.conv2 = nn.Conv2d(outputs, outputs, 3, 1, 1, bias=False)
        same = inputs == outputs and stride == 1
        self.shortcut = nn.Identity() if same else nn.Conv2d(inputs, outputs, 1, stride, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        h = self.relu1(self.norm1(x))
        return self.shortcut(h) + self.conv2(self.relu2(self.norm2(self.conv1(h))))


class WideResNet(nn.Module):
    """WRN-16-4 for 32 × 32 images and 100 classes, 2.8 million weights."""

    def __init__(self, bias: bool = True, blocks: int = 2, widen: int = 4, classes: int = 100) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, 16, 3, padding=1, bias=False)
        layers: list[nn.Module] = []
        channels = 16
        for width, stride in ((16 * widen, 1), (32 * widen, 2), (64 * widen, 2)):
            for index in range(blocks):
                layers.append(Residual(channels, width, stride if index == 0 else 1))
                channels = width
        self.blocks = nn.Sequential(*layers)
        self.norm, self.relu = nn.BatchNorm2d(channels), nn.ReLU()
        self.pool, self.flatten = nn.AvgPool2d(8), nn.Flatten()
        self.head = nn.Linear(channels, classes, bias=bias)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.flatten(self.pool(self.relu(self.norm(self.blocks(self.conv(x)))))))


class Encoder(nn.Module):
    """Three layers of ``nn.TransformerEncoder`` over 64 positions of 48 features, mean pooling, 10 classes."""

    def __init__(self, bias: bool = True, width: int = 128, layers: int = 3) -> None:
        super().__init__()
        self.embed = nn.Linear(48, width, bias=bias)
        layer = nn.TransformerEncoderLayer(width, 4, 4 * width, dropout=0.0, batch_first=True)
        self.encoder = nn.TransformerEncoder(layer, layers, enable_nested_tensor=False)
        self.head = nn.Linear(width, 10, bias=bias)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.encoder(self.embed(x)).mean(1))


def wide_head(bias: bool = True) -> nn.Sequential:
    """512 features and a last layer with 1,000 classes."""
    return nn.Sequential(nn.Linear(512, 512, bias=bias), nn.ReLU(), nn.Linear(512, 1000, bias=bias))


@dataclass(frozen=True)
class Spec:
    """How a network is made and fed."""

    title: str
    make: Callable[..., nn.Module]
    shape: tuple[int, ...]  # of one input
    classes: int = 10
    known: bool = True  # whether every weight belongs to a plain Linear or Conv2d, which is what the peers know


NETWORKS = {
    "mlp": Spec("784-1024-1024-10", mlp, (784,)),
    "lenet": Spec("LeNet-5", lenet, (1, 28, 28)),
    "vgg": Spec("VGG-11", vgg, (3, 32, 32)),
    "wrn": Spec("WRN-16-4, batch normalisation, 100 classes", WideResNet, (3, 32, 32), 100, known=False),
    "transformer": Spec("transformer encoder", Encoder, (64, 48), known=False),
    "head": Spec("last layer, 512 features, 1,000 classes", wide_head, (512,), 1000),
}


def network(name: str, bias: bool = True, device: str = "cpu", **options: int) -> nn.Module:
    """The network in evaluation mode; statistics of normalisation layers are no longer those of the start."""
    torch.manual_seed(0)
    model = NETWORKS[name].make(bias, **options).eval()
    for module in model.modules():
        if isinstance(module, nn.BatchNorm2d):
            nn.init.normal_(module.running_mean, 0.0, 0.1)
            nn.init.uniform_(module.running_var, 0.5, 1.5)
    return model.to(device)


def freeze_unknown(model: nn.Module) -> nn.Module:
    """Leave only plain Linear and Conv2d layers trainable: what the peers have Kronecker rules for."""
    known = {p for m in model.modules() if type(m) in (nn.Linear, nn.Conv2d) for p in m.parameters()}
    for parameter in model.parameters():
        parameter.requires_grad_(parameter in known)
    return model


def inputs(name: str, size: int, seed: int = 2, device: str = "cpu") -> Tensor:
    gen = torch.Generator().manual_seed(seed)
    return torch.randn(size, *NETWORKS[name].shape, generator=gen).to(device)


def loader(name: str, size: int, batch: int, device: str = "cpu", seed: int = 0) -> DataLoader[tuple[Tensor, ...]]:
    """Batches are gathered whole, and lie on the device already, so that the loader is no part of what is measured."""
    gen = torch.Generator().manual_seed(seed + 1)
    labels = torch.randint(0, NETWORKS[name].classes, (size,), generator=gen).to(device)
    data = TensorDataset(inputs(name, size, seed, device), labels)
    return DataLoader(data, batch_size=None, sampler=BatchSampler(SequentialSampler(data), batch, False))
