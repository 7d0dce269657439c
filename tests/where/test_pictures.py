"""Tables behind the pictures of a whole network and of one input's features, against dense matrices and plain loops."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

import whence
from tests.comparison import assert_close
from whence.errors import BadOption, NotDefined
from whence.where.pictures import chosen, feature_maps, middle, network_picture, normalised, spaced

STRUCTURES = ["full", "block", "kron", "ekfac", "diag", "lowrank"]


def network() -> tuple[nn.Module, Tensor, Tensor]:
    torch.manual_seed(0)
    model = nn.Sequential(
        nn.Conv2d(1, 3, 3), nn.BatchNorm2d(3), nn.ReLU(), nn.Flatten(), nn.Linear(12, 5), nn.Tanh(), nn.Linear(5, 3)
    ).double()  # fmt: skip
    return model.eval(), torch.randn(20, 1, 4, 4, dtype=torch.float64), torch.arange(20) % 3


def fitted(structure: str) -> whence.Laplace:
    model, x, y = network()
    options = {"rank": 6} if structure == "lowrank" else {}
    return whence.laplace(model, (x, y), likelihood="classification", structure=structure, progress=False, **options)


def places(posterior: whence.Laplace, weights: int) -> list[Tensor]:
    """Of the shown weights, in the network's order."""
    starts, at = {}, 0
    for name, p in posterior.network.params.items():
        starts[name], at = at, at + p.numel()
    found = []
    for block in posterior.blocks:
        flat = torch.cat([starts[p.name] + torch.arange(p.numel) for p in block.params])
        found.append(flat[chosen(block, weights)])
    return found


@pytest.mark.parametrize("structure", STRUCTURES)
def test_entries_are_those_of_the_dense_covariance(structure: str) -> None:
    posterior = fitted(structure)
    picture, dense = network_picture(posterior, weights=9), posterior.covariance()
    assert [b.name for b in picture.blocks] == [b.name for b in posterior.blocks]
    for block, which in zip(picture.blocks, places(posterior, 9), strict=True):
        assert_close(block.matrix, normalised(dense[which][:, which]), 1e-7)
        assert block.matrix.diagonal().tolist() == pytest.approx([1.0] * len(which))
        assert (block.factors is None) == (structure != "kron" or "Norm" in block.kind)
    if structure in ("full", "lowrank"):
        every = torch.cat(places(posterior, 9))
        assert picture.across is not None
        assert_close(picture.across, normalised(dense[every][:, every]), 1e-7)
    else:
        assert picture.across is None


@pytest.mark.parametrize("structure", STRUCTURES)
@pytest.mark.parametrize("prior", [whence.Relative(2.0), 0.5])
def test_the_curvature_holds_no_prior(structure: str, prior: object) -> None:
    """(Σ⁻¹ − Δ) of the dense posterior."""
    posterior = fitted(structure) if structure in ("ekfac", "lowrank") else fitted(structure).with_prior(prior)
    precision = torch.linalg.inv(posterior.covariance())
    prior_precision = torch.cat([(1 / v).flatten() for v in posterior.prior_variance().values()])
    curvature = precision - torch.diag(prior_precision)
    picture = network_picture(posterior, "curvature", weights=9)
    for block, which in zip(picture.blocks, places(posterior, 9), strict=True):
        part = curvature[which][:, which]
        known = part.diagonal() > 1e-8 * prior_precision[which].max()
        assert_close(block.matrix[known][:, known], normalised(part)[known][:, known], 1e-5)


def test_the_chosen_weights_are_inputs_of_several_units() -> None:
    posterior = fitted("kron")
    linear = next(b for b in posterior.blocks if b.name == "4")
    rows, columns = chosen(linear, 9) // 12, chosen(linear, 9) % 12
    assert rows.unique().tolist() == [0, 2, 4] and columns.unique().tolist() == [5, 6, 7]
    assert middle(10, 4).tolist() == [3, 4, 5, 6] and middle(3, 9).tolist() == [0, 1, 2]
    assert spaced(9, 3).tolist() == [0, 4, 8] and spaced(2, 5).tolist() == [0, 1]
    with pytest.raises(BadOption, match="covariance"):
        network_picture(posterior, "variance")  # type: ignore[arg-type]
    with pytest.raises(NotDefined):
        network_picture(whence.ensemble([network()[0], network()[0]], likelihood="classification"))


def test_feature_maps_are_means_over_draws() -> None:
    model, x, _ = network()
    posterior = fitted("kron")
    maps = feature_maps(posterior, x, index=2, num_samples=7)
    assert [m.name for m in maps] == ["0", "1", "4", "6"] and maps[0].mean.shape == (3, 2, 2)
    drawn = posterior.sample(7, generator=torch.Generator().manual_seed(0))
    outputs = []
    for s in range(7):
        model.load_state_dict({**model.state_dict(), **{name: value[s] for name, value in drawn.items()}})
        with torch.no_grad():
            outputs.append(model(x[2:3])[0])
    assert_close(maps[-1].mean, torch.stack(outputs).mean(0))
    assert_close(maps[-1].std, torch.stack(outputs).std(0))
    first = torch.stack([nn.functional.conv2d(x[2:3], drawn["0.weight"][s], drawn["0.bias"][s])[0] for s in range(7)])
    assert_close(maps[0].std, first.std(0))


def test_feature_maps_of_posteriors_without_common_units_are_refused() -> None:
    model, x, _ = network()
    ensemble = whence.ensemble([model, network()[0]], likelihood="classification")
    with pytest.raises(NotDefined):
        feature_maps(ensemble, x)
    with pytest.raises(BadOption, match="index=30"):
        feature_maps(fitted("diag"), x, index=30)
