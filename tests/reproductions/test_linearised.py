"""The linearised view: networks trained together are those trained alone, choices are right, pages say the numbers."""

from __future__ import annotations

import copy
import json
import math
from dataclasses import asdict
from pathlib import Path

import pytest
import torch
from PIL import Image
from torch import nn

import whence
from reproductions import readme
from reproductions.claims import Interval
from reproductions.linearised import COLLECTION
from reproductions.linearised.data import Part, load
from reproductions.linearised.stack import BLOCK, Job, Schedule, Streams, drawn, module, of, start, train
from reproductions.linearised.uci import EXPERIMENT
from reproductions.linearised.uci.claims import enough, majority
from reproductions.linearised.uci.laplace import STRUCTURES, of_network
from reproductions.linearised.uci.networks import stacked_outputs
from reproductions.linearised.uci.noise import best_noise, mixture_nll, scaled_nll
from reproductions.linearised.variational import kl, train_variational
from reproductions.store import Values, read, values
from tests.reproductions import laws
from whence import metrics
from whence.predictive.links import predict_draws

SCHEDULE = Schedule(steps=30, batch=16)
JOBS = [Job(0, 1, 1e-3), Job(1, 2, 1e-2), Job(0, 3, 1e-3, dropout=0.2)]
COMMITTED = [name for name in COLLECTION.names if (COLLECTION.home / name / "results.json").exists()]


@pytest.fixture(scope="module")
def part() -> Part:
    return load("synthetic-1", (0, 1), "standard", validation=False).train


# Networks trained together


def alone(part: Part, job: Job) -> nn.Module:
    """The same network by torch's own modules, optimiser and weight decay in the loss."""
    streams = Streams([job], part, "train")
    network = module(start(streams, part.x.shape[2], 6), 0)
    x, y = part.of(job.split)
    optimiser = torch.optim.Adam(network.parameters(), lr=SCHEDULE.lr, foreach=False)
    for first in range(0, SCHEDULE.steps, BLOCK):
        rows = streams.rows(BLOCK, SCHEDULE.batch)
        shape = (BLOCK, SCHEDULE.batch)
        masks = [streams.uniform(*shape, units)[0] >= job.dropout for units in (4, 6)] if job.dropout else None
        for step in range(first, min(first + BLOCK, SCHEDULE.steps)):
            which = rows[step - first, 0]
            optimiser.param_groups[0]["lr"] = 0.01 * 0.5 * (1 + math.cos(math.pi * step / SCHEDULE.steps))
            hidden, out = x[which], None
            for i, layer in enumerate((network[0], network[2])):
                hidden = hidden if masks is None else hidden * masks[i][step - first] / (1 - job.dropout)
                out = layer(hidden)
                hidden = out.relu()
            assert out is not None
            loss = 0.5 * (out - y[which]).square().mean()
            loss = loss + 0.5 * job.decay * sum(p.square().sum() for p in network.parameters())
            optimiser.zero_grad()
            loss.backward()
            optimiser.step()
    return network


@pytest.mark.parametrize("which", [0, 1, 2])
def test_networks_trained_together_are_those_trained_alone(part: Part, which: int) -> None:
    jobs = JOBS[:2] if which < 2 else JOBS
    together = of(train(part, jobs, 6, SCHEDULE), which)
    expected = alone(part, jobs[which]).state_dict()
    for name, value in together.items():
        torch.testing.assert_close(value, expected[name], rtol=1e-3, atol=1e-5)


def test_variational_networks_trained_together_are_those_trained_alone(part: Part) -> None:
    jobs = [Job(0, 1, 1.0), Job(1, 2, 10.0)]
    both, second = train_variational(part, jobs, 6, SCHEDULE), train_variational(part, jobs[1:], 6, SCHEDULE)
    for name, value in both.mean.items():
        torch.testing.assert_close(value[1], second.mean[name][0], rtol=1e-3, atol=1e-5)
        torch.testing.assert_close(both.std[name][1], second.std[name][0], rtol=1e-3, atol=1e-5)
    assert float(both.noise[1]) == pytest.approx(float(second.noise[0]), rel=1e-3)


def test_the_divergence_is_that_of_torch() -> None:
    generator = torch.Generator().manual_seed(0)
    mean = {"a": torch.randn(2, 3, generator=generator).double()}
    std = {"a": torch.rand(2, 3, generator=generator).double() + 0.1}
    precision = torch.tensor([0.5, 4.0]).double()
    prior = torch.distributions.Normal(0.0, precision.rsqrt().unsqueeze(1))
    expected = torch.distributions.kl_divergence(torch.distributions.Normal(mean["a"], std["a"]), prior).sum(1)
    torch.testing.assert_close(kl(mean, std, precision), expected)


def test_members_predict_as_an_ensemble_of_whence(part: Part) -> None:
    weights = train(part, [Job(0, seed) for seed in range(3)], 6, SCHEDULE)
    x = part.of(0)[0][:20]
    ours = predict_draws(whence.Gaussian(0.3), drawn(weights, x))
    expected = whence.ensemble([module(weights, i) for i in range(3)], likelihood=whence.Gaussian(0.3)).predict(x)
    torch.testing.assert_close(ours.mean, expected.mean)
    torch.testing.assert_close(ours.variance, expected.variance)
    one = [{name: value[i : i + 1] for name, value in weights.items()} for i in range(3)]
    torch.testing.assert_close(stacked_outputs(one, x, 0), drawn(weights, x))


# Choices on validation rows


def test_the_density_of_a_mixture_is_that_of_the_metrics() -> None:
    generator = torch.Generator().manual_seed(0)
    found, y = torch.randn(7, 30, 1, generator=generator), torch.randn(30, 1, generator=generator)
    prediction = predict_draws(whence.Gaussian(0.4), found)
    assert mixture_nll(found, y, 0.4) == pytest.approx(float(metrics.nll(prediction, y, resamples=0)), rel=1e-5)
    noise, nll = best_noise(found, y)
    assert all(nll <= mixture_nll(found, y, noise * factor) + 1e-9 for factor in (0.5, 0.9, 0.99, 1.01, 1.1, 2.0))


def test_the_best_noise_beside_a_variance_is_exact() -> None:
    errors = torch.randn(40, 1, generator=torch.Generator().manual_seed(0))
    variance = torch.linspace(0, 3, 40).unsqueeze(1)

    def nll(noise: float) -> float:
        spread = noise * (1 + variance).sqrt()
        return -float(torch.distributions.Normal(0.0, spread).log_prob(errors).mean())

    noise, lowest = scaled_nll(errors, variance)
    assert lowest == pytest.approx(nll(noise), rel=1e-5)
    assert all(nll(noise) <= nll(noise * factor) for factor in (0.9, 0.99, 1.01, 1.1))


@pytest.mark.parametrize("method", STRUCTURES)
def test_the_covariance_is_the_noise_times_a_function_of_the_ratio(part: Part, method: str) -> None:
    network = module(train(part, JOBS[:1], 6, SCHEDULE), 0)
    data, structure = part.of(0), STRUCTURES[method]
    chosen = of_network(structure.fit(network, data), load("synthetic-1", (0,), "standard", True).train.of(0))
    x = data[0][:10]
    relative = structure.fit(network, data).with_prior(chosen.ratio).predict(x).epistemic
    found = structure.fit(network, data, chosen.noise, chosen.precision).predict(x)
    torch.testing.assert_close(found.epistemic, chosen.noise**2 * relative, rtol=1e-3, atol=1e-7)
    torch.testing.assert_close(found.aleatoric, torch.full_like(found.aleatoric, chosen.noise**2))


def test_rows_are_each_in_one_part() -> None:
    for kind in ("standard", "gap"):
        held, whole = (load("synthetic-1", (0, 1), kind, validation=v) for v in (True, False))
        assert held.validation is not None
        for k in range(2):
            assert held.train.sizes[k] + held.validation.sizes[k] == whole.train.sizes[k]
            assert whole.train.sizes[k] + whole.test.sizes[k] == 120
            x, y = whole.train.of(k)
            assert float(x.mean(0).abs().max()) < 1e-5 and float(y.std()) == pytest.approx(1, abs=1e-4)


# The experiment


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = laws.quick("uci", tmp_path_factory.mktemp("uci"), COLLECTION)
    return laws.in_order("uci", folder, COLLECTION)


def test_every_unit_is_there_and_none_is_done_twice(folder: Path) -> None:
    laws.complete_and_done_once("uci", folder, COLLECTION)
    for name in ("standard.png", "gap.png", "gaps.png"):
        with Image.open(folder / name) as image:
            assert min(image.size) > 200 and image.convert("L").getextrema()[0] < 100


def test_verdicts_follow_the_numbers(folder: Path) -> None:
    units = values(read(folder / "results.json"))

    def verdict(words: str, by: float) -> str:
        changed = copy.deepcopy(units)
        for name, unit in changed.items():
            if name.startswith("hmc"):
                continue
            plain = unit["methods"]["plain"]["nll"]
            unit["methods"]["laplace, full"]["nll"] = [nll + by + 1e-4 * k for k, nll in enumerate(plain)]
        return next(c.verdict for c in EXPERIMENT.claims(changed) if words in c.claim)

    words = "Standard splits: NLL of “Laplace, full” is lower than of “one network"
    assert (verdict(words, -0.5), verdict(words, 0.5)) == ("holds", "does not hold")
    assert verdict("7 of 9", -9.0) == "cannot be told"  # the others were not measured


def test_how_many_tables_are_enough() -> None:
    below, above, open_ = Interval(-1, -2, -0.5), Interval(1, 0.5, 2), Interval(0, -1, 1)

    def over(*intervals: Interval) -> dict[str, Interval]:
        return {str(i): interval for i, interval in enumerate(intervals)}

    assert enough(over(*[below] * 7, above, above), 7, 9) == "holds"
    assert enough(over(*[below] * 6, above, above, above), 7, 9) == "does not hold"
    assert enough(over(*[below] * 6, open_, above, above), 7, 9) == "cannot be told"
    assert enough(over(*[below] * 6), 7, 9) == "cannot be told"
    assert [majority(over(*each)) for each in ((below, below, above), (above, above, below), (below, open_))] == [
        "holds", "does not hold", "cannot be told",
    ]  # fmt: skip


@pytest.mark.parametrize("name", COMMITTED)
def test_pages_say_what_the_results_say(name: str) -> None:
    content: Values = read(COLLECTION.home / name / "results.json")
    found, home = COLLECTION.experiment(name), COLLECTION.home / name
    assert not content["quick"]
    assert (home / "README.md").read_text() == readme.expected(home, readme.section(found, content))
    assert content["config"] == json.loads(json.dumps(asdict(found.config(False))))
    assert set(content["units"]) <= set(found.units(found.config(False)))


def test_the_page_over_all_lists_every_claim() -> None:
    assert (COLLECTION.home / "README.md").read_text() == readme.expected(COLLECTION.home, readme.summary(COLLECTION))
