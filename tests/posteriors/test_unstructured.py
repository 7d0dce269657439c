"""Draws without structure: exact products, the exact linear map from noise to draws, distances, and what is refused."""

from __future__ import annotations

import warnings
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import whence
from tests.comparison import assert_close, bayesian, fitted, likelihood_of, output_hessian
from tests.reference import curvature as slow
from tests.reference import posterior as slow_posterior
from tests.reference import unstructured as twin
from tests.reference.cases import Case
from tests.reference.networks import ALL
from whence.curvature import products as fast
from whence.engine.batches import Data
from whence.errors import BadData, BadOption, NotDefined, Notice
from whence.posteriors.unstructured import front, solver
from whence.predictive import linearised

EXACT = [
    "mlp", "linear", "regression_2", "binary_head", "heteroscedastic", "poisson", "conv2d_depthwise",
    "conv_called_twice", "tied_layers", "tied_embedding", "embedding_padding", "layernorm", "batchnorm1d", "gru",
    "cross_attention", "frozen", "weight_norm", "multi_input", "mapping_input", "unused_parameter", "bare_parameters",
]  # fmt: skip


def generator(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def drawn(posterior: whence.Laplace, data: Any, **options: Any) -> whence.Unstructured:
    options = {"num_samples": 8, "generator": generator(), "progress": False, **options}
    return posterior.unstructured(data, **options)


def flat(values: dict[str, Tensor]) -> Tensor:
    return torch.cat([v.reshape(len(v), -1) for v in values.values()], dim=1)


def delta_of(posterior: whence.Laplace, case: Case) -> Tensor:
    """In the order of the network's parameters."""
    prior = posterior.prior.values
    return torch.cat(
        [torch.as_tensor(prior[n], dtype=torch.float64).expand(p.shape).flatten() for n, p in bayesian(case).items()]
    )


@pytest.fixture
def unit_noise(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Noise r is the r-th unit vector: first over the data, then over the prior. Returns a switch for the sizes."""

    def switch(data: int, weights: int) -> int:
        def example(seed: int, draw: int, rows: Tensor, shape: tuple[int, ...]) -> Tensor:
            width = int(torch.Size(shape[1:]).numel())
            places = rows.unsqueeze(1) * width + torch.arange(width)
            return (places == draw).double().reshape(shape)

        def prior(seed: int, count: int, like: Tensor) -> Tensor:
            return torch.cat([like.new_zeros(data, weights), torch.eye(weights, dtype=like.dtype)])

        monkeypatch.setattr(fast, "example_uniform", example)
        monkeypatch.setattr(fast, "normal_from_uniform", lambda u: u)
        monkeypatch.setattr(front, "white", prior)
        return data + weights

    return switch


def width_of(posterior: whence.Laplace, case: Case) -> int:
    """White numbers of one example."""
    outputs = slow.outputs(case.model, case.x)[:1]
    targets = likelihood_of(case).check(outputs, case.y[:1])
    return fast.output_curvature(
        fast.CurvatureKind.GGN, likelihood_of(case), outputs, targets, fast.LabelDraws(), torch.zeros(1)
    ).width


# Products


@pytest.mark.parametrize("forward_mode", [True, False], ids=["forward", "backward"])
@pytest.mark.parametrize("name", EXACT)
def test_products_are_those_of_the_dense_matrix(name: str, forward_mode: bool) -> None:
    case = ALL[name](0)
    posterior = fitted(case, structure="diag")
    posterior.network.forward_mode = forward_mode
    products = front.products_of(posterior, (case.x, case.y))
    v = torch.randn(3, products.vector.size, dtype=torch.float64, generator=generator())
    moved = products.vector.split(products.times(v))
    h = slow.ggn_full(case.model, bayesian(case), case.x, output_hessian(case))
    start = products.vector.split(v)
    wanted = flat({n: start[n] for n in bayesian(case)}) @ h
    assert_close(flat({n: moved[n] for n in bayesian(case)}), wanted)


def test_batches_and_chunks_change_nothing(set_sizes: Any) -> None:
    case = ALL["mlp"](1)
    posterior = fitted(case)
    whole = front.products_of(posterior, (case.x, case.y))
    loader = [(case.x[i : i + 2], case.y[i : i + 2]) for i in range(0, len(case.y), 2)]
    pieces = front.products_of(posterior, loader)
    set_sizes(intermediate=700)
    v = torch.randn(5, whole.vector.size, dtype=torch.float64, generator=generator())
    assert_close(pieces.times(v), whole.times(v), 1e-12)
    assert_close(pieces.noise(3, 4), whole.noise(3, 4), 1e-12)


def test_running_out_of_memory_halves_the_directions(monkeypatch: pytest.MonkeyPatch) -> None:
    case = ALL["mlp"](1)
    products = front.products_of(fitted(case), (case.x, case.y))
    v = torch.randn(7, products.vector.size, dtype=torch.float64, generator=generator())
    wanted = products.times(v)
    push, seen = fast.push, []

    def small(network: Any, inputs: Any, directions: dict[str, Tensor], *rest: Any) -> Any:
        count = len(next(iter(directions.values())))
        seen.append(count)
        if count > 2:
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 1 GiB")
        return push(network, inputs, directions, *rest)

    monkeypatch.setattr(fast, "push", small)
    assert_close(products.times(v), wanted, 1e-12)
    assert max(seen) == 7 and min(seen) == 1


# The linear map


@pytest.mark.parametrize("name", EXACT)
def test_noise_to_draws_has_the_exact_covariance(name: str, unit_noise: Any) -> None:
    case = ALL[name](0)
    posterior = fitted(case, structure="kron", prior_precision=whence.Prior(weight=0.7, bias=2.0)).with_data_scale(1.7)
    sizes = sum(p.numel() for p in bayesian(case).values())
    count = unit_noise(len(case.y) * width_of(posterior, case), sizes)
    draws = drawn(posterior, (case.x, case.y), num_samples=count, tolerance=1e-10)
    z = flat(draws.deviations)
    h = slow.ggn_full(case.model, bayesian(case), case.x, output_hessian(case))
    wanted = slow_posterior.posterior_covariance(1.7 * h, delta_of(posterior, case))
    assert_close(z.mT @ z, wanted)
    jac = slow.jacobian(case.model, bayesian(case), case.x)
    m = twin.linear_map(jac, output_hessian(case), delta_of(posterior, case), 1.7)
    assert_close(z.mT @ z, m @ m.mT)


def test_priors_by_layer_and_weight_and_selected_layers(unit_noise: Any) -> None:
    case = ALL["mlp"](3)
    data = (case.x, case.y)
    names = [n for n, _ in case.model.named_parameters()]
    per_weight = {n: 0.5 + torch.rand(p.shape, generator=generator(1)) for n, p in case.model.named_parameters()}
    layers = sorted({n.rpartition(".")[0] for n in names})
    for options in (
        {"prior_precision": {layer: 10.0**i for i, layer in enumerate(layers)}},
        {"prior_precision": per_weight, "structure": "diag"},
        {"layers": [layers[0]]},
        {"layers": "last", "structure": "ekfac"},
    ):
        posterior, full = fitted(case, **options), fitted(case, **{**options, "structure": "full"})
        count = unit_noise(len(case.y) * width_of(posterior, case), posterior.parameters)
        draws = drawn(posterior, data, num_samples=count, tolerance=1e-10)
        assert_close(count * draws.covariance(), full.covariance())


def test_a_mask(unit_noise: Any) -> None:
    case = ALL["mlp"](4)
    mask = {n: torch.rand(p.shape, generator=generator(2)) > 0.5 for n, p in case.model.named_parameters()}
    full = fitted(case, structure="full", layers=mask)
    count = unit_noise(len(case.y) * width_of(full, case), full.parameters)
    for preconditioner in ("prior", "structure"):
        draws = drawn(full, (case.x, case.y), num_samples=count, tolerance=1e-10, preconditioner=preconditioner)
        assert_close(count * draws.covariance(), full.covariance())
        assert all(not bool(draws.deviations[n][:, ~mask[n]].any()) for n in mask)


def test_noise_and_data_size_scale_the_curvature(unit_noise: Any) -> None:
    case = ALL["regression_2"](0)
    data = (case.x, case.y)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", Notice)
        full, kron = (
            whence.laplace(case.model, data, likelihood="regression", structure=s, data_size=50)
            for s in ("full", "kron")
        )
    count = unit_noise(len(case.y) * width_of(kron, case), kron.parameters)
    with pytest.warns(Notice, match="each is counted"):
        draws = drawn(kron, data, num_samples=count, tolerance=1e-10)
    assert_close(count * draws.covariance(), full.covariance())


@pytest.mark.parametrize("curvature", ["mc", "empirical", "kfra"])
def test_curvatures(curvature: str, unit_noise: Any) -> None:
    """A sampled or recursive one approximates the GGN, which is taken; an empirical one is taken itself."""
    case = ALL["mlp"](5)
    posterior = fitted(case, curvature=curvature)
    full = fitted(case, structure="full", curvature="empirical" if curvature == "empirical" else "ggn")
    width = 1 if curvature == "empirical" else width_of(posterior, case)
    count = unit_noise(len(case.y) * width, posterior.parameters)
    draws = drawn(posterior, (case.x, case.y), num_samples=count, tolerance=1e-10)
    assert_close(count * draws.covariance(), full.covariance())


def test_a_likelihood_known_by_its_label_draws(unit_noise: Any) -> None:
    def nll(outputs: Tensor, targets: Tensor) -> Tensor:
        return nn.functional.cross_entropy(outputs, targets, reduction="none")

    def sample(outputs: Tensor, generator: torch.Generator) -> Tensor:
        return torch.multinomial(outputs.softmax(-1), 1, generator=generator).squeeze(1)

    case = ALL["mlp"](6)
    custom = whence.Custom(nll, sample=sample, draws=5)
    made = [whence.laplace(case.model, (case.x, case.y), likelihood=custom, structure=s, generator=generator(),
                           progress=False) for s in ("diag", "full")]  # fmt: skip
    count = unit_noise(5 * len(case.y), made[0].parameters)
    draws = drawn(made[0], (case.x, case.y), num_samples=count, tolerance=1e-10)
    assert_close(count * draws.covariance(), made[1].covariance())


# The solver


def test_every_residual_bounds_the_error() -> None:
    g = generator()
    root = torch.randn(300, 40, dtype=torch.float64, generator=g) * torch.logspace(2, -3, 40, dtype=torch.float64)
    c = torch.randn(6, 300, dtype=torch.float64, generator=g)
    exact = torch.linalg.solve(torch.eye(300, dtype=torch.float64) + root @ root.mT, c.mT).mT
    for tolerance in (1e-1, 1e-3, 1e-8):
        found = solver.solve(lambda v: (v @ root) @ root.mT, c, tolerance, 100)
        off = (found.x - exact) @ root
        energy = (exact @ root).square().sum(1).mean()
        assert found.converged
        assert float(off.square().sum(1).max().sqrt()) <= 1.01 * tolerance * float(energy.sqrt())
        assert_close(found.energies, (found.x @ root).square().sum(1), 1e-6)


def test_dependent_and_vanishing_right_hand_sides_do_no_harm() -> None:
    g = generator(1)
    root = torch.randn(50, 4, dtype=torch.float64, generator=g)
    row = torch.randn(50, dtype=torch.float64, generator=g)
    c = torch.stack([row, row, 2 * row, torch.zeros_like(row), torch.randn(50, dtype=torch.float64, generator=g)])
    found = solver.solve(lambda v: (v @ root) @ root.mT, c, 1e-8, 100)
    exact = torch.linalg.solve(torch.eye(50, dtype=torch.float64) + root @ root.mT, c.mT).mT
    assert found.converged
    assert_close(found.x, exact, 1e-7)


def test_draws_together_need_fewer_products_and_so_do_good_preconditioners() -> None:
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 3)).double()
    x = torch.randn(120, 8, dtype=torch.float64)
    data = (x, torch.randint(3, (120,)))
    kron, full, low = (
        whence.laplace(
            net, data, likelihood="classification", structure=s, prior_precision=0.1, rank=40, progress=False
        )
        for s in ("kron", "full", "lowrank")
    )
    alone, together = (drawn(kron, data, num_samples=n).solved.iterations for n in (1, 16))
    assert together < alone / 2
    plain = drawn(kron, data, num_samples=2).solved.iterations
    structured = {p: drawn(p, data, num_samples=2, preconditioner="structure") for p in (full, low)}
    assert structured[full].solved.iterations == 1
    assert structured[low].solved.iterations < plain / 2
    same = drawn(kron, data, num_samples=2, preconditioner="structure", tolerance=1e-6)
    assert_close(flat(same.deviations), flat(drawn(kron, data, num_samples=2, tolerance=1e-6).deviations), 1e-5)


def test_float32_reaches_what_it_promises() -> None:
    case = ALL["mlp"](7)
    exact = drawn(fitted(case, prior_precision=1e-3), (case.x, case.y), tolerance=1e-3)
    case.model.float()
    single = drawn(fitted(case, prior_precision=1e-3), (case.x.float(), case.y), tolerance=1e-3)
    assert single.solved.converged
    assert_close(flat(single.deviations).double(), flat(exact.deviations), 2e-2)


# The posterior


def test_seeds_batches_and_numbers_of_draws() -> None:
    case = ALL["mlp"](0)
    posterior, data = fitted(case), (case.x, case.y)
    tight = {"tolerance": 1e-8}
    one = drawn(posterior, data, **tight)
    assert torch.equal(flat(one.deviations), flat(drawn(posterior, data, **tight).deviations))
    assert not torch.equal(flat(one.deviations), flat(drawn(posterior, data, generator=generator(1)).deviations))
    batches = [(case.x[i : i + 3], case.y[i : i + 3]) for i in range(0, len(case.y), 3)]
    assert_close(flat(drawn(posterior, batches, **tight).deviations), flat(one.deviations), 1e-6)
    assert_close(flat(drawn(posterior, data, num_samples=3, **tight).deviations), flat(one.deviations)[:3], 1e-6)
    state = torch.get_rng_state()
    drawn(posterior, data)
    assert torch.equal(state, torch.get_rng_state())


@pytest.mark.parametrize("name", ["mlp", "regression_2", "binary_head", "poisson"])
def test_linearised_predictions_agree_with_the_full_posterior(name: str) -> None:
    case = ALL[name](2)
    draws = drawn(fitted(case), (case.x, case.y), num_samples=2000)
    full = fitted(case, structure="full")
    moments = linearised.moments(full, case.x)
    mean, moved = draws._linearised_draws(draws.deviations).moved(case.x)
    assert_close(mean, moments.mean, 1e-10)
    got = torch.einsum("snc,snd->ncd", moved, moved) / 2000
    diag = moments.cov.diagonal(dim1=-2, dim2=-1)
    sd = ((diag.unsqueeze(-1) * diag.unsqueeze(-2) + moments.cov.square()) / 2000).sqrt()
    assert float(((got - moments.cov).abs() / sd).max()) < 6
    found, wanted = draws.predict(case.x), full.predict(case.x)
    assert type(found) is type(wanted)
    if name in ("mlp", "binary_head"):
        assert_close(found.probs, wanted.probs, 2e-2)
        assert_close(found.logit_mean, wanted.logit_mean, 1e-10)
    else:
        assert_close(found.mean, wanted.mean, 1e-1)
        assert_close(found.epistemic, wanted.epistemic, 2e-1)


@pytest.mark.parametrize("name", ["embedding_padding", "tied_embedding", "gru", "cross_attention", "weight_norm"])
def test_linearised_draws_move_by_the_jacobian(name: str) -> None:
    """Also where forward-mode differentiation gives another derivative, or none."""
    case = ALL[name](0)
    draws = drawn(fitted(case), (case.x, case.y), num_samples=3)
    _, moved = draws._linearised_draws(draws.deviations).moved(case.x)
    jac = slow.jacobian(case.model, bayesian(case), case.x)
    assert_close(moved, torch.einsum("ncp,sp->snc", jac, flat(draws.deviations)))


def test_what_it_can_be_asked(tmp_path: Any) -> None:
    case = ALL["mlp"](0)
    posterior = fitted(case)
    draws = drawn(posterior, (case.x, case.y), num_samples=6)
    assert list(draws.sample(3)) == draws.names() == posterior.names()
    assert len(draws) == 6 and len(draws.draw(4)) == 4 and len(draws.draw(100)) == 6
    assert_close(draws.covariance().diagonal(), torch.cat([v.flatten() for v in draws.variance().values()]), 1e-12)
    sampled = draws.predict(case.x, method="sampled")
    assert_close(sampled.probs, torch.stack([f(case.x) for f in draws.draw(6)]).softmax(-1).mean(0), 1e-10)
    chosen = draws.predict(case.x, num_samples=2, generator=generator())
    assert chosen.samples.shape[0] == 4  # ± each
    x = case.x.clone().requires_grad_()
    assert torch.autograd.grad(draws.predict(x).entropy.sum(), x)[0].abs().sum() > 0
    draws.save(tmp_path / "draws.safetensors")
    again = whence.load(tmp_path / "draws.safetensors", case.model)
    assert torch.equal(again.predict(case.x).probs, draws.predict(case.x).probs)
    assert repr(again) == repr(draws)
    with pytest.raises(NotDefined, match="pass it"):
        again.distance(case.x)
    assert again.distance(case.x, posterior).summary() == draws.distance(case.x).summary()
    assert draws.to(torch.float32).predict(case.x.float()).probs.dtype == torch.float32
    assert draws.as_module()(case.x)[0].shape == sampled.probs.shape
    assert len(draws.where(case.x).layers) == len(posterior.blocks)
    found = whence.compare({"kron": posterior, "unstructured": draws}, (case.x, case.y))
    assert "unstructured" in str(found)


def test_effective_parameters_are_those_of_the_full_posterior() -> None:
    case = ALL["mlp"](0)
    full = fitted(case, structure="full")
    wanted = float(sum(g.effective_parameters() for g, _ in full.gaussians()))
    value, error = drawn(full, (case.x, case.y), num_samples=400).effective_parameters
    assert abs(value - wanted) < 4 * error < wanted


def test_dense_outputs() -> None:
    torch.manual_seed(0)
    net = nn.Conv1d(2, 3, 3, padding=1).double()
    x, y = torch.randn(20, 2, 5, dtype=torch.float64), torch.randint(3, (20, 5))
    y[0, :2] = -100
    kron, full = (whence.laplace(net, (x, y), likelihood="classification", structure=s) for s in ("kron", "full"))
    draws = drawn(kron, (x, y), num_samples=2000)
    sd = (2 / 2000) ** 0.5 * full.covariance().diagonal().max()
    assert float((draws.covariance() - full.covariance()).abs().max() / sd) < 6
    assert draws.predict(x).probs.shape == (20, 3, 5)
    with pytest.raises(NotDefined, match="outputs"):
        draws.distance(x)


# Distances


def test_the_distance_is_the_twins() -> None:
    case = ALL["mlp"](1)
    posterior = fitted(case)
    draws = drawn(posterior, (case.x, case.y))
    gap = draws.distance(case.x)
    jac = slow.jacobian(case.model, bayesian(case), case.x)
    y = torch.einsum("ncp,sp->snc", jac, flat(draws.deviations))
    y = y - y.mean(-1, keepdim=True)
    k = twin.centred(linearised.moments(posterior, case.x).cov)
    squared, norm = twin.squared_distance(y, k)
    assert abs(gap.squared_distance.value - squared / norm) < 1e-8 * abs(squared / norm)
    plain = float((torch.einsum("snc,snd->ncd", y, y) / len(y) - k).square().sum())
    assert abs(gap.noise_distance - ((plain - squared) / norm) ** 0.5) < 1e-8
    trace = float(k.diagonal(dim1=-2, dim2=-1).sum())
    assert abs(gap.variance_ratio.value - float(y.square().sum(2).sum(1).mean()) / trace) < 1e-8
    total = sum(row.own + row.cross for row in gap.layers)
    assert abs(total - 1) < 1e-10
    assert abs(gap.cross_share.value - sum(row.cross for row in gap.layers)) < 1e-10
    assert abs(sum(row.structured for row in gap.layers) - 1) < 1e-10


def test_where_kronecker_is_exact_nothing_is_left_and_elsewhere_something_is() -> None:
    torch.manual_seed(0)
    x = torch.randn(60, 3, dtype=torch.float64)
    y = x.sum(1, keepdim=True).expand(60, 2) + torch.randn(60, 2, dtype=torch.float64)
    options = {"likelihood": whence.Gaussian(1.0), "progress": False}
    one = whence.laplace(nn.Linear(3, 2).double(), (x, y), **options)  # G ∝ I and A exact
    gap = drawn(one, (x, y), num_samples=300).distance(x)
    assert gap.squared_distance.value < 3 * gap.squared_distance.error
    assert abs(gap.variance_ratio.value - 1) < 4 * gap.variance_ratio.error
    assert abs(gap.total_variation.value - gap.total_variation.noise) < 0.02
    assert gap.cross_share.value == 0
    assert "is not significant" in str(gap)
    deep = nn.Sequential(nn.Linear(3, 8), nn.Tanh(), nn.Linear(8, 2)).double()
    two = whence.laplace(deep, (x, y), prior_precision=0.1, **options)
    gap = drawn(two, (x, y), num_samples=300).distance(x)
    assert gap.squared_distance.value > 5 * gap.squared_distance.error
    assert abs(gap.variance_ratio.value - 1) > 5 * gap.variance_ratio.error
    assert gap.total_variation.value > 2 * gap.total_variation.noise
    assert gap.cross_share.value < -10 * gap.cross_share.error
    full = whence.laplace(deep, (x, y), prior_precision=0.1, structure="full", **options)
    gap = drawn(two, (x, y), num_samples=300).distance(x, full)
    assert abs(gap.squared_distance.value) < 4 * gap.squared_distance.error
    assert len(gap.to_pandas()) == 2 and gap.layers[0].structured is None


def test_the_distance_of_normals_by_integration() -> None:
    from whence.posteriors.unstructured.distance import _of_normals

    a, b = torch.tensor([[1.0, 2.0]]).double(), torch.tensor([[3.0, 2.0]]).double()
    variation, divergence = _of_normals(a, b)
    grid = torch.linspace(-40, 40, 400_001, dtype=torch.float64)
    p, q = (torch.distributions.Normal(0, float(v[0, 0]) ** 0.5).log_prob(grid) for v in (a, b))
    assert abs(float(variation) - float(torch.trapezoid((p.exp() - q.exp()).abs(), grid)) / 4) < 1e-6
    assert abs(float(divergence) - float(torch.trapezoid((p.exp() - q.exp()) * (p - q), grid)) / 2) < 1e-6


# What bad input gets


def test_what_is_refused() -> None:
    case = ALL["mlp"](0)
    data = (case.x, case.y)
    posterior = fitted(case)
    for option in ({"num_samples": 0}, {"tolerance": 0.0}, {"tolerance": 2}, {"max_iterations": 0},
                   {"preconditioner": "kron"}):  # fmt: skip
        with pytest.raises(BadOption):
            drawn(posterior, data, **option)
    with pytest.raises(BadData, match="one-shot"):
        drawn(posterior, iter([data]))
    with pytest.raises(NotDefined, match="hessian"):
        drawn(fitted(case, structure="full", curvature="hessian", prior_precision=1e4), data)
    with pytest.raises(BadOption, match="too few"):
        drawn(posterior, data, num_samples=2).distance(case.x)
    with pytest.raises(BadOption, match="different weights"):
        drawn(posterior, data).distance(case.x, fitted(ALL["mlp"](1)))
    broken = case.x.clone()
    broken[0] = float("nan")
    with pytest.raises(BadData, match="NaN"):
        drawn(posterior, (broken, case.y))


def test_data_that_change_are_noticed() -> None:
    case = ALL["mlp"](0)

    class Augmented:
        def __iter__(self) -> Any:
            yield case.x + 0.1 * torch.randn_like(case.x), case.y

    class Shrinking:
        count = len(case.y) + 1

        def __iter__(self) -> Any:
            self.count -= 1
            yield case.x[: self.count], case.y[: self.count]

    posterior = fitted(case)
    for data in (Augmented(), Shrinking()):
        with pytest.raises(BadData, match="changed between two passes"):
            drawn(posterior, data)


def test_a_tolerance_that_is_not_reached_is_said() -> None:
    case = ALL["mlp"](0)
    with pytest.warns(Notice, match=r"relative residual of .* above tolerance=1e-09"):
        draws = drawn(fitted(case, prior_precision=1e-3), (case.x, case.y), tolerance=1e-9, max_iterations=1)
    assert not draws.solved.converged and "NOT below" in repr(draws)


def test_nothing_is_changed() -> None:
    case = ALL["batchnorm1d"](0)
    posterior = fitted(case)
    before = {n: v.clone() for n, v in case.model.state_dict().items()}
    held = {n: p.detach().clone() for n, p in posterior.network.params.items()}
    flags = {n: p.requires_grad for n, p in posterior.network.params.items()}
    cov = posterior.covariance()
    drawn(posterior, (case.x, case.y)).distance(case.x)
    assert all(torch.equal(v, before[n]) for n, v in case.model.state_dict().items())
    assert all(torch.equal(p, held[n]) and p.grad is None for n, p in posterior.network.params.items())
    assert flags == {n: p.requires_grad for n, p in posterior.network.params.items()}
    assert torch.equal(posterior.covariance(), cov)


def test_products_take_data_of_one_device_and_type() -> None:
    """A half-precision network, or one under autocast, is taken in float32."""
    case = ALL["mlp"](0)
    posterior = fitted(case)
    assert front.exact(posterior.network) is posterior.network
    half = front.exact(posterior.network.to(torch.bfloat16))
    assert half.dtype == torch.float32 and half.autocast is None
    assert Data((case.x, case.y), half.device, half.dtype).dtype == torch.float32
