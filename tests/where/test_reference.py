"""The reference of novelty is kept by tuning, saved with the posterior, and dropped where it no longer holds."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import whence
from tests.comparison import assert_close
from whence.errors import NotDefined
from whence.where import novelty


def tuned() -> tuple[nn.Module, whence.Laplace, tuple[torch.Tensor, torch.Tensor]]:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 3)).double()
    x, y = torch.randn(260, 4).double(), torch.randint(3, (260,))
    posterior = whence.laplace(model, (x[:100], y[:100]), likelihood="classification", progress=False)
    return model, posterior.tune((x[100:], y[100:]), progress=False), (x[100:], y[100:])


def test_tuning_keeps_the_reference_and_a_file_gives_it_back(tmp_path: Path) -> None:
    model, posterior, validation = tuned()
    assert posterior.reference is not None and posterior.reference.size == 160
    direct = whence.reference_of(posterior, validation)
    assert_close(posterior.reference.unexplained, direct.unexplained, 1e-9)
    x = torch.randn(7, 4).double()
    wanted = whence.novelty(posterior, x)
    posterior.save(tmp_path / "p.safetensors")
    loaded = whence.load(tmp_path / "p.safetensors", model)
    found = whence.novelty(loaded, x)
    assert torch.equal(found.p_value, wanted.p_value) and torch.allclose(found.score, wanted.score)


def test_tuning_can_leave_the_reference_out() -> None:
    _, posterior, validation = tuned()
    again = posterior.update(validation, progress=False).tune(validation, reference=False, progress=False)
    assert again.tuning is not None and again.reference is None


def test_the_reference_outlives_another_prior_but_not_other_data() -> None:
    _, posterior, validation = tuned()
    x = torch.randn(5, 4).double()
    other = posterior.with_prior(123.0)
    assert torch.allclose(whence.novelty(other, x).score, whence.novelty(posterior, x).score, rtol=1e-6)
    assert posterior.update(validation, progress=False).reference is None
    with pytest.raises(NotDefined, match="reference="):
        whence.novelty(posterior.update(validation, progress=False), x)


def test_an_untuned_posterior_has_none() -> None:
    x, y = torch.randn(20, 4), torch.randint(3, (20,))
    assert whence.laplace(nn.Linear(4, 3), (x, y), likelihood="classification", progress=False).reference is None


@pytest.mark.parametrize("structure", ["kron", "ekfac", "diag", "block", "full"])
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_the_reference_of_tuning_is_that_of_its_validation_data(
    structure: Any, dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Tuning has projected these inputs already, and needs no second pass for their novelty."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv2d(1, 3, 3), nn.ReLU(), nn.Flatten(), nn.Linear(12, 6), nn.Tanh(), nn.Linear(6, 3))
    model, x = model.to(dtype), torch.randn(160, 1, 4, 4, dtype=dtype)
    y = torch.randint(3, (160,))
    posterior = whence.laplace(model, (x[:40], y[:40]), likelihood="classification", structure=structure)
    wanted = whence.reference_of(posterior, x[40:])
    if structure != "full":  # whose layers are correlated
        monkeypatch.delattr(novelty, "reference_of")
    tuned = posterior.tune((x[40:], y[40:]), progress=False)
    assert tuned.reference is not None
    assert_close(tuned.reference.unexplained, wanted.unexplained, 1e-9 if dtype == torch.float64 else 1e-4)
    assert tuned.reference.precision == pytest.approx(wanted.precision) and tuned.reference.probes == wanted.probes
