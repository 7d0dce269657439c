"""A small language model whose head is tied to its embedding, and text for it."""

from __future__ import annotations

import warnings
from typing import Any

import torch
from torch import Tensor, nn

import whence
from whence.errors import Notice


def quietly(*args: Any, **kwargs: Any) -> Any:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", Notice)
        return whence.laplace(*args, progress=False, **kwargs)


def language_data(size: int = 4, length: int = 6) -> tuple[Tensor, Tensor]:
    text = torch.randint(11, (size, length + 1))
    text[0] = 3  # one word at every position
    return text[:, :-1], text[:, 1:]


class Tied(nn.Module):
    """A language model with its head tied to its embedding, or with one of its own."""

    def __init__(self, tied: bool) -> None:
        super().__init__()
        self.embedding, self.middle = nn.Embedding(11, 5), nn.Linear(5, 5)
        self.positions = nn.Embedding(6, 5)
        self.head = nn.Linear(5, 11, bias=False)
        if tied:
            self.head.weight = self.embedding.weight

    def forward(self, ids: Tensor) -> Tensor:
        x = self.embedding(ids) + self.positions(torch.arange(ids.shape[1]))
        return self.head(torch.tanh(self.middle(x)))
