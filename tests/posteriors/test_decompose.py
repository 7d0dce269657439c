"""Decompositions all at once give what one at a time gives, in every grouping and on every rank."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

import whence
from whence.errors import NotConverged, NotPositiveDefinite
from whence.linalg import dense
from whence.linalg.ratios import PerWeight, Ratio
from whence.linalg.structures import Dense, Diagonal, Kronecker, LowRank, Structure, Symmetric
from whence.posteriors.laplace import decompose as module
from whence.posteriors.laplace.decompose import cost, decompose


def psd(*shape: int) -> Tensor:
    x = torch.randn(*shape[:-1], 2 * shape[-1], shape[-1], dtype=torch.float64)
    return x.mT @ x


def structures() -> list[Structure]:
    count = torch.tensor([5.0], dtype=torch.float64)
    return [
        Kronecker(psd(1, 4), psd(1, 3), count),
        Diagonal(torch.rand(6, dtype=torch.float64)),
        Kronecker(psd(1, 4), psd(1, 7), count),
        Dense(psd(4)),
        Kronecker(psd(2, 4), psd(2, 3), count.repeat(2)),
        Kronecker(psd(1, 4), torch.rand(1, 9, dtype=torch.float64), count),
        Kronecker(torch.rand(1, 5, dtype=torch.float64), psd(1, 3), count),
        LowRank(torch.rand(2, dtype=torch.float64), torch.linalg.qr(torch.randn(6, 2, dtype=torch.float64))[0]),
        Symmetric(psd(3)),
    ]


def ratios(given: list[Structure]) -> list[Ratio | None]:
    """Two precisions, one for the last column; a basis keeps that of its fit."""
    found: list[Ratio | None] = []
    for s in given:
        native = s.spectral(None, "x").native
        row = torch.ones(native[-1], dtype=torch.float64)
        row[-1] = 0.3
        found.append(None if isinstance(s, LowRank) else PerWeight(row.expand(native).clone()))
    return found


def same(one: Any, other: Any) -> None:
    assert type(one) is type(other)
    eye = torch.eye(one.size, dtype=torch.float64).reshape(one.size, *one.native)
    zero = torch.zeros((), dtype=torch.float64)
    for a, b in ((one, other), (other, one)):
        torch.testing.assert_close(a.apply(a.values, eye, zero), b.apply(b.values, eye, zero), rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("together", [2**30, 200, 1])
@pytest.mark.parametrize("prior", ["one", "two"])
def test_all_at_once_is_each_alone(together: int, prior: str, set_sizes: Any) -> None:
    set_sizes(decomposition=together)
    given = structures()
    by = [None] * len(given) if prior == "one" else ratios(given)
    names = [f"layer {i}" for i in range(len(given))]
    found = decompose(given, by, names)
    for s, ratio, spectral in zip(given, by, found, strict=True):
        same(spectral, s.spectral(ratio, "alone"))


def test_equal_shapes_go_into_one_call(monkeypatch: pytest.MonkeyPatch, set_sizes: Callable[..., None]) -> None:
    """As on a GPU, where that pays."""
    calls: list[torch.Size] = []
    eigh = torch.linalg.eigh

    def counted(matrix: Tensor) -> Any:
        calls.append(matrix.shape)
        return eigh(matrix)

    monkeypatch.setattr(Tensor, "is_cuda", property(lambda self: True))
    set_sizes(on_cpu=0)
    monkeypatch.setattr(dense.torch.linalg, "eigh", counted)
    given = [psd(4), psd(2, 4), psd(1, 4), psd(3), psd(1, 600)]
    found = dense.eigh_many(given, list("abcde"))
    assert sorted(calls) == [torch.Size([1, 3, 3]), torch.Size([1, 600, 600]), torch.Size([4, 4, 4])]
    for matrix, (values, vectors) in zip(given, found, strict=True):
        assert vectors.shape == matrix.shape
        torch.testing.assert_close((vectors * values.unsqueeze(-2)) @ vectors.mT, matrix, rtol=1e-9, atol=1e-9)


def test_the_bad_one_of_many_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Tensor, "is_cuda", property(lambda self: True))
    with pytest.raises(NotPositiveDefinite, match=r"second: .* negative eigenvalue"):
        dense.eigh_many([psd(4), -psd(2, 4), psd(4)], ["first", "second", "third"])
    broken = psd(2, 4)
    broken[1, 0, 0] = torch.nan
    with pytest.raises(NotPositiveDefinite, match=r"third: .* NaN"):
        dense.eigh_many([psd(4), psd(4), broken], ["first", "second", "third"])


@pytest.mark.parametrize("how", ["raises", "returns nonsense", "returns NaN"])
def test_float64_where_float32_fails(how: str, monkeypatch: pytest.MonkeyPatch, set_sizes: Callable[..., None]) -> None:
    eigh, types = torch.linalg.eigh, []

    def fails(matrix: Tensor) -> Any:
        types.append(matrix.dtype)
        if matrix.dtype == torch.float64:
            return eigh(matrix)
        if how == "raises":
            raise torch.linalg.LinAlgError("the algorithm failed to converge")
        values, vectors = eigh(matrix)
        return (values * 2, vectors) if how == "returns nonsense" else (values, vectors * torch.nan)

    set_sizes(double=2)
    monkeypatch.setattr(dense.torch.linalg, "eigh", fails)
    matrix = psd(5).float()
    values, vectors = dense.eigh_psd(matrix, "layer")
    assert types == [torch.float32, torch.float64]
    assert vectors.dtype == torch.float32
    torch.testing.assert_close((vectors * values) @ vectors.mT, matrix, rtol=1e-4, atol=1e-4)


def test_the_cpu_decomposes_what_a_gpu_has_no_room_for(
    monkeypatch: pytest.MonkeyPatch, set_sizes: Callable[..., None]
) -> None:
    eigh, failed = torch.linalg.eigh, []

    def fails(matrix: Tensor) -> Any:
        if not failed:
            failed.append(matrix.shape)
            raise torch.OutOfMemoryError("CUDA out of memory.")
        return eigh(matrix)

    monkeypatch.setattr(dense.torch.linalg, "eigh", fails)
    matrix = psd(5)
    with pytest.raises(torch.OutOfMemoryError):
        dense.eigh_psd(matrix, "on the CPU")
    failed.clear()
    set_sizes(on_cpu=0)
    monkeypatch.setattr(Tensor, "is_cuda", property(lambda self: True))
    values, vectors = dense.eigh_psd(matrix, "layer")
    assert failed
    torch.testing.assert_close((vectors * values) @ vectors.mT, matrix, rtol=1e-9, atol=1e-9)


def test_no_convergence_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(matrix: Tensor) -> Any:
        raise torch.linalg.LinAlgError("the algorithm failed to converge")

    monkeypatch.setattr(dense.torch.linalg, "eigh", fails)
    with pytest.raises(NotConverged, match=r"layer 3: .* did not converge"):
        dense.eigh_psd(psd(4), "layer 3")


class Shared:
    """A share of several threads, which exchange through a table."""

    def __init__(self, rank: int, size: int, sent: dict[int, list[Tensor]], barrier: threading.Barrier) -> None:
        self.rank, self.size, self.sent, self.barrier, self.round = rank, size, sent, barrier, 0

    def assign(self, costs: list[float]) -> list[int]:
        return [i % self.size for i in range(len(costs))]

    def exchange(self, owner: int, tensors: list[Tensor]) -> list[Tensor]:
        if owner == self.rank:
            self.sent[self.round] = [t.clone() for t in tensors]
        self.barrier.wait(30)
        found = [t.clone() for t in self.sent[self.round]]
        assert [t.shape for t in found] == [t.shape for t in tensors], "shapes are known to all"
        self.round += 1
        return found


def test_ranks_share_the_work_and_end_with_the_same_bits(monkeypatch: pytest.MonkeyPatch) -> None:
    given, results, done = structures(), {}, {0: 0, 1: 0}
    many, sent, barrier = dense.eigh_many, {}, threading.Barrier(2)

    def counted(matrices: list[Tensor], names: list[str]) -> Any:
        done[int(threading.current_thread().name)] += len(matrices)
        return many(matrices, names)

    monkeypatch.setattr(module, "eigh_many", counted)

    def rank(r: int) -> None:
        share: Any = Shared(r, 2, sent, barrier)
        results[r] = decompose(given, [None] * len(given), ["x"] * len(given), share)

    threads = [threading.Thread(target=rank, args=(r,), name=str(r)) for r in (0, 1)]
    [t.start() for t in threads]
    [t.join(60) for t in threads]
    assert sum(done.values()) == sum(len(s.factors(None, "x")) for s in given), "each was found once"
    for s, a, b in zip(given, results[0], results[1], strict=True):
        assert all(torch.equal(v, vars(b)[k]) for k, v in vars(a).items() if isinstance(v, Tensor))
        same(a, s.spectral(None, "alone"))


def test_cost_counts_rows_cubed() -> None:
    assert cost(structures()[0]) == 4**3 + 3**3
    assert cost(structures()[4]) == 2 * (4**3 + 3**3)
    assert cost(structures()[1]) == 0


def test_a_fit_decomposes_once_and_says_how_long_it_took(monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[int] = []
    many = dense.eigh_many

    def counted(matrices: list[Tensor], names: list[str]) -> Any:
        calls.append(len(matrices))
        return many(matrices, names)

    monkeypatch.setattr(module, "eigh_many", counted)
    model = torch.nn.Sequential(torch.nn.Linear(4, 5), torch.nn.Tanh(), torch.nn.Linear(5, 3))
    data = (torch.randn(20, 4), torch.randint(3, (20,)))
    posterior = whence.laplace(model, data, likelihood="classification")
    posterior.predict(data[0])
    posterior.with_prior(whence.Relative(3.0)).sample(2)
    assert calls == [4]
    posterior.with_prior(whence.Prior(weight=1.0, bias=2.0)).sample(2)
    assert calls == [4, 4]
    assert set(posterior.curvature.seconds) >= {"curvature", "decomposition"}
