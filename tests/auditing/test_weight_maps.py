"""Every weight map shows what its label says: the unit, the channel, the orientation, the quantity."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import whence
from whence.auditing.weight_maps import CHANNELS
from whence.report.page.weight_maps import QUANTITIES, caption, weight_map
from whence.report.record.sections import WeightMap
from whence.where.pixels import input_shape


class Turned(nn.Module):
    """x W + b, with W stored as [inputs, outputs], as in GPT-2."""

    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__()
        self.weight, self.bias = nn.Parameter(torch.randn(inputs, outputs)), nn.Parameter(torch.zeros(outputs))

    def forward(self, x: Tensor) -> Tensor:
        return torch.addmm(self.bias, x, self.weight)


class Shuffled(nn.Module):
    """Entries of the input change places before the first layer reads them."""

    def forward(self, x: Tensor) -> Tensor:
        return x.flatten(1).flip(1)


class Scaled(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return (x - 0.3) / 1.7


def maps(net: nn.Module, x: Tensor, layers: Any = None) -> tuple[dict[str, WeightMap], Any]:
    torch.manual_seed(0)
    y = torch.arange(len(x)) % 3
    posterior = whence.laplace(net, (x, y), likelihood="classification", layers=layers)
    audit = whence.audit(posterior, test=(x, y), sections=["layers", "profile", "maps"], progress=False)
    assert audit.results.maps is not None
    profile: Any = audit.profile_posterior
    return {one.layer: one for one in audit.results.maps}, profile


def made(factory: Callable[[], nn.Module]) -> nn.Module:
    torch.manual_seed(1)
    return factory()


def grid(values: Any) -> np.ndarray:
    return np.array([[math.nan if v is None else v for v in line] for line in values])


def quantities(posterior: Any, name: str) -> dict[str, Tensor]:
    """Each quantity in the shape of the parameter, found without blocks."""
    variance, prior = posterior.variance()[name], posterior.prior_variance()[name]
    mean = posterior.mean()[name]
    return {"weight": mean, "std": variance.sqrt(), "identified": 1 - variance / prior}


def assert_same(found: Any, expected: Tensor) -> None:
    np.testing.assert_allclose(grid(found), expected.double().numpy(), rtol=6e-3, atol=1e-3)


def assert_filters(found: WeightMap, posterior: Any, name: str, filter_of: Callable[[Tensor, int], Tensor]) -> None:
    """Each tile holds the filter of its own number, [channels, h, w], channel by channel from left to right."""
    assert found.kind == "filters"
    values = quantities(posterior, name)
    for tile in found.tiles:
        assert tile.unit is not None
        assert tile.label == f"filter {tile.unit}"
        for key, whole in values.items():
            kernel = filter_of(whole, tile.unit)[:CHANNELS]
            wide, shown = kernel.shape[-1], grid(getattr(tile, key))
            for c, channel in enumerate(kernel):
                assert_same(shown[:, c * (wide + 1) : c * (wide + 1) + wide], channel)
                if c:
                    assert np.isnan(shown[:, c * (wide + 1) - 1]).all()


X = torch.randn(12, 2, 5, 6, generator=torch.Generator().manual_seed(0))


def test_filters() -> None:
    net = made(lambda: nn.Sequential(nn.Conv2d(2, 4, (2, 3)), nn.ReLU(), nn.Flatten(), nn.Linear(64, 3)))
    found, posterior = maps(net, X)
    assert_filters(found["0"], posterior, "0.weight", lambda w, u: w[u])
    assert len(found["0"].tiles) == 4
    assert "kernels of 2 × 3" in found["0"].note


def test_grouped_filters_show_the_channels_of_their_own_group() -> None:
    net = made(lambda: nn.Sequential(nn.Conv2d(2, 6, 2, groups=2), nn.ReLU(), nn.Flatten(), nn.Linear(120, 3)))
    found, posterior = maps(net, X)
    assert_filters(found["0"], posterior, "0.weight", lambda w, u: w[u])
    assert len(found["0"].tiles) == 6


def test_transposed_convolutions() -> None:
    net = made(lambda: nn.Sequential(nn.ConvTranspose2d(2, 3, (2, 3)), nn.ReLU(), nn.Flatten(), nn.Linear(144, 3)))
    found, posterior = maps(net, X)
    assert_filters(found["0"], posterior, "0.weight", lambda w, u: w[:, u])
    assert len(found["0"].tiles) == 3


def test_grouped_transposed_convolutions() -> None:
    net = made(
        lambda: nn.Sequential(
            nn.Conv2d(2, 4, 1), nn.ConvTranspose2d(4, 6, 2, groups=2), nn.ReLU(), nn.Flatten(), nn.Linear(252, 3)
        )
    )
    found, posterior = maps(net, X)
    # of two groups, filter u = 3 g + j reads the input channels 2 g and 2 g + 1
    assert_filters(found["1"], posterior, "1.weight", lambda w, u: w[2 * (u // 3) : 2 * (u // 3) + 2, u % 3])
    assert len(found["1"].tiles) == 6
    assert "input channels of its group" in found["1"].note


def test_one_and_three_dimensions() -> None:
    net = made(lambda: nn.Sequential(nn.Conv1d(2, 3, 4), nn.ReLU(), nn.Flatten(), nn.Linear(81, 3)))
    found, posterior = maps(net, X.flatten(2))
    assert_filters(found["0"], posterior, "0.weight", lambda w, u: w[u][:, None])
    deep = made(lambda: nn.Sequential(nn.Conv3d(1, 3, (2, 2, 3)), nn.ReLU(), nn.Flatten(), nn.Linear(48, 3)))
    found, posterior = maps(deep, X[:, None])
    assert_filters(found["0"], posterior, "0.weight", lambda w, u: w[u].flatten(1, 2))
    assert "depth from top to bottom" in found["0"].note


def test_a_matrix_has_outputs_as_rows_also_where_it_is_stored_by_inputs() -> None:
    net = made(lambda: nn.Sequential(nn.Flatten(), Turned(60, 5), nn.ReLU(), nn.Linear(5, 3)))
    found, posterior = maps(net, X)
    for name, turned in (("1", True), ("3", False)):
        assert found[name].kind == "matrix"
        assert found[name].note == "rows are outputs, columns inputs"
        for key, value in quantities(posterior, f"{name}.weight").items():
            assert_same(getattr(found[name].tiles[0], key), value.T if turned else value)


# Pictures of the inputs


def pictures(net: nn.Module, x: Tensor, layers: Any = None) -> dict[str, WeightMap]:
    return maps(net, x, layers)[0]


def test_pixels_of_a_layer_that_reads_images() -> None:
    net = made(lambda: nn.Sequential(Scaled(), nn.Flatten(), nn.Linear(60, 4), nn.ReLU(), nn.Linear(4, 3)))
    found, posterior = maps(net, X)
    assert found["2"].kind == "pixels"
    assert "in the shape of an input, 2 × 5 × 6, channels one above the other" in found["2"].note
    for tile in found["2"].tiles:
        assert tile.unit is not None
        for key, value in quantities(posterior, "2.weight").items():
            shown = grid(getattr(tile, key))
            assert shown.shape == (11, 6)
            assert_same(shown[:5], value[tile.unit].reshape(2, 5, 6)[0])
            assert np.isnan(shown[5]).all()
            assert_same(shown[6:], value[tile.unit].reshape(2, 5, 6)[1])


def test_channels_that_come_last() -> None:
    net = made(lambda: nn.Sequential(nn.Flatten(), nn.Linear(60, 4), nn.ReLU(), nn.Linear(4, 3)))
    found, posterior = maps(net, X.movedim(1, -1))  # 5 × 6 × 2
    tile = found["1"].tiles[0]
    assert tile.unit is not None
    weight = posterior.mean()["1.weight"][tile.unit].reshape(5, 6, 2)
    assert_same(grid(tile.weight)[:5], weight[..., 0])
    assert_same(grid(tile.weight)[6:], weight[..., 1])


def test_entries_that_were_moved_are_no_pixels() -> None:
    net = made(lambda: nn.Sequential(Shuffled(), nn.Linear(60, 4), nn.ReLU(), nn.Linear(4, 3)))
    assert pictures(net, X)["1"].kind == "matrix"


def test_features_of_the_size_of_an_image_are_no_pixels() -> None:
    net = made(lambda: nn.Sequential(nn.Conv2d(2, 2, 3, padding=1), nn.ReLU(), nn.Flatten(), nn.Linear(60, 3)))
    assert pictures(net, X)["3"].kind == "matrix"
    assert pictures(net, X, layers="last")["3"].kind == "matrix"  # although it is the first of the posterior


@pytest.mark.parametrize("shape", [(60,), (2, 30)])
def test_vectors_are_no_images_and_two_dimensions_keep_their_shape(shape: tuple[int, ...]) -> None:
    net = made(lambda: nn.Sequential(nn.Flatten(), nn.Linear(60, 3)))
    posterior = whence.laplace(net, (X.flatten(1), torch.arange(12) % 3), likelihood="classification")
    expected = None if len(shape) == 1 else shape
    assert input_shape(posterior.network, "1.weight", X.reshape(12, *shape)) == expected


# Colours


def test_a_reduced_matrix_is_labelled_as_magnitudes() -> None:
    net = made(lambda: nn.Sequential(nn.Flatten(), nn.Linear(60, 100), nn.ReLU(), nn.Linear(100, 3)))
    found = pictures(net, X.flatten(1))
    large, small = found["1"], maps(made(lambda: nn.Linear(60, 3)), X.flatten(1))[0].popitem()[1]
    assert large.magnitudes
    assert not small.magnitudes
    weight = np.abs(net[1].weight.detach().double().numpy())  # type: ignore[index]
    assert grid(large.tiles[0].weight).mean() == pytest.approx(weight.mean(), rel=0.02)
    colours = weight_map(large)["colours"]["weight"]
    assert colours["cmin"] == 0
    assert colours["colorbar"]["title"]["text"] == weight_map(large)["names"]["weight"]
    words = "The 100 × 60 weights are too many to show each: the map has 64 × 60 means of neighbouring ones."
    assert caption(large) == f"1.weight: {words} Rows are outputs, columns inputs."
    plain = weight_map(small)["colours"]["weight"]
    assert plain["cmin"] == -plain["cmax"]
    assert plain["colorbar"]["title"]["text"] == QUANTITIES["weight"]


def test_the_figure_does_not_take_features_for_pixels() -> None:
    net = made(lambda: nn.Sequential(nn.Conv2d(2, 2, 3, padding=1), nn.ReLU(), nn.Flatten(), nn.Linear(60, 3)))
    posterior = whence.laplace(net, (X, torch.arange(12) % 3), likelihood="classification", layers="last")
    ax = posterior.where(X).plot_weights("3")
    assert (ax.get_xlabel(), ax.get_ylabel()) == ("column", "row")


def test_the_figure_shows_pixels_of_a_layer_that_reads_them() -> None:
    net = made(lambda: nn.Sequential(nn.Flatten(), nn.Linear(60, 4), nn.ReLU(), nn.Linear(4, 3)))
    posterior = whence.laplace(net, (X, torch.arange(12) % 3), likelihood="classification")
    ax = posterior.where(X).plot_weights("1", of="weight")
    assert {ax.get_xlabel(), ax.get_ylabel()} == {"unit", "input channel"}
