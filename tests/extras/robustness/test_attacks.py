"""Attacks beside finite differences, closed forms and hand-written loops, for every posterior."""

from __future__ import annotations

import copy
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import whence
from tests.extras.robustness.posteriors import CLASSES, DIMS, KINDS, data, fitted, network, options, posterior, seeded
from tests.reference import robustness as reference
from tests.reference.networks import CASES
from whence import robustness
from whence.extras.robustness.averaged import AveragedPredictor
from whence.functional import weights_hash


def average(kind: str) -> AveragedPredictor:
    given = {"method": None, "num_samples": None, "generator": None, **options(kind)}
    return AveragedPredictor.of(posterior(kind), **given)


def twin(kind: str) -> reference.LogProbs:
    """The same average by loops over the draws; of linearised posteriors what ``predict`` gives."""
    given, found = options(kind), posterior(kind)
    if "linearised" in kind:
        return lambda x: found.predict(x.unsqueeze(0), **options(kind)).probs[0].log()
    given.pop("method", None)
    if isinstance(found, whence.Ensemble):
        draws = found.draw(given.get("num_samples"), generator=given.get("generator"))
        return reference.averaged(list(draws), None if draws.weights is None else draws.weights.tolist())
    return reference.averaged(list(found.draw(given["num_samples"], generator=given.get("generator"))))


@pytest.mark.parametrize("kind", KINDS)
def test_averages_what_predict_averages(kind: str) -> None:
    x = data()[0][:5]
    seen, prediction = average(kind).predict(x), posterior(kind).predict(x, **options(kind))
    assert torch.allclose(seen.probs, prediction.probs, atol=1e-12)
    assert torch.allclose(seen.entropy, prediction.entropy, atol=1e-12)
    assert torch.allclose(seen.epistemic, prediction.epistemic, atol=1e-10)
    assert torch.allclose(seen.log_probs.exp().sum(-1), torch.ones(5).double())


@pytest.mark.parametrize("kind", KINDS)
def test_direction_is_the_gradient_of_the_averaged_log_probability(kind: str) -> None:
    """Up to a positive factor for each input; p̄ · direction · Σ_s a_s / p̄ is the gradient itself."""
    x, log_probs = data()[0][:3], twin(kind)
    for y in range(CLASSES):
        direction = average(kind).predict(x, torch.full((3,), y), gradient=True).direction
        assert direction is not None
        for one, found in zip(x, direction, strict=True):
            slope = reference.gradient(log_probs, one, y)
            unit, expected = found / found.norm(), slope / slope.norm()
            assert torch.allclose(unit, expected, atol=2e-5), (unit, expected)


@pytest.mark.parametrize("kind", KINDS)
def test_steps_are_those_of_the_reference(kind: str) -> None:
    x, log_probs = data()[0][:3], twin(kind)
    scale = torch.tensor([1.0, 0.5, 2.0, 0.0]).double()
    attacked = posterior(kind)
    assert torch.allclose(robustness.fgsm(attacked, x, 0.1, **options(kind)), reference.fgsm(log_probs, x, 0.1))
    found = robustness.fgsm(attacked, x, 0.1, target=2, scale=scale, **options(kind))
    assert torch.allclose(found, reference.fgsm(log_probs, x, 0.1, target=2, scale=scale))
    assert torch.equal(found[:, 3], x[:, 3])
    away = [1, 0, 2]
    found = robustness.fgsm(attacked, x, 0.2, labels=away, **options(kind))
    assert torch.allclose(found, reference.fgsm(log_probs, x, 0.2, away=away))


@pytest.mark.parametrize("kind", ["linearised", "sampled", "dropout", "weighted ensemble", "unstructured, linearised"])
def test_iterative_is_the_hand_loop(kind: str) -> None:
    x = data()[0][:2]
    found = robustness.iterative(posterior(kind), x, 1, 0.07, 3, **options(kind))
    assert torch.allclose(found, reference.iterative(twin(kind), x, 1, 0.07, 3))
    trace = list(robustness.iterative(posterior(kind), x, 1, 0.07, 3, trace=True, **options(kind)))
    assert len(trace) == 4 and torch.equal(trace[0], x) and torch.equal(trace[3], found)
    assert torch.allclose((trace[1] - trace[0]).abs(), torch.tensor(0.07).double())
    assert torch.equal(robustness.iterative(posterior(kind), x, 1, 0.07, 0, **options(kind)), x)


def test_each_input_may_have_its_own_target() -> None:
    x, goals = data()[0][:3], torch.tensor([2, 0, 1])
    together = robustness.iterative(posterior("linearised"), x, goals, 0.1, 2)
    for n, goal in enumerate(goals):
        assert torch.allclose(
            together[n : n + 1], robustness.iterative(posterior("linearised"), x[n : n + 1], int(goal), 0.1, 2)
        )


def test_logistic_regression_in_closed_form() -> None:
    """Two classes with logits ±wᵀx: p(1|x) falls along −sgn w, whatever x; margins move by 2 η Σ|w|."""
    w = torch.tensor([1.0, -2.0, 0.0, 0.5])
    net = nn.Linear(4, 2, bias=False)
    with torch.no_grad():
        net.weight.copy_(torch.stack([-w, w]))
    x = torch.randn(20, 4, generator=seeded())
    ones = (x @ w) > 0
    found = robustness.fgsm(net, x, 0.3, likelihood="classification")
    expected = x + torch.where(ones, -1.0, 1.0)[:, None] * 0.3 * w.sign()
    assert torch.allclose(found, expected)
    assert torch.allclose((found - x) @ w, torch.where(ones, -1.0, 1.0) * 0.3 * w.abs().sum(), atol=1e-5)
    table = robustness.untargeted(net, (x, ones.long()), steps=(0, 0.1, 0.3, 1), likelihood="classification")
    for row in table.rows:  # an input keeps its class while |wᵀx| is above η Σ|w|
        assert row.accuracy == pytest.approx(float(((x @ w).abs() > row.step * w.abs().sum()).double().mean()))


def test_sure_networks_do_not_hide_their_gradient() -> None:
    """Where float32 probabilities are exactly 0 or 1, log p̄ has no gradient; the attack has the right signs."""
    x = data()[0].float()
    exact = network()
    for factor in (30.0, 1e3, 1e6):
        with torch.no_grad():
            sure = copy.deepcopy(exact)
            sure[-1].weight.mul_(factor), sure[-1].bias.mul_(factor)
        single = copy.deepcopy(sure).float()
        leaf = x.clone().requires_grad_()
        (plain,) = torch.autograd.grad(single(leaf).softmax(-1).amax(-1).log().sum(), leaf)
        found = robustness.fgsm(single, x, 1.0, likelihood="classification") - x
        expected = robustness.fgsm(sure, x.double(), 1.0, likelihood="classification") - x.double()
        same = (found.round().double() == expected.round()).all(1).double().mean()
        assert same > 0.95
        if factor >= 1e3:
            assert float((plain == 0).all(1).double().mean()) > 0.8
            table = robustness.untargeted(single, x, steps=(0, 1), likelihood="classification", progress=False)
            assert table.rows[0].masked == 0 and table.rows[0].saturated > 0.8


def test_sure_members_are_weighed_by_what_they_can_give() -> None:
    """Two members sure of different classes: ∇ p̄ is a sum over draws with weights p (1 − p), far below rounding."""
    torch.manual_seed(0)
    first, second = nn.Linear(3, 2, bias=False), nn.Linear(3, 2, bias=False)
    with torch.no_grad():
        first.weight.copy_(torch.tensor([[60.0, 0, 0], [-60.0, 0, 0]]))
        second.weight.copy_(torch.tensor([[0, 50.0, 0], [0, -50.0, 0]]))
    posterior = whence.ensemble([first, second], likelihood="classification")
    found = robustness.fgsm(posterior, torch.tensor([[1.0, 1.0, 0.0]]), 0.5)
    assert found.tolist() == [[0.5, 0.5, 0.0]]  # both weights survive: e^−120 beside e^−100, not 0 beside 0


@pytest.mark.parametrize("kind", ["linearised", "sampled", "dropout", "ensemble"])
def test_batches_and_chunks_of_draws_change_nothing(kind: str, set_sizes: Any) -> None:
    x = data()[0]
    whole = robustness.fgsm(posterior(kind), x, 0.1, **options(kind))
    assert torch.equal(whole, robustness.fgsm(posterior(kind), x, 0.1, batch_size=7, **options(kind)))
    before = average(kind).predict(x, gradient=True)
    set_sizes(intermediate=2**15)
    after = average(kind).predict(x, gradient=True)
    assert torch.allclose(before.log_probs, after.log_probs, atol=1e-12)
    assert torch.allclose(before.aleatoric, after.aleatoric, atol=1e-12)
    assert before.direction is not None and after.direction is not None
    assert torch.allclose(before.direction, after.direction, atol=1e-12)
    assert torch.equal(whole, robustness.fgsm(posterior(kind), x, 0.1, **options(kind)))


@pytest.mark.parametrize("kind", ["linearised", "sampled", "mixture, sampled"])
def test_out_of_memory_is_survived(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    x = data()[0][:20]
    before = robustness.fgsm(posterior(kind), x, 0.1, **options(kind))
    add = AveragedPredictor._add

    def limited(self, total, compute, *rest):
        outputs = compute()
        if outputs.shape[1] > 6 or (outputs.shape[0] > 2 and "sampled" in kind):
            raise torch.OutOfMemoryError("CUDA out of memory")
        add(self, total, lambda: outputs, *rest)

    monkeypatch.setattr(AveragedPredictor, "_add", limited)
    with pytest.warns(whence.errors.Notice, match="ran out of memory"):
        after = robustness.fgsm(posterior(kind), x, 0.1, **options(kind))
    assert torch.equal(before, after)


def test_hopeless_memory_is_refused_in_words(monkeypatch: pytest.MonkeyPatch) -> None:
    def never(*_):
        raise torch.OutOfMemoryError("CUDA out of memory")

    monkeypatch.setattr(AveragedPredictor, "_add", never)
    with pytest.raises(whence.errors.TooLarge, match="does not fit"):
        robustness.fgsm(posterior("sampled"), data()[0], 0.1, method="sampled", num_samples=4)


def test_generators_give_the_same_draws_again() -> None:
    x, laplace = data()[0], posterior("sampled")

    def attacked(seed: int) -> torch.Tensor:
        return robustness.fgsm(laplace, x, 0.1, method="sampled", num_samples=2, generator=seeded(seed))

    assert torch.equal(attacked(0), attacked(0)) and not torch.equal(attacked(0), attacked(1))
    assert torch.equal(robustness.fgsm(laplace, x, 0.1), robustness.fgsm(laplace, x, 0.1))  # a function of x


def test_a_network_is_an_ensemble_of_one() -> None:
    x, net = data()[0], network()
    alone = whence.ensemble([net], likelihood="classification")
    assert torch.equal(robustness.fgsm(net, x, 0.1, likelihood="classification"), robustness.fgsm(alone, x, 0.1))
    leaf = x.clone().requires_grad_()
    (slope,) = torch.autograd.grad(net(leaf).log_softmax(-1).amax(-1).sum(), leaf)
    assert torch.equal(robustness.fgsm(alone, x, 0.1), x - 0.1 * slope.sign())


@pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode])
def test_nothing_is_changed(mode) -> None:
    net = network(drop=0.2).train()
    net[0].register_forward_hook(lambda *_: None)
    for p in net.parameters():
        p.grad = torch.ones_like(p)
    before, hooks = weights_hash(net), len(net[0]._forward_hooks)
    x = data()[0][:6].clone().requires_grad_()
    kept = x.detach().clone()
    laplace, masks = fitted(), whence.dropout(net, likelihood="classification")
    own = weights_hash(laplace.network.module)
    with mode():
        first = robustness.fgsm(net, x, 0.1, likelihood="classification")
        second = robustness.fgsm(laplace, x, 0.1, method="sampled", num_samples=3)
        robustness.targeted(laplace, (x, data()[1][:6]), target=0, step=0.1, steps=2, progress=False)
        robustness.fgsm(masks, x, 0.1, num_samples=3)
    assert x.grad is None and torch.equal(x, kept)
    assert not first.requires_grad and not second.requires_grad and torch.isfinite(first).all()
    assert weights_hash(net) == before and net.training and len(net[0]._forward_hooks) == hooks
    assert all(torch.equal(p.grad, torch.ones_like(p)) and p.requires_grad for p in net.parameters())
    assert weights_hash(laplace.network.module) == own and not laplace.network.module.training
    assert all(p.grad is None for p in laplace.network.params.values())
    assert all(not m._forward_hooks for m in laplace.network.module.modules())


def test_bounds_types_and_arrays() -> None:
    x, net = data()[0].float(), network()
    low, high = x.amin(0), x.amax(0)
    found = robustness.fgsm(net, x, 3.0, bounds=(low, high), likelihood="classification")
    assert found.dtype == torch.float32 and bool(((found >= low - 1e-6) & (found <= high + 1e-6)).all())
    free = robustness.fgsm(net, x.numpy(), 3.0, likelihood="classification")
    assert torch.allclose(found, torch.minimum(torch.maximum(free, low), high))
    traced = list(robustness.iterative(net, x, 0, 0.9, 4, trace=True, bounds=(-5, 5), likelihood="classification"))
    assert max(float(t.abs().max()) for t in traced) <= 5


def test_convolutions_and_images() -> None:
    torch.manual_seed(0)
    net = nn.Sequential(nn.Conv2d(1, 3, 3), nn.ReLU(inplace=True), nn.Flatten(), nn.Linear(48, 3)).double()
    x, y = torch.randn(8, 1, 6, 6).double(), torch.arange(8) % 3
    laplace = whence.laplace(net, (x, y), likelihood="classification", progress=False)
    scale = robustness.span((x, y))
    assert scale.shape == (1, 6, 6)
    for given in ({}, {"method": "sampled", "num_samples": 3, "generator": seeded()}):
        found = robustness.fgsm(laplace, x, 0.1, scale=scale, **given)
        moved = found != x  # no gradient reaches some of the corners
        assert torch.allclose((found - x).abs()[moved], (0.1 * scale).expand_as(x)[moved])
        assert moved.double().mean() > 0.9
    log_probs = lambda one: laplace.predict(one.unsqueeze(0)).probs[0].log()  # noqa: E731
    assert torch.allclose(robustness.fgsm(laplace, x[:1], 0.1), reference.fgsm(log_probs, x[:1], 0.1))


LAYERS = (
    "mlp_relu", "conv2d_general", "conv_transpose2d", "batchnorm2d", "layernorm", "groupnorm", "prelu", "lstm", "gru",
    "self_attention", "encoder_layer", "vit", "tied_layers", "called_twice", "lora", "weight_norm", "bare_parameters",
)  # fmt: skip


@pytest.mark.filterwarnings("ignore::whence.errors.Notice")
@pytest.mark.parametrize("name", LAYERS)
@pytest.mark.parametrize("structure", ["kron", "diag"])
def test_linearised_covariances_of_many_layers(name: str, structure: str) -> None:
    """The derivative along a direction, through mean and covariance, beside differences of ``predict``."""
    case = CASES[name](0)
    laplace = whence.laplace(
        case.model, (case.x, case.y), likelihood="classification", structure=structure, progress=False
    )
    x, h = case.x[:2], 1e-5
    seen = AveragedPredictor.of(laplace).predict(x, gradient=True)
    leaf = x.clone().requires_grad_()
    log_probs = laplace.predict(leaf).probs.gather(1, seen.labels.unsqueeze(1)).log().squeeze(1)
    (gradient,) = torch.autograd.grad(log_probs.sum(), leaf)
    assert seen.direction is not None
    cosine = nn.functional.cosine_similarity(seen.direction.flatten(1), gradient.flatten(1))
    assert torch.allclose(cosine, torch.ones(2).double(), atol=1e-8)
    along = torch.randn(x.shape, generator=seeded(), dtype=x.dtype)
    ends = [laplace.predict(x + s * h * along).probs.gather(1, seen.labels.unsqueeze(1)).log() for s in (1, -1)]
    numeric = ((ends[0] - ends[1]) / (2 * h)).squeeze(1)
    assert torch.allclose((gradient * along).flatten(1).sum(1), numeric, rtol=1e-3, atol=1e-6)


def test_masks_of_each_input() -> None:
    """Masks that belong to inputs are those of the moved input; the attack still runs, and gives the same again."""
    own = whence.dropout(network(drop=0.3), likelihood="classification", per_input=True)
    found = [robustness.fgsm(own, data()[0], 0.1, num_samples=4, generator=seeded()) for _ in range(2)]
    assert torch.equal(*found)


def test_span() -> None:
    x = torch.tensor([[0.0, 1.0, 5.0], [2.0, 1.0, -1.0], [1.0, 1.0, 0.0]])
    expected = torch.tensor([2.0, 0.0, 6.0])
    assert torch.equal(robustness.span(x), expected)
    assert torch.equal(robustness.span(x.numpy()), expected)
    assert torch.equal(robustness.span((x, torch.zeros(3))), expected)
    assert torch.equal(robustness.span([(x[:1], torch.zeros(1)), (x[1:], torch.zeros(2))]), expected)
    assert torch.equal(robustness.span([x[:2], x[2:]]), expected)
    assert isinstance(np.asarray(robustness.span(x)), np.ndarray)
    moved = robustness.fgsm(network(), data()[0], 0.1, scale=torch.tensor([1.0, 0, 1, 1]), likelihood="classification")
    assert torch.equal(moved[:, 1], data()[0][:, 1]) and moved.shape[1] == DIMS
