"""Networks under autocast or held in half precision: factors and predictions stay in float32."""

from __future__ import annotations

import copy
import math
import warnings
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import whence
from whence.curvature import kfac
from whence.errors import Notice
from whence.recording import calls


def quietly(*args: Any, **kwargs: Any) -> Any:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", Notice)
        return whence.laplace(*args, progress=False, **kwargs)


@pytest.mark.parametrize("structure", ["kron", "ekfac", "diag", "block"])
@pytest.mark.parametrize("how", ["context", "option"])
def test_float32_factors_under_autocast(structure: str, how: str) -> None:
    model = nn.Sequential(nn.Linear(6, 16), nn.LayerNorm(16), nn.GELU(), nn.Linear(16, 16), nn.ReLU(), nn.Linear(16, 4))
    x, y = torch.randn(200, 6), torch.randint(4, (200,))
    options: dict[str, Any] = {"likelihood": "classification", "structure": structure}
    wanted = quietly(model, (x, y), **options)
    if how == "context":
        with torch.autocast("cpu", torch.bfloat16):
            found = quietly(model, (x, y), **options)
            inside = found.predict(x[:5]).probs
            draws = found.sample(3, generator=torch.Generator().manual_seed(0))
    else:
        found = quietly(model, (x, y), autocast=torch.bfloat16, **options)
        inside = found.predict(x[:5]).probs
        draws = found.sample(3, generator=torch.Generator().manual_seed(0))
    assert [(b.structure, b.reason) for b in found.blocks] == [(b.structure, b.reason) for b in wanted.blocks]
    for a, b in zip(found.curvature.structures, wanted.curvature.structures, strict=True):
        for key, value in a.tensors().items():
            if key != "count" and (a.kind != "ekfac" or key == "values"):
                assert value.dtype == torch.float32
                close = a.kind != "ekfac"  # eigenvalues in eigenvectors that rounding turns
                assert not close or float((value - b.tensors()[key]).norm() / b.tensors()[key].norm()) < 2e-2
    outside = found.predict(x[:5]).probs
    assert torch.equal(inside, outside), "a posterior belongs to the precision it was fitted in"
    assert inside.dtype == torch.float32
    torch.testing.assert_close(inside, wanted.predict(x[:5]).probs, rtol=0.05, atol=0.02)
    again = found.sample(3, generator=torch.Generator().manual_seed(0))
    assert all(torch.equal(draws[n], again[n]) and draws[n].dtype == torch.float32 for n in draws)
    assert found.network.autocast == torch.bfloat16 and wanted.network.autocast is None


def test_autocast_is_kept_by_files_tuning_and_updates(tmp_path: Path) -> None:
    model = nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 3))
    x, y = torch.randn(60, 6), torch.randint(3, (60,))
    with torch.autocast("cpu", torch.bfloat16):
        posterior = quietly(model, (x, y), likelihood="classification")
        tuned = posterior.tune((x[:30], y[:30]), progress=False)
        more = posterior.update((x, y), progress=False)
        posterior.where(x[:4])
    posterior.save(tmp_path / "p.safetensors")
    loaded = whence.load(tmp_path / "p.safetensors", model)
    for one in (tuned, more, loaded, posterior.to(torch.float32)):
        assert one.network.autocast == torch.bfloat16
    assert torch.equal(loaded.predict(x[:5]).probs, posterior.predict(x[:5]).probs)
    outside = posterior.tune((x[:30], y[:30]), progress=False)
    assert outside.prior_precision == tuned.prior_precision


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_networks_held_in_half_precision(dtype: torch.dtype) -> None:
    model = nn.Sequential(nn.Linear(6, 16), nn.Tanh(), nn.Linear(16, 4))
    x, y = torch.randn(100, 6), torch.randint(4, (100,))
    wanted = quietly(model, (x, y), likelihood="classification")
    found = quietly(model.to(dtype), (x.to(dtype), y), likelihood="classification")
    assert {b.structure for b in found.blocks} == {"kron"}
    for a, b in zip(found.curvature.structures, wanted.curvature.structures, strict=True):
        for key in ("inputs", "grads"):
            assert a.tensors()[key].dtype == torch.float32
            assert float((a.tensors()[key] - b.tensors()[key]).norm() / b.tensors()[key].norm()) < 3e-2
    assert found.record.loss == pytest.approx(wanted.record.loss, rel=2e-2)


@pytest.mark.parametrize("held", [False, True], ids=["autocast", "held"])
@pytest.mark.parametrize(
    "options",
    [
        {"curvature": "kfra"},
        {"curvature": "hessian", "structure": "block"},
        {"curvature": "mc"},
        {"curvature": "empirical"},
        {"structure": "lowrank", "rank": 5},
        {"structure": "full"},
        {"layers": "last"},
    ],
    ids=lambda o: "-".join(map(str, o.values())),
)
def test_every_curvature_in_half_precision(options: dict[str, Any], held: bool) -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 3))
    x, y = torch.randn(60, 6), torch.randint(3, (60,))
    given: dict[str, Any] = {"likelihood": "classification", "prior_precision": 50.0, **options}
    wanted = quietly(model, (x, y), generator=torch.Generator().manual_seed(0), **given).predict(x).probs
    autocast = None if held else torch.bfloat16
    model, inputs = (model.bfloat16(), x.bfloat16()) if held else (model, x)
    found = quietly(model, (inputs, y), generator=torch.Generator().manual_seed(0), autocast=autocast, **given)
    assert all(t.dtype in (torch.float32, torch.float64) for t in found.curvature.structures[0].tensors().values())
    torch.testing.assert_close(found.predict(inputs).probs.float(), wanted, rtol=0, atol=4e-3)


def test_sums_of_narrow_products(monkeypatch: pytest.MonkeyPatch) -> None:
    """On a GPU inputs and gradients stay in half precision, and their products are summed in float32."""
    model = nn.Sequential(nn.Conv2d(2, 3, 3, padding=1), nn.ReLU(), nn.Flatten(), nn.Linear(48, 9), nn.Linear(9, 3))
    x, y = torch.randn(20, 2, 4, 4), torch.randint(3, (20,))
    options: dict[str, Any] = {"likelihood": "classification", "autocast": torch.bfloat16}
    for more in ({}, {"max_factor": 8}, {"sharing": "reduce"}, {"structure": "ekfac"}, {"structure": "diag"}):
        wanted = quietly(model, (x, y), **options, **more)
        with monkeypatch.context() as patch:
            for module in (calls, kfac):
                patch.setattr(module, "sums_in_float32", lambda t: t.dtype == torch.bfloat16)
            found = quietly(model, (x, y), **options, **more)
        for a, b in zip(found.curvature.structures, wanted.curvature.structures, strict=True):
            for key in {"inputs", "grads", "values"} & set(a.tensors()):
                assert a.tensors()[key].dtype == torch.float32
                wide = b.tensors()[key]
                assert float((a.tensors()[key] - wide).norm() / wide.norm()) < 3e-3


def mlp(inputs: int = 3, outputs: int = 2) -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(inputs, 6), nn.Tanh(), nn.Linear(6, outputs))


def classes(count: int = 24) -> tuple[Tensor, Tensor]:
    return torch.randn(count, 3), torch.arange(count) % 2


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision(dtype: torch.dtype) -> None:
    model, (x, y) = mlp(), classes()
    half = copy.deepcopy(model).to(dtype)
    posterior = whence.laplace(half, (x.to(dtype), y), likelihood="classification")
    wanted = whence.laplace(model, (x, y), likelihood="classification").predict(x).probs
    assert float((posterior.predict(x).probs - wanted).abs().max()) < 0.02
    assert posterior.predict(x, method="sampled").probs.shape == wanted.shape
    assert math.isfinite(posterior.tune((x, y)).tuning.score)
