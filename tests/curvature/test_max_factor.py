"""Kronecker factors that are too large are held as diagonals."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import whence
from whence.errors import BadOption, Notice, TooLarge
from whence.where.curvature import curvature_maps


def quietly(*args: Any, **kwargs: Any) -> Any:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", Notice)
        return whence.laplace(*args, progress=False, **kwargs)


def mlp() -> nn.Module:
    return nn.Sequential(nn.Linear(4, 7), nn.Tanh(), nn.Linear(7, 5), nn.Tanh(), nn.Linear(5, 3)).double()


def convolutions() -> nn.Module:
    grouped = nn.Conv2d(4, 6, 2, groups=2)
    return nn.Sequential(nn.Conv2d(2, 4, 3, padding=1), nn.Tanh(), grouped, nn.Flatten(), nn.Linear(24, 3)).double()


def data_for(network: nn.Module, size: int = 10) -> tuple[Tensor, Tensor]:
    shape = (4,) if isinstance(network[0], nn.Linear) else (2, 3, 3)  # type: ignore[index]
    return torch.randn(size, *shape, dtype=torch.float64), torch.randint(3, (size,))


NETWORKS = {"mlp": mlp, "convolutions": convolutions}


def thinned(factor: Tensor, limit: int) -> Tensor:
    """A factor [E, n, n] as it should be held: whole, or its diagonal alone."""
    return factor if factor.shape[-1] <= limit else torch.diag_embed(factor.diagonal(dim1=-2, dim2=-1))


def dense_covariance(whole: Any, limit: int, delta: float, bias: float) -> list[Tensor]:
    """(G ⊗ A + Δ)⁻¹ of every block, from the factors of an ordinary fit written out."""
    found = []
    for block, s in zip(whole.blocks, whole.curvature.structures, strict=True):
        a, g = thinned(s.mean_input, limit), thinned(s.grads, limit)
        prior = torch.full((block.native[1], block.native[2]), delta, dtype=torch.float64)
        prior[:, -1] = bias
        each = [torch.kron(g[e], a[e]) + torch.diag(prior.flatten()) for e in range(len(a))]
        native = torch.block_diag(*(torch.linalg.inv(m) for m in each))
        order = block.to_flat(torch.arange(block.size).reshape(block.native))
        found.append(native[order][:, order])
    return found


@pytest.mark.parametrize("limit", [3, 4, 5, 6, 100])
@pytest.mark.parametrize("sharing", ["expand", "reduce"])
@pytest.mark.parametrize("network", NETWORKS)
def test_covariance_with_diagonal_factors(network: str, sharing: str, limit: int) -> None:
    model = NETWORKS[network]()
    data = data_for(model)
    options: dict[str, Any] = {"likelihood": "classification", "sharing": sharing}
    whole, found = quietly(model, data, **options), quietly(model, data, max_factor=limit, **options)
    for prior in (2.0, whence.Prior(weight=2.0, bias=0.5)):
        posterior = found.with_prior(prior)
        wanted = dense_covariance(whole, limit, 2.0, 2.0 if isinstance(prior, float) else 0.5)
        torch.testing.assert_close(posterior.covariance(), torch.block_diag(*wanted), rtol=1e-9, atol=1e-11)
        variance = torch.cat([v.flatten() for v in posterior.variance().values()])
        torch.testing.assert_close(variance, torch.block_diag(*wanted).diagonal(), rtol=1e-9, atol=1e-11)


@pytest.mark.parametrize("limit", [3, 4, 6])
@pytest.mark.parametrize("network", NETWORKS)
def test_what_is_made_of_diagonal_factors(network: str, limit: int, tmp_path: Path) -> None:
    model = NETWORKS[network]()
    x, y = data_for(model)
    posterior = quietly(model, (x, y), likelihood="classification", max_factor=limit)
    cov = posterior.covariance()

    jac = []
    params = {n: p.detach() for n, p in model.named_parameters()}
    for row in x[:4]:
        found = torch.func.jacrev(lambda p, row=row: torch.func.functional_call(model, p, row[None])[0])(params)
        jac.append(torch.cat([found[n].flatten(1) for n in params], 1))
    j = torch.stack(jac)
    prediction = posterior.predict(x[:4])
    torch.testing.assert_close(prediction.logit_cov, j @ cov @ j.mT, rtol=1e-8, atol=1e-10)
    joint = posterior.predict(x[:4], joint=True)
    torch.testing.assert_close(joint.covariance, j.flatten(0, 1) @ cov @ j.flatten(0, 1).mT, rtol=1e-8, atol=1e-10)

    for gaussian, _ in posterior.gaussians():  # a draw is a linear map of white noise with M Mᵀ = Σ
        eye = torch.eye(gaussian.spectral.size, dtype=torch.float64)
        m = gaussian.from_noise(eye.clone().reshape(-1, *gaussian.spectral.native)).flatten(1)
        solved = gaussian.solve(eye.reshape(-1, *gaussian.spectral.native)).flatten(1)
        torch.testing.assert_close(m.mT @ m, solved, rtol=1e-9, atol=1e-11)

    where = posterior.where(x[:4])
    assert sum(r.variance_share for r in where.layers) == pytest.approx(1.0)
    for layer in where.layers:
        units = where.units(layer.name)
        assert float(sum(units.to_pandas()["variance_share"])) == pytest.approx(layer.variance_share, rel=1e-8)

    posterior.save(tmp_path / "p.safetensors")
    again = whence.load(tmp_path / "p.safetensors", model)
    assert again.blocks == posterior.blocks
    torch.testing.assert_close(again.covariance(), cov)
    more = posterior.update((x, y), progress=False)
    both = quietly(model, (torch.cat([x, x]), torch.cat([y, y])), likelihood="classification", max_factor=limit)
    torch.testing.assert_close(more.covariance(), both.covariance(), rtol=1e-9, atol=1e-11)
    assert abs(float(posterior.log_evidence())) < 1e6


def test_connections_and_slices_of_diagonal_factors() -> None:
    model = mlp()
    x, y = data_for(model)
    thin = quietly(model, (x, y), likelihood="classification", max_factor=4)
    diagonal = quietly(model, (x, y), likelihood="classification", max_factor=1)
    for posterior in (thin, diagonal):
        where = posterior.where(x[:3])
        share = next(r.variance_share for r in where.layers if r.name == "2")
        table = where.connections("2").to_pandas()
        assert float(table["variance_share"].sum()) == pytest.approx(share, rel=1e-6)
        assert len(where.slices((x, y)).to_pandas())
    maps = {p: curvature_maps(p, "2") for p in (thin, quietly(model, (x, y), likelihood="classification"))}
    held, whole = maps.values()
    for key in ("G", "A"):
        torch.testing.assert_close(held[key], thinned(whole[key], 4), rtol=1e-9, atol=1e-11)


def test_what_is_too_large_is_said() -> None:
    model = mlp()
    data = data_for(model)
    with pytest.warns(Notice, match=r"0 \(Linear\), 2 \(Linear\) got a smaller structure: it has 7 outputs"):
        posterior = whence.laplace(model, data, likelihood="classification", max_factor=6, progress=False)
    said = posterior.structures
    assert said["0"].structure == "kron" and "7 outputs, more than max_factor=6" in said["0"].reason
    assert "8 inputs" in said["2"].reason and said["4"].reason == ""
    assert said["0"].memory < quietly(model, data, likelihood="classification").structures["0"].memory
    ekfac = quietly(model, data, likelihood="classification", structure="ekfac", max_factor=6)
    assert [s.structure for s in ekfac.structures.values()] == ["kron", "kron", "ekfac"]
    with pytest.raises(TooLarge, match="KFRA passes whole factors back"):
        quietly(model, data, likelihood="classification", curvature="kfra", max_factor=6)
    with pytest.raises(BadOption, match="max_factor=0"):
        quietly(model, data, likelihood="classification", max_factor=0)
