"""Random data that the tests of metrics share."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor

IGNORE = -100
SHAPES = {"many": (60, 4), "two": (60, 2), "dense": (5, 3, 4, 3), "sequence": (6, 5, 10)}
OPTIONS = ["plain", "weights", "class_weights", "mask", "ignored", "all"]


@dataclass(frozen=True)
class Labelled:
    """Class probabilities with the class in dimension 1, labels and the keywords that go with them."""

    probs: Tensor
    targets: Tensor
    keywords: dict[str, Any] = field(default_factory=dict)

    def elements(self) -> tuple[list[list[float]], list[int], list[float]]:
        """Rows of probabilities, labels and weights of the elements that count."""
        rows, labels, weights = [], [], []
        for place in np.ndindex(*self.targets.shape):
            y = int(self.targets[place])
            if y == IGNORE or ("mask" in self.keywords and not bool(self.keywords["mask"][place])):
                continue
            w = float(self.keywords["weights"][place]) if "weights" in self.keywords else 1.0
            if "class_weights" in self.keywords:
                w *= float(self.keywords["class_weights"][y])
            rows.append([float(self.probs[(place[0], c, *place[1:])]) for c in range(self.probs.shape[1])])
            labels.append(y)
            weights.append(w)
        return rows, labels, weights


def rng(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def element_keywords(shape: tuple[int, ...], options: str, g: torch.Generator) -> dict[str, Any]:
    """Weights and masks for elements of this shape; a few weights are 0."""
    keywords: dict[str, Any] = {}
    if options in ("weights", "all"):
        weights = torch.rand(shape, generator=g, dtype=torch.float64) * 3
        keywords["weights"] = torch.where(torch.rand(shape, generator=g) < 0.1, 0.0, weights)
    if options in ("mask", "all"):
        keywords["mask"] = torch.rand(shape, generator=g) < 0.7
    return keywords


def labelled(shape: str, options: str, seed: int) -> Labelled:
    """Labels that follow the probabilities roughly."""
    g = rng(seed)
    size = SHAPES[shape]
    logits = 1.5 * torch.randn(size, generator=g, dtype=torch.float64)
    probs = logits.softmax(1)
    noisy = (0.7 * logits).softmax(1).movedim(1, -1)
    targets = torch.multinomial(noisy.reshape(-1, size[1]), 1, generator=g).reshape(noisy.shape[:-1])
    keywords = element_keywords(tuple(targets.shape), options, g)
    if options in ("class_weights", "all"):
        keywords["class_weights"] = torch.rand(size[1], generator=g, dtype=torch.float64) + 0.2
    if options in ("ignored", "all"):
        targets = torch.where(torch.rand(targets.shape, generator=g) < 0.2, IGNORE, targets)
    return Labelled(probs, targets, keywords)


def binary(shape: tuple[int, ...], options: str, seed: int) -> tuple[Tensor, Tensor, Labelled]:
    """Probabilities of 1 and labels in one shape; and the same as two classes."""
    g = rng(seed)
    p = torch.rand(shape, generator=g, dtype=torch.float64)
    targets = (torch.rand(shape, generator=g, dtype=torch.float64) < p**1.3).long()
    keywords = element_keywords(shape, options, g)
    if options in ("class_weights", "all"):
        keywords["class_weights"] = torch.tensor([0.7, 1.9], dtype=torch.float64)
    return p, targets, Labelled(torch.stack([1 - p, p], 1), targets, keywords)


def flat(values: Tensor, keywords: dict[str, Any]) -> list[float]:
    """The elements that the mask leaves, as numbers."""
    kept = keywords.get("mask", torch.ones(values.shape, dtype=torch.bool))
    return [float(v) for v, k in zip(values.flatten(), kept.flatten(), strict=True) if bool(k)]


def flat_weights(like: Tensor, keywords: dict[str, Any]) -> list[float]:
    return flat(keywords.get("weights", torch.ones(like.shape, dtype=torch.float64)), keywords)
