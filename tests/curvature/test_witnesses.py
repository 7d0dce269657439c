"""Outside witnesses: BackPACK and curvlinops, on networks that they support."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import whence
from tests.comparison import assert_close
from whence.posteriors.laplace.covariance import network_order

backpack = pytest.importorskip("backpack")
curvlinops = pytest.importorskip("curvlinops")


def lenet() -> tuple[nn.Module, torch.Tensor, torch.Tensor]:
    torch.manual_seed(0)
    model = nn.Sequential(
        nn.Conv2d(1, 3, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(3, 4, 3), nn.Tanh(), nn.Flatten(),
        nn.Linear(16, 6), nn.ReLU(), nn.Linear(6, 3),
    ).double()  # fmt: skip
    return model, torch.randn(7, 1, 8, 8, dtype=torch.float64), torch.randint(3, (7,))


def mlp() -> tuple[nn.Module, torch.Tensor, torch.Tensor]:
    torch.manual_seed(1)
    model = nn.Sequential(nn.Linear(5, 6), nn.Tanh(), nn.Linear(6, 4), nn.ReLU(), nn.Linear(4, 3)).double()
    return model, torch.randn(9, 5, dtype=torch.float64), torch.randint(3, (9,))


@pytest.mark.parametrize("build", [mlp, lenet])
def test_backpack_exact_diagonal(build) -> None:
    from backpack.extensions import DiagGGNExact

    model, x, y = build()
    posterior = whence.laplace(model, (x, y), likelihood="classification", structure="diag", prior_precision=1.0)
    witness = backpack.extend(model)
    loss = backpack.extend(nn.CrossEntropyLoss(reduction="sum"))(witness(x), y)
    with backpack.backpack(DiagGGNExact()):
        loss.backward()
    variance = posterior.variance()
    for name, p in model.named_parameters():
        assert_close(variance[name], 1 / (p.diag_ggn_exact + 1))


@pytest.mark.parametrize("build", [mlp, lenet])
def test_backpack_kronecker_gradient_factor(build) -> None:
    """BackPACK's KFLR holds Σ g gᵀ as we do; it splits weight and bias, and averages A differently for convolution."""
    from backpack.extensions import KFLR

    model, x, y = build()
    posterior = whence.laplace(model, (x, y), likelihood="classification")
    witness = backpack.extend(model)
    loss = backpack.extend(nn.CrossEntropyLoss(reduction="sum"))(witness(x), y)
    with backpack.backpack(KFLR()):
        loss.backward()
    modules = dict(model.named_modules())
    for block, structure in zip(posterior.blocks, posterior.curvature.structures, strict=True):
        if isinstance(modules[block.name], nn.Linear):
            g, a = modules[block.name].weight.kflr
            assert_close(structure.grads[0], g)
            assert_close(structure.mean_input[0][:-1, :-1], a)


@pytest.mark.parametrize("build", [mlp, lenet])
def test_curvlinops_ggn(build) -> None:
    model, x, y = build()
    posterior = whence.laplace(model, (x, y), likelihood="classification", structure="full")
    params = list(model.parameters())
    operator = curvlinops.GGNLinearOperator(model, nn.CrossEntropyLoss(reduction="sum"), params, [(x, y)])
    size = sum(p.numel() for p in params)
    dense = operator @ torch.eye(size, dtype=torch.float64)
    order = network_order(posterior)
    assert_close(posterior.curvature.structures[0].matrix[order][:, order], torch.as_tensor(dense).detach())


@pytest.mark.parametrize("approx", ["expand", "reduce"])
def test_curvlinops_kfac(approx: str) -> None:
    model, x, y = lenet()
    posterior = whence.laplace(model, (x, y), likelihood="classification", sharing=approx, prior_precision=1.0)
    operator = curvlinops.KFACLinearOperator(
        model,
        nn.CrossEntropyLoss(reduction="sum"),
        list(model.parameters()),
        [(x, y)],
        fisher_type="type-2",
        kfac_approx=approx,
        separate_weight_and_bias=False,
    )
    size = sum(p.numel() for p in model.parameters())
    theirs = torch.as_tensor(operator @ torch.eye(size, dtype=torch.float64)).detach()
    precision = torch.linalg.inv(posterior.covariance()) - torch.eye(size, dtype=torch.float64)
    assert_close(precision, theirs, 1e-6)
