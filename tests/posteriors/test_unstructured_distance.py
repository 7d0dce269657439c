"""How far a structured posterior is from draws without structure: what is compared, what is refused; files."""

from __future__ import annotations

import json
import warnings
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import save_file
from torch import Tensor, nn

import whence
from whence.errors import BadOption, Notice


def small(seed: int = 0, dtype: torch.dtype = torch.float64) -> nn.Sequential:
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(4, 3), nn.Tanh(), nn.Linear(3, 3)).to(dtype)


def labelled(dtype: torch.dtype = torch.float64) -> tuple[Tensor, Tensor]:
    x = torch.randn(40, 4, dtype=torch.float64, generator=torch.Generator().manual_seed(5))
    return x.to(dtype), (x[:, 0] > 0).long() + (x[:, 1] > 0.5).long()


def fitted(network: nn.Module, **options: Any) -> whence.Laplace:
    dtype = next(network.parameters()).dtype
    return whence.laplace(network, labelled(dtype), likelihood="classification", progress=False, **options)


def drawn(posterior: whence.Laplace, num_samples: int = 6) -> whence.Unstructured:
    generator = torch.Generator().manual_seed(0)
    data = labelled(posterior.network.dtype)
    return posterior.unstructured(data, num_samples=num_samples, generator=generator, progress=False)


def masked(network: nn.Module, count: int, last: bool = False) -> dict[str, Tensor]:
    """The first or last weights of the first layer."""
    masks = {n: torch.zeros(p.shape, dtype=torch.bool) for n, p in network.named_parameters()}
    flat = masks["0.weight"].view(-1)
    flat[slice(-count, None) if last else slice(count)] = True
    return masks


# Distances


def test_layers_are_matched_by_name() -> None:
    posterior = fitted(small())
    draws, x = drawn(posterior), labelled()[0]
    wanted = {row.name: row.structured for row in draws.distance(x).layers}
    turned = replace(draws, groups=dict(reversed(draws.groups.items())))
    assert {row.name: row.structured for row in turned.distance(x).layers} == pytest.approx(wanted)
    first, second = draws.groups
    renamed = replace(draws, groups={"other": draws.groups[first], second: draws.groups[second]})
    found = {row.name: row.structured for row in renamed.distance(x).layers}
    assert found == {"other": None, second: pytest.approx(wanted[second])}
    assert all(row.structured is None for row in draws.distance(x, fitted(small(), structure="full")).layers)


def test_another_selection_of_weights_is_refused() -> None:
    network, x = small(), labelled()[0]
    draws = drawn(fitted(network))
    with pytest.raises(BadOption, match=r"'0\.bias' is Bayesian for the draws and not for the structured"):
        draws.distance(x, fitted(network, layers=["2"]))
    with pytest.raises(BadOption, match=r"'0\.bias' is Bayesian for the structured posterior and not for the draws"):
        drawn(fitted(network, layers=["2"])).distance(x, fitted(network))


def test_another_mask_is_refused() -> None:
    network, x = small(), labelled()[0]
    one, other = (fitted(network, structure="full", layers=masked(network, 5, last)) for last in (False, True))
    draws = drawn(one)
    draws.distance(x)
    with pytest.raises(BadOption, match=r"different weights: 5 .* 5 .* with different masks"):
        draws.distance(x, other)
    with pytest.raises(BadOption, match="different weights"):
        draws.distance(x, fitted(network, structure="full", layers=masked(network, 6)))


@pytest.mark.parametrize("what", ["prior precision", "data scale", "likelihood"])
def test_another_model_is_noticed(what: str) -> None:
    posterior, x = fitted(small()), labelled()[0]
    draws = drawn(posterior)
    with warnings.catch_warnings():
        warnings.simplefilter("error", Notice)
        draws.distance(x)
        draws.distance(x, fitted(small(), structure="diag"))
    other = {
        "prior precision": lambda: fitted(small(), prior_precision=3.0),
        "data scale": lambda: replace(posterior, data_scale=0.5),
        "likelihood": lambda: replace(posterior, likelihood=whence.Gaussian(0.3)),
    }[what]()
    with pytest.warns(Notice, match=f"differ in {what}"):
        draws.distance(x, other)


# Files


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_draws_of_half_precision_networks_come_back_whole(tmp_path: Path, dtype: torch.dtype) -> None:
    network = small(dtype=dtype)
    draws = drawn(fitted(network))
    draws.save(tmp_path / "draws.safetensors")
    again = whence.load(tmp_path / "draws.safetensors", network)
    assert again.network.dtype == draws.network.dtype == torch.float32
    for name, value in draws.deviations.items():
        assert again.deviations[name].dtype == torch.float32
        assert torch.equal(again.deviations[name], value)
    x = labelled(torch.float32)[0]
    assert torch.equal(again.predict(x).probs, draws.predict(x).probs)
    assert next(network.parameters()).dtype == dtype


def test_weights_outside_a_mask_are_not_counted(tmp_path: Path) -> None:
    network = small()
    posterior = fitted(network, structure="full", layers=masked(network, 7))
    draws = drawn(posterior)
    assert draws.parameters == posterior.parameters == 7
    assert "of 7 weights" in repr(draws)
    assert draws.covariance().shape == posterior.covariance().shape
    path = tmp_path / "draws.safetensors"
    draws.save(path)
    assert whence.load(path, network).parameters == 7
    with safe_open(str(path), framework="pt") as file:  # as written before the number was kept
        meta = json.loads(file.metadata()["whence"])
        tensors = {key: file.get_tensor(key) for key in file.keys()}  # noqa: SIM118
    del meta["state"]["parameters"]
    save_file(tensors, str(path), metadata={"whence": json.dumps(meta)})
    assert whence.load(path, network).parameters == 7
