"""Structures for what is too large, half precision, and layers that cost nothing."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import whence
from benchmarks.large_networks import gpt2, resnet50
from tests.comparison import assert_close
from whence.curvature import blocks, jacobian, layout, plan, probes
from whence.curvature.columns import Draws, columns_for
from whence.curvature.probes import probe_like
from whence.errors import BadOption, Notice, TooLarge
from whence.likelihoods import Categorical
from whence.randomness import example_uniform
from whence.where.spectrum import curvature_maps


def quietly(*args: Any, **kwargs: Any) -> Any:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", Notice)
        return whence.laplace(*args, progress=False, **kwargs)


def mlp() -> nn.Module:
    return nn.Sequential(nn.Linear(4, 7), nn.Tanh(), nn.Linear(7, 5), nn.Tanh(), nn.Linear(5, 3)).double()


def convolutions() -> nn.Module:
    grouped = nn.Conv2d(4, 6, 2, groups=2)
    return nn.Sequential(nn.Conv2d(2, 4, 3, padding=1), nn.Tanh(), grouped, nn.Flatten(), nn.Linear(24, 3)).double()


def data_for(network: nn.Module, size: int = 10) -> tuple[Tensor, Tensor]:
    shape = (4,) if isinstance(network[0], nn.Linear) else (2, 3, 3)  # type: ignore[index]
    return torch.randn(size, *shape, dtype=torch.float64), torch.randint(3, (size,))


# Factors that are too large


NETWORKS = {"mlp": mlp, "convolutions": convolutions}


def thinned(factor: Tensor, limit: int) -> Tensor:
    """A factor [E, n, n] as it should be held: whole, or its diagonal alone."""
    return factor if factor.shape[-1] <= limit else torch.diag_embed(factor.diagonal(dim1=-2, dim2=-1))


def dense_covariance(whole: Any, limit: int, delta: float, bias: float) -> list[Tensor]:
    """(G ⊗ A + Δ)⁻¹ of every block, from the factors of an ordinary fit written out."""
    found = []
    for block, s in zip(whole.blocks, whole.curvature.structures, strict=True):
        a, g = thinned(s.mean_input, limit), thinned(s.grads, limit)
        prior = torch.full((block.native[1], block.native[2]), delta, dtype=torch.float64)
        prior[:, -1] = bias
        each = [torch.kron(g[e], a[e]) + torch.diag(prior.flatten()) for e in range(len(a))]
        native = torch.block_diag(*(torch.linalg.inv(m) for m in each))
        order = block.to_flat(torch.arange(block.size).reshape(block.native))
        found.append(native[order][:, order])
    return found


@pytest.mark.parametrize("limit", [3, 4, 5, 6, 100])
@pytest.mark.parametrize("sharing", ["expand", "reduce"])
@pytest.mark.parametrize("network", NETWORKS)
def test_covariance_with_diagonal_factors(network: str, sharing: str, limit: int) -> None:
    model = NETWORKS[network]()
    data = data_for(model)
    options: dict[str, Any] = {"likelihood": "classification", "sharing": sharing}
    whole, found = quietly(model, data, **options), quietly(model, data, max_factor=limit, **options)
    for prior in (2.0, whence.Prior(weight=2.0, bias=0.5)):
        posterior = found.with_prior(prior)
        wanted = dense_covariance(whole, limit, 2.0, 2.0 if isinstance(prior, float) else 0.5)
        torch.testing.assert_close(posterior.covariance(), torch.block_diag(*wanted), rtol=1e-9, atol=1e-11)
        variance = torch.cat([v.flatten() for v in posterior.variance().values()])
        torch.testing.assert_close(variance, torch.block_diag(*wanted).diagonal(), rtol=1e-9, atol=1e-11)


@pytest.mark.parametrize("limit", [3, 4, 6])
@pytest.mark.parametrize("network", NETWORKS)
def test_what_is_made_of_diagonal_factors(network: str, limit: int, tmp_path: Path) -> None:
    model = NETWORKS[network]()
    x, y = data_for(model)
    posterior = quietly(model, (x, y), likelihood="classification", max_factor=limit)
    cov = posterior.covariance()

    jac = []
    params = {n: p.detach() for n, p in model.named_parameters()}
    for row in x[:4]:
        found = torch.func.jacrev(lambda p, row=row: torch.func.functional_call(model, p, row[None])[0])(params)
        jac.append(torch.cat([found[n].flatten(1) for n in params], 1))
    j = torch.stack(jac)
    prediction = posterior.predict(x[:4])
    torch.testing.assert_close(prediction.logit_cov, j @ cov @ j.mT, rtol=1e-8, atol=1e-10)
    joint = posterior.predict(x[:4], joint=True)
    torch.testing.assert_close(joint.covariance, j.flatten(0, 1) @ cov @ j.flatten(0, 1).mT, rtol=1e-8, atol=1e-10)

    for gaussian, _ in posterior.gaussians():  # a draw is a linear map of white noise with M Mᵀ = Σ
        eye = torch.eye(gaussian.spectral.size, dtype=torch.float64)
        m = gaussian.colour(eye.clone().reshape(-1, *gaussian.spectral.native)).flatten(1)
        solved = gaussian.solve(eye.reshape(-1, *gaussian.spectral.native)).flatten(1)
        torch.testing.assert_close(m.mT @ m, solved, rtol=1e-9, atol=1e-11)

    where = posterior.where(x[:4])
    assert sum(r.variance_share for r in where.layers) == pytest.approx(1.0)
    for layer in where.layers:
        units = where.units(layer.name)
        assert float(sum(units.to_pandas()["variance_share"])) == pytest.approx(layer.variance_share, rel=1e-8)

    posterior.save(tmp_path / "p.safetensors")
    again = whence.load(tmp_path / "p.safetensors", model)
    assert again.blocks == posterior.blocks
    torch.testing.assert_close(again.covariance(), cov)
    more = posterior.update((x, y), progress=False)
    both = quietly(model, (torch.cat([x, x]), torch.cat([y, y])), likelihood="classification", max_factor=limit)
    torch.testing.assert_close(more.covariance(), both.covariance(), rtol=1e-9, atol=1e-11)
    assert abs(float(posterior.log_evidence())) < 1e6


def test_connections_and_slices_of_diagonal_factors() -> None:
    model = mlp()
    x, y = data_for(model)
    thin = quietly(model, (x, y), likelihood="classification", max_factor=4)
    diagonal = quietly(model, (x, y), likelihood="classification", max_factor=1)
    for posterior in (thin, diagonal):
        where = posterior.where(x[:3])
        share = next(r.variance_share for r in where.layers if r.name == "2")
        table = where.connections("2").to_pandas()
        assert float(table["variance_share"].sum()) == pytest.approx(share, rel=1e-6)
        assert len(where.slices((x, y)).to_pandas())
    maps = {p: curvature_maps(p, "2") for p in (thin, quietly(model, (x, y), likelihood="classification"))}
    held, whole = maps.values()
    for key in ("G", "A"):
        torch.testing.assert_close(held[key], thinned(whole[key], 4), rtol=1e-9, atol=1e-11)


def test_what_is_too_large_is_said() -> None:
    model = mlp()
    data = data_for(model)
    with pytest.warns(Notice, match=r"0 \(Linear\), 2 \(Linear\) got a structure that fits: it has 7 outputs"):
        posterior = whence.laplace(model, data, likelihood="classification", max_factor=6, progress=False)
    said = posterior.structures
    assert said["0"].structure == "kron" and "7 outputs, more than max_factor=6" in said["0"].reason
    assert "8 inputs" in said["2"].reason and said["4"].reason == ""
    assert said["0"].memory < quietly(model, data, likelihood="classification").structures["0"].memory
    ekfac = quietly(model, data, likelihood="classification", structure="ekfac", max_factor=6)
    assert [s.structure for s in ekfac.structures.values()] == ["kron", "kron", "ekfac"]
    with pytest.raises(TooLarge, match="KFRA passes whole factors back"):
        quietly(model, data, likelihood="classification", curvature="kfra", max_factor=6)
    with pytest.raises(BadOption, match="max_factor=0"):
        quietly(model, data, likelihood="classification", max_factor=0)


# Tied weights


def language_data(size: int = 4, length: int = 6) -> tuple[Tensor, Tensor]:
    text = torch.randint(11, (size, length + 1))
    text[0] = 3  # one word at every position
    return text[:, :-1], text[:, 1:]


class Tied(nn.Module):
    """A language model with its head tied to its embedding, or with one of its own."""

    def __init__(self, tied: bool) -> None:
        super().__init__()
        self.embedding, self.middle = nn.Embedding(11, 5), nn.Linear(5, 5)
        self.positions = nn.Embedding(6, 5)
        self.head = nn.Linear(5, 11, bias=False)
        if tied:
            self.head.weight = self.embedding.weight

    def forward(self, ids: Tensor) -> Tensor:
        x = self.embedding(ids) + self.positions(torch.arange(ids.shape[1]))
        return self.head(torch.tanh(self.middle(x)))


def test_the_diagonal_of_a_tied_weight_call_by_call(monkeypatch: pytest.MonkeyPatch) -> None:
    """Both calls apart, the head's position by position: in another network the two are two weights."""
    tied, apart = Tied(True).double(), Tied(False).double()
    apart.load_state_dict(tied.state_dict())
    x, y = language_data()
    options: dict[str, Any] = {"likelihood": Categorical(class_dim=-1), "curvature": "empirical"}
    monkeypatch.setattr(blocks, "BY_CALL", 50)
    monkeypatch.setattr(blocks, "EXACT_LIMIT", 50)
    with pytest.warns(Notice, match=r"embedding \(Embedding\) got a structure that fits: .* tied .* call by call"):
        found = whence.laplace(tied, (x, y), progress=False, **options)
    assert found.structures["embedding"].structure == "diag"

    embedded = quietly(apart, (x, y), structure="diag", layers=["embedding"], **options)
    wanted = embedded.curvature.structures[0].values.reshape(11, 5).clone()
    features = torch.tanh(apart.middle(apart.embedding(x) + apart.positions(torch.arange(6)))).detach()
    g = (F.linear(features, apart.head.weight).softmax(-1) - F.one_hot(y, 11)).detach()
    for n in range(len(x)):
        for t in range(x.shape[1]):
            wanted += torch.outer(g[n, t], features[n, t]).square()
    names = [b.name for b in found.blocks]
    got = found.curvature.structures[names.index("embedding")].values.reshape(11, 5)
    torch.testing.assert_close(got, wanted, rtol=1e-10, atol=1e-12)


def test_summing_call_by_call_is_exact_for_an_output_layer() -> None:
    """With all draws of the labels written out, mixed terms of positions vanish: E[(Σ_t g a)²] = Σ_t E[(g a)²]."""
    p, a = torch.rand(2, 3, dtype=torch.float64).softmax(-1), torch.randn(2, 4, dtype=torch.float64)
    before, after = torch.zeros(3, 4, dtype=torch.float64), torch.zeros(3, 4, dtype=torch.float64)
    for i in range(3):
        for j in range(3):
            g = p - F.one_hot(torch.tensor([i, j]), 3)
            weight = p[0, i] * p[1, j]
            before += weight * (g.mT @ a).square()
            after += weight * (g.square().mT @ a.square())
    torch.testing.assert_close(before, after)


def test_tied_weights_of_a_requested_diagonal(monkeypatch: pytest.MonkeyPatch) -> None:
    model = Tied(True).double()
    options: dict[str, Any] = {"likelihood": Categorical(class_dim=-1), "curvature": "empirical", "structure": "diag"}
    exact = quietly(model, language_data(), **options)
    monkeypatch.setattr(blocks, "BY_CALL", 50)
    found = quietly(model, language_data(), **options)
    assert exact.structures["embedding"].reason == ""
    assert "without their mixed terms" in found.structures["embedding"].reason
    assert exact.curvature.structures[0].values.shape == found.curvature.structures[0].values.shape


# What is added to the examples


class Positions(nn.Module):
    def __init__(self, how: str) -> None:
        super().__init__()
        self.how, self.table = how, nn.Embedding(3, 4)
        self.free = nn.Parameter(torch.randn(1, 3, 4) if how != "channel" else torch.randn(3, 1))
        self.head = nn.Linear(12, 2)

    def forward(self, x: Tensor) -> Tensor:
        places = torch.arange(3)
        if self.how == "looked up":
            x = x + self.table(places)
        elif self.how == "looked up in one row":
            x = self.table(places[None]) + x
        elif self.how == "in place":
            x = x.clone()
            x += self.free
        else:
            x = torch.add(x, self.free)
        return self.head(torch.tanh(x).flatten(1))


@pytest.mark.parametrize("how", ["looked up", "looked up in one row", "added", "in place", "channel"])
def test_what_is_added_needs_no_fallback(how: str) -> None:
    torch.manual_seed(1)
    model = Positions(how).double()
    x, y = torch.randn(7, 3, 4, dtype=torch.float64), torch.randint(2, (7,))
    name = "table" if how.startswith("looked") else "free"
    posterior = quietly(model, (x, y), likelihood="classification", structure="diag", layers=[name])
    (block,) = posterior.blocks
    assert block.source in ("table", "rows")
    wanted = torch.zeros(block.size, dtype=torch.float64)
    params = {n: p.detach() for n, p in model.named_parameters()}
    chosen = block.params[0].name
    for row in x:

        def f(p: Tensor, row: Tensor = row) -> Tensor:
            return torch.func.functional_call(model, {**params, chosen: p}, row[None])[0]

        j = torch.func.jacrev(f)(params[chosen]).flatten(1)
        q = f(params[chosen]).softmax(-1)
        wanted += (j.mT @ (q.diag() - q.outer(q)) @ j).diagonal()
    torch.testing.assert_close(posterior.curvature.structures[0].values, wanted, rtol=1e-9, atol=1e-12)


# Sampled Fisher of many outputs


def test_only_the_numbers_that_are_used_are_drawn() -> None:
    rows = torch.arange(40, 45)
    whole = example_uniform(3, 1, rows, (5, 4, 6))
    assert torch.equal(example_uniform(3, 1, rows, (5, 4, 6), 1), whole[..., :1])
    assert torch.equal(example_uniform(3, 1, rows, (5, 4, 6), 2), whole[..., :2])
    assert torch.equal(example_uniform(3, 1, rows, (5, 4, 6), 6), whole)


def test_gradients_of_labels_in_place() -> None:
    likelihood = Categorical(class_dim=-1)
    outputs = torch.randn(3, 4, 5, dtype=torch.float64)
    targets = torch.randint(5, (3, 4))
    targets[1, 2] = likelihood.ignore_index
    leaf = outputs.clone().requires_grad_()
    (wanted,) = torch.autograd.grad(likelihood.nll(leaf, targets).sum(), leaf)
    before = outputs.clone()
    torch.testing.assert_close(likelihood.gradient(outputs, targets), wanted)
    assert torch.equal(outputs, before)
    assert likelihood.gradient(leaf, targets).requires_grad
    columns = columns_for("mc", likelihood, outputs, targets, Draws(7, 1), torch.arange(3)).chunk(0, 1)
    assert not columns[0, 1, 2].any() and torch.allclose(columns.sum(-1), torch.zeros(()).double())
    twice = columns_for("mc", likelihood, outputs, targets, Draws(7, 2), torch.arange(3)).chunk(0, 2)
    torch.testing.assert_close(twice[0] * 2**0.5, columns[0])


def test_few_examples_are_looked_at_where_outputs_are_large(monkeypatch: pytest.MonkeyPatch) -> None:
    model, data = Tied(True).double(), language_data(8)
    options: dict[str, Any] = {"likelihood": Categorical(class_dim=-1), "curvature": "empirical"}
    wanted = quietly(model, data, **options)
    sizes: list[int] = []
    find = layout._find_layouts

    def noted(found: Any, seen: Any, size: int) -> None:
        sizes.append(size)
        find(found, seen, size)

    monkeypatch.setattr(layout, "_find_layouts", noted)
    for probed, size in ((2**30, 8), (40_000, 5), (1, 2)):
        monkeypatch.setattr(layout, "PROBED", probed)
        found = quietly(model, data, **options)
        assert [b.source for b in found.blocks] == [b.source for b in wanted.blocks]
        assert sizes.pop() == size
    monkeypatch.setattr(probes, "PERIOD", 7)
    probe = probe_like(torch.zeros(3, 5))
    assert torch.equal(probe.flatten()[:7], probe.flatten()[7:14]) and probe.abs().min() > 0


# Half precision


@pytest.mark.parametrize("structure", ["kron", "ekfac", "diag", "block"])
@pytest.mark.parametrize("how", ["context", "option"])
def test_float32_factors_under_autocast(structure: str, how: str) -> None:
    model = nn.Sequential(nn.Linear(6, 16), nn.LayerNorm(16), nn.GELU(), nn.Linear(16, 16), nn.ReLU(), nn.Linear(16, 4))
    x, y = torch.randn(200, 6), torch.randint(4, (200,))
    options: dict[str, Any] = {"likelihood": "classification", "structure": structure}
    wanted = quietly(model, (x, y), **options)
    if how == "context":
        with torch.autocast("cpu", torch.bfloat16):
            found = quietly(model, (x, y), **options)
            inside = found.predict(x[:5]).probs
            draws = found.sample(3, generator=torch.Generator().manual_seed(0))
    else:
        found = quietly(model, (x, y), autocast=torch.bfloat16, **options)
        inside = found.predict(x[:5]).probs
        draws = found.sample(3, generator=torch.Generator().manual_seed(0))
    assert [(b.structure, b.reason) for b in found.blocks] == [(b.structure, b.reason) for b in wanted.blocks]
    for a, b in zip(found.curvature.structures, wanted.curvature.structures, strict=True):
        for key, value in a.tensors().items():
            if key != "count" and (a.kind != "ekfac" or key == "values"):
                assert value.dtype == torch.float32
                close = a.kind != "ekfac"  # eigenvalues in eigenvectors that rounding turns
                assert not close or float((value - b.tensors()[key]).norm() / b.tensors()[key].norm()) < 2e-2
    outside = found.predict(x[:5]).probs
    assert torch.equal(inside, outside), "a posterior belongs to the precision it was fitted in"
    assert inside.dtype == torch.float32
    torch.testing.assert_close(inside, wanted.predict(x[:5]).probs, rtol=0.05, atol=0.02)
    again = found.sample(3, generator=torch.Generator().manual_seed(0))
    assert all(torch.equal(draws[n], again[n]) and draws[n].dtype == torch.float32 for n in draws)
    assert found.network.autocast == torch.bfloat16 and wanted.network.autocast is None


def test_autocast_is_kept_by_files_tuning_and_updates(tmp_path: Path) -> None:
    model = nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 3))
    x, y = torch.randn(60, 6), torch.randint(3, (60,))
    with torch.autocast("cpu", torch.bfloat16):
        posterior = quietly(model, (x, y), likelihood="classification")
        tuned = posterior.tune((x[:30], y[:30]), progress=False)
        more = posterior.update((x, y), progress=False)
        posterior.where(x[:4])
    posterior.save(tmp_path / "p.safetensors")
    loaded = whence.load(tmp_path / "p.safetensors", model)
    for one in (tuned, more, loaded, posterior.to(torch.float32)):
        assert one.network.autocast == torch.bfloat16
    assert torch.equal(loaded.predict(x[:5]).probs, posterior.predict(x[:5]).probs)
    outside = posterior.tune((x[:30], y[:30]), progress=False)
    assert outside.prior_precision == tuned.prior_precision


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_networks_held_in_half_precision(dtype: torch.dtype) -> None:
    model = nn.Sequential(nn.Linear(6, 16), nn.Tanh(), nn.Linear(16, 4))
    x, y = torch.randn(100, 6), torch.randint(4, (100,))
    wanted = quietly(model, (x, y), likelihood="classification")
    found = quietly(model.to(dtype), (x.to(dtype), y), likelihood="classification")
    assert {b.structure for b in found.blocks} == {"kron"}
    for a, b in zip(found.curvature.structures, wanted.curvature.structures, strict=True):
        for key in ("inputs", "grads"):
            assert a.tensors()[key].dtype == torch.float32
            assert float((a.tensors()[key] - b.tensors()[key]).norm() / b.tensors()[key].norm()) < 3e-2
    assert found.record.loss == pytest.approx(wanted.record.loss, rel=2e-2)


@pytest.mark.parametrize("held", [False, True], ids=["autocast", "held"])
@pytest.mark.parametrize(
    "options",
    [
        {"curvature": "kfra"},
        {"curvature": "hessian", "structure": "block"},
        {"curvature": "mc"},
        {"curvature": "empirical"},
        {"structure": "lowrank", "rank": 5},
        {"structure": "full"},
        {"layers": "last"},
    ],
    ids=lambda o: "-".join(map(str, o.values())),
)
def test_every_curvature_in_half_precision(options: dict[str, Any], held: bool) -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 3))
    x, y = torch.randn(60, 6), torch.randint(3, (60,))
    given: dict[str, Any] = {"likelihood": "classification", "prior_precision": 50.0, **options}
    wanted = quietly(model, (x, y), generator=torch.Generator().manual_seed(0), **given).predict(x).probs
    autocast = None if held else torch.bfloat16
    model, inputs = (model.bfloat16(), x.bfloat16()) if held else (model, x)
    found = quietly(model, (inputs, y), generator=torch.Generator().manual_seed(0), autocast=autocast, **given)
    assert all(t.dtype in (torch.float32, torch.float64) for t in found.curvature.structures[0].tensors().values())
    torch.testing.assert_close(found.predict(inputs).probs.float(), wanted, rtol=0, atol=4e-3)


def test_sums_of_narrow_products(monkeypatch: pytest.MonkeyPatch) -> None:
    """On a GPU inputs and gradients stay in half precision, and their products are summed in float32."""
    model = nn.Sequential(nn.Conv2d(2, 3, 3, padding=1), nn.ReLU(), nn.Flatten(), nn.Linear(48, 9), nn.Linear(9, 3))
    x, y = torch.randn(20, 2, 4, 4), torch.randint(3, (20,))
    options: dict[str, Any] = {"likelihood": "classification", "autocast": torch.bfloat16}
    for more in ({}, {"max_factor": 8}, {"sharing": "reduce"}, {"structure": "ekfac"}, {"structure": "diag"}):
        wanted = quietly(model, (x, y), **options, **more)
        with monkeypatch.context() as patch:
            patch.setattr(jacobian, "stays_narrow", lambda t: t.dtype == torch.bfloat16)
            found = quietly(model, (x, y), **options, **more)
        for a, b in zip(found.curvature.structures, wanted.curvature.structures, strict=True):
            for key in {"inputs", "grads", "values"} & set(a.tensors()):
                assert a.tensors()[key].dtype == torch.float32
                wide = b.tensors()[key]
                assert float((a.tensors()[key] - wide).norm() / wide.norm()) < 3e-3


def test_fused_attention_gives_the_same_factors(monkeypatch: pytest.MonkeyPatch) -> None:
    model = gpt2(True, 16).double()
    text = torch.randint(211, (4, 17))
    data, options = (text[:, :-1], text[:, 1:]), {"likelihood": Categorical(class_dim=-1), "curvature": "mc"}
    found = quietly(model, data, generator=torch.Generator().manual_seed(0), **options)
    forward = plan.forward
    monkeypatch.setattr(plan, "forward", lambda network, inputs, fused: forward(network, inputs, False))
    plain = quietly(model, data, generator=torch.Generator().manual_seed(0), **options)
    assert not found.plan.fused
    for a, b in zip(found.curvature.structures, plain.curvature.structures, strict=True):
        for key, value in a.tensors().items():
            torch.testing.assert_close(value, b.tensors()[key], rtol=1e-9, atol=1e-12)


# Large networks, small


def test_a_language_model_by_default(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every weight of a tied transformer has a posterior, none by the per-example fallback, and it predicts."""
    monkeypatch.setattr(blocks, "BY_CALL", 1000)
    model = gpt2(True, 8)
    text = torch.randint(211, (6, 9))
    likelihood = Categorical(class_dim=-1)
    posterior = quietly(model, [(t[:, :-1], t[:, 1:]) for t in text.split(3)], likelihood=likelihood)
    assert posterior.parameters == sum(p.numel() for p in model.parameters())
    assert all(b.source != "example" for b in posterior.blocks)
    assert posterior.curvature.options.curvature == "mc"
    assert posterior.predict(text[:2, :8], num_samples=3).probs.shape == (2, 8, 211)


def test_a_residual_network_by_default() -> None:
    model = resnet50(True).eval()
    data = [(torch.randn(2, 3, 32, 32), torch.randint(12, (2,))) for _ in range(2)]
    posterior = quietly(model, data, likelihood="classification", curvature="mc")
    assert all(b.source != "example" for b in posterior.blocks)
    assert {b.structure for b in posterior.blocks if "Conv" in b.kind} == {"kron"}


# Offload


@pytest.mark.parametrize("structure", ["kron", "ekfac", "diag", "block", "full", "lowrank"])
def test_offloading_changes_no_number(structure: str, tmp_path: Path) -> None:
    model = mlp()
    x, y = data_for(model)
    options: dict[str, Any] = {"likelihood": "classification", "structure": structure, "prior_precision": 2.0}
    here, away = (quietly(model, (x, y), offload=off, **options) for off in (False, True))
    assert_close(away.predict(x).probs, here.predict(x).probs, 1e-13)  # the order of sums may differ with the layout
    assert_close(away.covariance(), here.covariance(), 1e-13)
    assert all(s.tensors() and t.device.type == "cpu" for s in away.curvature.structures for t in s.tensors().values())
    away.save(tmp_path / "p.safetensors")
    again = whence.load(tmp_path / "p.safetensors", model)
    assert again.curvature.options.offload
    assert_close(again.predict(x).probs, here.predict(x).probs, 1e-13)
    assert away.to(torch.float32).predict(x.float()).probs.dtype == torch.float32


def test_decompositions_come_to_the_device_and_go_back(monkeypatch: pytest.MonkeyPatch) -> None:
    moved: list[str] = []
    spectral_to = whence.linalg.spectral.Spectral.to

    def noted(self: Any, device: torch.device) -> Any:
        moved.append(device.type)
        return spectral_to(self, device)

    monkeypatch.setattr(whence.linalg.spectral.Spectral, "to", noted)
    model = mlp()
    posterior = quietly(model, data_for(model), likelihood="classification", offload=True)
    moved.clear()
    posterior.variance()
    assert len(moved) == len(posterior.blocks), "one at a time, when it is used"


# Layers that cost nothing


class Refuses(torch.autograd.Function):
    """What must not be differentiated."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x.clone()

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> Tensor:
        raise AssertionError("the backward pass went on below the first selected layer")


class Barred(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.early, self.late, self.head = nn.Linear(4, 5), nn.Linear(5, 5), nn.Linear(5, 3)

    def forward(self, x: Tensor) -> Tensor:
        x = Refuses.apply(torch.tanh(self.early(x)))
        return self.head(torch.tanh(self.late(x)))


@pytest.mark.parametrize("chosen", [["late", "head"], "last", lambda name, p: name.startswith("late"), "frozen"])
@pytest.mark.parametrize("structure", ["kron", "diag", "ekfac"])
def test_the_backward_pass_stops_at_the_first_chosen_layer(structure: str, chosen: Any) -> None:
    model = Barred().double()
    layers = chosen
    if chosen == "frozen":
        model.early.requires_grad_(False)
        layers = None
    data = (torch.randn(9, 4, dtype=torch.float64), torch.randint(3, (9,)))
    posterior = quietly(model, data, likelihood="classification", structure=structure, layers=layers)
    assert all(not b.name.startswith("early") for b in posterior.blocks)
    posterior.predict(data[0])
    recording = posterior.plan.record(data[0], 9)
    refs = {r.name for use in recording.seen.uses for r in (use.weight, use.bias) if r is not None}
    assert not any(name.startswith("early") for name in refs), "nothing of it is kept"


class Lora(nn.Module):
    """A frozen layer with a low-rank correction: as layers, by products, or inside the weight."""

    def __init__(self, how: str) -> None:
        super().__init__()
        self.how, self.frozen = how, nn.Linear(6, 5).requires_grad_(False)
        self.a, self.b = nn.Linear(6, 2, bias=False), nn.Linear(2, 5, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        if self.how == "layers":
            return self.frozen(x) + 0.5 * self.b(self.a(x))
        if self.how == "products":
            return self.frozen(x) + 0.5 * (x @ self.a.weight.t() @ self.b.weight.transpose(0, 1))
        return F.linear(x, self.frozen.weight + 0.5 * self.b.weight @ self.a.weight, self.frozen.bias)


@pytest.mark.parametrize("how", ["layers", "products", "inside"])
def test_adapters(how: str) -> None:
    torch.manual_seed(0)
    first, last = Lora(how), nn.Linear(5, 3).requires_grad_(False)
    model = nn.Sequential(first, nn.Tanh(), last).double()
    x, y = torch.randn(12, 6, dtype=torch.float64), torch.randint(3, (12,))
    full = quietly(model, (x, y), likelihood="classification", structure="full")
    assert [p.name for b in full.blocks for p in b.params] == ["0.a.weight", "0.b.weight"]
    params = {n: p.detach() for n, p in model.named_parameters() if p.requires_grad}
    wanted = torch.zeros(22, 22, dtype=torch.float64)
    for row in x:

        def f(p: dict[str, Tensor], row: Tensor = row) -> Tensor:
            return torch.func.functional_call(model, p, row[None])[0]

        found = torch.func.jacrev(f)(params)
        j = torch.cat([found[n].flatten(1) for n in params], 1)
        q = f(params).softmax(-1)
        wanted += j.mT @ (q.diag() - q.outer(q)) @ j
    torch.testing.assert_close(full.curvature.structures[0].matrix, wanted, rtol=1e-9, atol=1e-12)
    kron = quietly(model, (x, y), likelihood="classification", layers=lambda name, p: ".a." in name or ".b." in name)
    sources = {b.source for b in kron.blocks}
    assert sources == ({"example"} if how == "inside" else {"matrix"})


def test_products_by_a_parameter_are_layers() -> None:
    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.w, self.v = nn.Parameter(torch.randn(4, 5)), nn.Parameter(torch.randn(3, 5))

        def forward(self, x: Tensor) -> Tensor:
            return torch.tanh(x @ self.w) @ self.v.T

    model = Net().double()
    plain = nn.Sequential(nn.Linear(4, 5, bias=False), nn.Tanh(), nn.Linear(5, 3, bias=False)).double()
    with torch.no_grad():
        plain[0].weight.copy_(model.w.T)
        plain[2].weight.copy_(model.v)
    data = (torch.randn(9, 4, dtype=torch.float64), torch.randint(3, (9,)))
    one, other = (quietly(m, data, likelihood="classification") for m in (model, plain))
    for a, b in zip(one.curvature.structures, other.curvature.structures, strict=True):
        for key, value in a.tensors().items():
            torch.testing.assert_close(value, b.tensors()[key], rtol=1e-10, atol=1e-12)
