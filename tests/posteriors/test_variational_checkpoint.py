"""Checkpoints of variational inference belong to their data."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import save_file
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

from whence.errors import BadFile
from whence.posteriors.variational import Variational, variational


def data(n: int = 60) -> tuple[Tensor, Tensor]:
    gen = torch.Generator().manual_seed(0)
    x = torch.randn(n, 3, generator=gen)
    return x, (x[:, 0] + 0.3 * torch.randn(n, generator=gen) > 0).long()


def model() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(3, 8), nn.ReLU(), nn.Linear(8, 2))


def fit(net: nn.Module | None = None, given: Any = None, **options: Any) -> Variational:
    settings = {"likelihood": "classification", "epochs": 2, "lr": 0.01, "seed": 0, "progress": False} | options
    return variational(net or model(), data() if given is None else given, **settings)


def test_a_variational_checkpoint_is_of_its_data(tmp_path: Path) -> None:
    (x, y), path = data(), tmp_path / "state"
    first = fit(checkpoint=path)
    again = fit(checkpoint=path, given=(x.clone(), y.clone()))
    assert all(torch.equal(v, again.mean()[n]) for n, v in first.mean().items())
    for other in ((-x, y), (x, 1 - y), (-x, 1 - y), DataLoader(TensorDataset(x, y), 20), [(x, y)]):
        with pytest.raises(BadFile, match="other training data") as caught:
            fit(checkpoint=path, given=other)
        assert "\n" not in str(caught.value)
    with pytest.raises(BadFile, match="other training data"):
        fit(checkpoint=path, given=(x[:50], y[:50]))
    with pytest.raises(BadFile, match="other validation data"):
        fit(checkpoint=path, validation=(x, y))


def test_a_variational_checkpoint_of_a_loader_or_of_batches(tmp_path: Path) -> None:
    x, y = data()
    loader = DataLoader(TensorDataset(x, y), 20, shuffle=True)
    first = fit(checkpoint=tmp_path / "loader", given=loader)
    again = fit(checkpoint=tmp_path / "loader", given=DataLoader(TensorDataset(x, y), 20, shuffle=True))
    assert all(torch.equal(v, again.mean()[n]) for n, v in first.mean().items())
    with pytest.raises(BadFile, match="other training data"):
        fit(checkpoint=tmp_path / "loader", given=DataLoader(TensorDataset(x, y), 30))
    fit(checkpoint=tmp_path / "list", given=[(x.numpy(), y.numpy())])
    fit(checkpoint=tmp_path / "list", given=[(x.numpy(), y.numpy())])
    with pytest.raises(BadFile, match="other training data"):
        fit(checkpoint=tmp_path / "list", given=[(-x.numpy(), y.numpy())])


def test_a_checkpoint_that_knows_nothing_of_its_training_is_refused(tmp_path: Path) -> None:
    import json

    path = tmp_path / "state"
    fit(checkpoint=path)
    with safe_open(str(path), "pt") as file:
        meta = json.loads(file.metadata()["whence"])
        tensors = {k: file.get_tensor(k) for k in file.keys()}  # noqa: SIM118
    del meta["identity"]
    save_file(tensors, str(path), metadata={"whence": json.dumps(meta)})
    with pytest.raises(BadFile, match="does not say what it belongs to"):
        fit(checkpoint=path)
