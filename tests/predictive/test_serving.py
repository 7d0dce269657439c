"""Served modules beside the predictions that they stand for."""

from __future__ import annotations

import functools
import warnings
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import whence
from tests.reference.linearised import moved
from whence.errors import BadOption, NotDefined, Notice, TooLarge
from whence.predictive.linearised_draws import linearised_draws
from whence.report.record.audit import Chosen, DeferralRule
from whence.where.served_novelty import served_novelty

pytestmark = pytest.mark.filterwarnings("ignore::whence.errors.Notice")
SIZES = ({0: torch.export.Dim("batch")},)
LIKELIHOODS: dict[str, tuple[Any, int]] = {
    "classification": ("classification", 3),
    "binary": ("binary", 2),
    "regression": (whence.Gaussian(0.3), 2),
    "heteroscedastic": (whence.HeteroscedasticGaussian(), 4),
    "count": (whence.Poisson(), 2),
}


@functools.cache
def fitted(name: str = "classification", dtype: torch.dtype = torch.float64) -> tuple[whence.Laplace, Tensor]:
    torch.manual_seed(0)
    likelihood, outputs = LIKELIHOODS[name]
    net = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, outputs)).to(dtype)
    x = torch.randn(60, 4, dtype=dtype)
    targets: dict[str, Tensor] = {
        "classification": torch.randint(3, (60,)),
        "binary": torch.randint(2, (60, 2)),
        "count": torch.randint(4, (60, 2)),
    }
    y = targets.get(name, torch.randn(60, 2, dtype=dtype))
    return whence.laplace(net, (x, y), likelihood=likelihood, progress=False), x


def read(prediction: Any) -> tuple[Tensor, Tensor]:
    labels = hasattr(prediction, "probs")
    return (prediction.probs, prediction.entropy) if labels else (prediction.mean, prediction.variance)


@pytest.mark.parametrize("name", LIKELIHOODS)
def test_it_serves_the_linearised_network_along_drawn_directions(name: str) -> None:
    posterior, x = fitted(name)
    module = posterior.as_module(12)
    draws = linearised_draws(posterior, 6)
    mean, along = moved(posterior.network.module, x, draws.directions)
    torch.testing.assert_close(module.outputs(x), mean + torch.cat([along, -along]), rtol=1e-9, atol=1e-11)
    wanted = draws.predict(x)
    found = module(x)
    torch.testing.assert_close(found[:2], read(wanted), rtol=1e-8, atol=1e-10)
    torch.testing.assert_close(found.epistemic, wanted.epistemic, rtol=1e-7, atol=1e-10)
    assert not any(p.requires_grad for p in module.parameters()) and not module.training


@pytest.mark.parametrize("name", ["classification", "binary", "regression", "count"])
def test_many_draws_are_the_prediction(name: str) -> None:
    posterior, x = fitted(name)
    few, many = (posterior.as_module(count, check=x).difference for count in (8, 8000))
    assert few is not None and many is not None and many.inputs == 60
    assert many.small and many.uncertainty < 0.03 * many.usual
    assert many.mean < 0.005 and few.uncertainty > 3 * many.uncertainty


def test_its_difference_is_what_it_says() -> None:
    posterior, x = fitted()
    module = posterior.as_module(8, check=(x, x), defer=1.0)
    wanted, found, gap = posterior.predict(x), module(x), module.difference
    assert gap is not None and gap.inputs == 60 and gap.scale == 1
    off, spread = (found.mean - wanted.probs).abs(), (found.uncertainty - wanted.entropy).abs()
    assert gap.mean == pytest.approx(float(off.mean())) and gap.mean_largest == pytest.approx(float(off.max()))
    assert gap.uncertainty == pytest.approx(float(spread.mean()))
    assert gap.uncertainty_largest == pytest.approx(float(spread.max()))
    assert gap.usual == pytest.approx(float(wanted.entropy.mean()))
    assert gap.deferred == pytest.approx(float((found.defer != (wanted.entropy > 1.0)).double().mean()))
    assert len(repr(gap)) < 300
    pieces = posterior.as_module(8, check=[x[:25], x[25:40], x[40:]], defer=1.0).difference
    assert pieces is not None and pieces.mean == pytest.approx(gap.mean)


def test_a_notice_says_where_it_differs() -> None:
    posterior, x = fitted()
    with pytest.warns(Notice, match=r"served mean differs from predict\(\) by .* num_samples="):
        posterior.with_prior(1e-3).as_module(2, check=x)
    with warnings.catch_warnings():
        warnings.simplefilter("error", Notice)
        posterior.with_prior(1e3).as_module(check=x)


def test_directions_follow_a_generator() -> None:
    posterior, x = fitted()
    seeded = [posterior.as_module(8, torch.Generator().manual_seed(s))(x).mean for s in (1, 1, 2)]
    assert torch.equal(seeded[0], seeded[1]) and not torch.allclose(seeded[0], seeded[2])
    assert torch.equal(posterior.as_module(8)(x).mean, posterior.as_module(8)(x).mean)


def test_it_takes_some_inputs_at_a_time_unless_exported(set_sizes: Any) -> None:
    posterior, x = fitted()
    whole = posterior.as_module(12)
    set_sizes(tangents=1)
    module = posterior.as_module(12)
    assert module.outputs.together == 1 < len(x) <= whole.outputs.together
    torch.testing.assert_close(module(x), whole(x), rtol=1e-12, atol=1e-14)
    sizes: list[int] = []
    module.outputs.tangents.register_forward_pre_hook(lambda _, args: sizes.append(len(args[0])))
    module(x[:3])
    assert sizes == [1, 1, 1]
    exported = torch.export.export(posterior.as_module(12), (x[:3],), dynamic_shapes=SIZES)
    torch.testing.assert_close(exported.module()(x), whole(x), rtol=1e-9, atol=1e-11)


@pytest.mark.parametrize("more", [{}, {"defer": 1.0}, {"defer": 1.0, "novelty": True}])
def test_it_exports_with_a_variable_batch_size_and_to_a_file(more: dict[str, Any], tmp_path: Path) -> None:
    posterior, x = fitted(dtype=torch.float32)
    module = posterior.as_module(8, **(more | {"novelty": x} if "novelty" in more else more))
    exported = torch.export.export(module, (x[:3],), dynamic_shapes=SIZES)
    torch.export.save(exported, tmp_path / "served.pt2")
    loaded = torch.export.load(tmp_path / "served.pt2").module()
    for size in (1, 2, 17):
        torch.testing.assert_close(tuple(exported.module()(x[:size])), tuple(module(x[:size])))
        torch.testing.assert_close(tuple(loaded(x[:size])), tuple(module(x[:size])))


@pytest.mark.parametrize("name", ["mlp", "conv"])
def test_onnx(name: str) -> None:
    runtime = pytest.importorskip("onnxruntime")
    pytest.importorskip("onnxscript")
    posterior, x = fitted(dtype=torch.float32)
    if name == "conv":
        torch.manual_seed(0)
        body = nn.Sequential(nn.Conv2d(1, 3, 3), nn.BatchNorm2d(3), nn.ReLU(), nn.MaxPool2d(2))
        x, y = torch.randn(40, 1, 6, 6), torch.randint(3, (40,))
        net = nn.Sequential(body, nn.Flatten(), nn.Linear(12, 3)).eval()
        posterior = whence.laplace(net, (x, y), likelihood="classification", progress=False)
    module = posterior.as_module(8, defer=1.0, novelty=x[20:])  # no ties with what is scored below
    program = torch.onnx.export(module, (x[:3],), dynamo=True, dynamic_shapes=SIZES, verbose=False)
    session = runtime.InferenceSession(program.model_proto.SerializeToString())
    for size in (1, 2, 17):
        wanted = module(x[:size])
        found = session.run(None, {session.get_inputs()[0].name: x[:size].numpy()})
        assert len(found) == len(wanted) == 6
        for one, other in zip(found, wanted, strict=True):
            torch.testing.assert_close(torch.from_numpy(one), other, rtol=1e-4, atol=1e-5)


# Deferral


def test_the_rule_of_an_audit_defers() -> None:
    posterior, x = fitted()
    wrong = (torch.arange(60) % 3 == 0).double()
    rule = whence.metrics.defer(posterior.predict(x).entropy, wrong, coverage=0.5, resamples=0)
    module = posterior.as_module(4000, defer=rule)
    found = module(x)
    assert torch.equal(found.defer, found.uncertainty > rule.threshold)
    assert 0.4 < float(found.defer.double().mean()) < 0.6
    assert bool(posterior.as_module(8, defer=-1.0)(x).defer.all())
    recorded = DeferralRule("max_error", 0.01, 0.95, None, "none", Chosen(0.0, None), None)  # type: ignore[arg-type]
    assert bool(posterior.as_module(8, defer=recorded)(x).defer.all()), "a rule that answers nothing defers all"


def test_uncertainties_of_several_outputs_are_added_up() -> None:
    posterior, x = fitted("regression")
    found = posterior.as_module(8, defer=0.5)(x)
    assert torch.equal(found.defer, found.uncertainty.sum(1) > 0.5) and found.defer.shape == (60,)


# Novelty


def test_p_values_are_those_of_its_own_reference() -> None:
    posterior, _ = fitted()
    torch.manual_seed(3)
    reference, new = torch.randn(400, 4).double(), torch.randn(400, 4).double()
    module = posterior.as_module(8, novelty=reference)
    p = module(new).p_value
    flagged = float((p <= 0.1).double().mean())
    assert 0.04 < flagged < 0.17, "of inputs like the reference a tenth"
    assert float(p.min()) >= 1 / 401 and float(p.max()) <= 1
    assert module(new[:5]).p_value.tolist() == pytest.approx(p[:5].tolist()), "a function of the input alone"


def test_many_directions_estimate_what_is_unexplained() -> None:
    for name in ("classification", "regression"):
        posterior, x = fitted(name)
        exact = whence.novelty(posterior, x[:6], reference=x, combine="fisher")
        scored = served_novelty(posterior, x, None, directions=3000)
        torch.testing.assert_close(scored.unexplained(x[:6]), exact.unexplained, rtol=0.15, atol=1e-6)


def test_a_novelty_score_that_is_too_large_is_refused(set_sizes: Any) -> None:
    posterior, x = fitted()
    set_sizes(dense_covariance=10_000)
    with pytest.raises(TooLarge, match=r"whence\.novelty"):
        posterior.as_module(novelty=x)


# Options


def test_what_cannot_be_served() -> None:
    posterior, x = fitted()
    for bad in ("much", True, float("nan")):
        with pytest.raises(BadOption, match="no threshold"):
            posterior.as_module(defer=bad)
    with pytest.raises(BadOption, match="method"):
        posterior.as_module(method="exact")  # type: ignore[arg-type]
    moved_away = posterior.to(torch.float32)
    with pytest.raises(NotDefined, match=r"pass check=inputs \(or method='sampled'\)"):
        moved_away.as_module(method="linearised")
    with pytest.warns(Notice, match="weight draws are served instead"):
        assert moved_away.as_module()(x.float()).mean.shape == (60, 3)
    assert moved_away.as_module(method="sampled").difference is None
    assert moved_away.as_module(check=x.float()).difference is not None
    members = whence.ensemble([nn.Linear(4, 3), nn.Linear(4, 3)], likelihood="classification")
    with pytest.raises(NotDefined, match="method='linearised' is not available"):
        members.as_module(method="linearised")
    with pytest.raises(NotDefined, match="a novelty score needs the curvature"):
        members.as_module(novelty=x.float())
