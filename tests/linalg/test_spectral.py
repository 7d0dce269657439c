"""Laws that every spectral form and every structure obeys."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import Tensor

from tests.comparison import assert_close
from whence.errors import BadOption, NotPositiveDefinite
from whence.linalg.dense import eigh_psd, gram, psd_root
from whence.linalg.ratios import PerWeight, Ratio, Separable
from whence.linalg.spectral import Spectral, dense
from whence.linalg.structures import Dense, Diagonal, Ekfac, InBasis, Kronecker, LowRank, Structure, Symmetric


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
    v = torch.randn(3, *spectral.native, dtype=torch.float64)
    assert_close(spectral.apply(w, v, rest).flatten(1), v.flatten(1) @ inverse)
    rows = torch.randn(4, 2, *spectral.native, dtype=torch.float64)
    flat = rows.flatten(2)
    assert_close(spectral.quadratic(w, rows, rest), flat @ inverse @ flat.mT)


@pytest.mark.parametrize("kind", KINDS)
def test_colour_has_the_right_covariance(kind: str) -> None:
    spectral, w, rest, inverse, _ = parts(kind)
    eye = torch.eye(spectral.size, dtype=torch.float64).reshape(spectral.size, *spectral.native)
    root = spectral.from_noise(w.sqrt(), eye, rest.sqrt()).flatten(1)
    assert_close(root.mT @ root, inverse)


def ratio_for(native: tuple[int, ...]) -> Ratio:
    if len(native) == 1:
        return PerWeight(torch.rand(native, dtype=torch.float64) + 0.5)
    rows, columns = (torch.rand(native[0], n, dtype=torch.float64) + 0.5 for n in native[1:])
    return Separable(rows, columns)


def relative(kind: str) -> tuple[Spectral, Tensor, Tensor]:
    """A decomposition relative to D, the matrix H, and D."""
    structure, matrix = examples()[kind]
    native = structure.spectral(None, kind).native
    ratio = ratio_for(native)
    d = ratio.dense().flatten()
    if isinstance(structure, InBasis):  # as a fit makes it: the basis is that of D^{-1/2} H D^{-1/2}
        half = ratio.dense().rsqrt().flatten()
        structure = replace(structure, ratio=ratio)
        matrix = matrix / half.unsqueeze(1) / half
        if isinstance(structure, Ekfac):
            left, right = (q * root.rsqrt().unsqueeze(-1) for q, root in
                           ((structure.left, ratio.rows), (structure.right, ratio.columns)))  # fmt: skip
            structure = replace(structure, left=left, right=right)
    return structure.spectral(ratio, kind), matrix, d


@pytest.mark.parametrize("kind", KINDS)
def test_laws_relative_to_a_ratio(kind: str) -> None:
    """(H + δ D)⁻¹ in every form that is asked of it."""
    spectral, matrix, d = relative(kind)
    delta = 10.0
    inverse = torch.linalg.inv(matrix + delta * torch.diag(d))
    w, rest = 1 / (spectral.values + delta), torch.tensor(1 / delta, dtype=torch.float64)
    assert_close(dense(spectral, w, rest), inverse)
    assert_close(spectral.diagonal(w, rest).flatten(), inverse.diagonal())
    rows = torch.randn(4, 2, *spectral.native, dtype=torch.float64)
    flat = rows.flatten(2)
    assert_close(spectral.quadratic(w, rows, rest), flat @ inverse @ flat.mT)
    rooted = spectral.rooted(w.sqrt(), rows, rest.sqrt()).flatten(2)
    assert_close(rooted @ rooted.mT, flat @ inverse @ flat.mT)
    eye = torch.eye(spectral.size, dtype=torch.float64).reshape(spectral.size, *spectral.native)
    root = spectral.from_noise(w.sqrt(), eye.clone(), rest.sqrt()).flatten(1)
    assert_close(root.mT @ root, inverse)
    half = d.rsqrt()
    whitened = half.unsqueeze(1) * matrix * half
    assert_close(spectral.apply_whitened(spectral.values, eye, 0 * rest).flatten(1), whitened)
    one = torch.randn_like(spectral.values)
    inside = spectral.combined(one).flatten()
    assert_close(inside @ (d * inside), one.flatten() @ one.flatten())
    assert_close(inside @ matrix @ inside, (spectral.values * one**2).sum())


@pytest.mark.parametrize("kind", KINDS)
def test_the_diagonal_of_the_curvature_holds_no_prior(kind: str) -> None:
    structure, matrix = examples()[kind]
    assert_close(structure.diagonal().flatten(), matrix.diagonal())


@pytest.mark.parametrize("kind", ["ekfac", "lowrank"])
def test_the_diagonal_in_a_basis_relative_to_a_ratio(kind: str) -> None:
    structure, _ = examples()[kind]
    spectral, matrix, _ = relative(kind)
    ratio = spectral.ratio
    assert ratio is not None
    tensors = {
        "values": spectral.values,
        "left": getattr(spectral, "left", None),
        "right": getattr(spectral, "right", None),
    }
    if kind == "lowrank":
        tensors = {name: getattr(spectral, name) for name in structure.tensors()}
    again = type(structure)(**tensors, ratio=ratio)
    assert_close(again.diagonal().flatten(), matrix.diagonal())


@pytest.mark.parametrize("kind", ["ekfac", "lowrank"])
def test_a_basis_belongs_to_the_prior_of_its_fit(kind: str) -> None:
    structure, _ = examples()[kind]
    native = structure.spectral(None, kind).native
    with pytest.raises(BadOption, match=f"structure='{kind}' was computed relative to the prior of the fit"):
        structure.spectral(ratio_for(native), kind)


def test_a_kronecker_block_takes_a_product_and_nothing_else() -> None:
    structure, matrix = examples()["kron"]
    product = ratio_for((2, 2, 3))
    spectral = structure.spectral(PerWeight(product.dense()), "layer")
    inverse = torch.linalg.inv(matrix + torch.diag(product.dense().flatten()))
    assert_close(dense(spectral, 1 / (spectral.values + 1), torch.ones((), dtype=torch.float64)), inverse)
    with pytest.raises(BadOption, match="must be a product d_o · e_i"):
        structure.spectral(PerWeight(torch.rand(2, 2, 3, dtype=torch.float64) + 0.5), "layer")


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


def test_a_root_does_not_depend_on_the_other_matrices_of_its_batch() -> None:
    good = torch.eye(3) + 0.1
    bad = torch.tensor([[1.0, 1.0, 0.0], [1.0, 1.0 - 3e-6, 0.0], [0.0, 0.0, 1.0]])
    assert torch.linalg.cholesky_ex(bad + 1e-7 * torch.eye(3)).info > 0
    roots = psd_root(torch.stack([good, bad]))
    assert torch.equal(roots[0], psd_root(good[None])[0]) and torch.equal(roots[1], psd_root(bad[None])[0])
    assert_close(roots[1] @ roots[1].mT, bad, 1e-4)


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
