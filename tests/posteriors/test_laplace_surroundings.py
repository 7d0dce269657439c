"""A fit among hooks, threads, inference mode, other precisions and other users of torch's generator."""

from __future__ import annotations

import copy
import threading
import warnings

import pytest
import torch
from torch import Tensor, nn

import whence
from tests.comparison import assert_close, fitted
from tests.reference.networks import ALL

Notice = whence.errors.Notice


def mlp(inputs: int = 3, outputs: int = 2) -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(inputs, 6), nn.Tanh(), nn.Linear(6, outputs))


def classes(count: int = 24) -> tuple[Tensor, Tensor]:
    return torch.randn(count, 3), torch.arange(count) % 2


def test_backward_hooks_of_training_have_no_part() -> None:
    model, data = mlp(), classes()
    plain = whence.laplace(model, data, likelihood="classification").covariance()
    model[0].register_full_backward_hook(
        lambda module, grad_in, grad_out: tuple(10 * g for g in grad_in if g is not None)
    )
    hooked = whence.laplace(model, data, likelihood="classification").covariance()
    assert torch.equal(plain, hooked)
    assert len(model[0]._backward_hooks) == 1


@pytest.mark.parametrize("structure", ["kron", "ekfac", "full", "diag", "lowrank", "block"])
def test_to_another_precision(structure: str) -> None:
    model, (x, y) = mlp(), classes()
    posterior = whence.laplace(model, (x, y), likelihood="classification", structure=structure)
    double = posterior.to(torch.float64)
    assert double.predict(x.double()).probs.dtype == torch.float64
    assert_close(double.predict(x).probs.float(), posterior.predict(x).probs, 1e-3)


def test_inference_mode_inside_and_outside() -> None:
    model, (x, y) = mlp(), classes()
    wanted = whence.laplace(model, (x, y), likelihood="classification").predict(x).probs
    with torch.inference_mode():
        inside = x * 1.0
        posterior = whence.laplace(model, (inside, y), likelihood="classification")
        probs = posterior.predict(inside).probs
    assert_close(probs.clone(), wanted, 1e-5)
    assert_close(posterior.predict(inside).probs, wanted, 1e-5)
    with torch.no_grad():
        assert_close(posterior.predict(x).probs, wanted, 1e-5)


def test_posteriors_can_be_copied() -> None:
    for name in ("conv2d", "lstm", "cross_attention"):
        case = ALL[name](0)
        posterior = fitted(case)
        assert_close(copy.deepcopy(posterior).predict(case.x).probs, posterior.predict(case.x).probs)


def test_threads_leave_the_fused_attention_on() -> None:
    case = ALL["encoder_layer"](0)
    posterior = fitted(case)
    assert torch.backends.mha.get_fastpath_enabled()
    threads = [threading.Thread(target=lambda: [posterior.predict(case.x) for _ in range(5)]) for _ in range(4)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert torch.backends.mha.get_fastpath_enabled()


def test_an_exact_fit_leaves_the_default_generator_alone() -> None:
    model, data = mlp(), classes()
    torch.manual_seed(7)
    wanted = torch.rand(3)
    torch.manual_seed(7)
    whence.laplace(model, data, likelihood="classification")
    assert torch.equal(torch.rand(3), wanted)


@pytest.mark.parametrize("name", ["lstm", "weight_norm", "encoder_layer", "embedding"])
def test_no_stray_warnings(name: str) -> None:
    case = ALL[name](0)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        warnings.simplefilter("ignore", Notice)
        posterior = whence.laplace(case.model, (case.x, case.y), likelihood="classification")
        posterior.predict(case.x)
        posterior.predict(case.x, method="sampled", num_samples=3)
