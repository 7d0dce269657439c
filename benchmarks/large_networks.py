"""A network of ResNet-50's size and one of GPT-2 small's, in plain torch with random weights."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F


class Bottleneck(nn.Module):
    def __init__(self, inputs: int, width: int, stride: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(inputs, width, 1, bias=False)
        self.norm1 = nn.BatchNorm2d(width)
        self.conv2 = nn.Conv2d(width, width, 3, stride=stride, padding=1, bias=False)
        self.norm2 = nn.BatchNorm2d(width)
        self.conv3 = nn.Conv2d(width, 4 * width, 1, bias=False)
        self.norm3 = nn.BatchNorm2d(4 * width)
        self.down: nn.Module | None = None
        if stride != 1 or inputs != 4 * width:
            conv = nn.Conv2d(inputs, 4 * width, 1, stride=stride, bias=False)
            self.down = nn.Sequential(conv, nn.BatchNorm2d(4 * width))

    def forward(self, x: Tensor) -> Tensor:
        y = F.relu(self.norm1(self.conv1(x)))
        y = F.relu(self.norm2(self.conv2(y)))
        y = self.norm3(self.conv3(y))
        return F.relu(y + (x if self.down is None else self.down(x)))


class ResNet(nn.Module):
    """He et al. (2016), with the stride in the 3 × 3 convolution: 25.6 million weights for the default sizes."""

    def __init__(self, depths: tuple[int, ...] = (3, 4, 6, 3), width: int = 64, classes: int = 1000) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, width, 7, stride=2, padding=3, bias=False)
        self.norm = nn.BatchNorm2d(width)
        blocks, inputs = [], width
        for stage, depth in enumerate(depths):
            for i in range(depth):
                here = width * 2**stage
                blocks.append(Bottleneck(inputs, here, 2 if stage and i == 0 else 1))
                inputs = 4 * here
        self.blocks = nn.Sequential(*blocks)
        self.head = nn.Linear(inputs, classes)

    def forward(self, x: Tensor) -> Tensor:
        x = F.max_pool2d(F.relu(self.norm(self.stem(x))), 3, stride=2, padding=1)
        return self.head(self.blocks(x).mean((2, 3)))


class Layer(nn.Module):
    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.norm1 = nn.LayerNorm(width)
        self.attention = nn.Linear(width, 3 * width)
        self.projection = nn.Linear(width, width)
        self.norm2 = nn.LayerNorm(width)
        self.wide = nn.Linear(width, 4 * width)
        self.narrow = nn.Linear(4 * width, width)

    def forward(self, x: Tensor) -> Tensor:
        size, length, width = x.shape
        parts = self.attention(self.norm1(x)).split(width, dim=-1)
        q, k, v = (p.view(size, length, self.heads, -1).transpose(1, 2) for p in parts)
        mixed = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.projection(mixed.transpose(1, 2).reshape(size, length, width))
        return x + self.narrow(F.gelu(self.wide(self.norm2(x)), approximate="tanh"))


class Gpt2(nn.Module):
    """Radford et al. (2019), small: 124 million weights, the head tied to the embedding."""

    def __init__(
        self, vocabulary: int = 50_257, context: int = 1024, width: int = 768, heads: int = 12, depth: int = 12
    ) -> None:
        super().__init__()
        self.tokens = nn.Embedding(vocabulary, width)
        self.positions = nn.Embedding(context, width)
        self.layers = nn.Sequential(*(Layer(width, heads) for _ in range(depth)))
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, vocabulary, bias=False)
        self.head.weight = self.tokens.weight
        for p in self.parameters():
            if p.dim() == 2:
                nn.init.normal_(p, std=0.02)

    def forward(self, ids: Tensor) -> Tensor:
        places = torch.arange(ids.shape[1], device=ids.device)
        x = self.tokens(ids) + self.positions(places)
        return self.head(self.norm(self.layers(x)))


def resnet50(tiny: bool) -> nn.Module:
    return ResNet((1, 1, 1, 1), 8, 12) if tiny else ResNet()


def gpt2(tiny: bool, context: int) -> nn.Module:
    return Gpt2(211, context, 24, 3, 2) if tiny else Gpt2(context=context)
