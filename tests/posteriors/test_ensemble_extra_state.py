"""Members that keep something that is no tensor in their state."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import whence
from whence.errors import BadFile
from whence.functional import load_tensors, tensors_of
from whence.posteriors.ensembles.factory import MemberTrainer
from whence.posteriors.ensembles.fit import MemberFolder
from whence.posteriors.ensembles.parallel import received


def labelled(dtype: torch.dtype = torch.float64) -> tuple[Tensor, Tensor]:
    x = torch.randn(40, 4, dtype=torch.float64, generator=torch.Generator().manual_seed(5))
    return x.to(dtype), (x[:, 0] > 0).long() + (x[:, 1] > 0.5).long()


class Extra(nn.Module):
    """Keeps something that is no tensor in its state."""

    def __init__(self) -> None:
        super().__init__()
        self.inner, self.extra = nn.Linear(4, 3), {"version": 2}

    def forward(self, x: Tensor) -> Tensor:
        return self.inner(x)  # type: ignore[no-any-return]

    def get_extra_state(self) -> Any:
        return self.extra

    def set_extra_state(self, state: Any) -> None:
        self.extra = state


class GetOnly(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(4, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.inner(x)  # type: ignore[no-any-return]

    def get_extra_state(self) -> Any:
        return {"version": 2}


@pytest.mark.parametrize("vectorised", [True, False])
@pytest.mark.parametrize("factory", [Extra, lambda: nn.Sequential(Extra(), nn.Tanh(), nn.Linear(3, 3)), GetOnly])
def test_networks_with_extra_state_are_trained(vectorised: bool, factory: Any) -> None:
    data = labelled(torch.float32)
    found = whence.fit_ensemble(
        factory, data, likelihood="classification", members=2, epochs=2, vectorised=vectorised, progress=False
    )
    assert found.predict(data[0]).probs.shape == (40, 3)


@pytest.mark.parametrize("vectorised", [True, False])
@pytest.mark.parametrize("factory", [Extra, GetOnly])
def test_members_with_extra_state_are_kept_and_sent(tmp_path: Path, factory: Any, vectorised: bool) -> None:
    data, options = labelled(torch.float32), {"likelihood": "classification", "members": 2, "epochs": 2}
    options |= {"vectorised": vectorised, "checkpoint": tmp_path / "members", "progress": False}
    first = whence.fit_ensemble(factory, data, **options)
    again = whence.fit_ensemble(factory, data, **options)
    assert torch.equal(again.predict(data[0]).probs, first.predict(data[0]).probs)
    trainer = MemberTrainer(factory, data, None, whence.zoo.Settings(), {}, 0, None)
    sent = tensors_of(first.networks()[0])
    assert set(sent) == {"inner.weight", "inner.bias"}
    model = received(trainer, 0, sent)
    assert torch.equal(model.inner.weight, first.networks()[0].inner.weight)
    assert model.get_extra_state() == {"version": 2}


def test_other_names_are_still_refused(tmp_path: Path) -> None:
    folder = MemberFolder(tmp_path)
    folder.put(0, Extra(), [])
    with pytest.raises(BadFile, match=r"another network: 'weight' is missing"):
        folder.get(0, nn.Linear(4, 3))
    with pytest.raises(RuntimeError, match=r"'more' is unknown"):
        load_tensors(Extra(), tensors_of(Extra()) | {"more": torch.zeros(1)})
    with pytest.raises(BadFile, match="another network"):
        folder.get(0, nn.Sequential(Extra()))
