"""Things that once went wrong."""

from __future__ import annotations

import copy
import math
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


@pytest.mark.parametrize("structure", ["kron", "diag", "full", "ekfac", "block"])
def test_estimated_noise_gives_the_fit_at_that_noise(structure: str) -> None:
    model = mlp(outputs=1).double()
    x = torch.randn(20, 3, dtype=torch.float64)
    y = 1000 * torch.randn(20, 1, dtype=torch.float64)
    estimated = whence.laplace(model, (x, y), likelihood="regression", structure=structure, prior_precision=1e-6)
    given = whence.laplace(model, (x, y), likelihood=estimated.likelihood, structure=structure, prior_precision=1e-6)
    assert_close(estimated.covariance(), given.covariance(), 1e-7)


@pytest.mark.parametrize("structure", ["kron", "full", "diag"])
def test_update_pools_an_estimated_noise(structure: str) -> None:
    model = mlp(outputs=1).double()
    x, y = torch.randn(30, 3, dtype=torch.float64), torch.randn(30, 1, dtype=torch.float64)
    whole = whence.laplace(model, (x, y), likelihood="regression", structure=structure)
    part = whence.laplace(model, (x[:10], y[:10]), likelihood="regression", structure=structure)
    later = part.update((x[10:], y[10:]))
    assert float(later.likelihood.noise) == pytest.approx(float(whole.likelihood.noise))
    assert_close(later.covariance(), whole.covariance(), 1e-9)


def test_a_sampled_fit_that_is_updated_is_the_fit_on_everything() -> None:
    model, (x, y) = mlp(), classes()
    options = {"likelihood": "classification", "curvature": "mc"}
    whole = whence.laplace(model, (x, y), generator=torch.Generator().manual_seed(0), **options)
    part = whence.laplace(model, (x[:10], y[:10]), generator=torch.Generator().manual_seed(0), **options)
    assert_close(part.update((x[10:], y[10:])).covariance(), whole.covariance(), 1e-4)


def test_low_rank_variances_are_not_negative_in_float32() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(1, 30), nn.Tanh(), nn.Linear(30, 30), nn.Tanh(), nn.Linear(30, 1))
    x = torch.linspace(-2, 2, 60).unsqueeze(1)
    posterior = whence.laplace(
        model, (x, x.sin()), likelihood=whence.Gaussian(0.01), structure="lowrank", prior_precision=0.01
    )
    assert float(posterior.predict(x).epistemic.min()) >= 0
    assert min(float(v.min()) for v in posterior.variance().values()) >= 0
    tuned = posterior.tune((x, x.sin()))
    assert math.isfinite(tuned.tuning.score)


@pytest.mark.parametrize("structure", ["kron", "full"])
def test_tuning_stays_where_float32_can_follow(structure: str) -> None:
    """Random labels: the loss is flat or unbounded, and the answer must still be a sober one."""
    model, data = mlp(), (torch.randn(60, 3), torch.randint(2, (60,)))
    for prior in (1.0, whence.Relative()):
        fitted = whence.laplace(model, data, likelihood="classification", structure=structure, prior_precision=prior)
        tuned = fitted.tune(data)
        assert 1e-8 < fitted.block_prior(fitted.blocks[:1]).delta / tuned.data_scale < 1e12
    assert math.isfinite(tuned.tuning.score)


def test_an_indefinite_hessian_can_be_tuned() -> None:
    model, (x, y) = mlp(), classes(40)
    posterior = whence.laplace(
        model, (x, y), likelihood="classification", structure="full", curvature="hessian", prior_precision=100.0
    )
    assert math.isfinite(posterior.tune((x, y)).tuning.score)


def test_a_shuffled_loader_is_not_read_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("whence.predictive.dispatch.KEEP_COVARIANCE", 10)
    model, (x, y) = mlp(), classes()
    posterior = whence.laplace(model, (x, y), likelihood="classification")
    prediction = posterior.predict(iter([(x[:10], y[:10]), (x[10:], y[10:])]))
    assert len(prediction.probs) == 24
    with pytest.raises(whence.errors.NotDefined, match="loader"):
        _ = prediction.logit_cov
    assert_close(posterior.predict(x).logit_cov, posterior.predict(x).logit_cov)


class SequenceFirst(nn.Module):
    """[N, T, D] in, a Linear that sees [T, N, D] with T = N, dead for the first and last example."""

    def __init__(self) -> None:
        super().__init__()
        self.inner, self.head = nn.Linear(3, 4), nn.Linear(4, 2)

    def forward(self, x: Tensor) -> Tensor:
        h = torch.relu(self.inner(x.transpose(0, 1)))
        return self.head(h.mean(0))


def test_dead_examples_do_not_hide_the_example_dimension() -> None:
    torch.manual_seed(0)
    model = SequenceFirst().double()
    with torch.no_grad():
        model.inner.bias.fill_(0.0)
    x = torch.randn(8, 8, 3, dtype=torch.float64)
    x[0], x[7] = 0.0, 0.0
    with torch.no_grad():
        model.inner.bias.fill_(-1e-9)
    y = torch.arange(8) % 2
    options = {"likelihood": "classification", "structure": "full", "prior_precision": 1.0}
    together = whence.laplace(model, (x, y), **options)
    alone = whence.laplace(model, [(x[n : n + 1], y[n : n + 1]) for n in range(8)], **options)
    assert_close(together.covariance(), alone.covariance())


def test_backward_hooks_of_training_have_no_part() -> None:
    model, data = mlp(), classes()
    plain = whence.laplace(model, data, likelihood="classification").covariance()
    model[0].register_full_backward_hook(
        lambda module, grad_in, grad_out: tuple(10 * g for g in grad_in if g is not None)
    )
    hooked = whence.laplace(model, data, likelihood="classification").covariance()
    assert torch.equal(plain, hooked)
    assert len(model[0]._backward_hooks) == 1


@pytest.mark.parametrize("structure", ["kron", "ekfac", "full", "diag"])
def test_ignored_examples_do_not_count(structure: str) -> None:
    model, (x, y) = mlp().double(), classes()
    x = x.double()
    masked = y.clone()
    masked[::3] = -100
    keep = masked != -100
    one = whence.laplace(model, (x, masked), likelihood="classification", structure=structure)
    other = whence.laplace(model, (x[keep], y[keep]), likelihood="classification", structure=structure)
    assert_close(one.covariance(), other.covariance(), 1e-7)
    assert one.record.data_size == int(keep.sum())
    with pytest.raises(whence.errors.BadData, match="ignore_index"):
        whence.laplace(model, (x, torch.full_like(y, -100)), likelihood="classification")


def test_a_forward_pass_without_gradients_is_refused() -> None:
    class Frozen(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = nn.Linear(3, 2)

        @torch.no_grad()
        def forward(self, x: Tensor) -> Tensor:
            return self.inner(x)

    with pytest.raises(whence.errors.NothingSelected, match="no_grad"):
        whence.laplace(Frozen(), classes(), likelihood="classification")


def test_your_own_sampler_draws_anew_for_every_example() -> None:
    def nll(f: Tensor, y: Tensor) -> Tensor:
        return 0.5 * (f - y).square().sum(1)

    def sample(f: Tensor, generator: torch.Generator) -> Tensor:
        return f + torch.randn(f.shape, generator=generator, dtype=f.dtype)

    model = nn.Linear(2, 1).double()
    x, y = torch.randn(400, 2, dtype=torch.float64), torch.randn(400, 1, dtype=torch.float64)
    exact = whence.laplace(model, (x, y), likelihood=whence.Custom(nll), structure="full")
    for size in (1, 400):
        drawn = whence.laplace(
            model,
            list(zip(x.split(size), y.split(size), strict=True)),
            likelihood=whence.Custom(nll, sample),
            structure="full",
        )
        assert_close(drawn.curvature.structures[0].matrix, exact.curvature.structures[0].matrix, 0.1)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision(dtype: torch.dtype) -> None:
    model, (x, y) = mlp(), classes()
    half = copy.deepcopy(model).to(dtype)
    posterior = whence.laplace(half, (x.to(dtype), y), likelihood="classification")
    wanted = whence.laplace(model, (x, y), likelihood="classification").predict(x).probs
    assert float((posterior.predict(x).probs - wanted).abs().max()) < 0.02
    assert posterior.predict(x, method="sampled").probs.shape == wanted.shape
    assert math.isfinite(posterior.tune((x, y)).tuning.score)


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


class Routed(nn.Module):
    """Uses one layer or the other, depending on the batch."""

    def __init__(self) -> None:
        super().__init__()
        self.left, self.right, self.head = nn.Linear(3, 4), nn.Linear(3, 4), nn.Linear(4, 2)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(torch.tanh(self.left(x) if float(x[0, 0]) > 0 else self.right(x)))


@pytest.mark.filterwarnings("ignore::whence.errors.Notice")
@pytest.mark.parametrize("structure", ["kron", "ekfac", "diag", "full"])
def test_a_layer_that_some_batches_do_not_use(structure: str) -> None:
    torch.manual_seed(0)
    model = Routed()
    x = torch.randn(12, 3)
    x[:6, 0], x[6:, 0] = 1.0, 1.0
    batches = [(x[:6], torch.arange(6) % 2), (x[6:], torch.arange(6) % 2)]
    posterior = whence.laplace(model, batches, likelihood="classification", structure=structure)
    assert posterior.predict(x).probs.shape == (12, 2)
    other = x.clone()
    other[:, 0] = -1.0
    assert posterior.predict(other).probs.shape == (12, 2)


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


class Answer:
    def __init__(self, logits: Tensor) -> None:
        self.logits = logits


class HuggingFaceLike(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner = mlp()

    def forward(self, values: Tensor) -> Answer:
        return Answer(self.inner(values))


def test_mappings_with_labels_and_objects_with_logits() -> None:
    x, y = classes()
    batch = {"values": x, "labels": y}
    posterior = whence.laplace(HuggingFaceLike(), [batch], likelihood="classification")
    assert_close(posterior.predict(batch).probs, posterior.predict({"values": x}).probs)
    assert_close(posterior.predict([batch]).probs, posterior.predict(batch).probs)
    with pytest.raises(whence.errors.NotDefined, match="one tensor"):
        posterior.as_module()
    alone = whence.laplace(HuggingFaceLike(), (x, y), likelihood="classification")
    assert alone.as_module(3)(x).mean.shape == (24, 2)
    with pytest.raises(whence.errors.BadData, match="2 positional arguments"):
        posterior.predict((x, y))


def test_loading_for_a_copy_in_another_precision(tmp_path) -> None:
    model, (x, y) = mlp(), classes()
    posterior = whence.laplace(model, (x, y), likelihood="classification")
    posterior.save(tmp_path / "p")
    double = whence.load(tmp_path / "p", copy.deepcopy(model).double())
    assert_close(double.predict(x).probs.float(), posterior.predict(x).probs, 1e-4)


def test_a_buffer_that_forward_changes_does_not_lock_the_file(tmp_path) -> None:
    class Counting(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = mlp()
            self.register_buffer("calls", torch.zeros(()))

        def forward(self, x: Tensor) -> Tensor:
            self.calls += 1
            return self.inner(x)

    model, (x, y) = Counting(), classes()
    posterior = whence.laplace(model, (x, y), likelihood="classification")
    posterior.save(tmp_path / "p")
    assert float(model.calls) == 0
    whence.load(tmp_path / "p", model)


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


def test_biases_of_recurrent_layers_are_biases() -> None:
    posterior = fitted(ALL["lstm"](0), prior_precision=whence.Prior(weight=1.0, bias=9.0))
    values = posterior.prior.values
    assert {v for n, v in values.items() if "bias" in n} == {9.0}
    assert {v for n, v in values.items() if "bias" not in n} == {1.0}


@pytest.mark.parametrize("name", ["lstm", "weight_norm", "encoder_layer", "embedding"])
def test_no_stray_warnings(name: str) -> None:
    case = ALL[name](0)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        warnings.simplefilter("ignore", Notice)
        posterior = whence.laplace(case.model, (case.x, case.y), likelihood="classification")
        posterior.predict(case.x)
        posterior.predict(case.x, method="sampled", num_samples=3)


def test_vector_noise() -> None:
    model = mlp(outputs=2).double()
    x, y = torch.randn(9, 3, dtype=torch.float64), torch.randn(9, 2, dtype=torch.float64)
    noise = torch.tensor([0.3, 2.0], dtype=torch.float64)
    vector = whence.laplace(model, (x, y), likelihood=whence.Gaussian(noise), structure="full")
    scaled = nn.Sequential(model, _Divide(noise))
    unit = whence.laplace(scaled, (x, y / noise), likelihood=whence.Gaussian(1.0), structure="full")
    assert_close(vector.covariance(), unit.covariance())
    assert_close(vector.predict(x).aleatoric, noise.square().expand(9, 2))


class _Divide(nn.Module):
    def __init__(self, by: Tensor) -> None:
        super().__init__()
        self.register_buffer("by", by)

    def forward(self, x: Tensor) -> Tensor:
        return x / self.by
