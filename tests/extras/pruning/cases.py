"""What the tests of pruning share."""

from __future__ import annotations

import torch
from torch import Tensor, nn

import whence
from whence.extras.pruning import criteria as pruning
from whence.extras.pruning.masks import PruningPlan

CRITERIA = ("snr", "identified", "saliency", "magnitude", "random")


def mlp(activation: type[nn.Module] = nn.Tanh) -> nn.Sequential:
    return nn.Sequential(nn.Linear(4, 6), activation(), nn.Linear(6, 5), activation(), nn.Linear(5, 3)).double()


def data(size: int = 40, inputs: int = 4, classes: int = 3) -> tuple[Tensor, Tensor]:
    return torch.randn(size, inputs, dtype=torch.float64), torch.arange(size) % classes


def fitted(model: nn.Module, structure: str = "diag", given: tuple[Tensor, Tensor] | None = None, **options):
    options.setdefault("likelihood", "classification")
    return whence.laplace(model, given or data(), structure=structure, progress=False, **options)


def masks(module: nn.Module) -> dict[str, Tensor]:
    return {n: b for n, b in module.named_buffers() if n.endswith("_mask")}


def vector(values: dict[str, Tensor]) -> Tensor:
    return torch.cat([v.flatten() for v in values.values()])


def scores(posterior, names, by: str) -> dict[str, torch.Tensor]:
    """The score of every weight."""
    return PruningPlan(posterior, list(names)).scores(pruning.CRITERIA[by])
