"""Posterior files that are truncated, of another network, or not safetensors."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file
from torch import nn

import whence
from tests.errors.watch import Busy, data, mlp, refused
from whence.errors import BadFile


@pytest.fixture
def saved(tmp_path: Path) -> tuple[Path, nn.Module]:
    model = Busy()
    path = tmp_path / "posterior.safetensors"
    whence.laplace(model, data(), likelihood="classification").save(path)
    return path, model


@pytest.mark.parametrize("part", [0.0, 0.001, 0.3, 0.9, 0.999])
def test_truncated(saved: tuple[Path, nn.Module], part: float) -> None:
    path, model = saved
    whole = path.read_bytes()
    path.write_bytes(whole[: int(part * len(whole))])
    with refused(BadFile, str(path), "truncated", model=model):
        whence.load(path, model)


def test_not_safetensors(saved: tuple[Path, nn.Module]) -> None:
    path, model = saved
    torch.save({"a": 1}, path)
    with refused(BadFile, str(path), "not a readable safetensors file", model=model):
        whence.load(path, model)
    path.write_text("a posterior")
    with refused(BadFile, str(path), "not a readable safetensors file", model=model):
        whence.load(path, model)


def test_safetensors_of_someone_else(saved: tuple[Path, nn.Module]) -> None:
    path, model = saved
    save_file({"a": torch.zeros(3)}, str(path))
    with refused(BadFile, str(path), "was not written by whence", model=model):
        whence.load(path, model)


def test_missing_and_directory(tmp_path: Path) -> None:
    model = Busy()
    with refused(BadFile, "no file", "nowhere", model=model):
        whence.load(tmp_path / "nowhere", model)
    with refused(BadFile, str(tmp_path), model=model):
        whence.load(tmp_path, model)


def test_other_shapes(saved: tuple[Path, nn.Module]) -> None:
    path, _ = saved
    other = Busy(outputs=4)
    with refused(BadFile, "another network", "'head.weight'", "[4, 6]", "[3, 6]", model=other):
        whence.load(path, other)


def test_other_names(saved: tuple[Path, nn.Module]) -> None:
    path, _ = saved
    other = mlp()
    with refused(BadFile, "another network", "missing", model=other):
        whence.load(path, other)


def test_other_weights(saved: tuple[Path, nn.Module]) -> None:
    path, _ = saved
    other = Busy()
    with refused(BadFile, "same shapes but other weights", "load the weights", model=other):
        whence.load(path, other)


def test_one_weight_moved(saved: tuple[Path, nn.Module]) -> None:
    path, model = saved
    with torch.no_grad():
        model.head.bias[0] += 1e-3
    with refused(BadFile, "other weights", model=model):
        whence.load(path, model)


def test_other_buffers(saved: tuple[Path, nn.Module]) -> None:
    path, model = saved
    model.norm.running_mean += 0.5
    with refused(BadFile, "other weights", model=model):
        whence.load(path, model)


def with_metadata(path: Path, change) -> None:
    """Write the file again with other metadata."""
    from safetensors import safe_open

    with safe_open(str(path), framework="pt") as file:
        meta = json.loads(file.metadata()["whence"])
        tensors = {key: file.get_tensor(key) for key in file.keys()}  # noqa: SIM118
    save_file(tensors, str(path), metadata={"whence": change(meta)})


def test_newer_format(saved: tuple[Path, nn.Module]) -> None:
    path, model = saved
    with_metadata(path, lambda meta: json.dumps({**meta, "format": 99}))
    with refused(BadFile, "format 99", "newer", model=model):
        whence.load(path, model)


def test_damaged_metadata(saved: tuple[Path, nn.Module]) -> None:
    path, model = saved
    with_metadata(path, lambda meta: json.dumps({k: v for k, v in meta.items() if k != "blocks"}))
    with refused(BadFile, str(path), model=model):
        whence.load(path, model)
    with_metadata(path, lambda meta: json.dumps(meta)[:-20])
    with refused(BadFile, str(path), model=model):
        whence.load(path, model)


def test_own_likelihood_must_be_passed_again(tmp_path: Path) -> None:
    model = mlp()
    own = whence.Custom(lambda f, y: 0.5 * (f - y).square().sum(1))
    whence.laplace(model, (torch.randn(8, 4), torch.randn(8, 3)), likelihood=own).save(tmp_path / "own")
    with refused(BadFile, "your own likelihood", "Custom", "likelihood=", model=model):
        whence.load(tmp_path / "own", model)
    whence.load(tmp_path / "own", model, likelihood=own)


def test_another_likelihood_than_the_file_has(saved: tuple[Path, nn.Module]) -> None:
    path, model = saved
    with refused(whence.errors.WhenceError, "Categorical", "Gaussian", model=model):
        whence.load(path, model, likelihood=whence.Gaussian(1.0))


def test_nowhere_to_save(tmp_path: Path) -> None:
    posterior = whence.laplace(mlp(), data(), likelihood="classification")
    with refused(BadFile, "missing", str(tmp_path / "missing")):
        posterior.save(tmp_path / "missing" / "posterior")
