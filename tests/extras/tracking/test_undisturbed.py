"""A training is not disturbed by being tracked."""

from __future__ import annotations

import copy
import functools
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, SubsetRandomSampler, TensorDataset

import whence
from tests.extras.tracking.cases import same_as, small, train_step, two_classes, unquiet

track = functools.partial(whence.track, every=1)


def state_of(net: nn.Module) -> dict[str, Any]:
    tensors = {**dict(net.named_parameters()), **dict(net.named_buffers())}
    return {
        "tensors": {n: (id(t), t.data_ptr(), t._version, t.detach().clone()) for n, t in tensors.items()},
        "grads": {n: (id(p.grad), None if p.grad is None else p.grad.clone()) for n, p in net.named_parameters()},
        "requires": {n: p.requires_grad for n, p in net.named_parameters()},
        "modes": {n: m.training for n, m in net.named_modules()},
        "hooks": {
            (n, kind): list(getattr(m, kind))
            for n, m in net.named_modules()
            for kind in ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")
        },
        "modules": {n: id(m) for n, m in net.named_modules()},
    }


def equal(a: Any, b: Any) -> bool:
    if isinstance(a, Tensor):
        return isinstance(b, Tensor) and torch.equal(a, b)
    if isinstance(a, dict):
        return a.keys() == b.keys() and all(equal(a[k], b[k]) for k in a)
    if isinstance(a, (tuple, list)):
        return len(a) == len(b) and all(equal(x, y) for x, y in zip(a, b, strict=True))
    return bool(a == b)


@pytest.mark.parametrize("mode", ["train", "eval", "mixed"])
def test_nothing_of_the_model_changes(mode: str) -> None:
    net, (x, y) = unquiet(), two_classes()
    calls: list[str] = []
    net[6].register_full_backward_hook(lambda *_: calls.append("backward"))
    net[5].register_forward_hook(lambda *_: None)
    net[6].weight.register_hook(lambda g: calls.append("gradient"))
    optimiser = torch.optim.Adam([p for p in net.parameters() if p.requires_grad])
    net.train(mode != "eval")
    if mode == "mixed":
        net[1].eval()
    train_step(net, optimiser, x, y)
    F.cross_entropy(net(x), y).backward()  # gradients that wait for a step
    before, random = state_of(net), torch.get_rng_state()
    moments, heard = copy.deepcopy(optimiser.state_dict()), list(calls)
    t = track(net, (x, y), likelihood="classification")
    t.step()
    t.record("again")
    assert equal(state_of(net), before)
    assert torch.equal(torch.get_rng_state(), random)
    assert equal(optimiser.state_dict(), moments)
    assert calls == heard


@pytest.mark.parametrize("how", ["pair", "shuffled", "sampler"])
def test_training_gives_the_same_bits_with_and_without(how: str) -> None:
    def run(tracked: bool) -> tuple[dict[str, Tensor], Tensor]:
        torch.manual_seed(5)
        net, data = unquiet(), two_classes()
        sampler = SubsetRandomSampler(range(200)) if how == "sampler" else None
        loader = DataLoader(TensorDataset(*data), batch_size=32, shuffle=how == "shuffled", sampler=sampler)
        optimiser = torch.optim.SGD([p for p in net.parameters() if p.requires_grad], lr=0.1, momentum=0.9)
        source = data if how == "pair" else loader
        t = track(net, source, likelihood="classification") if tracked else None
        for _ in range(3):
            net.train()
            for x, y in loader:
                train_step(net, optimiser, x, y)
            if t is not None:
                t.step()
        return net.state_dict(), torch.get_rng_state()

    assert equal(run(True), run(False))


def test_networks_that_draw_numbers_leave_the_random_state() -> None:
    class Noisy(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = small()

        def forward(self, x: Tensor) -> Tensor:
            return self.inner(x) + 0 * torch.rand(1)

    net, random = Noisy(), torch.get_rng_state()
    t = track(net, two_classes(), likelihood="classification")
    t.step()
    assert torch.equal(torch.get_rng_state(), random)


def test_dropout_and_batch_norm_are_fitted_in_evaluation_mode() -> None:
    net, data = unquiet().train(), two_classes()
    net(data[0])
    t = track(net, data, likelihood="classification")
    first = t.record()
    assert first.layers == t.record().layers, "nothing is dropped at random"
    quiet = copy.deepcopy(net).eval()
    posterior = whence.laplace(
        quiet, t.subset, likelihood="classification", curvature="ggn", data_size=200, progress=False,
    )  # fmt: skip
    same_as(first, posterior, t.subset[0][:64])


@pytest.mark.parametrize("context", ["no_grad", "inference", "autocast"])
def test_contexts_of_the_loop_do_not_matter(context: str) -> None:
    net, data = small(), two_classes()
    t = track(net, data, likelihood="classification")
    plain = t.record()
    around = {
        "no_grad": torch.no_grad(),
        "inference": torch.inference_mode(),
        "autocast": torch.autocast("cpu", dtype=torch.bfloat16),
    }[context]
    with around:
        inside = t.record()
    assert inside.layers == plain.layers and inside.entropy == plain.entropy


def test_a_model_that_changes_its_type_and_a_probe_that_changes_its_values() -> None:
    net, data, probe = small(), two_classes(), torch.randn(5, 4, requires_grad=True)
    t = track(net, data, likelihood="classification", probe=(probe, torch.ones(5).long()))
    before = t.record()
    with torch.no_grad():
        probe.mul_(100)
    net.double()
    after = t.record()
    assert after.entropy == pytest.approx(before.entropy, rel=1e-4)
    assert after.probe_loss == pytest.approx(before.probe_loss, rel=1e-4)


def test_compiled_and_wrapped_models() -> None:
    net, data = small(), two_classes()
    plain = track(net, data, likelihood="classification").record()
    wrapped = track(nn.DataParallel(net), data, likelihood="classification").record()
    assert wrapped.layers == plain.layers


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_on_a_gpu() -> None:
    net, data = unquiet().cuda().train(), two_classes()
    random = torch.cuda.get_rng_state(), torch.get_rng_state()
    t = track(net, data, likelihood="classification")
    before = state_of(net)
    with torch.autocast("cuda"):
        record = t.step()
    assert record is not None and record.layers and equal(state_of(net), before)
    assert equal((torch.cuda.get_rng_state(), torch.get_rng_state()), random)


def test_in_the_zoo_loop() -> None:
    data = two_classes()
    net = small()
    t = track(net, data, likelihood="classification", every=2)
    whence.zoo.train(net, data, epochs=5, lr=0.1, progress=False, callback=lambda _, row: t.step(row.epoch))
    assert [r.step for r in t.records] == [2, 4]
