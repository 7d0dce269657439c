"""Tuning by validation data and by the evidence."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import whence
from tests.comparison import assert_close, fitted
from tests.reference.networks import ALL
from whence.errors import BadData
from whence.likelihoods import Gaussian
from whence.posteriors.laplace import validation as module
from whence.posteriors.laplace.evidence import log_evidence
from whence.posteriors.laplace.tuning import tuned_by
from whence.predictive.linearised import moments


def trained(seed: int = 0, hidden: int = 16) -> tuple[nn.Module, tuple, tuple]:
    """A small classifier, fitted too closely to noisy data."""
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(300, 4, generator=generator).double()
    y = ((x[:, 0] + x[:, 1] ** 2 - 1 + 0.5 * torch.randn(300, generator=generator)) > 0).long()
    torch.manual_seed(seed)
    model = nn.Sequential(
        nn.Linear(4, hidden), nn.Tanh(), nn.Linear(hidden, hidden), nn.Tanh(), nn.Linear(hidden, 2)
    ).double()
    optimiser = torch.optim.Adam(model.parameters(), lr=1e-2)
    for _ in range(200):
        optimiser.zero_grad()
        nn.functional.cross_entropy(model(x[:150]), y[:150]).backward()
        optimiser.step()
    return model, (x[:150], y[:150]), (x[150:], y[150:])


def validation_loss(posterior: whence.Laplace, data: tuple) -> float:
    x, y = data
    probs = posterior.predict(x, num_samples=128).probs
    return float(nn.functional.nll_loss(probs.log(), y))


@pytest.mark.parametrize("structure", ["kron", "diag", "full", "lowrank", "ekfac"])
def test_variance_scales_with_prior_and_data(structure: str) -> None:
    """V(δ, s) = V(δ / s, 1) / s, which tuning rests on."""
    case = ALL["conv2d"](0)
    posterior = fitted(case, structure=structure, rank=10)
    both = moments(posterior.with_prior(3.0).with_data_scale(5.0), case.x).cov
    one = moments(posterior.with_prior(3.0 / 5.0), case.x).cov
    assert_close(both, one / 5.0)


def test_the_trace_holds_what_a_full_prediction_gives() -> None:
    model, train, validation = trained()
    posterior = whence.laplace(model, train, likelihood="classification", prior_precision=1.0)
    tuned = posterior.tune(validation)
    assert tuned.tuning is not None
    for trial in tuned.tuning.trials[::9]:
        direct = posterior.with_prior(trial.prior_factor).with_data_scale(trial.data_scale)
        assert validation_loss(direct, validation) == pytest.approx(trial.score, rel=1e-4)
    assert validation_loss(tuned, validation) == pytest.approx(tuned.tuning.score, rel=1e-4)


@pytest.mark.parametrize("structure", ["kron", "diag", "full", "lowrank", "ekfac"])
@pytest.mark.parametrize("double", [False, True])
def test_the_search_gives_the_prediction_of_the_validation_inputs(structure: str, double: bool) -> None:
    """Audits take it from there instead of making a pass of their own."""
    model, train, validation = trained()
    kept = [x if double else x.float() for x in (train[0], validation[0])]
    model = model if double else model.float()
    posterior = whence.laplace(model, (kept[0], train[1]), likelihood="classification", structure=structure)
    tuned = tuned_by(posterior, (kept[1], validation[1]), progress=False)
    found, expected = tuned.prediction(kept[1]), tuned.posterior.predict(kept[1])
    assert found is not None
    tolerance = 1e-8 if double else 1e-4
    assert_close(found.logit_mean, expected.logit_mean, tolerance)
    assert_close(found.logit_cov, expected.logit_cov, tolerance)
    assert_close(found.probs, expected.probs, tolerance)


def test_the_evidence_and_draws_keep_no_prediction() -> None:
    model, train, validation = trained()
    posterior = whence.laplace(model, train, likelihood="classification")
    assert tuned_by(posterior, None).prediction(validation[0]) is None
    assert tuned_by(posterior, validation, method="sampled", num_samples=4).prediction(validation[0]) is None


def test_validation_tuning_beats_every_neighbour_and_the_start() -> None:
    model, train, validation = trained()
    posterior = whence.laplace(model, train, likelihood="classification", prior_precision=1.0)
    tuned = posterior.tune(validation, data_scale=True)
    best = validation_loss(tuned, validation)
    assert best <= validation_loss(posterior, validation)
    plain = float(nn.functional.cross_entropy(model(validation[0]), validation[1]))
    assert best < plain, "an overfitted network must gain"
    delta, scale = float(tuned.prior_precision), tuned.data_scale
    for factor in (0.5, 2.0):
        assert best <= validation_loss(tuned.with_prior(delta * factor).with_data_scale(scale), validation) + 1e-4
        moved = tuned.with_prior(delta * factor).with_data_scale(scale * factor)
        assert best <= validation_loss(moved, validation) + 1e-4


def losses(posterior: whence.Laplace, validation: tuple[torch.Tensor, torch.Tensor]) -> torch.Tensor:
    probs = posterior.predict(validation[0], num_samples=128).probs
    return -probs[torch.arange(len(probs)), validation[1]].log().double()


@pytest.mark.parametrize("copies", [1, 300])
def test_the_data_scale_moves_only_for_more_than_two_standard_errors(copies: int) -> None:
    """Data counted 300 times over want a smaller scale; data counted once may keep theirs."""
    model, train, validation = trained()
    posterior = whence.laplace(
        model, train, likelihood="classification", prior_precision=1.0, data_size=copies * len(train[1])
    )
    free, fixed, auto = (posterior.tune(validation, data_scale=choice) for choice in (True, False, "auto"))
    gain = losses(fixed, validation) - losses(free, validation)
    moves = float(gain.mean()) > 2 * float(gain.std()) / math.sqrt(len(gain))
    assert moves == (copies == 300)
    wanted = free if moves else fixed
    assert auto.data_scale == pytest.approx(wanted.data_scale, rel=1e-6)
    assert float(auto.prior_precision) == pytest.approx(float(wanted.prior_precision), rel=1e-6)
    # A prior of 1e-14 leaves the common shift of the logits a variance of 1e14, and few digits for their difference.
    assert auto.tuning.score == pytest.approx(float(losses(auto, validation).mean()), rel=1e-3 if moves else 1e-4)
    assert (auto.data_scale == 1.0) == (not moves)


def test_an_unknown_choice_of_scale_is_refused() -> None:
    model, train, validation = trained()
    posterior = whence.laplace(model, train, likelihood="classification", prior_precision=1.0)
    with pytest.raises(whence.errors.BadOption, match="'auto'"):
        posterior.tune(validation, data_scale="always")


@pytest.mark.parametrize("start", [1e-6, 1.0, 1e6])
def test_no_optimum_is_left_on_the_edge(start: float) -> None:
    model, train, validation = trained()
    posterior = whence.laplace(model, train, likelihood="classification", prior_precision=start)
    tuned = posterior.tune(validation, data_scale=False)
    assert tuned.tuning is not None
    factors = sorted({t.prior_factor for t in tuned.tuning.trials})
    best = min(tuned.tuning.trials, key=lambda t: t.score)
    assert factors[0] < best.prior_factor < factors[-1]
    reference = whence.laplace(model, train, likelihood="classification", prior_precision=1.0).tune(
        validation, data_scale=False
    )
    assert math.log(float(tuned.prior_precision) / float(reference.prior_precision)) == pytest.approx(0, abs=0.8)


def test_per_layer_tuning_is_no_worse() -> None:
    model, train, validation = trained()
    posterior = whence.laplace(model, train, likelihood="classification", prior_precision=1.0)
    shared = posterior.tune(validation)
    layered = posterior.tune(validation, per_layer=True)
    assert layered.tuning.score <= shared.tuning.score
    assert validation_loss(layered, validation) == pytest.approx(layered.tuning.score, rel=1e-4)
    assert len(set(layered.prior.values.values())) > 1


def test_sampled_tuning() -> None:
    model, train, validation = trained()
    posterior = whence.laplace(model, train, likelihood="classification", prior_precision=1.0)
    tuned = posterior.tune(validation, method="sampled", generator=torch.Generator().manual_seed(0))

    def loss(p: whence.Laplace) -> float:
        probs = p.predict(validation[0], method="sampled", generator=torch.Generator().manual_seed(1)).probs
        return float(nn.functional.nll_loss(probs.log(), validation[1]))

    assert loss(tuned) < loss(posterior)
    assert tuned.tuning.method == "sampled"


@pytest.mark.filterwarnings("ignore::whence.errors.Notice")
@pytest.mark.parametrize("structure", ["kron", "diag", "full", "block", "ekfac", "lowrank"])
def test_the_evidence_is_at_its_maximum(structure: str) -> None:
    model, train, _ = trained()
    posterior = whence.laplace(
        model.double(), train, likelihood="classification", prior_precision=1.0, structure=structure, rank=30
    )
    tuned = posterior.tune()
    delta = float(tuned.prior_precision)
    top = float(log_evidence(tuned))
    assert top >= float(log_evidence(posterior))
    for factor in (0.9, 1.1):
        assert float(log_evidence(tuned.with_prior(delta * factor))) < top
    gamma = sum(float(g.effective_parameters()) for g, _ in tuned.gaussians())
    squares = sum(float(p.double().square().sum()) for p in tuned.mean().values())
    assert delta == pytest.approx(gamma / squares, rel=1e-6), "MacKay's fixed point"


@pytest.mark.filterwarnings("ignore::whence.errors.Notice")
@pytest.mark.parametrize("structure", ["kron", "full", "block"])
def test_the_evidence_per_layer(structure: str) -> None:
    model, train, _ = trained()
    posterior = whence.laplace(model.double(), train, likelihood="classification", structure=structure)
    shared, layered = posterior.tune(), posterior.tune(per_layer=True)
    assert float(log_evidence(layered)) > float(log_evidence(shared))
    top = float(log_evidence(layered))
    for block in layered.blocks:
        for factor in (0.8, 1.25):
            values = {
                n: v * (factor if any(n == p.name for p in block.params) else 1)
                for n, v in layered.prior.values.items()
            }
            assert float(log_evidence(layered.with_prior(values))) < top + 1e-9


def test_evidence_with_noise() -> None:
    generator = torch.Generator().manual_seed(0)
    x = torch.rand(80, 1, generator=generator).double() * 4 - 2
    y = x.sin() + 0.2 * torch.randn(80, 1, generator=generator).double()
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(1, 10), nn.Tanh(), nn.Linear(10, 1)).double()
    optimiser = torch.optim.Adam(model.parameters(), lr=2e-2)
    for _ in range(800):
        optimiser.zero_grad()
        nn.functional.mse_loss(model(x), y).backward()
        optimiser.step()
    posterior = whence.laplace(model, (x, y), likelihood="regression", structure="full")
    rms = float((model(x) - y).square().mean().sqrt())
    assert float(posterior.likelihood.noise) == pytest.approx(rms, rel=1e-6)
    tuned = posterior.tune()
    noise = float(tuned.likelihood.noise)
    assert rms < noise < 0.4
    from dataclasses import replace

    top = float(log_evidence(tuned))
    for factor in (0.95, 1.05):
        other = replace(tuned, likelihood=Gaussian(noise * factor))
        assert float(log_evidence(other)) < top
        fresh = whence.laplace(
            model, (x, y), likelihood=Gaussian(noise * factor), structure="full", prior_precision=tuned.prior_precision
        )
        assert float(log_evidence(fresh)) == pytest.approx(float(log_evidence(other)), rel=1e-9)


def test_evidence_that_harms_warns() -> None:
    """A network stopped early, whose weights are small: the evidence wants a broad prior."""
    generator = torch.Generator().manual_seed(3)
    x = torch.randn(400, 30, generator=generator)
    y = (x[:, :10].sum(1) > 0).long()
    torch.manual_seed(3)
    model = nn.Sequential(nn.Linear(30, 200), nn.ReLU(), nn.Linear(200, 200), nn.ReLU(), nn.Linear(200, 2))
    optimiser = torch.optim.Adam(model.parameters(), lr=1e-3)
    for _ in range(60):
        optimiser.zero_grad()
        nn.functional.cross_entropy(model(x), y).backward()
        optimiser.step()
    posterior = whence.laplace(model, (x, y), likelihood="classification", structure="diag")
    assert posterior.record.accuracy > 0.97
    with pytest.warns(whence.errors.Notice, match="underconfident.*validation"):
        posterior.tune()


def test_validation_at_once_and_the_repr() -> None:
    model, train, validation = trained()
    untuned = whence.laplace(model, train, likelihood="classification")
    assert "not tuned" in repr(untuned)
    tuned = whence.laplace(model, train, likelihood="classification", validation=validation)
    assert "tuned by validation" in repr(tuned)
    assert tuned.prior_precision == untuned.tune(validation).prior_precision


def test_options_that_the_evidence_cannot_use_are_refused() -> None:
    model, train, _ = trained()
    posterior = whence.laplace(model, train, likelihood="classification", prior_precision=1.0)
    for option in ({"method": "sampled"}, {"num_samples": 3}, {"generator": torch.Generator()}):
        with pytest.raises(whence.errors.BadOption, match="validation data"):
            posterior.tune(**option)


def without_room(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Projections are too large to be kept from here on; the list has an entry for each pass that makes them."""
    passes: list[int] = []
    plain = module.Validation._projected

    def counted(self, posterior):
        passes.append(1)
        return plain(self, posterior)

    monkeypatch.setattr(module.Validation, "_projected", counted)
    monkeypatch.setattr(module.ProjectedExamples, "bytes", 10**12)
    return passes


@pytest.mark.parametrize("data_scale", [False, True, "auto"])
def test_what_is_too_large_to_keep_is_projected_few_times(
    data_scale: object, monkeypatch: pytest.MonkeyPatch, set_sizes: Any
) -> None:
    """Without room for projections the same values are tried with the same scores, in four passes at most."""
    net, train, validation = trained()
    posterior = whence.laplace(net, train, likelihood="classification", prior_precision=1.0, progress=False)
    kept = posterior.tune(validation, data_scale=data_scale, progress=False).tuning
    passes = without_room(monkeypatch)
    found = posterior.tune(validation, data_scale=data_scale, progress=False).tuning
    few = len(passes)
    assert 2 <= few <= 4
    assert [(t.prior_factor, t.data_scale) for t in found.trials] == [
        (t.prior_factor, t.data_scale) for t in kept.trials
    ]
    for a, b in zip(found.trials, kept.trials, strict=True):
        assert a.score == pytest.approx(b.score, rel=1e-6)

    passes.clear()
    set_sizes(validation=1000)  # nor for covariances
    again = posterior.tune(validation, data_scale=data_scale, progress=False).tuning
    assert len(passes) > few
    assert [t.score for t in again.trials] == pytest.approx([t.score for t in kept.trials], rel=1e-6)


def test_layers_are_tuned_in_two_passes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Covariances of single layers are found once for each step; without room for them the result is the same."""
    net, train, validation = trained()
    posterior = whence.laplace(net, train, likelihood="classification", prior_precision=1.0, progress=False)
    passes = without_room(monkeypatch)
    posterior.tune(validation, progress=False)
    alone = len(passes)
    passes.clear()
    found = posterior.tune(validation, per_layer=True, progress=False)
    assert len(passes) == alone + 2
    monkeypatch.setattr(module.Validation, "by_layer", lambda *_: None)
    slow = posterior.tune(validation, per_layer=True, progress=False)
    assert len({round(float(v), 9) for v in found.prior_precision.values()}) > 1
    assert found.prior_precision == pytest.approx(slow.prior_precision)
    assert [t.score for t in found.tuning.trials] == pytest.approx([t.score for t in slow.tuning.trials], rel=1e-9)


def network() -> tuple[nn.Module, Tensor, Tensor]:
    torch.manual_seed(0)
    return nn.Linear(4, 3).double(), torch.randn(12, 4, dtype=torch.float64), torch.arange(12) % 3


def test_validation_labels_that_do_not_count() -> None:
    model, x, y = network()
    posterior = whence.laplace(model, (x, y), likelihood="classification")
    with pytest.raises(BadData, match="every label is ignore_index"):
        posterior.tune((x, torch.full_like(y, -100)))
    some = torch.where(torch.arange(12) < 6, y, -100)
    assert posterior.tune((x, some)).tuning.score == pytest.approx(posterior.tune((x[:6], y[:6])).tuning.score)


def mlp(inputs: int = 3, outputs: int = 2) -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(inputs, 6), nn.Tanh(), nn.Linear(6, outputs))


def classes(count: int = 24) -> tuple[Tensor, Tensor]:
    return torch.randn(count, 3), torch.arange(count) % 2


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


@pytest.mark.parametrize("structure", ["kron", "diag", "lowrank"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_validation_pieces_as_one_give_the_same_covariances(structure: Any, dtype: torch.dtype) -> None:
    """A GPU keeps them as one piece."""

    class Words(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.words, self.conv, self.head = nn.Embedding(7, 4), nn.Conv1d(4, 5, 2), nn.Linear(20, 3)

        def forward(self, ids: torch.Tensor) -> torch.Tensor:
            return self.head(torch.tanh(self.conv(self.words(ids).mT)).flatten(1))

    torch.manual_seed(0)
    x, y = torch.randint(7, (23, 5)), torch.randint(3, (23,))
    options: dict[str, Any] = {"rank": 5} if structure == "lowrank" else {}
    posterior = whence.laplace(Words().to(dtype), (x, y), likelihood="classification", structure=structure, **options)
    data = [(x[:9], y[:9]), (x[9:18], y[9:18]), (x[18:], y[18:])]
    validation = module.Validation(posterior.network.read(data, "validation"), False)
    pieces = list(validation.pieces(posterior))
    assert len(pieces) == 3
    moved, rs = module.ScaledPriors(posterior), [-3.0, -1.0, 0.0, 0.5, 1.0, 2.0, 4.0]
    wanted = [torch.cat(parts) for parts in zip(*(p.covariance(moved, rs) for p in pieces), strict=True)]
    whole = module.extended(pieces)
    assert torch.equal(whole.targets.flatten(), y)
    for ours, one in zip(whole.covariance(moved, rs), wanted, strict=True):
        assert_close(ours, one, 1e-5 if dtype == torch.float32 else 1e-12)
