"""Laws that every spectral form and every structure obeys."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from tests.comparison import assert_close
from whence.errors import NotPositiveDefinite
from whence.linalg.dense import eigh_psd, gram, psd_root
from whence.linalg.spectral import Spectral, dense
from whence.linalg.structures import Dense, Diagonal, Ekfac, Kronecker, LowRank, Structure, Symmetric


def psd(size: int, *batch: int, rank: int | None = None) -> Tensor:
    x = torch.randn(*batch, rank or size + 2, size, dtype=torch.float64)
    return x.mT @ x


def kron_dense(structure: Kronecker) -> Tensor:
    blocks = [torch.kron(g, a) for g, a in zip(structure.grads, structure.mean_input, strict=True)]
    return torch.block_diag(*blocks)


def examples() -> dict[str, tuple[Structure, Tensor]]:
    """Each structure, and the matrix that it stands for in the row-major order of its native shape."""
    torch.manual_seed(0)
    h = psd(6)
    kron = Kronecker(5 * psd(3, 2), psd(2, 2), torch.tensor([5.0, 5.0], dtype=torch.float64))
    basis = torch.linalg.qr(torch.randn(6, 3, dtype=torch.float64))[0]
    values = torch.tensor([3.0, 2.0, 0.5], dtype=torch.float64)
    left, right = torch.linalg.eigh(psd(2, 1))[1], torch.linalg.eigh(psd(3, 1))[1]
    table = torch.rand(1, 2, 3, dtype=torch.float64)
    q = torch.kron(left[0], right[0])
    return {
        "diagonal": (Diagonal(h.diagonal()), torch.diag(h.diagonal())),
        "dense": (Dense(h), h),
        "hessian": (Symmetric(h - 2 * torch.eye(6, dtype=torch.float64)), h - 2 * torch.eye(6, dtype=torch.float64)),
        "kron": (kron, kron_dense(kron)),
        "ekfac": (Ekfac(table, left, right), q @ torch.diag(table.flatten()) @ q.mT),
        "lowrank": (LowRank(values, basis), basis @ torch.diag(values) @ basis.mT),
    }


KINDS = sorted(examples())


def parts(kind: str) -> tuple[Spectral, Tensor, Tensor, Tensor, Tensor]:
    structure, matrix = examples()[kind]
    spectral = structure.spectral(None, kind)
    shift = 10.0
    w = 1 / (spectral.values + shift)
    rest = torch.tensor(1 / shift, dtype=torch.float64)
    inverse = torch.linalg.inv(matrix + shift * torch.eye(len(matrix), dtype=torch.float64))
    return spectral, w, rest, inverse, matrix


@pytest.mark.parametrize("kind", KINDS)
def test_functions_of_the_matrix(kind: str) -> None:
    spectral, w, rest, inverse, _ = parts(kind)
    assert_close(dense(spectral, w, rest), inverse)
    assert_close(spectral.diagonal(w, rest).flatten(), inverse.diagonal())
    assert_close(spectral.trace(w, rest), inverse.trace())
    v = torch.randn(3, *spectral.native, dtype=torch.float64)
    assert_close(spectral.apply(w, v, rest).flatten(1), v.flatten(1) @ inverse)
    rows = torch.randn(4, 2, *spectral.native, dtype=torch.float64)
    flat = rows.flatten(2)
    assert_close(spectral.quadratic(w, rows, rest), flat @ inverse @ flat.mT)


@pytest.mark.parametrize("kind", KINDS)
def test_colour_has_the_right_covariance(kind: str) -> None:
    spectral, w, rest, inverse, _ = parts(kind)
    eye = torch.eye(spectral.size, dtype=torch.float64).reshape(spectral.size, *spectral.native)
    root = spectral.colour(w.sqrt(), eye, rest.sqrt()).flatten(1)
    assert_close(root.mT @ root, inverse)


@pytest.mark.parametrize("kind", sorted(set(KINDS) - {"ekfac"}))
def test_a_ratio_is_a_change_of_the_prior(kind: str) -> None:
    structure, matrix = examples()[kind]
    native = structure.spectral(None, kind).native
    ratio = torch.rand(native[-1:], dtype=torch.float64).add(0.5).expand(native).contiguous()
    spectral = structure.spectral(ratio, kind)
    half = ratio.flatten().rsqrt()
    rest = torch.tensor(0.1, dtype=torch.float64)
    got = half.unsqueeze(1) * dense(spectral, 1 / (spectral.values + 10), rest) * half
    assert_close(got, torch.linalg.inv(matrix + 10 * torch.diag(ratio.flatten())))


@pytest.mark.parametrize("kind", ["diagonal", "dense", "kron"])
def test_structures_add_up(kind: str) -> None:
    structure, matrix = examples()[kind]
    double = structure.merged(structure)
    spectral = double.spectral(None, kind)
    assert_close(dense(spectral, spectral.values, torch.zeros((), dtype=torch.float64)), 2 * matrix)
    scaled = structure.scaled(0.3).spectral(None, kind)
    assert_close(dense(scaled, scaled.values, torch.zeros((), dtype=torch.float64)), 0.3 * matrix)
    again = structure.replaced(structure.tensors())
    assert all(torch.equal(a, b) for a, b in zip(again.tensors().values(), structure.tensors().values(), strict=True))


@pytest.mark.parametrize("width", [3, 383, 400, 801])
def test_gram(width: int) -> None:
    x = torch.randn(20, width, dtype=torch.float64)
    assert_close(gram(x), x.T @ x, 1e-12)


def test_negative_eigenvalues_are_refused_and_rounding_is_not() -> None:
    with pytest.raises(NotPositiveDefinite, match="layer seven"):
        eigh_psd(torch.diag(torch.tensor([1.0, -0.1])), "layer seven")
    with pytest.raises(NotPositiveDefinite, match="NaN"):
        eigh_psd(torch.full((2, 2), float("nan")), "layer seven")
    values, _ = eigh_psd(psd(8, rank=2).float(), "layer seven")
    assert float(values.min()) >= 0


def test_root_of_a_singular_matrix() -> None:
    matrix = psd(5, 3, rank=2)
    root = psd_root(matrix)
    assert_close(root @ root.mT, matrix, 1e-6)
    zero = psd_root(torch.zeros(2, 3, 3))
    assert float(zero.abs().max()) < 1e-10


def test_a_long_gram_keeps_its_digits() -> None:
    x = torch.randn(400_000, 4) + 1
    wanted = x.double().T @ x.double()
    assert_close(gram(x).double(), wanted, 1e-5)
