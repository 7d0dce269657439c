"""The sampler by itself: integrator, kernels, masses and adaptation, on targets whose distribution is known."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from tests.reference import hmc as reference
from whence.posteriors.hmc.adaptation import DualAveraging, reasonable_step, windows
from whence.posteriors.hmc.chains import Chains, SamplerSettings
from whence.posteriors.hmc.diagnostics import bfmi, effective, mixing, split_rhat
from whence.posteriors.hmc.kernels import (
    ChainGenerators,
    ChainState,
    Diagonal,
    Mass,
    MassKind,
    Moments,
    hmc_transition,
    leapfrog,
)
from whence.posteriors.hmc.nuts import checkpoints, nuts_transition

DOUBLE = torch.float64


def identity(chains: int, size: int) -> Diagonal:
    return Diagonal(torch.ones(chains, size, dtype=DOUBLE))


def random_dense(chains: int, size: int) -> Mass:
    root = torch.randn(chains, size, size, dtype=DOUBLE)
    return Mass.of(root @ root.mT / size + 0.3 * torch.eye(size, dtype=DOUBLE))


MASSES = {
    "identity": identity,
    "diag": lambda k, p: Diagonal(0.3 + torch.rand(k, p, dtype=DOUBLE)),
    "dense": random_dense,
}


# The integrator


@pytest.mark.parametrize("mass", MASSES)
def test_leapfrog_goes_back_the_way_it_came(mass: str) -> None:
    target, metric = reference.Anharmonic(), MASSES[mass](3, 4)
    state = begin = ChainState.at(target, torch.randn(3, 4, dtype=DOUBLE))
    momentum = start = torch.randn(3, 4, dtype=DOUBLE)
    step = torch.tensor([0.05, 0.1, 0.15], dtype=DOUBLE)
    for direction in (step, -step):
        for _ in range(40):
            state, momentum = leapfrog(target, state, momentum, direction, metric)
    torch.testing.assert_close(state.position, begin.position, atol=1e-11, rtol=0)
    torch.testing.assert_close(momentum, start, atol=1e-11, rtol=0)


def test_energy_error_is_of_second_order() -> None:
    target, metric = reference.Anharmonic(), identity(16, 4)
    begin = ChainState.at(target, torch.randn(16, 4, dtype=DOUBLE))
    start = torch.randn(16, 4, dtype=DOUBLE)

    def error(steps: int) -> float:
        state, momentum = begin, start
        for _ in range(steps):
            state, momentum = leapfrog(target, state, momentum, torch.full((16,), 1.0 / steps, dtype=DOUBLE), metric)
        after = state.potential + metric.kinetic(momentum)
        return float((after - begin.potential - metric.kinetic(start)).abs().mean())

    assert error(40) / error(80) == pytest.approx(4, rel=0.1)


def test_leapfrog_preserves_volume() -> None:
    target, metric = reference.Anharmonic(), Diagonal(torch.tensor([[0.5, 2.0]], dtype=DOUBLE))

    def step(z: Tensor) -> Tensor:
        moved, momentum = leapfrog(
            target, ChainState.at(target, z[None, :2]), z[None, 2:], torch.tensor([0.3], dtype=DOUBLE), metric
        )
        return torch.cat([moved.position[0], momentum[0]])

    jacobian = torch.autograd.functional.jacobian(step, torch.tensor([0.4, -1.0, 0.3, 0.8], dtype=DOUBLE))
    assert float(torch.linalg.det(jacobian)) == pytest.approx(1, abs=1e-12)


@pytest.mark.parametrize("mass", MASSES)
def test_momenta_have_the_mass_as_covariance(mass: str) -> None:
    metric = MASSES[mass](1, 3)
    noise = torch.randn(100_000, 1, 3, dtype=DOUBLE)
    drawn = torch.cat([metric.momentum(z) for z in noise[:100]])
    inverse = metric.inverse[0]
    dense = torch.diag(inverse) if inverse.dim() == 1 else inverse
    linear = torch.stack([metric.momentum(e[None]) for e in torch.eye(3, dtype=DOUBLE)], dim=-1)[0]  # A: r = A z
    torch.testing.assert_close(linear @ linear.T, torch.linalg.inv(dense))
    torch.testing.assert_close(drawn, noise[:100, 0] @ linear.T)
    r = torch.randn(1, 3, dtype=DOUBLE)
    torch.testing.assert_close(metric.velocity(r)[0], dense @ r[0])
    torch.testing.assert_close(metric.kinetic(r), 0.5 * (r @ dense @ r.T)[0])


def test_welford_is_the_sample_covariance() -> None:
    values = torch.randn(50, 2, 3, dtype=DOUBLE)
    for kind in ("diag", "dense"):
        moments = Moments.empty(MassKind(kind), values[0])
        for v in values:
            moments = moments.add(v)
        found = moments.mass().inverse
        for chain in range(2):
            cov = torch.cov(values[:, chain].T) * 50 / 55 + 1e-3 * 5 / 55 * torch.eye(3, dtype=DOUBLE)
            torch.testing.assert_close(found[chain], cov if kind == "dense" else cov.diagonal())


# NUTS against its twin


def test_checkpoints_end_the_aligned_subtrees() -> None:
    for leaf in range(1, 64, 2):
        first, last = checkpoints(leaf)
        sizes = [2**k for k in range(1, 7) if (leaf + 1) % 2**k == 0 and 2**k <= 64]
        stored = {}
        for even in range(0, leaf, 2):
            stored[checkpoints(even)[1]] = even
        assert [stored[i] for i in range(first, last + 1)] == [leaf + 1 - s for s in reversed(sizes)]


class Given(ChainGenerators):
    """Numbers that were drawn before."""

    def __init__(self, noise: Tensor, uniform: Tensor) -> None:
        self.noise, self.uniform = noise, uniform

    def normals(self, size: int, like: Tensor) -> Tensor:
        return self.noise

    def uniforms(self, size: int, like: Tensor) -> Tensor:
        return self.uniform[:, :size]


@pytest.mark.parametrize("target", [reference.Anharmonic(), reference.correlated(4), reference.Funnel()])
def test_nuts_is_its_recursive_twin(target: object) -> None:
    """Draw, depth and leapfrogs of every chain are those that a list of leaves gives."""
    chains, depth = 12, 7
    metric = Diagonal(0.3 + torch.rand(chains, 4, dtype=DOUBLE))
    step = 0.02 + 0.4 * torch.rand(chains, dtype=DOUBLE)
    state = ChainState.at(target, torch.randn(chains, 4, dtype=DOUBLE))
    depths = set()
    for _ in range(3):
        noise = torch.randn(chains, 4, dtype=DOUBLE)
        uniform = torch.rand(chains, 2**depth + 2 * depth, dtype=DOUBLE)
        moved, info = nuts_transition(target, state, step, metric, Given(noise, uniform), depth)
        for k in range(chains):
            leaves, turn, join = uniform[k].split([2**depth, depth, depth])
            momentum = noise[k] * metric.inverse[k].rsqrt()
            draw, deep, used, divergent = reference.nuts(
                target, state.position[k], momentum, float(step[k]), metric.inverse[k], leaves, turn, join
            )
            torch.testing.assert_close(moved.position[k], draw, atol=1e-9, rtol=1e-9)
            assert (int(info.depth[k]), int(info.leapfrogs[k])) == (deep, used)
            assert bool(info.divergent[k]) == divergent
            depths.add(deep)
        torch.testing.assert_close(moved.potential, target(moved.position)[0])
        torch.testing.assert_close(moved.gradient, target(moved.position)[1])
        state = moved
    assert len(depths) > 2


# Invariance: draws of the target stay draws of the target


def run_exact(kernel: str, mass: str, chains: int, transitions: int) -> tuple[reference.GaussianTarget, Tensor, Tensor]:
    target = reference.correlated(3, seed=5)
    generator = torch.Generator().manual_seed(3)
    start = target.draw(chains, generator)
    metric, streams = MASSES[mass](1, 3), ChainGenerators(7, chains)
    metric = type(metric)(*(v.expand(chains, *v.shape[1:]).contiguous() for v in vars(metric).values()))
    state, step = ChainState.at(target, start), torch.full((chains,), 0.35, dtype=DOUBLE)
    for _ in range(transitions):
        if kernel == "nuts":
            state, _ = nuts_transition(target, state, step, metric, streams, 5)
        else:
            state, _ = hmc_transition(target, state, step, metric, streams, 5)
    return target, start, state.position


@pytest.mark.parametrize("kernel", ["nuts", "hmc"])
@pytest.mark.parametrize("mass", ["identity", "dense"])
def test_exact_draws_stay_exact(kernel: str, mass: str) -> None:
    """Moments within four standard errors, and every marginal by Kolmogorov and Smirnov, after 4 transitions."""
    chains = 6000
    target, start, end = run_exact(kernel, mass, chains, 4)
    assert float((end - start).abs().mean()) > 0.3
    white = torch.linalg.solve_triangular(
        torch.linalg.cholesky(target.covariance), (end - target.mean).T, upper=False
    ).T  # [K, P], standard normal if nothing has changed
    assert float((white.mean(0) * math.sqrt(chains)).abs().max()) < 4
    off = (torch.cov(white.T) - torch.eye(3, dtype=DOUBLE)) * math.sqrt(chains)
    assert float((off / (1 + torch.eye(3, dtype=DOUBLE)).sqrt()).abs().max()) < 4
    ranks = (torch.arange(chains, dtype=DOUBLE) + 0.5) / chains
    radius = torch.special.gammainc(torch.tensor(1.5, dtype=DOUBLE), white.square().sum(1) / 2)  # |z|²/2 ~ Gamma(3/2)
    for below in (*torch.special.ndtr(white).T, radius):
        assert float((below.sort().values - ranks).abs().max()) * math.sqrt(chains) < 1.95  # p ≈ 0.001


@pytest.mark.parametrize("kernel", ["nuts", "hmc"])
def test_transitions_are_reversible_in_distribution(kernel: str) -> None:
    """Detailed balance of the pair (before, after): antisymmetric statistics vanish."""
    _, start, end = run_exact(kernel, "identity", 6000, 1)
    for f, g in ((lambda q: q[:, 0], lambda q: q[:, 1] ** 2), (lambda q: q[:, 2] ** 3, lambda q: q[:, 0])):
        skew = f(start) * g(end) - f(end) * g(start)
        assert abs(float(skew.mean() / skew.std())) * math.sqrt(len(skew)) < 4


# Whole runs


@pytest.mark.parametrize(
    "settings",
    [
        SamplerSettings(kernel="nuts", mass="diag"),
        SamplerSettings(kernel="nuts", mass="dense"),
        SamplerSettings(kernel="hmc", mass="dense", steps=6),
    ],
    ids=lambda s: f"{s.kernel}-{s.mass}",
)
def test_correlated_gaussian_is_recovered(settings: SamplerSettings) -> None:
    """Mean and covariance within 4.5 Monte Carlo errors, these from the effective sample size."""
    from dataclasses import replace

    target = reference.correlated(5, seed=2)
    settings = replace(settings, chains=16, num_samples=150, warmup=100, seed=11)
    start = target.draw(16, torch.Generator().manual_seed(0)) * 3
    draws, stats = Chains(target, start, torch.ones(5, dtype=DOUBLE), settings).run(False)
    flat = draws.flatten(0, 1)
    off = flat - target.mean
    errors = flat.std(0) / effective(draws).sqrt()
    assert float((off.mean(0) / errors).abs().max()) < 4.5
    products = torch.einsum("ktp,ktq->ktpq", *[draws - target.mean] * 2).flatten(2)
    errors = products.flatten(0, 1).std(0) / effective(products).sqrt()
    assert float(((products.flatten(0, 1).mean(0) - target.covariance.flatten()) / errors).abs().max()) < 4.5
    assert float(split_rhat(draws).max()) < 1.03
    assert 0.7 < float(stats["accept"].mean()) < 0.97
    assert int(stats["divergent"].sum()) == 0


def test_dense_mass_needs_fewer_gradients_than_identity() -> None:
    target = reference.GaussianTarget(
        torch.zeros(3, dtype=DOUBLE),
        torch.tensor([[1.0, 0.95, 0.0], [0.95, 1.0, 0.0], [0.0, 0.0, 25.0]], dtype=DOUBLE),
    )
    used = {}
    for mass in ("identity", "dense"):
        settings = SamplerSettings(chains=2, num_samples=10, warmup=60, mass=mass, seed=1)
        _, stats = Chains(target, torch.randn(2, 3, dtype=DOUBLE), torch.ones(3, dtype=DOUBLE), settings).run(False)
        used[mass] = float(stats["leapfrogs"].double().mean())
    assert used["dense"] < used["identity"] / 3


def test_a_funnel_diverges() -> None:
    settings = SamplerSettings(chains=8, num_samples=40, warmup=60, max_depth=5, seed=0)
    run = Chains(reference.Funnel(), 0.1 * torch.randn(8, 6, dtype=DOUBLE), torch.ones(6, dtype=DOUBLE), settings)
    assert int(run.run(False)[1]["divergent"].sum()) > 0


def test_same_seed_same_bits_and_chains_do_not_know_of_each_other() -> None:
    target, scale = reference.Anharmonic(), torch.ones(4, dtype=DOUBLE)
    start = torch.randn(6, 4, dtype=DOUBLE)

    def run(chains: int, seed: int) -> Tensor:
        settings = SamplerSettings(chains=chains, num_samples=10, warmup=30, seed=seed, max_depth=4)
        return Chains(target, start[:chains], scale, settings).run(False)[0]

    six = run(6, 1)
    assert torch.equal(six, run(6, 1))
    torch.testing.assert_close(
        six[:2], run(2, 1), rtol=1e-8, atol=1e-8
    )  # kernels for other batch sizes may round differently
    assert not torch.equal(six, run(6, 2)) and not torch.equal(six[0], six[1])


# Adaptation


def test_windows_are_those_of_stan() -> None:
    assert windows(1000) == [100, 150, 250, 450, 950]
    assert windows(150) == [100] and windows(100) == [90] and windows(19) == []
    for length in range(20, 700, 7):
        ends = windows(length)
        assert ends == sorted(ends) and ends[-1] <= length - min(50, int(0.1 * length))


def test_dual_averaging_finds_the_step_of_a_known_acceptance() -> None:
    """Acceptance exp(−ε): 0.8 at ε = −log 0.8."""
    averaging = DualAveraging.begin(torch.tensor([0.01, 3.0], dtype=DOUBLE), 0.8)
    for _ in range(2000):
        averaging = averaging.update((-averaging.log_step.exp()).exp())
    torch.testing.assert_close(
        averaging.log_average.exp(), torch.full((2,), -math.log(0.8)).double(), rtol=0.03, atol=0
    )


def test_reasonable_step_scales_with_the_target() -> None:
    scales = torch.tensor([1e-3, 1.0, 1e3], dtype=DOUBLE)

    def target(q: Tensor) -> tuple[Tensor, Tensor]:
        return 0.5 * (q / scales[:, None]).square().sum(1), q / scales[:, None] ** 2

    state = ChainState.at(target, scales[:, None] * torch.ones(3, 5, dtype=DOUBLE))
    step = reasonable_step(target, state, identity(3, 5), ChainGenerators(0, 3), torch.full((3,), 0.1, dtype=DOUBLE))
    assert bool(((step / scales > 0.05) & (step / scales < 4)).all())


# The light checks


def test_checks_of_independent_and_of_stuck_chains() -> None:
    white = torch.randn(4, 500, 3, dtype=DOUBLE)
    assert float(split_rhat(white).max()) < 1.01
    assert float((effective(white) / 2000 - 1).abs().max()) < 0.25
    stuck = white + torch.tensor([0.0, 0.0, 0.0, 2.0])[:, None, None]
    assert float(split_rhat(stuck).min()) > 1.2 and float(effective(stuck).max()) < 60
    rho, ar = 0.9, [torch.randn(4, 1, dtype=DOUBLE)]
    for _ in range(4000):
        ar.append(rho * ar[-1] + math.sqrt(1 - rho**2) * torch.randn(4, 1, dtype=DOUBLE))
    found = float(effective(torch.stack(ar, 1)))
    assert found == pytest.approx(4 * 4000 * (1 - rho) / (1 + rho), rel=0.2)
    constant = torch.ones(4, 100, 1, dtype=DOUBLE)
    assert float(split_rhat(constant)) == 1 and float(effective(constant)) == 400


def test_checks_agree_with_arviz() -> None:
    pytest.importorskip("arviz")
    values = torch.randn(4, 400, 5, dtype=DOUBLE).cumsum(1) * 0.1 + torch.randn(4, 400, 5, dtype=DOUBLE)
    theirs = mixing(values)
    torch.testing.assert_close(split_rhat(values), theirs.rhat, rtol=0.05, atol=0)
    torch.testing.assert_close(effective(values), theirs.ess_bulk, rtol=0.25, atol=0)
    arviz = pytest.importorskip("arviz")
    energy = torch.randn(3, 200, dtype=DOUBLE).cumsum(1)
    torch.testing.assert_close(bfmi(energy), torch.as_tensor(arviz.bfmi(energy.numpy())), rtol=0.02, atol=0)
