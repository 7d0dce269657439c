"""Saving and loading."""

from __future__ import annotations

import copy
import json

import pytest
import torch
from safetensors import safe_open
from torch import Tensor, nn

import whence
from tests.comparison import assert_close, fitted
from tests.reference.networks import ALL

STRUCTURES = ["full", "block", "kron", "ekfac", "diag", "lowrank"]
NETWORKS = ["mlp", "conv2d", "cross_attention", "tied_embedding", "lstm", "vit", "batchnorm2d", "flattened_batch"]


@pytest.mark.parametrize("name", NETWORKS)
@pytest.mark.parametrize("structure", STRUCTURES)
def test_round_trip(name: str, structure: str, tmp_path) -> None:
    case = ALL[name](0)
    posterior = fitted(case, structure=structure, prior_precision=0.3, rank=7)
    path = tmp_path / "posterior.safetensors"
    posterior.save(path)
    loaded = whence.load(path, copy.deepcopy(case.model).train())
    assert repr(loaded) == repr(posterior)
    assert loaded.structures == posterior.structures
    assert torch.allclose(loaded.predict(case.x).probs, posterior.predict(case.x).probs, rtol=1e-12, atol=0)
    mine, theirs = (p.sample(3, generator=torch.Generator().manual_seed(0)) for p in (posterior, loaded))
    assert all(torch.allclose(mine[n], theirs[n], rtol=1e-12) for n in mine)
    assert float(loaded.log_evidence()) == pytest.approx(float(posterior.log_evidence()), rel=1e-12)
    if structure not in ("ekfac", "lowrank"):
        more = loaded.update((case.x, case.y))
        again = posterior.update((case.x, case.y))
        assert torch.allclose(more.predict(case.x).probs, again.predict(case.x).probs)


def test_everything_that_was_set_is_kept(tmp_path) -> None:
    case = ALL["mlp"](1)
    path = tmp_path / "p.safetensors"
    prior = {n: torch.rand(p.shape, dtype=torch.float64) + 0.5 for n, p in case.model.named_parameters()}
    mean = {n: torch.randn(p.shape, dtype=torch.float64) for n, p in case.model.named_parameters()}
    posterior = fitted(case, structure="full", prior_precision=prior, prior_mean=mean).with_data_scale(3.0)
    posterior.save(path)
    loaded = whence.load(path, case.model)
    assert loaded.data_scale == 3.0
    assert torch.allclose(loaded.covariance(), posterior.covariance())
    assert float(loaded.log_evidence()) == pytest.approx(float(posterior.log_evidence()))
    tuned = fitted(case).tune((case.x, case.y))
    tuned.save(path)
    assert whence.load(path, case.model).tuning == tuned.tuning
    masked = fitted(case, structure="full", layers=whence.subnetwork(case.model, 9, by="magnitude"))
    masked.save(path)
    assert torch.equal(whence.load(path, case.model).covariance(), masked.covariance())


def test_metadata_is_plain_json(tmp_path) -> None:
    case = ALL["conv2d"](2)
    path = tmp_path / "p.safetensors"
    fitted(case).save(path)
    with safe_open(str(path), framework="pt") as file:
        meta = json.loads(file.metadata()["whence"])
    assert meta["whence"] == whence.__version__
    assert meta["torch"] == torch.__version__
    assert meta["likelihood"]["name"] == "Categorical"
    assert set(meta["names"]) == {n for n, _ in case.model.named_parameters()}
    assert len(meta["weights"]) == 64


def test_your_own_likelihood_is_passed_again(tmp_path) -> None:
    def nll(outputs, targets):
        return 0.5 * (outputs - targets).square().sum(1)

    model = torch.nn.Linear(3, 2)
    data = (torch.randn(8, 3), torch.randn(8, 2))
    posterior = whence.laplace(model, data, likelihood=whence.Custom(nll))
    path = tmp_path / "p.safetensors"
    posterior.save(path)
    with pytest.raises(whence.errors.BadFile, match="likelihood="):
        whence.load(path, model)
    loaded = whence.load(path, model, likelihood=whence.Custom(nll))
    assert torch.equal(loaded.predict(data[0]).variance, posterior.predict(data[0]).variance)


def mlp(inputs: int = 3, outputs: int = 2) -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(inputs, 6), nn.Tanh(), nn.Linear(6, outputs))


def classes(count: int = 24) -> tuple[Tensor, Tensor]:
    return torch.randn(count, 3), torch.arange(count) % 2


def test_loading_for_a_copy_in_another_precision(tmp_path) -> None:
    model, (x, y) = mlp(), classes()
    posterior = whence.laplace(model, (x, y), likelihood="classification")
    posterior.save(tmp_path / "p")
    double = whence.load(tmp_path / "p", copy.deepcopy(model).double())
    assert_close(double.predict(x).probs.float(), posterior.predict(x).probs, 1e-4)


def test_a_buffer_that_forward_changes_does_not_lock_the_file(tmp_path) -> None:
    class Counting(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = mlp()
            self.register_buffer("calls", torch.zeros(()))

        def forward(self, x: Tensor) -> Tensor:
            self.calls += 1
            return self.inner(x)

    model, (x, y) = Counting(), classes()
    posterior = whence.laplace(model, (x, y), likelihood="classification")
    posterior.save(tmp_path / "p")
    assert float(model.calls) == 0
    whence.load(tmp_path / "p", model)
