"""What a review found in draws without structure, comparisons over ranks, and ensembles with extra state."""

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
from whence.auditing.spread import check_ranks, fingerprint
from whence.curvature.distributed import Ranks
from whence.errors import BadFile, BadOption, Notice, RanksDiffer
from whence.functional import load_tensors, tensors_of
from whence.posteriors.ensembles import exchange
from whence.posteriors.ensembles.build import Job
from whence.posteriors.ensembles.folder import Folder


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
    with pytest.raises(BadOption, match=r"different weights: 5 .* 5 .* by other masks"):
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


# Ranks


class Pair(Ranks):
    """Rank 0 of two; the other brings a signature of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.size, self.brought = 2, list[Any]()

    @property
    def alone(self) -> bool:
        return False

    def meet(self, doing: str, value: Any = None) -> list[Any]:
        self.brought.append(value)
        return self.brought


def pairs() -> dict[str, tuple[Any, Any]]:
    """Posteriors that read the same, and are not."""
    one, other = fitted(small(0)), fitted(small(1))
    drawn_one = drawn(one)
    moved = {n: v + 1e-3 for n, v in drawn_one.deviations.items()}
    ensembles = [whence.ensemble([small(s), small(s + 1)], likelihood="classification") for s in (0, 5)]
    mixtures = [
        whence.laplace_ensemble(
            [small(s), small(s + 1)], labelled(), likelihood="classification", weights="equal", progress=False
        )
        for s in (0, 5)
    ]
    return {
        "ensemble": (ensembles[0], ensembles[1]),
        "laplace": (one, other),
        "prior": (one, one.with_prior(whence.Relative(1.00002))),
        "data scale": (one, replace(one, data_scale=1.00002)),
        "draws": (drawn_one, replace(drawn_one, deviations=moved)),
        "mixture": (mixtures[0], mixtures[1]),
    }


def test_ranks_with_other_posteriors_are_refused() -> None:
    data = labelled()
    held: Any = type("Held", (), {"inputs": data[0], "targets": data[1]})()

    def both(one: Any, other: Any) -> None:
        ranks = Pair()
        for posterior in (one, other):
            check_ranks(ranks, {"m": posterior}, (data, None), (held, None), ())

    for name, (one, other) in pairs().items():
        assert fingerprint(one) == fingerprint(one.to("cpu")) != fingerprint(other), name
        both(one, one.to("cpu"))
        with pytest.raises(RanksDiffer, match="the digest of the methods" if name == "ensemble" else "is .* for 'm'"):
            both(one, other)


# Extra state


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
    job = Job(factory, data, None, None, (), 0, None)
    sent = tensors_of(first.networks()[0])
    assert set(sent) == {"inner.weight", "inner.bias"}
    model, _ = exchange._loaded(job, 0, sent, [])
    assert torch.equal(model.inner.weight, first.networks()[0].inner.weight)
    assert model.get_extra_state() == {"version": 2}


def test_other_names_are_still_refused(tmp_path: Path) -> None:
    folder = Folder(tmp_path)
    folder.put(0, Extra(), [])
    with pytest.raises(BadFile, match=r"another network: 'weight' is missing"):
        folder.get(0, nn.Linear(4, 3))
    with pytest.raises(RuntimeError, match=r"'more' is unknown"):
        load_tensors(Extra(), tensors_of(Extra()) | {"more": torch.zeros(1)})
    with pytest.raises(BadFile, match="another network"):
        folder.get(0, nn.Sequential(Extra()))
