"""Training with the evidence online: networks trained together are those of the library's own loop."""

from __future__ import annotations

import copy
import math
import warnings
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from PIL import Image
from torch import nn

import whence
from reproductions.claims import Interval
from reproductions.linearised import COLLECTION
from reproductions.linearised.data import Part, load
from reproductions.linearised.online import EXPERIMENT
from reproductions.linearised.online.claims import majority
from reproductions.linearised.online.config import QUICK, Config, units
from reproductions.linearised.online.images import images_of
from reproductions.linearised.online.networks import Kept, Stopped, Variant, by_decay, learned
from reproductions.linearised.stack import BLOCK, Job, Schedule, Streams, module, of, outputs, start, train
from reproductions.store import Values, read, values
from tests.reproductions import laws

SMALL = replace(QUICK, hidden=6)
SCHEDULE = Schedule(steps=40, batch=16)


@pytest.fixture(scope="module")
def part() -> Part:
    return load("synthetic-1", (0, 1), "standard", validation=False).train


def by_the_library(part: Part, job: Job, variant: Variant) -> whence.OnlineEvidence:
    """The same network in the loop that docs/evidence.md shows, with its loss times σ²."""
    streams = Streams([job], part, "train")
    network = module(start(streams, part.x.shape[2], SMALL.hidden), 0)
    x, y = part.of(job.split)
    evidence = whence.online_evidence(
        network, (x, y), likelihood="regression", structure=variant.structure, prior_precision=variant.prior
    )
    optimiser = torch.optim.Adam(network.parameters(), lr=SCHEDULE.lr, foreach=False)
    for step in range(SCHEDULE.steps):
        if step % BLOCK == 0:
            rows = streams.rows(BLOCK, SCHEDULE.batch)
        which = rows[step % BLOCK, 0]
        optimiser.param_groups[0]["lr"] = SCHEDULE.rate(step)
        optimiser.zero_grad()
        assert isinstance(evidence.likelihood, whence.Gaussian)
        noise = evidence.likelihood.number
        assert noise is not None
        (noise**2 * evidence.loss(network(x[which]), y[which])).backward()
        optimiser.step()
        if step + 1 in SMALL.moments(SCHEDULE.steps):
            evidence.update()
    return evidence


@pytest.mark.filterwarnings("ignore::whence.errors.Notice")
@pytest.mark.parametrize("variant", [Variant("full"), Variant("kron", relative=True)])
def test_networks_trained_together_learn_as_each_alone(part: Part, variant: Variant) -> None:
    jobs = [Job(0, 1), Job(1, 2)]
    together = learned(SMALL, part, jobs, SCHEDULE, variant)[1].evidence
    alone = by_the_library(part, jobs[1], variant)
    assert len(together.records) == len(alone.records) == SMALL.updates
    for mine, expected in zip(together.records, alone.records, strict=True):
        assert mine.log_evidence == pytest.approx(expected.log_evidence, abs=0.05)
        assert mine.noise == pytest.approx(expected.noise, rel=1e-2)
        assert mine.precision == pytest.approx(expected.precision, rel=2e-2)


def test_one_decay_is_that_of_the_other_experiment(part: Part) -> None:
    jobs = [Job(0, 1, 1e-3), Job(1, 2, 1e-2)]
    mine, expected = by_decay(part, jobs, 6, SCHEDULE), train(part, jobs, 6, SCHEDULE)
    for name, value in mine.items():
        torch.testing.assert_close(value, expected[name], rtol=1e-3, atol=1e-5)


def test_early_stopping_keeps_the_step_with_the_lowest_error(part: Part) -> None:
    jobs, held = [Job(0, 1), Job(1, 2)], load("synthetic-1", (0, 1), "standard", validation=False).test
    seen: dict[int, list[float]] = {}
    stopped = Stopped.watching(held, 5)

    def after(step: int, weights: dict[str, torch.Tensor]) -> None:
        stopped(step, weights)
        if step % 5 == 0:
            with torch.no_grad():
                away = (outputs(weights, held.x) - held.y).square()
            seen[step] = [float(away[k, :size].mean()) for k, size in enumerate(held.sizes)]

    by_decay(part, jobs, 6, SCHEDULE, after)
    best = [min(seen, key=lambda step: seen[step][k]) for k in range(2)]
    assert stopped.steps == best
    kept = Kept(best, {})
    by_decay(part, jobs, 6, SCHEDULE, kept)
    for k in range(2):
        for name, value in of(stopped.kept, k).items():
            torch.testing.assert_close(value, of(kept.weights, k)[name])


def test_labels_are_balanced_and_parts_apart() -> None:
    data = images_of(QUICK, "digits", 30, 1)
    assert torch.bincount(data.train[1], minlength=10).tolist() == [3] * 10
    (x, y), (held, labels) = data.parts()
    assert len(y) == 24 and len(labels) == 6 and len(x) + len(held) == 30
    other = images_of(QUICK, "digits", 30, 2)
    assert not torch.equal(data.train[0], other.train[0])


def test_updates_are_spread_over_training() -> None:
    config = Config()
    moments = config.moments(1000)
    assert moments[-1] == 1000 and len(moments) == config.updates and min(moments) > config.burn_in * 1000
    assert len(set(units(config))) == len(units(config))


# The experiment


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        folder = laws.quick("online", tmp_path_factory.mktemp("online"), COLLECTION)
    return laws.in_order("online", folder, COLLECTION)


def test_every_unit_is_there_and_none_is_done_twice(folder: Path) -> None:
    laws.complete_and_done_once("online", folder, COLLECTION)
    for name in ("standard.png", "gap.png", "learning.png", "images.png"):
        with Image.open(folder / name) as image:
            assert min(image.size) > 200 and image.convert("L").getextrema()[0] < 100


def test_verdicts_follow_the_numbers(folder: Path) -> None:
    found = values(read(folder / "results.json"))

    def verdict(words: str, by: float) -> str:
        changed: Values = copy.deepcopy(found)
        for name, unit in changed.items():
            own_values = list(unit.values()) if name.startswith("images") else [unit]
            for own in [] if name.startswith("start") else own_values:
                methods = own["methods"]
                base = methods["grid, laplace"]["nll"]
                if isinstance(base, list):
                    methods["online, laplace"]["nll"] = [nll + by + 1e-4 * k for k, nll in enumerate(base)]
                else:
                    methods["online, laplace"]["nll"] = base + by + 1e-4 * int(name.rsplit("/", 1)[1])
        return laws.verdict(EXPERIMENT, changed, words)

    changed = copy.deepcopy(found)
    for k in range(2):
        for i, begin in enumerate(changed["start/synthetic-1/0"]):
            changed["start/synthetic-1/0"][begin]["nll"][k] = 1.0 + i * (0.1 + 1e-3 * k if i > 2 else 0.0)
    assert laws.verdict(EXPERIMENT, changed, "depends less on where it starts") == "holds"
    for kind in ("Standard splits", "Gap splits", "Images"):
        words = f"{kind}: NLL of “evidence online, Laplace” is lower than of “grid of decays, Laplace”"
        assert (verdict(words, -0.5), verdict(words, 0.5)) == ("holds", "does not hold")


def test_a_majority_is_of_all_cases() -> None:
    below, above = Interval(-1, -2, -0.5), Interval(1, 0.5, 2)
    assert majority({"a": below, "b": below, "c": above}, 3) == "holds"
    assert majority({"a": below, "b": below, "c": above}, 9) == "cannot be told"
    assert majority({"a": above, "b": above, "c": below}, 3) == "does not hold"


def test_the_noise_and_precision_of_the_last_update_are_the_posteriors(part: Part) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        (one,) = learned(SMALL, part, [Job(0, 1)], SCHEDULE, Variant("full"))
    last = one.evidence.records[-1]
    assert one.evidence.posterior.likelihood.number == last.noise
    factor = last.noise**2 / part.sizes[0]
    assert isinstance(one.network, nn.Module)
    for name, decay in one.decays().items():
        assert math.isclose(float(decay.flatten()[0]), factor * last.precision[name[0]], rel_tol=1e-4)
