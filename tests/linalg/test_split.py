"""Products of float32 numbers as sums of two bfloat16 ones, on the CPU: the same numbers, without tensor cores."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import whence
from tests.comparison import assert_close
from whence.linalg import dense, split
from whence.predictive import project

ROUNDING = 2.0**-16  # bfloat16 alone has 2⁻⁹


@pytest.fixture(autouse=True)
def small_pieces(set_sizes: Callable[..., None]) -> None:
    set_sizes(split_rows=16, split_products=3 * 4 * 40**2)


def numbers(rows: int, width: int) -> Tensor:
    """Positive ones: what is left out does not cancel."""
    return torch.rand(rows, width, generator=torch.Generator().manual_seed(0)) + 0.1


@pytest.mark.parametrize(("rows", "width"), [(1, 3), (16, 40), (17, 40), (200, 40), (150, 7)])
def test_gram(rows: int, width: int) -> None:
    x = numbers(rows, width)
    assert_close(split.gram(x).double(), x.double().mT @ x.double(), ROUNDING if rows < 100 else 2e-6)


def test_gram_of_another_layout() -> None:
    x = numbers(40, 33)
    assert torch.equal(split.gram(x.mT.contiguous().mT), split.gram(x))


@pytest.mark.parametrize(("rows", "width"), [(5, 3), (64, 20), (100, 40)])
def test_shifted_products(rows: int, width: int) -> None:
    shifts = [0, 1, 7]
    x = torch.cat([numbers(rows, width), torch.zeros(7, width)])
    wide = x.double()
    wanted = torch.stack([wide[:rows].mT @ wide[by : rows + by] for by in shifts])
    assert_close(split.shifted_products(x, rows, shifts).double(), wanted, ROUNDING)


def test_what_it_is_for() -> None:
    x = torch.zeros(2, 2)
    assert not split.gram_pays(x, 2**20, 1024)  # not on a CPU
    assert not split.shifted_pays(x, 1024)


def test_a_fit_by_it_is_the_fit(monkeypatch: pytest.MonkeyPatch) -> None:
    torch.manual_seed(0)
    model = nn.Sequential(
        nn.Conv2d(8, 9, 3, padding=1), nn.ReLU(), nn.Conv2d(9, 4, 3, stride=2), nn.Flatten(), nn.Linear(16, 3)
    )
    data = (torch.randn(30, 8, 6, 6), torch.randint(3, (30,)))
    plain = whence.laplace(model, data, likelihood="classification", progress=False)
    calls = []

    def counted(name: str) -> Callable[..., Tensor]:
        plainly = getattr(split, name)

        def call(*given: Any) -> Tensor:
            calls.append(name)
            return plainly(*given)

        return call

    for name in ("gram", "shifted_products"):
        monkeypatch.setattr(split, name, counted(name))
    monkeypatch.setattr(split, "gram_pays", lambda like, rows, width: width >= 4 and like.dtype == torch.float32)
    monkeypatch.setattr(split, "shifted_pays", lambda like, width: width >= 4 and like.dtype == torch.float32)
    ours = whence.laplace(model, data, likelihood="classification", progress=False)
    assert set(calls) == {"gram", "shifted_products"}
    for a, b in zip(ours.curvature.structures, plain.curvature.structures, strict=True):
        for key, value in a.tensors().items():
            assert_close(value, b.tensors()[key], ROUNDING)
    wide = whence.laplace(model.double(), (data[0].double(), data[1]), likelihood="classification", progress=False)
    assert_close(ours.covariance(), wide.covariance(), 1e-4)


def test_double_precision_is_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(split, "gram", None)
    x = numbers(64, 32).double()
    assert_close(dense.gram(x, coarse=True), x.mT @ x, 1e-14)


@pytest.mark.parametrize("layout", ["rows", "columns", "shared", "narrow"])
def test_product(layout: str) -> None:
    x, y = numbers(3 * 20, 13).reshape(3, 20, 13), numbers(3 * 13, 9).reshape(3, 13, 9)
    if layout == "columns":
        x, y = x.mT.contiguous().mT, y.mT.contiguous().mT
    if layout == "shared":
        y = y[:1].expand(3, -1, -1)
    if layout == "narrow":
        x = x[..., :12][:, ::2]
        y = y[:, :12]
    assert_close(split.product(x, y).double(), x.double() @ y.double(), ROUNDING)
    assert (split.product(x, y) - x.bfloat16().float() @ y.bfloat16().float()).abs().max() > 1e-3  # not bfloat16 alone


def test_small_and_differentiable_products_are_not_split(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(split, "able", lambda like: like.dtype == torch.float32)
    x = torch.empty(1, 1).expand(2**12, 512)
    y = torch.empty(1, 1).expand(512, 512)
    assert split.product_pays(x, y)
    assert not split.product_pays(x, y[:, :32])
    assert not split.product_pays(x[:64], y)
    assert not split.product_pays(x.double(), y.double())
    assert not split.product_pays(x, y.clone().requires_grad_())
    with torch.no_grad():
        assert split.product_pays(x, y.clone().requires_grad_())


@pytest.mark.parametrize("kind", ["tokens", "images"])
def test_answers_by_split_products(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    torch.manual_seed(0)
    if kind == "tokens":
        model: nn.Module = nn.Sequential(nn.Linear(6, 9), nn.Tanh(), nn.Linear(9, 8), nn.Flatten(), nn.Linear(40, 3))
        x = torch.randn(30, 5, 6)
    else:
        model = nn.Sequential(nn.Conv2d(3, 6, 3), nn.ReLU(), nn.Conv2d(6, 5, 2), nn.Flatten(), nn.Linear(45, 3))
        x = torch.randn(30, 3, 6, 6)
    data = (x, torch.randint(3, (30,)))

    def answers() -> tuple[Tensor, ...]:
        posterior = whence.laplace(model, data, likelihood="classification", prior_precision=1.0)
        where = posterior.where(x)
        shares = torch.tensor([row.variance_share for row in where.layers])
        units = torch.cat([torch.tensor([row["variance_share"] for row in where.units(n).rows()]) for n in ("0", "2")])
        score = torch.tensor(posterior.tune(data, progress=False).tuning.score)
        return posterior.predict(x).logit_cov, shares, units, score

    plain = answers()
    counts = {"product": 0}
    product = split.product

    def counted(a: Tensor, b: Tensor) -> Tensor:
        counts["product"] += 1
        return product(a, b)

    monkeypatch.setattr(split, "product", counted)
    monkeypatch.setattr(split, "product_pays", lambda a, b: a.dtype == torch.float32)
    padded: list[int] = []

    def with_zeros(basis: Tensor) -> Tensor:
        padded.append(basis.shape[-1])
        return torch.nn.functional.pad(basis, (0, -basis.shape[-1] % split.ALIGNED))

    monkeypatch.setattr(project, "with_aligned_columns", with_zeros)
    for found, wanted in zip(answers(), plain, strict=True):
        assert_close(found.double(), wanted.double(), 1e-4)
    assert counts["product"] > 4 and any(width % split.ALIGNED for width in padded)
