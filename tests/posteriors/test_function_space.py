"""The Gaussian process of the linearised network: given all training data, the posterior with a full covariance."""

from __future__ import annotations

import math
import warnings
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import whence
from tests.comparison import assert_close
from whence.errors import BadOption, NotDefined, Notice, TooLarge
from whence.posteriors.function_space import features as kernels
from whence.predictive.linearised_draws import linearised_draws
from whence.predictive.predictions import JointPrediction

LIKELIHOODS: dict[str, Any] = {
    "classification": "classification",
    "binary": "binary",
    "gaussian": whence.Gaussian(noise=0.4),
    "heteroscedastic": whence.HeteroscedasticGaussian(),
    "poisson": whence.Poisson(),
}


class Odd(nn.Module):
    """A convolution, a shared linear layer over positions, a norm, and a scale of its own."""

    def __init__(self, outputs: int) -> None:
        super().__init__()
        self.conv = nn.Conv1d(2, 4, 3, padding=1)
        self.mix = nn.Linear(4, 5)
        self.norm = nn.LayerNorm(5)
        self.scale = nn.Parameter(torch.ones(5))
        self.head = nn.Linear(5, outputs)

    def forward(self, x: Tensor) -> Tensor:
        hidden = torch.tanh(self.mix(self.conv(x).transpose(1, 2)))
        return self.head((self.norm(hidden) * self.scale).mean(1))


def network(kind: str, outputs: int) -> tuple[nn.Module, Tensor]:
    torch.manual_seed(0)
    x = torch.randn(14, 2, 4, dtype=torch.float64)
    if kind == "odd":
        return Odd(outputs).double(), x
    return nn.Sequential(nn.Linear(8, 6), nn.Tanh(), nn.Linear(6, outputs)).double(), x.flatten(1)


def targets(name: str, n: int, outputs: int) -> Tensor:
    generator = torch.Generator().manual_seed(1)
    if name == "classification":
        return torch.randint(outputs, (n,), generator=generator)
    if name == "binary":
        return torch.randint(2, (n, outputs), generator=generator).double()
    if name == "poisson":
        return torch.randint(4, (n, outputs), generator=generator).double()
    width = outputs // 2 if name == "heteroscedastic" else outputs
    return torch.randn(n, width, generator=generator, dtype=torch.float64)


def fitted(name: str = "classification", kind: str = "mlp", **options: Any) -> tuple[Any, Any]:
    model, x = network(kind, 4)
    data = x, targets(name, len(x), 4)
    given: dict[str, Any] = {"structure": "full", "curvature": "ggn", "prior_precision": 0.7, "progress": False}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", Notice)
        return whence.laplace(model, data, likelihood=LIKELIHOODS[name], **given | options), data


def moments(prediction: Any) -> tuple[Tensor, Tensor]:
    """Of the outputs, or of what is predicted."""
    if isinstance(prediction, JointPrediction):
        return prediction.mean, prediction.covariance
    if hasattr(prediction, "logit_cov"):
        return prediction.logit_mean, prediction.logit_cov
    return prediction.mean, prediction.covariance if hasattr(prediction, "covariance") else prediction.variance


@pytest.mark.parametrize("kind", ["mlp", "odd"])
@pytest.mark.parametrize("name", LIKELIHOODS)
def test_given_all_data_it_is_the_full_posterior(name: str, kind: str) -> None:
    """Predictions, joint predictions, weights, evidence and effective parameters, in float64."""
    full, (x, y) = fitted(name, kind)
    process = full.function_space((x, y), progress=False)
    new = torch.randn(5, *x.shape[1:], dtype=torch.float64)
    for options in ({}, {"joint": True}):
        for ours, wanted in zip(
            moments(process.predict(new, **options)), moments(full.predict(new, **options)), strict=True
        ):
            assert_close(ours, wanted, 1e-8)
    assert_close(process.covariance(), full.covariance(), 1e-8)
    for parameter, variance in full.variance().items():
        assert_close(process.variance()[parameter], variance, 1e-8)
    assert float(process.log_evidence()) == pytest.approx(float(full.log_evidence()), rel=1e-9)
    gamma = sum(float(g.effective_parameters()) for g, _ in full.gaussians())
    assert process.effective_parameters == pytest.approx(gamma, rel=1e-8)


@pytest.mark.parametrize("prior", [0.7, whence.Relative(1.0)], ids=["isotropic", "relative"])
def test_of_the_last_layer_alone(prior: Any) -> None:
    full, (x, y) = fitted("classification", layers="last", prior_precision=prior)
    process = full.function_space((x, y), progress=False)
    new = torch.randn(5, *x.shape[1:], dtype=torch.float64)
    assert_close(process.predict(new).logit_cov, full.predict(new).logit_cov, 1e-8)
    assert_close(process.predict(new, joint=True).covariance, full.predict(new, joint=True).covariance, 1e-8)
    assert process.where(new).layers[0].variance_share == pytest.approx(1.0)
    assert process.as_module(check=new)(new).mean.shape == (5, 4)


@pytest.mark.parametrize("prior", ["isotropic", "bias", "relative", "per weight"])
def test_under_every_prior(prior: str) -> None:
    full, data = fitted("classification", "odd")
    tensors = {n: 0.2 + torch.rand_like(full.network.params[n]) for n in full.names()}
    given = {"isotropic": 3.0, "bias": whence.Prior(2.0, 0.3), "relative": whence.Relative(2.0), "per weight": tensors}
    posterior = full.with_prior(given[prior])
    process = posterior.function_space(data, progress=False)
    assert_close(process.covariance(), posterior.covariance(), 1e-8)
    assert_close(process.predict(data[0]).logit_cov, posterior.predict(data[0]).logit_cov, 1e-8)


def test_vectors_of_a_layer_stand_for_its_rows() -> None:
    """A plain layer keeps two vectors for each example; with the rows themselves everything is the same."""
    full, data = fitted("classification")
    process = full.function_space(data, progress=False)
    kinds = {type(part) for piece in process.subset.each() for part in piece}
    assert kinds == {kernels.Products}
    parts = [part for piece in process.subset.each() for part in piece]
    for part in parts:
        rows = kernels.Whole(part.rows())
        assert_close(part.own(), rows.own(), 1e-12)
        assert_close(part.with_others(part), rows.with_others(rows), 1e-12)
        assert_close(part.with_others(rows), rows.with_others(part), 1e-12)


@pytest.mark.parametrize("name", ["classification", "gaussian"])
def test_where_has_the_covariance_shares_of_the_full_posterior(name: str) -> None:
    full, (x, y) = fitted(name, "odd")
    process = full.function_space((x, y), progress=False)
    found, wanted = process.where(x[:6]), full.where(x[:6])
    by_name = {row.name: row for row in wanted.layers}
    assert [row.name for row in found.layers] == [row.name for row in wanted.layers]
    for row in found.layers:
        for column in ("std", "identified", "effective_parameters", "variance_share", "prior_share", "explained"):
            assert getattr(row, column) == pytest.approx(getattr(by_name[row.name], column), rel=1e-7, abs=1e-10)
    assert sum(row.variance_share or 0 for row in found.layers) == pytest.approx(1)
    assert process.where().layers[0].variance_share is None


def test_a_subset_counts_for_all() -> None:
    """Half of the examples, each counted twice, by hand; the choice follows the generator."""
    full, (x, y) = fitted("gaussian")
    process = full.function_space((x, y), examples=7, generator=torch.Generator().manual_seed(0), progress=False)
    again = full.function_space((x, y), examples=7, generator=torch.Generator().manual_seed(0), progress=False)
    other = full.function_space((x, y), examples=7, generator=torch.Generator().manual_seed(1), progress=False)
    assert torch.equal(process.subset.inputs, again.subset.inputs)
    assert not torch.equal(process.subset.inputs, other.subset.inputs)
    params = {n: full.network.params[n].detach() for n in full.names()}
    found = torch.func.jacrev(lambda p: full.network.functional(p, process.subset.inputs))(params)
    rows = torch.cat([found[n].reshape(28, -1) for n in params], 1)
    precision = 2 * rows.mT @ rows / 0.4**2 + 0.7 * torch.eye(rows.shape[1], dtype=torch.float64)
    assert_close(process.covariance(), torch.linalg.inv(precision).detach(), 1e-8)
    assert process.fit.examples == 7 and process.fit.data_size == 14
    assert "7 examples for 14" in repr(process)


def test_draws_have_the_covariance() -> None:
    """Of the weights, and of the outputs of the linearised network."""
    full, (x, y) = fitted("classification")
    process = full.function_space((x, y), progress=False)
    count = 6000
    z = process.deviations(count, torch.Generator().manual_seed(0))
    flat = torch.cat([z[n].flatten(1) for n in process.names()], 1)
    cov = process.covariance()
    error = ((cov.diagonal().unsqueeze(1) * cov.diagonal() + cov.square()) / count).sqrt()
    assert float(((flat.mT @ flat / count - cov).abs() / error).max()) < 5.5
    draws = process.sample(3, torch.Generator().manual_seed(0))
    for name, values in draws.items():
        assert_close(
            values - full.network.params[name].detach(),
            process.deviations(3, torch.Generator().manual_seed(0))[name],
            1e-12,
        )
    assert process.draw(4, generator=torch.Generator().manual_seed(0)).outputs(x).shape == (4, 14, 4)


def test_pieces_give_the_same(set_sizes: Any) -> None:
    """Features that memory does not keep are computed again, and inputs go through a few at a time."""
    full, (x, y) = fitted("classification", "odd")
    whole = full.function_space((x, y), progress=False)
    wanted = whole.predict(x)
    size = 3 * 14  # a root of the curvature of four classes has three columns
    set_sizes(joint=4 * 8 * size**2, features=1, prediction=1, intermediate=8 * 4 * size * 3)
    pieces = full.function_space([(x[:5], y[:5]), (x[5:], y[5:])], progress=False)
    assert pieces.subset.kept is None and pieces.together(x) < 4
    found = pieces.predict(x)
    assert_close(found.logit_cov, wanted.logit_cov, 1e-9)
    assert_close(found.probs, wanted.probs, 1e-9)
    assert_close(pieces.covariance(), whole.covariance(), 1e-9)
    assert [r.explained for r in pieces.where(x).layers] == pytest.approx([r.explained for r in whole.where(x).layers])
    more = torch.cat([x, x[:1]]), torch.cat([y, y[:1]])
    with pytest.raises(TooLarge, match=r"15 examples with 3 columns each give a kernel matrix of 45 rows.*examples="):
        full.function_space(more, progress=False)


def test_predictions_are_differentiable_in_the_inputs() -> None:
    full, (x, y) = fitted("classification")
    process = full.function_space((x, y), progress=False)
    for posterior in (process, full):
        given = x[:3].clone().requires_grad_()
        posterior.predict(given).epistemic.sum().backward()
        if posterior is process:
            found = given.grad
    assert_close(found, given.grad, 1e-6)


def test_maps_are_predicted_by_draws() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv2d(1, 3, 3, padding=1), nn.Tanh(), nn.Conv2d(3, 4, 1)).double()
    x, y = torch.randn(6, 1, 3, 4, dtype=torch.float64), torch.randint(4, (6, 3, 4))
    full = whence.laplace(model, (x, y), likelihood="classification", structure="full", progress=False)
    process = full.function_space((x, y), progress=False)
    assert_close(process.covariance(), full.covariance(), 1e-8)
    found = process.predict(x[:2])
    assert found.probs.shape == (2, 4, 3, 4)
    moved = linearised_draws(process, 2000).moved(x[:2])[1].flatten(2)
    wide = linearised_draws(full, 2000).moved(x[:2])[1].flatten(2)
    ours, wanted = moved.square().mean(0), wide.square().mean(0)
    assert float((ours / wanted - 1).abs().max()) < 0.25


def test_a_file_and_another_precision(tmp_path: Path) -> None:
    full, (x, y) = fitted("classification", "odd")
    process = full.with_prior(whence.Relative(1.5)).function_space((x, y), examples=9, progress=False)
    process.save(tmp_path / "process.safetensors")
    again: Any = whence.load(tmp_path / "process.safetensors", network("odd", 4)[0])
    assert_close(again.predict(x).logit_cov, process.predict(x).logit_cov, 1e-9)
    assert float(again.log_evidence()) == pytest.approx(float(process.log_evidence()))
    single: Any = process.to(torch.float32)
    assert_close(single.predict(x.float()).logit_cov.double(), process.predict(x).logit_cov, 1e-3)


def test_ignored_labels_are_left_out() -> None:
    model, x = network("mlp", 4)
    y = targets("classification", len(x), 4)
    y[::3] = -100
    likelihood = whence.Categorical(ignore_index=-100)
    full = whence.laplace(model, (x, y), likelihood=likelihood, structure="full", progress=False)
    process = full.function_space((x, y), progress=False)
    assert len(process.subset.inputs) == int((y >= 0).sum())
    assert_close(process.covariance(), full.covariance(), 1e-8)
    few = full.function_space((x, y), examples=4, progress=False)
    assert len(few.subset.inputs) == 4 and not bool((few.subset.columns == 0).all((0, 2)).any())


def test_what_cannot_be_asked() -> None:
    full, data = fitted()
    with pytest.raises(BadOption, match="examples=0 must be a whole number"):
        full.function_space(data, examples=0)
    process = full.function_space(data, progress=False)
    with pytest.raises(BadOption, match="do not apply to a joint prediction"):
        process.predict(data[0], joint=True, num_samples=4)
    with pytest.raises(NotDefined, match="link and joint need"):
        process.predict(data[0], method="sampled", joint=True)
    with pytest.raises(NotDefined, match="needs the curvature of a Laplace posterior"):
        process.where(data[0]).units("0")
    kron, _ = fitted(structure="kron")
    with pytest.raises(BadOption, match="the prior enters the kernel exactly"):
        kron.with_damping("factored").function_space(data)
    assert math.isfinite(float(kron.function_space(data, progress=False).log_evidence()))
