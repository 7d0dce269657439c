"""Model selection by the evidence: its kernels are whence's function space, its orderings are Spearman's."""

from __future__ import annotations

import copy
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from PIL import Image
from scipy.stats import spearmanr

import whence
from reproductions.linearised import COLLECTION
from reproductions.linearised.depth import EXPERIMENT
from reproductions.linearised.depth.config import QUICK
from reproductions.linearised.depth.images import (
    Found,
    Jacobian,
    Predictive,
    at_optimum,
    at_trained,
    jacobian_of,
)
from reproductions.linearised.depth.kernels import (
    at_linear_optimum,
    at_trained_weights,
    layers_of,
    log_likelihood,
    refined_prediction,
    root,
    rooted,
    squares,
)
from reproductions.linearised.depth.measure import process
from reproductions.linearised.depth.networks import mlp, trained
from reproductions.linearised.depth.numbers import Correlation, OverMean, Regret
from reproductions.linearised.depth.subjects import Subject, subject
from reproductions.store import Values, read, values
from tests.reproductions import laws

SMALL = replace(QUICK, size=20, steps=20, iterations=15)


def network_of(data: Subject, depth: int = 3) -> torch.nn.Module:
    torch.manual_seed(0)
    return trained(SMALL, mlp(data.x[0].numel(), data.outputs, depth, 4), data)


def three_classes() -> Subject:
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(15, 3, generator=generator, dtype=torch.float64)
    return Subject(x, torch.randint(3, (15,), generator=generator), x, torch.zeros(15, dtype=torch.long), 3)


@pytest.mark.parametrize("name", ["curve", "two-moons", "classes"])
def test_the_evidence_is_that_of_the_function_space(name: str) -> None:
    data = three_classes() if name == "classes" else subject(SMALL, name, 0)
    network = network_of(data)
    layers = layers_of(network, data.x)
    found = at_trained_weights(data, network, layers, SMALL.iterations)
    expected = process(data, network, layers, found)
    assert found.value == pytest.approx(float(expected.log_evidence()), rel=1e-6)
    assert found.gamma == pytest.approx(float(expected.effective_parameters), rel=1e-5)
    assert found.fit + found.occam == pytest.approx(found.value)
    start = evidence_at_ones(data, network)
    assert found.value > start


def evidence_at_ones(data: Subject, network: torch.nn.Module) -> float:
    """With precisions of 1, in the obvious order."""
    layers = layers_of(network, data.x)
    noise = (data.y - layers.outputs).square().mean().sqrt() if data.classes == 0 else None
    kernel = rooted(layers.kernels(layers), root(data, layers.outputs)).sum(0)
    kernel = kernel / noise**2 if noise is not None else kernel
    log_det = torch.logdet(torch.eye(len(kernel)) + kernel)
    return float(log_likelihood(data, layers.outputs, noise) - 0.5 * squares(network, layers).sum() - 0.5 * log_det)


def test_the_linear_optimum_is_that_of_the_refined_posterior() -> None:
    data = subject(SMALL, "curve", 0)
    network = network_of(data, depth=2)
    layers, test = (layers_of(network, x) for x in (data.x, data.test_x))
    found = at_linear_optimum(data, layers, SMALL.iterations)
    assert found.noise is not None
    posterior = whence.laplace(
        network, (data.x, data.y), likelihood=whence.Gaussian(found.noise), structure="full", progress=False,
        prior_precision=dict(zip(layers.names, found.precisions, strict=True)),
    )  # fmt: skip
    refined = posterior.refined((data.x, data.y), tolerance=1e-9, progress=False)
    assert found.value == pytest.approx(float(refined.log_evidence()), rel=1e-5)
    mean, variance = refined_prediction(data, layers, test, found)
    prediction = refined.predict(data.test_x)
    torch.testing.assert_close(mean, prediction.mean.flatten(), rtol=1e-4, atol=1e-6)
    torch.testing.assert_close(variance, prediction.variance.flatten(), rtol=1e-4, atol=1e-8)


def test_a_choice_is_judged_by_ranks_and_differences() -> None:
    pairs = {"a": (3.0, 0.5), "b": (1.0, 0.7), "c": (2.0, 0.4), "d": (1.0, 0.9)}
    evidence, nll = zip(*pairs.values(), strict=True)
    assert Correlation()(pairs) == pytest.approx(spearmanr(evidence, [-v for v in nll]).statistic)
    assert OverMean()(pairs) == pytest.approx(0.5 - 0.625) and Regret()(pairs) == pytest.approx(0.1)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = laws.quick("depth", tmp_path_factory.mktemp("depth"), COLLECTION)
    return laws.in_order("depth", folder, COLLECTION)


def test_every_unit_is_there_and_none_is_done_twice(folder: Path) -> None:
    laws.complete_and_done_once("depth", folder, COLLECTION)
    for name in ("evidence.png", "occam.png", "panels.png"):
        with Image.open(folder / name) as image:
            assert min(image.size) > 200 and image.convert("L").getextrema()[0] < 100


def test_verdicts_follow_the_numbers(folder: Path) -> None:
    units = values(read(folder / "results.json"))

    def verdict(sign: float) -> str:
        changed: Values = copy.deepcopy(units)
        for unit, networks in changed.items():
            for i, value in enumerate(networks.values()):
                for where in ("trained", "refined"):
                    if where in value:
                        value[where] |= {"evidence": float(i), "nll": -sign * i}
            if unit == "depth/curve/1":
                first = next(iter(networks.values()))
                first["trained"]["evidence"] = 0.5 * sign  # seeds differ a little, and no rank does
        words = "Depth and width: the evidence at the trained weights orders"
        return next(c.verdict for c in EXPERIMENT.claims(changed) if words in c.claim)

    assert (verdict(1.0), verdict(-1.0)) == ("holds", "does not hold")


def test_parts_of_the_evidence_are_its_sum(folder: Path) -> None:
    for unit, networks in values(read(folder / "results.json")).items():
        for value in networks.values():
            if not unit.startswith("images"):
                own = value["trained"]
                assert own["fit"] + own["occam"] == pytest.approx(own["evidence"], rel=1e-4)


# Images: Jacobians instead of the kernels of Linear layers


def classes_and_network(norm: bool) -> tuple[Subject, torch.nn.Module]:
    data = three_classes()
    torch.manual_seed(1)
    hidden = [torch.nn.Linear(3, 4), *([torch.nn.BatchNorm1d(4)] if norm else []), torch.nn.ReLU()]
    network = torch.nn.Sequential(*hidden, torch.nn.Linear(4, 3)).double()
    return data, trained(SMALL, network, data, 1.0)


@pytest.mark.parametrize("norm", [False, True])
def test_the_evidence_by_jacobians_is_that_of_the_full_posterior(norm: bool) -> None:
    data, network = classes_and_network(norm)
    own = jacobian_of(network, data.x)
    kernels = own.kernels(own)
    found = at_trained(SMALL, data, own, kernels)
    posterior = full_posterior(network, data, own, found)
    assert found.value == pytest.approx(float(posterior.log_evidence()), rel=1e-6)
    assert found.gamma == pytest.approx(
        sum(float(g.effective_parameters()) for g, _ in posterior.gaussians()), rel=1e-5
    )
    test = jacobian_of(network, data.test_x)
    mine = Predictive.of(own, kernels, found, moved=False).probabilities(test, test.kernels(own))
    torch.testing.assert_close(mine, posterior.predict(data.test_x).probs, rtol=0.1, atol=0.02)  # both are draws


@pytest.mark.parametrize("norm", [False, True])
def test_the_optimum_by_jacobians_is_that_of_the_refined_posterior(norm: bool) -> None:
    data, network = classes_and_network(norm)
    own = jacobian_of(network, data.x)
    kernels = own.kernels(own)
    start = at_trained(SMALL, data, own, kernels)
    found = at_optimum(replace(SMALL, rounds=1), data, own, kernels, start)
    refined = full_posterior(network, data, own, start).refined((data.x, data.y), tolerance=1e-10, progress=False)
    assert found.value == pytest.approx(float(refined.log_evidence()), rel=1e-5)
    test = jacobian_of(network, data.test_x)
    mine = Predictive.of(own, kernels, found, moved=True).probabilities(test, test.kernels(own))
    torch.testing.assert_close(mine, refined.predict(data.test_x).probs, rtol=0.1, atol=0.02)


def full_posterior(network: torch.nn.Module, data: Subject, own: Jacobian, found: Found) -> whence.Laplace:
    prior = dict(zip(own.blocks, found.precisions.tolist(), strict=True))
    return whence.laplace(
        network, (data.x, data.y), likelihood="classification", structure="full", prior_precision=prior, progress=False
    )
