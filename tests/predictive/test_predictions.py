"""Links, splits, intervals, gradients and draws."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

import whence
from tests.comparison import assert_close, bayesian, fitted
from tests.reference import curvature as slow
from tests.reference import posterior as slow_posterior
from tests.reference.networks import ALL
from whence.predictive import linearised


def moments(case, posterior):
    jac = slow.jacobian(case.model, bayesian(case), case.x)
    return slow.outputs(case.model, case.x), slow_posterior.linearised_covariance(jac, posterior.covariance())


@pytest.mark.parametrize("name", ["mlp", "conv2d", "self_attention", "tied_embedding", "lstm"])
def test_links(name: str) -> None:
    case = ALL[name](0)
    posterior = fitted(case, prior_precision=0.5)
    mean, cov = moments(case, posterior)
    assert_close(posterior.predict(case.x, link="probit").probs, slow_posterior.probit_softmax(mean, cov))
    assert_close(posterior.predict(case.x, link="bridge").probs, slow_posterior.bridge_softmax(mean, cov), 1e-7)
    wanted = slow_posterior.softmax_monte_carlo(mean, cov, draws=200_000)
    got = posterior.predict(case.x, num_samples=4096).probs
    assert float((got - wanted).abs().max()) < 0.01


def test_binary_links() -> None:
    case = ALL["multilabel_head"](0)
    posterior = fitted(case, prior_precision=0.5)
    mean, cov = moments(case, posterior)
    assert_close(posterior.predict(case.x, link="probit").probs, slow_posterior.probit_sigmoid(mean, cov))
    wanted = slow_posterior.sigmoid_monte_carlo(mean, cov, draws=200_000)
    assert float((posterior.predict(case.x, num_samples=4096).probs - wanted).abs().max()) < 0.01
    with pytest.raises(whence.errors.BadOption, match="several classes"):
        posterior.predict(case.x, link="bridge")


@pytest.mark.parametrize("method", ["linearised", "sampled"])
@pytest.mark.parametrize("name", ["mlp", "multilabel_head"])
def test_total_is_aleatoric_plus_epistemic(name: str, method: str) -> None:
    case = ALL[name](1)
    prediction = fitted(case).predict(case.x, method=method)
    assert_close(prediction.entropy, prediction.aleatoric + prediction.epistemic)
    assert bool((prediction.epistemic > -1e-12).all())
    assert_close(prediction.probs, prediction.samples.mean(0))
    low, high = prediction.interval(0.9)
    inside = ((prediction.samples >= low) & (prediction.samples <= high)).double().mean(0)
    assert float(inside.min()) > 0.87
    assert float(inside.max()) < 0.93


def test_linearised_predict_is_a_function_of_x() -> None:
    case = ALL["mlp"](2)
    posterior = fitted(case)
    torch.manual_seed(1)
    first = posterior.predict(case.x).probs
    torch.manual_seed(2)
    assert torch.equal(posterior.predict(case.x).probs, first)


@pytest.mark.parametrize("name", ["regression_1", "regression_2"])
def test_regression(name: str) -> None:
    case = ALL[name](3)
    posterior = fitted(case)
    mean, cov = moments(case, posterior)
    prediction = posterior.predict(case.x)
    wanted_mean, wanted_variance = slow_posterior.gaussian_predictive(mean, cov, 0.7)
    assert_close(prediction.mean, wanted_mean)
    assert_close(prediction.variance, wanted_variance)
    low, high = prediction.interval(0.95)
    assert_close((high - low) / 2, 1.959963984540054 * prediction.std, 1e-6)
    drawn = posterior.predict(case.x, method="sampled", num_samples=2000)
    low, high = drawn.interval(0.9)
    noise = 0.7 * torch.randn(2000, *drawn.mean.shape, generator=torch.Generator().manual_seed(0)).double()
    targets = drawn.samples + noise
    inside = ((targets >= low) & (targets <= high)).double().mean(0)
    assert float((inside - 0.9).abs().max()) < 0.03


def test_counts() -> None:
    case = ALL["poisson"](4)
    posterior = fitted(case, prior_precision=5.0)
    mean, cov = moments(case, posterior)
    prediction = posterior.predict(case.x, num_samples=2048)
    variance = cov.diagonal(dim1=1, dim2=2)
    assert_close(prediction.mean, (mean + variance / 2).exp())
    assert_close(prediction.samples.mean(0), prediction.mean, 0.05)
    low, high = prediction.interval(0.9)
    counts = torch.poisson(prediction.samples, generator=torch.Generator().manual_seed(0))
    inside = ((counts >= low) & (counts <= high)).double().mean(0)
    assert float(inside.min()) > 0.88


@pytest.mark.parametrize("method", ["linearised", "sampled"])
def test_heteroscedastic_follows_the_law_of_total_variance(method: str) -> None:
    case = ALL["heteroscedastic"](5)
    prediction = fitted(case, prior_precision=5.0).predict(case.x, method=method)
    assert_close(prediction.variance, prediction.aleatoric + prediction.epistemic)
    tolerance = 1e-8 if method == "sampled" else 0.05  # linearised: a closed form, and draws for quantiles
    assert_close(prediction.aleatoric, prediction.noise_samples.mean(0), tolerance)
    assert_close(prediction.epistemic, prediction.samples.var(0, correction=0), tolerance)


def test_linearised_noise_of_a_heteroscedastic_network_is_log_normal() -> None:
    """E[σ²] = exp(m + v/2) and Var[μ] = v in closed form, under a prior so weak that draws would miss it."""
    case = ALL["heteroscedastic"](5)
    posterior = fitted(case, prior_precision=0.02)
    prediction, found = posterior.predict(case.x), linearised.moments(posterior, case.x)
    size = found.mean.shape[-1] // 2
    variance = found.cov.diagonal(dim1=-2, dim2=-1)
    assert_close(prediction.aleatoric, (found.mean[:, size:] + variance[:, size:] / 2).exp())
    assert_close(prediction.epistemic, variance[:, :size])
    assert_close(prediction.mean, found.mean[:, :size])
    assert_close(prediction.covariance, found.cov[:, :size, :size])


@pytest.mark.parametrize("method", ["linearised", "sampled"])
def test_counts_show_their_log_rates(method: str) -> None:
    case = ALL["poisson"](5)
    posterior = fitted(case, prior_precision=5.0)
    prediction, found = posterior.predict(case.x, method=method), linearised.moments(posterior, case.x)
    if method == "linearised":
        assert_close(prediction.log_rate_mean, found.mean)
        assert_close(prediction.log_rate_variance, found.cov.diagonal(dim1=-2, dim2=-1))
        assert_close(prediction.mean, (prediction.log_rate_mean + prediction.log_rate_variance / 2).exp())
    else:
        assert_close(prediction.log_rate_mean, prediction.samples.log().mean(0), 1e-6)
        assert_close(prediction.log_rate_variance, prediction.samples.log().var(0, correction=0), 1e-6)


@pytest.mark.parametrize("name", ["mlp", "conv2d", "self_attention", "batchnorm2d", "prelu", "bare_parameters"])
@pytest.mark.parametrize("structure", ["kron", "diag", "full"])
def test_gradients_with_respect_to_the_inputs(name: str, structure: str) -> None:
    case = ALL[name](6)
    if not isinstance(case.x, torch.Tensor) or not case.x.is_floating_point():
        pytest.skip("needs one tensor of numbers as input")
    posterior = fitted(case, structure=structure)
    x = case.x[:2].clone().requires_grad_()
    (grad,) = torch.autograd.grad(posterior.predict(x).epistemic.sum(), x)
    direction = torch.randn(x.shape, generator=torch.Generator().manual_seed(0), dtype=x.dtype)
    step = 1e-5
    up = posterior.predict(x.detach() + step * direction).epistemic.sum()
    down = posterior.predict(x.detach() - step * direction).epistemic.sum()
    numeric = float(up - down) / (2 * step)
    assert float((grad * direction).sum()) == pytest.approx(numeric, rel=2e-4, abs=1e-8)


def test_gradients_through_the_sampled_prediction() -> None:
    case = ALL["mlp"](6)
    posterior = fitted(case)
    x = case.x.clone().requires_grad_()
    prediction = posterior.predict(x, method="sampled", num_samples=5, generator=torch.Generator().manual_seed(0))
    (grad,) = torch.autograd.grad(prediction.entropy.sum(), x)
    assert float(grad.norm()) > 0


@pytest.mark.parametrize("name", ["mlp", "conv_transpose2d", "embedding", "lstm", "multi_input", "mapping_input"])
def test_draws_are_functions_and_can_be_reused(name: str) -> None:
    case = ALL[name](7)
    posterior = fitted(case)
    draws = posterior.draw(4, generator=torch.Generator().manual_seed(0))
    assert len(draws) == 4
    together = draws.outputs(case.x)
    for s, function in enumerate(draws):
        assert_close(function(case.x), together[s])
    weights = posterior.sample(4, generator=torch.Generator().manual_seed(0))
    one = torch.func.functional_call(
        case.model,
        {n: w[2] for n, w in weights.items()},
        *((case.x,) if isinstance(case.x, (tuple, torch.Tensor)) else ((), case.x)),
    )
    assert_close(together[2], one.detach())
    first, second = draws.predict(case.x), draws.predict(case.x)
    assert torch.equal(first.probs, second.probs)


def test_a_loader_gives_what_one_tensor_gives() -> None:
    case = ALL["conv2d"](8)
    posterior = fitted(case)
    whole = posterior.predict(case.x)
    loader = [(case.x[:2], case.y[:2]), (case.x[2:], case.y[2:])]
    parts = posterior.predict(loader)
    assert_close(parts.probs, whole.probs)
    assert_close(parts.logit_cov, whole.logit_cov)
    assert_close(parts.samples, whole.samples)


def test_pieces_give_what_the_whole_gives(set_sizes: Any) -> None:
    case = ALL["conv2d"](8)
    posterior = fitted(case)
    whole = posterior.predict(case.x).logit_cov
    set_sizes(intermediate=1)
    assert_close(posterior.predict(case.x).logit_cov, whole)
    small = fitted(case)
    for a, b in zip(small.curvature.structures, posterior.curvature.structures, strict=True):
        for key, value in a.tensors().items():
            assert_close(value, b.tensors()[key])


class Segmenter(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.down = nn.Conv2d(1, 4, 3, stride=2, padding=1)
        self.up = nn.ConvTranspose2d(4, 3, 2, stride=2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.up(torch.tanh(self.down(x)))


def test_dense_outputs() -> None:
    """Segmentation: fit, sampled prediction, and the exact GGN over all positions."""
    model = Segmenter().double()
    x = torch.randn(3, 1, 4, 4, dtype=torch.float64)
    y = torch.randint(3, (3, 4, 4))
    y[0, 0, 0] = -100
    exact = whence.laplace(model, (x, y), likelihood="classification", structure="full", curvature="ggn")
    params = dict(model.named_parameters())
    wanted = torch.zeros(sum(p.numel() for p in params.values()), dtype=torch.float64)
    wanted = torch.diag(wanted)
    for n in range(3):
        out = model(x[n : n + 1])[0]  # [3, 4, 4]
        for i in range(4):
            for j in range(4):
                if y[n, i, j] == -100:
                    continue
                jac = torch.stack(
                    [
                        torch.cat(
                            [g.flatten() for g in torch.autograd.grad(out[c, i, j], params.values(), retain_graph=True)]
                        )
                        for c in range(3)
                    ]
                )
                p = out[:, i, j].softmax(0)
                wanted = wanted + jac.T @ (torch.diag(p) - torch.outer(p, p)) @ jac
    assert_close(exact.curvature.structures[0].matrix, wanted.detach())
    many = whence.laplace(model, (x, y), likelihood="classification", structure="full", curvature="mc", draws=3_000)
    assert float((many.curvature.structures[0].matrix - wanted.detach()).norm() / wanted.norm()) < 0.1
    prediction = exact.predict(x)
    assert prediction.probs.shape == (3, 3, 4, 4)
    assert_close(prediction.probs.sum(1), torch.ones(3, 4, 4, dtype=torch.float64))
    assert prediction.entropy.shape == prediction.epistemic.shape == (3, 4, 4)
    linearised = exact.predict(x, method="linearised")
    assert linearised.entropy.shape == linearised.epistemic.shape == (3, 4, 4)


def test_classes_in_the_last_dimension() -> None:
    model = nn.Linear(4, 5).double()
    x, y = torch.randn(6, 3, 4, dtype=torch.float64), torch.randint(5, (6, 3))
    with pytest.raises(whence.errors.BadData, match=r"class_dim=-1"):
        whence.laplace(model, (x, y), likelihood="classification")
    posterior = whence.laplace(model, (x, y), likelihood=whence.Categorical(class_dim=-1))
    prediction = posterior.predict(x)
    assert prediction.probs.shape == (6, 3, 5)
    assert prediction.entropy.shape == (6, 3)
    assert_close(prediction.probs.sum(-1), torch.ones(6, 3, dtype=torch.float64))


@pytest.mark.parametrize("name", ["mlp", "binary_head", "regression_2", "conv2d", "heteroscedastic", "poisson"])
def test_serving(name: str, tmp_path) -> None:
    case = ALL[name](9)
    posterior = fitted(case)
    module = posterior.as_module(5, generator=torch.Generator().manual_seed(0), method="sampled")
    draws = posterior.draw(5, generator=torch.Generator().manual_seed(0))
    wanted = draws.predict(case.x)
    got = module(case.x)
    classify = case.likelihood in ("classification", "binary")
    assert_close(got.mean, wanted.probs if classify else wanted.mean)
    assert_close(got.uncertainty, wanted.entropy if classify else wanted.variance)
    assert_close(got.epistemic, wanted.epistemic)
    scripted = torch.jit.script(module)
    assert_close(scripted(case.x)[1], got.uncertainty)
    exported = torch.export.export(module, (case.x,)).module()
    assert_close(exported(case.x)[0], got.mean)


def test_draws_go_one_by_one_where_one_keeps_a_gpu_busy() -> None:
    from whence.predictive.sampled import BUSY, draws_together

    gpu, cpu = torch.device("cuda"), torch.device("cpu")
    assert draws_together(BUSY, gpu) == 1
    assert draws_together(BUSY // 64, gpu) > 100
    assert draws_together(2**20, cpu) == 16
    assert draws_together(2**40, cpu) == draws_together(2**40, gpu) == 1


def network() -> tuple[nn.Module, Tensor, Tensor]:
    torch.manual_seed(0)
    return nn.Linear(4, 3).double(), torch.randn(12, 4, dtype=torch.float64), torch.arange(12) % 3


def test_a_covariance_that_is_not_kept_takes_no_room(monkeypatch: pytest.MonkeyPatch, set_sizes: Any) -> None:
    from whence.predictive.collected import CollectedPredictions

    model, x, y = network()
    posterior = whence.laplace(model, (x, y), likelihood="classification")
    made: list[Any] = []
    plain = CollectedPredictions.__init__
    monkeypatch.setattr(
        CollectedPredictions, "__init__", lambda self, *given: (made.append(self), plain(self, *given))[1]
    )
    set_sizes(covariance=5 * 9 * 8, intermediate=1)  # pieces of one input
    prediction = posterior.predict(x.numpy())
    assert "covariance" not in made[0].buffers
    found = prediction.logit_cov
    monkeypatch.undo()
    set_sizes(covariance=2**26, intermediate=2**26)
    assert_close(found, posterior.predict(x).logit_cov, 1e-12)


def mlp(inputs: int = 3, outputs: int = 2) -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(inputs, 6), nn.Tanh(), nn.Linear(6, outputs))


def classes(count: int = 24) -> tuple[Tensor, Tensor]:
    return torch.randn(count, 3), torch.arange(count) % 2


def test_a_shuffled_loader_is_not_read_again(set_sizes: Any) -> None:
    set_sizes(covariance=10)
    model, (x, y) = mlp(), classes()
    posterior = whence.laplace(model, (x, y), likelihood="classification")
    prediction = posterior.predict(iter([(x[:10], y[:10]), (x[10:], y[10:])]))
    assert len(prediction.probs) == 24
    with pytest.raises(whence.errors.NotDefined, match="loader"):
        _ = prediction.logit_cov
    assert_close(posterior.predict(x).logit_cov, posterior.predict(x).logit_cov)


def test_outputs_without_a_second_dimension() -> None:
    class Flat(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = mlp(outputs=1)

        def forward(self, x: Tensor) -> Tensor:
            return self.inner(x).squeeze(1)

    x, y = classes()
    for likelihood, targets in (("binary", y.float()), ("regression", x[:, 0])):
        posterior = whence.laplace(Flat(), (x, targets), likelihood=likelihood)
        prediction = posterior.predict(x)
        assert len(prediction.epistemic) == 24


def test_the_bridge_of_large_logits() -> None:
    model, (x, y) = mlp(outputs=3), classes()
    with torch.no_grad():
        model[2].weight.mul_(500)
    probs = whence.laplace(model, (x, y), likelihood="classification").predict(x, link="bridge").probs
    assert bool(torch.isfinite(probs).all())
    assert_close(probs.sum(1), torch.ones(24), 1e-5)
