"""Input factors of convolutions without patches are those from patches."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import whence
from tests.comparison import assert_close
from whence.curvature import conv_gram
from whence.curvature.conv_gram import Autocorrelation, ImageRows, image_rows_pay
from whence.curvature.kfac import input_gram
from whence.linalg.dense import mirrored
from whence.recording.layer_input import LayerInput
from whence.recording.patches import conv_patches, pad, padding_of

SHAPES = [(3, 8, 5, 7), (2, 9, 3, 3), (2, 4, 2, 2), (1, 5, 1, 4), (3, 2, 2, 9), (2, 3, 1, 1)]


def summed(pieces: list[Autocorrelation]) -> Tensor:
    """Σ a aᵀ over pieces."""
    size = 9 * pieces[0].x.shape[1] + pieces[0].bias
    total = pieces[0].x.new_zeros(1, size, size)
    for piece in pieces:
        piece.add_gram(total)
    return total


@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_autocorrelation_is_the_gram_matrix_of_patches(shape: tuple[int, ...], bias: bool) -> None:
    x = torch.randn(shape, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    patches = LayerInput(conv_patches(x, (3, 3), 1, 1, 1, 1), True, bias)
    windows = Autocorrelation(x, bias)
    assert_close(summed([windows]), mirrored(input_gram(patches)), 1e-12)
    assert windows.rows == patches.rows


def test_pieces_of_autocorrelation_add_up(set_sizes: Callable[..., None]) -> None:
    set_sizes(rows=100)
    windows = Autocorrelation(torch.randn(7, 3, 5, 5, dtype=torch.float64), True)
    pieces = list(windows.pieces())
    assert len(pieces) == 4
    assert_close(summed(pieces), summed([windows]), 1e-12)
    assert sum(p.rows for p in pieces) == windows.rows


def conv_net(padding: int | str = 1, stride: int = 1, groups: int = 1) -> nn.Sequential:
    torch.manual_seed(0)
    conv = nn.Conv2d(8, 8, 3, padding=padding, stride=stride, groups=groups)
    return nn.Sequential(conv, nn.Tanh(), nn.Conv2d(8, 4, 3, padding=1), nn.Flatten(), nn.LazyLinear(3))


@pytest.mark.parametrize("options", [{}, {"padding": "same"}, {"padding": 0}, {"stride": 2}, {"groups": 2}], ids=str)
@pytest.mark.parametrize("structure", ["kron", "ekfac"])
def test_fits_with_and_without_autocorrelation_agree(
    options: dict, structure: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    x, y = torch.randn(6, 8, 9, 9, dtype=torch.float64), torch.tensor([0, 1, 2, 2, 1, 0])
    model = conv_net(**options).double()
    model(x)
    used = 0

    def count(self: Autocorrelation, out: Tensor, plain=Autocorrelation.add_gram) -> None:
        nonlocal used
        used += 1
        plain(self, out)

    monkeypatch.setattr(Autocorrelation, "add_gram", count)
    fast = whence.laplace(model, (x, y), likelihood="classification", structure=structure)
    assert used == (2 if options in ({}, {"padding": "same"}) else 1)
    monkeypatch.setattr(conv_gram, "autocorrelation_pays", lambda *_: False)
    slow = whence.laplace(model, (x, y), likelihood="classification", structure=structure)
    for ours, theirs in zip(fast.curvature.structures, slow.curvature.structures, strict=True):
        if structure == "kron":
            assert_close(ours.inputs, theirs.inputs, 1e-12)
    assert_close(fast.predict(x).logit_cov, slow.predict(x).logit_cov, 1e-10)


# By image rows


DOUBLE = torch.float64
CASES = [  # shape, kernel, stride, padding
    ((3, 1, 9, 9), (5, 5), (1, 1), 2),
    ((4, 3, 7, 6), (3, 2), (1, 1), 0),
    ((2, 2, 8, 11), (3, 5), (2, 3), 1),
    ((5, 4, 5, 5), (5, 5), (1, 1), 0),
    ((2, 3, 6, 4), (2, 3), (3, 1), "valid"),
    ((2, 3, 6, 5), (4, 3), (1, 1), "same"),
    ((1, 1, 3, 3), (3, 3), (1, 1), 0),
]


def draw(*shape: int) -> Tensor:
    return torch.randn(*shape, dtype=DOUBLE, generator=torch.Generator().manual_seed(0))


@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize(("shape", "kernel", "stride", "padding"), CASES, ids=str)
def test_image_rows_give_the_gram_matrix_of_patches(
    shape: tuple[int, ...], kernel: tuple[int, int], stride: Any, padding: Any, bias: bool, set_sizes: Any
) -> None:
    set_sizes(patches=2 * 8 * shape[1] * shape[2] * shape[3] * kernel[1])  # a few examples at a time
    x = draw(*shape)
    patches = LayerInput(conv_patches(x, kernel, stride, padding, 1, 1), True, bias)
    found = ImageRows(pad(x, padding_of(padding, kernel, (1, 1))), kernel, stride, bias)
    assert found.rows == patches.rows
    wanted = mirrored(input_gram(patches))
    out = torch.ones_like(wanted)
    found.add_gram(out)
    assert_close(out - 1, wanted, 1e-12)
    assert_close(found.squares(), wanted.diagonal(dim1=1, dim2=2), 1e-12)


NETWORKS = {
    "five": lambda: [nn.Conv2d(1, 4, 5, padding=2), nn.Tanh(), nn.MaxPool2d(2), nn.Conv2d(4, 3, 5)],
    "stride": lambda: [nn.Conv2d(1, 4, 5, stride=2, bias=False), nn.Tanh(), nn.Conv2d(4, 3, (3, 2))],
    "reflected": lambda: [nn.Conv2d(1, 3, 5, padding=2, padding_mode="reflect"), nn.Tanh()],
    "others": lambda: [nn.Conv2d(1, 4, 5, dilation=2), nn.Tanh(), nn.Conv2d(4, 4, 3, groups=2)],
}


@pytest.mark.parametrize("options", [{}, {"structure": "ekfac"}, {"sharing": "reduce"}, {"max_factor": 20}], ids=str)
@pytest.mark.parametrize("name", sorted(NETWORKS))
def test_fits_with_and_without_image_rows_agree(
    name: str, options: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    torch.manual_seed(0)
    model = nn.Sequential(*NETWORKS[name](), nn.Flatten(), nn.LazyLinear(3)).double()
    x, y = draw(6, 1, 14, 14), torch.tensor([0, 1, 2, 2, 1, 0])
    model(x)
    used: list[int] = []
    plain = ImageRows._moments

    def seen(self: ImageRows) -> tuple[Tensor, Tensor]:
        used.append(self.kernel[0])
        return plain(self)

    monkeypatch.setattr(ImageRows, "_moments", seen)
    fast = whence.laplace(model, (x, y), likelihood="classification", progress=False, **options)
    expected = options != {"sharing": "reduce"} and name != "others"
    assert bool(used) is expected
    monkeypatch.setattr(conv_gram, "image_rows_pay", lambda *_: False)
    used.clear()
    slow = whence.laplace(model, (x, y), likelihood="classification", progress=False, **options)
    assert not used
    for ours, theirs in zip(fast.curvature.structures, slow.curvature.structures, strict=True):
        for key, value in ours.tensors().items():
            if options.get("structure") != "ekfac":
                assert_close(value, theirs.tensors()[key], 1e-12)
    assert_close(fast.predict(x).logit_cov, slow.predict(x).logit_cov, 1e-10)


def test_when_image_rows_pay() -> None:
    assert image_rows_pay(torch.Size((64, 1, 32, 32)), (5, 5), (1, 1))
    assert image_rows_pay(torch.Size((64, 6, 14, 14)), (5, 5), (1, 1))
    assert not image_rows_pay(torch.Size((64, 3, 230, 230)), (7, 7), (2, 2))  # rows of a large image are long
    assert not image_rows_pay(torch.Size((64, 64, 18, 18)), (3, 3), (1, 1))
    assert not image_rows_pay(torch.Size((64, 6, 14, 14)), (1, 5), (1, 1))
