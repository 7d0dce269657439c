"""A selection that selects nothing, or is none."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import whence
from tests.errors.watch import Busy, data, refuse, refused
from whence.errors import BadOption, NothingSelected, WhenceError


def test_pattern_without_a_match_names_the_nearest() -> None:
    refuse(Busy(), data(), NothingSelected, "'haed'", "no module", "head", layers="haed")
    refuse(Busy(), data(), NothingSelected, "'layer*'", "no module", "first", "norm", layers=["head", "layer*"])


def test_pattern_on_frozen_weights_only() -> None:
    refuse(Busy(), data(), NothingSelected, "'frozen'", "frozen", "requires_grad_(True)", layers="frozen")


@pytest.mark.parametrize("layers", [None, "last", "head", lambda name, p: True])
def test_everything_frozen(layers) -> None:
    model = Busy().requires_grad_(False)
    refuse(model, data(), NothingSelected, "8 parameters", "frozen", "requires_grad_(True)", layers=layers)


def test_empty_list() -> None:
    refuse(Busy(), data(), NothingSelected, "layers=[]", "use None for all layers", layers=[])
    refuse(Busy(), data(), NothingSelected, "use None for all layers", layers=())


def test_predicate_that_chooses_none() -> None:
    refuse(Busy(), data(), NothingSelected, "predicate", "none of the 6", layers=lambda name, p: False)


def test_empty_mask() -> None:
    masks = {"head.weight": torch.zeros(3, 6, dtype=torch.bool)}
    refuse(Busy(), data(), NothingSelected, "mask", "no weight", layers=masks, structure="full")
    refuse(Busy(), data(), NothingSelected, "mask", "no weight", layers={}, structure="full")
    total = sum(p.numel() for p in Busy().parameters() if p.requires_grad)
    flat = torch.zeros(total, dtype=torch.bool)
    refuse(Busy(), data(), NothingSelected, "mask", "no weight", layers=flat, structure="full")


def test_mask_of_another_network() -> None:
    mask = {"tail.weight": torch.ones(3, 6, dtype=torch.bool)}
    refuse(Busy(), data(), NothingSelected, "'tail.weight'", layers=mask, structure="full")
    mask = {"head.weight": torch.ones(6, 3, dtype=torch.bool)}
    refuse(Busy(), data(), BadOption, "'head.weight'", "[6, 3]", "[3, 6]", layers=mask, structure="full")
    flat = torch.ones(7, dtype=torch.bool)
    refuse(Busy(), data(), BadOption, "7 entries", "63 weights", layers=flat, structure="full")


@pytest.mark.parametrize("structure", ["kron", "diag", "lowrank", "block", "ekfac"])
def test_mask_needs_full(structure: str) -> None:
    mask = {"head.weight": torch.ones(3, 6, dtype=torch.bool)}
    refuse(Busy(), data(), BadOption, "mask", "structure='full'", repr(structure), layers=mask, structure=structure)


@pytest.mark.parametrize("kind", ["module", "number", "modules", "mask of no tensors"])
def test_layers_of_another_type(kind: str) -> None:
    model = Busy()
    layers = {"module": model.head, "number": 3, "modules": [model.head], "mask of no tensors": {"head.weight": True}}
    refuse(model, data(), WhenceError, "layers", "pattern", layers=layers[kind], structure="full")


def test_last_without_a_layer() -> None:
    class Scale(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = nn.Parameter(torch.ones(4))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x * self.weight

    given = (torch.randn(8, 4), torch.arange(8) % 4)
    refuse(Scale(), given, NothingSelected, "no linear or convolutional layer", "pattern", layers="last")


def test_model_without_parameters_or_no_model() -> None:
    refuse(nn.Tanh(), data(), WhenceError, "Tanh", "no parameters")
    with refused(WhenceError, "torch.nn.Module", "function"):
        whence.laplace(lambda x: x, data(), likelihood="classification")


def test_subnetwork() -> None:
    posterior = whence.laplace(Busy(), data(), likelihood="classification", structure="diag")
    total = posterior.parameters
    for count in (0, -3, total + 1):
        with refused(BadOption, f"count={count}", f"between 1 and {total:,}"):
            whence.subnetwork(posterior, count)
    with refused(BadOption, "'variancce'", "'variance'"):
        whence.subnetwork(posterior, 3, by="variancce")
    with refused(BadOption, "by='variance'", "posterior", "structure='diag'"):
        whence.subnetwork(Busy(), 3)
