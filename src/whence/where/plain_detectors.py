"""Detectors that need only the plain network, and training data for some: one score per input, higher is more novel.

Index legend: N inputs, n training inputs, C outputs, D features, O outputs of a layer.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from whence.engine.batches import Batch, Inputs, size_of
from whence.engine.batches import bare as inputs_alone
from whence.engine.contexts import fused_attention_off
from whence.errors import BadData, BadOption, NotDefined
from whence.where.activations import hooked
from whence.where.with_entropy import plain_entropy

if TYPE_CHECKING:
    from whence.posteriors.laplace.posterior import Laplace

NEIGHBOURS = 50
DISTANCES = 2**24
BATCH = 256
CONVOLUTIONS = (nn.Conv1d, nn.Conv2d, nn.Conv3d, nn.ConvTranspose1d, nn.ConvTranspose2d, nn.ConvTranspose3d)


class PlainDetectors:
    """Detectors that need only the plain network, with training data read once."""

    def __init__(self, posterior: Laplace, train: Any) -> None:
        self.posterior, self.softmax = posterior, posterior.likelihood.shift_invariant
        self.trained: Trained | None = None
        if train is not None:
            features = features_of(posterior, train, targets=True)
            self.trained = Trained.fit(features, posterior.likelihood.has_labels, posterior.network.device)

    def scores(self, x: Any) -> dict[str, Tensor]:
        found: dict[str, Tensor] = {}
        features = features_of(self.posterior, bare(x))
        if (entropy := plain_entropy(self.posterior.likelihood, features.logits)) is not None:
            found["plain_entropy"] = entropy
        if self.softmax:
            found |= {"max_probability": max_probability(features.logits), "energy": energy(features.logits)}
        if self.trained is not None:
            found |= self.trained.scores(features)
        return found


# Scores of the plain network


def max_probability(logits: Tensor) -> Tensor:
    """1 − the largest probability of the plain network (Hendrycks & Gimpel 2017)."""
    return 1 - logits.double().softmax(1).amax(1)


def energy(logits: Tensor) -> Tensor:
    """−log Σ exp of the logits (Liu et al. 2020, at temperature 1)."""
    return -logits.double().logsumexp(1)


@dataclass(frozen=True)
class Mahalanobis:
    """Class means and the shared covariance of training features (Lee et al. 2018)."""

    means: Tensor  # [C, D]
    precision: Tensor  # [D, D], pseudo-inverse

    @classmethod
    def fit(cls, features: Tensor, labels: Tensor | None) -> Mahalanobis:
        """``labels=None``: one class."""
        features = features.double()
        labels = torch.zeros(len(features)) if labels is None else labels
        index = labels.unique(return_inverse=True)[1]
        classes = int(index.max()) + 1
        counts = torch.bincount(index, minlength=classes).double().unsqueeze(1)
        means = features.new_zeros(classes, features.shape[1]).index_add(0, index, features) / counts
        centred = features - means[index]
        covariance = centred.mT @ centred / len(features)
        return cls(means, torch.linalg.pinv(covariance, rtol=1e-10, hermitian=True))

    def __call__(self, features: Tensor) -> Tensor:
        """The squared distance from the nearest class, [N]."""
        features = features.double()
        scaled = features @ self.precision
        cross = scaled @ self.means.mT  # [N, C]
        own = (scaled * features).sum(1, keepdim=True)
        return (own - 2 * cross + (self.means @ self.precision * self.means).sum(1)).amin(1).clamp(min=0)


@dataclass(frozen=True)
class Neighbours:
    """Distance to the k-th nearest training input, with features scaled to length 1 (Sun et al. 2022)."""

    train: Tensor  # [n, D], on the device where distances are computed
    k: int
    at_once: int = DISTANCES  # distances in memory at once

    @classmethod
    def fit(cls, features: Tensor, k: int = NEIGHBOURS, device: torch.device | str = "cpu") -> Neighbours:
        if not 1 <= k <= len(features):
            raise BadOption(f"k={k} is not in 1..{len(features)}, the number of training inputs.")
        return cls(_unit_length(features).to(device), k)

    def __call__(self, features: Tensor) -> Tensor:
        lengths = self.train.square().sum(1)
        found = []
        for piece in _unit_length(features).split(max(1, self.at_once // len(self.train))):
            near = piece.to(self.train.device)
            away = torch.addmm(lengths, near, self.train.mT, alpha=-2)  # ‖b‖² − 2 aᵀb, [N, n]
            kth = away.topk(self.k, dim=1, largest=False).values[:, -1] + near.square().sum(1)
            found.append(kth.clamp(min=0).sqrt().cpu())
        return torch.cat(found)


def _unit_length(features: Tensor) -> Tensor:
    return torch.nn.functional.normalize(features.double(), dim=1)


@dataclass(frozen=True)
class Trained:
    """The detectors that need training data."""

    last: Mahalanobis
    layers: dict[str, Mahalanobis]
    neighbours: Neighbours

    @classmethod
    def fit(cls, features: Features, classes: bool, device: torch.device, k: int = NEIGHBOURS) -> Trained:
        labels = features.targets if classes else None
        return cls(
            Mahalanobis.fit(features.last, labels),
            {name: Mahalanobis.fit(values, labels) for name, values in features.layers.items()},
            Neighbours.fit(features.last, min(k, len(features.last)), device if device.type == "cuda" else "cpu"),
        )

    def scores(self, features: Features) -> dict[str, Tensor]:
        missing = set(self.layers) - set(features.layers)
        if missing:
            raise BadData(f"the layer {min(missing)!r} was not called, or its first axis is not these inputs.")
        every = torch.stack([distance(features.layers[name]) for name, distance in self.layers.items()])
        return {
            "mahalanobis": self.last(features.last),
            "mahalanobis_layers": every.sum(0),
            "neighbours": self.neighbours(features.last),
        }


# Features


@dataclass(frozen=True)
class Features:
    """Features of N inputs, float64 on the CPU."""

    logits: Tensor  # [N, C]
    last: Tensor  # [N, D]: the input of the last linear layer
    layers: dict[str, Tensor]  # name → [N, O]: outputs of linear, conv and attention layers, mean over positions
    targets: Tensor | None = None  # [N]


def bare(data: Any) -> Any:
    """Inputs or a loader that can be read repeatedly; of a pair its inputs."""
    if isinstance(data, Iterator):
        raise BadData("the inputs are a one-shot iterator, but detectors read them several times. Pass a loader.")
    return inputs_alone(data)


def features_of(posterior: Laplace, data: Any, *, targets: bool = False) -> Features:
    """Features of inputs, a loader or a pair; with ``targets`` of data that has them."""
    network = posterior.network
    pieces = network.read(data, "train") if targets else network.pieces(bare(data), BATCH)
    parts = [_features(posterior, piece) for piece in pieces]
    common = [name for name in parts[0].layers if all(name in p.layers for p in parts)]
    return Features(
        torch.cat([p.logits for p in parts]),
        torch.cat([p.last for p in parts]),
        {name: torch.cat([p.layers[name] for p in parts]) for name in common},
        torch.cat([p.targets for p in parts if p.targets is not None]) if targets else None,
    )


def _features(posterior: Laplace, piece: Inputs | Batch) -> Features:
    inputs, targets = (piece.inputs, piece.targets) if isinstance(piece, Batch) else (piece, None)
    size = size_of(inputs)
    layers: dict[str, Tensor] = {}
    last: list[Tensor] = []

    def keep(name: str, module: nn.Module, given: tuple[Any, ...], output: Tensor) -> None:
        if output.dim() >= 2 and len(output) == size:
            first = isinstance(module, CONVOLUTIONS)  # channels come before positions, otherwise after them
            places = tuple(range(2, output.dim()) if first else range(1, output.dim() - 1))
            layers[name] = (output.mean(places) if places else output).double().cpu()
        if isinstance(module, nn.Linear) and given and given[0].dim() == 2 and len(given[0]) == size:
            last[:] = [given[0].double().cpu()]

    modules = {
        name: module
        for name, module in posterior.network.module.named_modules()
        if isinstance(module, (nn.Linear, nn.MultiheadAttention, *CONVOLUTIONS))
    }
    with torch.no_grad(), fused_attention_off, hooked(modules, keep):
        logits = posterior.network(inputs)
    if not last:
        raise NotDefined(
            "the network has no linear layer with one row of features for each input; detectors that use the last "
            "features are not defined."
        )
    labels = None if targets is None else targets.reshape(size, -1)[:, 0].cpu()
    return Features(logits.double().cpu().reshape(size, -1), last[0], layers, labels)
