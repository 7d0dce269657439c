"""Input factors from lines of the input are those from patches."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

import whence
from tests.comparison import assert_close
from whence.curvature import lines, rules
from whence.curvature.affine import Affine
from whence.curvature.lines import Lines, lines_pay
from whence.curvature.patches import conv_patches, pad, padding_of
from whence.linalg.dense import mirrored

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
def test_lines_give_the_gram_matrix_of_patches(
    shape: tuple[int, ...], kernel: tuple[int, int], stride: Any, padding: Any, bias: bool, monkeypatch: Any
) -> None:
    monkeypatch.setattr(lines, "PIECE", 2 * 8 * shape[1] * shape[2] * shape[3] * kernel[1])  # a few examples at a time
    x = draw(*shape)
    patches = Affine(conv_patches(x, kernel, stride, padding, 1, 1), True, bias)
    found = Lines(pad(x, padding_of(padding, kernel, (1, 1))), kernel, stride, bias)
    assert found.rows == patches.rows
    wanted = mirrored(patches.gram())
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
def test_fits_with_and_without_it_agree(name: str, options: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    torch.manual_seed(0)
    model = nn.Sequential(*NETWORKS[name](), nn.Flatten(), nn.LazyLinear(3)).double()
    x, y = draw(6, 1, 14, 14), torch.tensor([0, 1, 2, 2, 1, 0])
    model(x)
    used: list[int] = []
    plain = Lines._moments

    def seen(self: Lines) -> tuple[Tensor, Tensor]:
        used.append(self.kernel[0])
        return plain(self)

    monkeypatch.setattr(Lines, "_moments", seen)
    fast = whence.laplace(model, (x, y), likelihood="classification", progress=False, **options)
    expected = options != {"sharing": "reduce"} and name != "others"
    assert bool(used) is expected
    monkeypatch.setattr(rules, "lines_pay", lambda *_: False)
    used.clear()
    slow = whence.laplace(model, (x, y), likelihood="classification", progress=False, **options)
    assert not used
    for ours, theirs in zip(fast.curvature.structures, slow.curvature.structures, strict=True):
        for key, value in ours.tensors().items():
            if options.get("structure") != "ekfac":
                assert_close(value, theirs.tensors()[key], 1e-12)
    assert_close(fast.predict(x).logit_cov, slow.predict(x).logit_cov, 1e-10)


def test_when_it_pays() -> None:
    assert lines_pay(torch.Size((64, 1, 32, 32)), (5, 5), (1, 1))
    assert lines_pay(torch.Size((64, 6, 14, 14)), (5, 5), (1, 1))
    assert not lines_pay(torch.Size((64, 3, 230, 230)), (7, 7), (2, 2))  # lines of a large image are long
    assert not lines_pay(torch.Size((64, 64, 18, 18)), (3, 3), (1, 1))
    assert not lines_pay(torch.Size((64, 6, 14, 14)), (1, 5), (1, 1))
