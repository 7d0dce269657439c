"""Curvature that is kept on the CPU gives the same numbers."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import whence
from tests.comparison import assert_close
from whence.errors import Notice


def quietly(*args: Any, **kwargs: Any) -> Any:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", Notice)
        return whence.laplace(*args, progress=False, **kwargs)


def mlp() -> nn.Module:
    return nn.Sequential(nn.Linear(4, 7), nn.Tanh(), nn.Linear(7, 5), nn.Tanh(), nn.Linear(5, 3)).double()


def data_for(network: nn.Module, size: int = 10) -> tuple[Tensor, Tensor]:
    shape = (4,) if isinstance(network[0], nn.Linear) else (2, 3, 3)  # type: ignore[index]
    return torch.randn(size, *shape, dtype=torch.float64), torch.randint(3, (size,))


@pytest.mark.parametrize("structure", ["kron", "ekfac", "diag", "block", "full", "lowrank"])
def test_offloading_changes_no_number(structure: str, tmp_path: Path) -> None:
    model = mlp()
    x, y = data_for(model)
    options: dict[str, Any] = {"likelihood": "classification", "structure": structure, "prior_precision": 2.0}
    here, away = (quietly(model, (x, y), execution=whence.Execution(offload=off), **options) for off in (False, True))
    assert_close(away.predict(x).probs, here.predict(x).probs, 1e-13)  # the order of sums may differ with the layout
    assert_close(away.covariance(), here.covariance(), 1e-13)
    assert all(s.tensors() and t.device.type == "cpu" for s in away.curvature.structures for t in s.tensors().values())
    away.save(tmp_path / "p.safetensors")
    again = whence.load(tmp_path / "p.safetensors", model)
    assert again.curvature.options.execution.offload
    assert_close(again.predict(x).probs, here.predict(x).probs, 1e-13)
    assert away.to(torch.float32).predict(x.float()).probs.dtype == torch.float32


def test_decompositions_come_to_the_device_and_go_back(monkeypatch: pytest.MonkeyPatch) -> None:
    moved: list[str] = []
    spectral_to = whence.linalg.spectral.Spectral.to

    def noted(self: Any, device: torch.device) -> Any:
        moved.append(device.type)
        return spectral_to(self, device)

    monkeypatch.setattr(whence.linalg.spectral.Spectral, "to", noted)
    model = mlp()
    posterior = quietly(model, data_for(model), likelihood="classification", execution=whence.Execution(offload=True))
    moved.clear()
    posterior.variance()
    assert len(moved) == len(posterior.blocks), "one at a time, when it is used"
