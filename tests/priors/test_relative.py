"""The relative prior against its twin, by kind of layer and by structure; what it refuses and says."""

from __future__ import annotations

import math
import warnings
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import whence
from tests.comparison import assert_close, fitted
from tests.reference import curvature as slow
from tests.reference import relative as twin
from tests.reference.networks import ALL
from tests.reference.patches import CONVS, TRANSPOSED
from whence.errors import BadOption, NotDefined, Notice
from whence.predictive.linearised import moments
from whence.recording.gradients import Gradients

RELATIVE = whence.Relative()
MATRICES = (nn.Linear, *CONVS, *TRANSPOSED)


def matrices(posterior: whence.Laplace) -> dict[str, nn.Module]:
    """Layers whose weight and bias are one block of one pair for each group."""
    modules = dict(posterior.network.module.named_modules())
    found = {}
    for block in posterior.blocks:
        module = modules.get(block.name)
        whole = [f"{block.name}.{n}" for n, _ in module.named_parameters()] if module is not None else []
        if type(module) in MATRICES and whole == [p.name for p in block.params]:
            found[block.name] = module
    return found


@pytest.mark.parametrize("name", ALL)
def test_matrices_have_the_variances_of_the_twin(name: str) -> None:
    case = ALL[name](0)
    posterior = fitted(case, prior_precision=RELATIVE)
    found = posterior.prior_variance()
    model = case.model
    for layer, _ in matrices(posterior).items():
        signal = posterior.curvature.signals[layer]
        if signal.description.kind != "matrix":
            continue
        module = model.get_submodule(layer)
        wanted = twin.variances(model, module, case.x, head=signal.description.head)
        for part, _ in module.named_parameters():
            assert_close(found[f"{layer}.{part}"], wanted[part], 1e-9)


def test_most_networks_have_matrices() -> None:
    counted = sum(bool(matrices(fitted(ALL[name](0), prior_precision=RELATIVE))) for name in ALL)
    assert counted > 0.7 * len(ALL)


@pytest.mark.parametrize("structure", ["kron", "ekfac", "diag", "block", "full", "lowrank"])
@pytest.mark.parametrize("name", ["mlp", "conv2d_grouped", "layer_norm", "embedding"])
def test_the_posterior_is_that_of_dense_matrices(name: str, structure: str) -> None:
    """Σ = (H + Δ)⁻¹ with H from an isotropic fit, where H does not depend on the prior."""
    if name not in ALL:
        name = next(n for n in ALL if name.split("_")[0] in n)
    case = ALL[name](0)
    posterior = fitted(case, structure=structure, rank=400, prior_precision=whence.Relative(2.0))
    delta = torch.cat([(1 / v).flatten() for v in posterior.prior_variance().values()])
    covariance = posterior.covariance()
    h = torch.linalg.inv(covariance) - torch.diag(delta)
    jac = slow.jacobian(case.model, slow.trainable(case.model), case.x)
    assert_close(moments(posterior, case.x).cov, torch.stack([j @ covariance @ j.T for j in jac]))
    if structure in ("diag", "block", "full", "kron"):
        plain = fitted(case, structure=structure, prior_precision=1.0)
        wanted = torch.linalg.inv(plain.covariance()) - torch.eye(len(delta), dtype=torch.float64)
        assert float((h - wanted).abs().max()) < 1e-6 * float(wanted.abs().max())
    identified = 1 - covariance.diagonal() * delta
    rows = posterior.where().layers
    assert sum(r.effective_parameters for r in rows) == pytest.approx(float(identified.sum()), rel=1e-6)
    draws = posterior.sample(20_000, generator=torch.Generator().manual_seed(0))
    spread = torch.cat([draws[n].double().var(0).flatten() for n in posterior.names()])
    assert_close(spread, covariance.diagonal(), 0.05)


@pytest.mark.parametrize("norm", [nn.BatchNorm1d, nn.LayerNorm])
def test_a_normalisation(norm: Any) -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 5), norm(5), nn.Tanh(), nn.Linear(5, 3)).double().eval()
    with torch.no_grad():
        for p in model.parameters():
            p.add_(0.3 * torch.randn_like(p))
    x = torch.randn(30, 4, dtype=torch.float64)
    posterior = quietly(model, x, torch.randint(3, (30,)))
    plain = norm(5, **({"affine": False} if norm is nn.BatchNorm1d else {"elementwise_affine": False})).double().eval()
    plain.load_state_dict(model[1].state_dict(), strict=False)
    wanted = twin.norm_variances(*(p.detach() for p in model[1].parameters()), plain(model[0](x)).detach())
    for part, value in zip(("weight", "bias"), wanted, strict=True):
        assert_close(posterior.prior_variance()[f"1.{part}"], value, 1e-10)


@pytest.mark.parametrize("padding", [None, 0])
def test_an_embedding_by_how_often_its_rows_are_read(padding: int | None) -> None:
    torch.manual_seed(0)

    class Words(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.table, self.head = nn.Embedding(7, 4, padding_idx=padding), nn.Linear(4, 3)

        def forward(self, tokens: Tensor) -> Tensor:
            return self.head(self.table(tokens).mean(1))

    model = Words().double()
    tokens = torch.randint(5, (20, 6))  # rows 5 and 6 are never read
    posterior = quietly(model, tokens, torch.randint(3, (20,)))
    wanted = twin.table_variance(model.table.weight.detach(), tokens, padding)
    assert_close(posterior.prior_variance()["table.weight"], wanted, 1e-10)


def quietly(model: nn.Module, x: Any, y: Tensor, **options: Any) -> whence.Laplace:
    options = {"likelihood": "classification", "progress": False} | options
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", Notice)
        return whence.laplace(model, (x, y), **options)


def small() -> tuple[nn.Module, Tensor, Tensor]:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 6), nn.ReLU(), nn.Linear(6, 3)).double()
    return model, torch.randn(40, 4, dtype=torch.float64), torch.randint(3, (40,))


def test_every_preactivation_has_the_prior_variance_that_is_said() -> None:
    """Averaged over the training data it is r_o / τ, but for what the floor takes away."""
    model, x, y = small()
    posterior = quietly(model, x, y, prior_precision=whence.Relative(4.0, floor=0.0))
    variance = posterior.prior_variance()
    spread = x.square() @ variance["0.weight"].mT + variance["0.bias"]
    signal = x.square() @ model[0].weight.detach().square().mT
    assert_close(spread.mean(0), signal.mean(0) / 4, 1e-10)


def test_tau_is_a_factor() -> None:
    model, x, y = small()
    one, four = (quietly(model, x, y, prior_precision=whence.Relative(tau)) for tau in (1.0, 4.0))
    assert_close(one.prior_variance()["0.weight"], 4 * four.prior_variance()["0.weight"])
    assert_close(one.with_prior(whence.Relative(4.0)).covariance(), four.covariance())
    assert one.with_prior(whence.Relative(4.0)).prior_precision == whence.Relative(4.0)


def test_tau_by_layer() -> None:
    model, x, y = small()
    posterior = quietly(model, x, y).with_prior(whence.Relative({"0": 2.0, "*": 5.0}))
    assert posterior.prior_precision == whence.Relative({"0": 2.0, "2": 5.0})
    assert "τ = 2 … 5 by layer" in repr(posterior)
    with pytest.raises(BadOption, match=r"has no entry for '2\.weight'"):
        posterior.with_prior(whence.Relative({"0": 2.0}))


@pytest.mark.parametrize("structure", ["kron", "ekfac", "diag", "block", "full"])
def test_an_explicit_prior_freezes_it(structure: str) -> None:
    model, x, y = small()
    posterior = quietly(model, x, y, structure=structure)
    given = {n: 1 / v for n, v in posterior.prior_variance().items()}
    frozen = quietly(model, x, y, structure=structure, prior_precision=given)
    assert_close(frozen.covariance(), posterior.covariance(), 1e-8)
    assert frozen.prior.describe() == "per weight"


@pytest.mark.parametrize("structure", ["kron", "diag"])
@pytest.mark.parametrize("explicit", [False, True])
def test_no_jacobian_is_formed_for_it(structure: str, explicit: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """A precision by weight is folded into the weights of a plain network: rows [N, K, P] would not fit."""
    model, x, y = small()
    posterior = quietly(model, x, y, structure=structure)
    if explicit:
        posterior = posterior.with_prior({n: (i + 2) / v for i, (n, v) in enumerate(posterior.prior_variance().items())}
                                         if structure == "diag" else
                                         {n: 2 / v for n, v in posterior.prior_variance().items()})  # fmt: skip
    wanted = posterior.predict(x).logit_cov

    def formed(*_: Any, **__: Any) -> Any:
        raise AssertionError("rows of the Jacobian were formed")

    monkeypatch.setattr(Gradients, "rows", formed)
    assert_close(posterior.predict(x).logit_cov, wanted, 1e-12)
    assert posterior.where(x).layers
    posterior.tune((x, y), progress=False, reference=False)


def test_it_can_be_given_to_other_methods() -> None:
    model, x, y = small()
    posterior = quietly(model, x, y)
    for verb in (whence.variational, whence.hmc):
        with pytest.raises(BadOption, match=r"needs the sums of a Laplace fit.*prior_variance"):
            verb(model, (x, y), likelihood="classification", prior_precision=RELATIVE)
    given = {n: 1 / v for n, v in posterior.prior_variance().items()}
    found = whence.variational(
        model, (x, y), likelihood="classification", prior_precision=given, epochs=1, progress=False
    )
    assert_close(found.prior_precision["0.weight"], given["0.weight"])


@pytest.mark.parametrize("given", [0.0, -1.0, math.nan, "much", {"0": 0.0}])
def test_tau_must_be_positive(given: Any) -> None:
    model, x, y = small()
    with pytest.raises(BadOption, match="positive"):
        quietly(model, x, y, prior_precision=whence.Relative(given))


def test_the_floor_must_not_be_negative() -> None:
    model, x, y = small()
    with pytest.raises(BadOption, match="floor=-1"):
        quietly(model, x, y, prior_precision=whence.Relative(1.0, floor=-1.0))


def test_a_layer_of_zeros_is_isotropic_and_said_to_be() -> None:
    model, x, y = small()
    with torch.no_grad():
        model[2].weight.zero_()
    with pytest.warns(Notice, match=r"all inputs of '2' \(Linear\) are zero.*isotropic, with precision"):
        posterior = whence.laplace(model, (x, y), likelihood="classification", progress=False)
    assert set(posterior.prior_variance()["2.weight"].flatten().tolist()) == {1.0}


def test_rows_of_zeros_take_what_is_usual_and_dead_columns_too() -> None:
    model, x, y = small()
    x[:, 3] = 0.0  # an input that is never on
    with torch.no_grad():
        model[0].weight[2] = 0.0  # a unit without weights
        model[0].weight[:, 3] = 0.0
        model[2].weight[:, 1] = 0.0  # a unit that is on, and that nothing reads
    variance = quietly(model, x, y).prior_variance()
    assert all(bool(torch.isfinite(v).all()) and bool((v > 0).all()) for v in variance.values())
    energies = model[0].weight.detach().square() @ x.square().mean(0)
    live = energies[energies > 0]
    assert variance["0.bias"][2] == pytest.approx(float(live.median()) / 5)
    inner = torch.relu(model[0](x)).detach().square().mean(0)
    head = model[2].weight.detach() - model[2].weight.detach().mean(0)
    r = head.square() @ inner
    assert_close(variance["2.weight"][:, 1], r / (7 * inner[1]), 1e-10)  # κ = 0


def test_a_dead_unit_whose_weights_have_decayed_has_a_finite_prior() -> None:
    """Weight decay goes on where no gradient comes; its weights fall below what float32 can square."""
    model, x, y = small()
    with torch.no_grad():
        model[0].weight[2] *= 1e-24
        model[0].bias[2] = -1e-20  # never on
        model[2].weight[:, 2] *= 1e-24
    posterior = quietly(model.float(), x.float(), y)
    where = posterior.where(x.float())
    assert all(math.isfinite(v) for row in where.layers for v in vars(row).values() if isinstance(v, float))
    for name, variance in posterior.prior_variance().items():
        assert bool(torch.isfinite(variance).all()) and bool((variance > 0).all()), name
    assert float(posterior.prior_variance()["2.weight"][:, 2].max()) < 1e-12


def test_the_softmax_head_is_centred_and_others_are_not() -> None:
    model, x, _ = small()
    shifted = nn.Sequential(model[0], model[1], nn.Linear(6, 3)).double()
    with torch.no_grad():
        shifted[2].weight.copy_(model[2].weight + torch.randn(6, dtype=torch.float64))
        shifted[2].bias.copy_(model[2].bias)
    y = torch.randint(3, (40,))
    one, other = (quietly(m, x, y).prior_variance()["2.weight"] for m in (model, shifted))
    assert_close(one, other, 1e-10)
    y = torch.randn(40, 3, dtype=torch.float64)
    options = {"likelihood": whence.Gaussian(0.5)}
    one, other = (quietly(m, x, y, **options).prior_variance()["2.weight"] for m in (model, shifted))
    assert float((one - other).abs().max()) > 0.01


@pytest.mark.parametrize("structure", ["kron", "ekfac", "diag", "block", "full", "lowrank"])
def test_it_is_saved_and_loaded(structure: str, tmp_path: Any) -> None:
    model, x, y = small()
    posterior = quietly(model, x, y, structure=structure, rank=10).tune((x, y), progress=False)
    posterior.save(tmp_path / "p.safetensors")
    loaded = whence.load(tmp_path / "p.safetensors", model)
    assert loaded.prior_precision == posterior.prior_precision
    assert_close(loaded.covariance(), posterior.covariance(), 1e-12)
    again = loaded.with_prior(whence.Relative(3.0))
    assert_close(again.covariance(), posterior.with_prior(whence.Relative(3.0)).covariance(), 1e-12)
    assert torch.equal(whence.novelty(loaded, x).p_value, whence.novelty(posterior, x).p_value)


def test_a_posterior_without_sums_refuses_it() -> None:
    """As files of older versions are."""
    from dataclasses import replace

    model, x, y = small()
    posterior = quietly(model, x, y, prior_precision=1.0)
    old = replace(posterior, curvature=replace(posterior.curvature, signals={}))
    with pytest.raises(NotDefined, match="Fit it again, or pass a number"):
        old.with_prior(RELATIVE)
    whence.novelty(old, x, reference=torch.randn(120, 4, dtype=torch.float64))


def test_evidence_of_relative_priors_does_not_compare_networks() -> None:
    model, x, y = small()
    with pytest.raises(BadOption, match="weights='equal', or an isotropic prior"):
        whence.laplace_ensemble([model], (x, y), likelihood="classification", prior_precision=RELATIVE)
    mixture = whence.laplace_ensemble([model], (x, y), likelihood="classification", weights="equal", progress=False)
    assert mixture.members[0].prior_precision == RELATIVE


def test_the_floor_keeps_rare_inputs_from_having_it_all() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(20, 8), nn.ReLU(), nn.Linear(8, 3)).double()
    x = torch.rand(500, 20, dtype=torch.float64)
    x[:, 0] = 0.0
    x[7, 0] = 1.0  # on once
    y = torch.randint(3, (500,))
    share = {}
    for floor in (0.0, 0.01):
        variance = quietly(model, x, y, prior_precision=whence.Relative(1.0, floor=floor)).prior_variance()
        spread = (x.square() @ variance["0.weight"].mT).sum(1)
        share[floor] = float(spread[7] / spread.sum())
    assert share[0.0] > 0.05 > 2 * share[0.01]
