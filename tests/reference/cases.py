"""What a test network is, and how one is made from a seed.

Index legend: N examples, C outputs, P parameters, S samples, T shared positions, D layer inputs,
O layer outputs.
"""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from .curvature import Inputs

CASES: dict[str, Callable[[int], "Case"]] = {}


@dataclass
class Case:
    """A network in eval mode and float64 with its data, and the likelihood its outputs belong to.

    likelihood is one of "classification", "binary", "regression", "poisson", "heteroscedastic".
    """

    model: nn.Module
    x: Inputs
    y: Tensor
    likelihood: str


def register(name: str) -> Callable[[Callable[[], Case]], Callable[[int], Case]]:
    """Add a builder to CASES as a function of a seed, leaving the global random state alone."""

    def decorate(build: Callable[[], Case]) -> Callable[[int], Case]:
        def seeded(seed: int = 0) -> Case:
            with torch.random.fork_rng(devices=[]):
                torch.manual_seed(seed)
                case = build()
                case.model.double().eval()
                perturb(case.model)
            return case

        seeded.__name__ = name
        assert name not in CASES, name
        CASES[name] = seeded
        return seeded

    return decorate


@torch.no_grad()
def perturb(model: nn.Module) -> None:
    """Move every parameter off its initial value (norms off 1, biases off 0); fill running statistics."""
    for p in model.parameters():
        p.add_(0.2 * torch.randn(p.shape, dtype=torch.float64))
    for name, buffer in model.named_buffers():
        if name.endswith("running_mean"):
            buffer.copy_(0.5 * torch.randn(buffer.shape, dtype=torch.float64))
        if name.endswith("running_var"):
            buffer.copy_(0.5 + torch.rand(buffer.shape, dtype=torch.float64))


def normal(*shape: int) -> Tensor:
    """Standard normal float64 numbers."""
    return torch.randn(*shape, dtype=torch.float64)


def classify(model: nn.Module, x: Inputs, n: int, n_classes: int = 3) -> Case:
    """A classification case with random targets [N]."""
    return Case(model, x, torch.randint(n_classes, (n,)), "classification")


class Call(nn.Module):
    """A parameter-free function as a module."""

    def __init__(self, function: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.function = function

    def forward(self, x: Tensor) -> Tensor:
        """function(x)."""
        return self.function(x)
