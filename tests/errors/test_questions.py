"""Questions that have no answer for a posterior or a prediction are refused in words."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import whence
from tests.errors.watch import data, mlp, refused
from whence.errors import BadOption, NotDefined

X, Y = torch.linspace(-1, 1, 96).reshape(24, 4), torch.arange(24) % 3


def fit(model: nn.Module | None = None, **options) -> whence.Laplace:
    return whence.laplace(mlp() if model is None else model, (X, Y), likelihood="classification", **options)


def regression(**options) -> whence.Laplace:
    return whence.laplace(mlp(outputs=1), (X, X[:, :1].sin()), likelihood="regression", **options)


@pytest.mark.parametrize("link", ["probit", "bridge"])
@pytest.mark.parametrize("part", ["aleatoric", "epistemic", "samples"])
def test_split_without_draws(link: str, part: str) -> None:
    prediction = fit().predict(X, link=link)
    assert torch.allclose(prediction.probs.sum(-1), torch.ones(24))
    with refused(NotDefined, "aleatoric", "epistemic", f"link={link!r}", "link='mc'"):
        getattr(prediction, part)


@pytest.mark.parametrize("part", ["aleatoric", "epistemic"])
def test_binary_split_without_draws(part: str) -> None:
    posterior = whence.laplace(mlp(outputs=1), (X, Y % 2), likelihood="binary")
    with refused(NotDefined, "link='probit'", "link='mc'"):
        getattr(posterior.predict(X, link="probit"), part)
    with refused(BadOption, "link='bridge'", "'mc'", "'probit'"):
        posterior.predict(X, link="bridge")


@pytest.mark.parametrize("link", ["probit", "bridge"])
def test_link_of_a_regression(link: str) -> None:
    with refused(BadOption, f"link={link!r}", "classification"):
        regression().predict(X, link=link)


def test_link_of_weight_draws() -> None:
    with refused(BadOption, "link='probit'", "linearised"):
        fit().predict(X, method="sampled", link="probit")
    with refused(BadOption, "joint=True", "linearised", "draw()"):
        fit().predict(X, method="sampled", joint=True)
    for more in ({"link": "probit"}, {"num_samples": 3}):
        with pytest.raises(BadOption, match="link and num_samples do not apply to a joint"):
            fit().predict(X, joint=True, **more)
    with pytest.raises(BadOption, match=r"num_samples=2\.5 is not a positive whole number"):
        fit().predict(X, num_samples=2.5)
    with pytest.raises(BadOption, match="the evidence cannot choose the data scale"):
        fit().tune(data_scale=True)


def test_generator_of_the_linearised_link_is_used() -> None:
    posterior = fit()
    one, same, other = (posterior.predict(X, generator=torch.Generator().manual_seed(s)).probs for s in (0, 0, 1))
    assert torch.equal(one, same)
    assert not torch.equal(one, other)
    assert float((one - posterior.predict(X).probs).abs().max()) < 0.2


def test_evidence_of_factored_damping() -> None:
    posterior = fit(damping="factored")
    with refused(NotDefined, "evidence", "damping='factored'", "damping='exact'"):
        posterior.log_evidence()
    with refused(BadOption, "evidence", "damping='factored'", "validation"):
        posterior.tune()


@pytest.mark.parametrize("structure", ["ekfac", "lowrank"])
def test_more_data_for_eigenvectors(structure: str) -> None:
    model = mlp()
    posterior = fit(model, structure=structure)
    with refused(NotDefined, structure, "eigenvectors", "fit again", "'kron'", model=model):
        posterior.update((X, Y))
    with refused(NotDefined, structure, "eigenvectors", "fit again", "'kron'", model=model):
        whence.merge(posterior, fit(model, structure=structure))


def test_more_data_for_kfra() -> None:
    with refused(NotDefined, "KFRA", "fit again"):
        fit(curvature="kfra").update((X, Y))


def test_merge_of_what_differs() -> None:
    model = mlp()
    with refused(BadOption, "different weights"):
        whence.merge(fit(model), fit(mlp()))
    with refused(BadOption, "structure", "'kron'", "'diag'"):
        whence.merge(fit(model), fit(model, structure="diag"))
    with refused(BadOption, "curvature", "'ggn'", "'mc'"):
        whence.merge(fit(model), fit(model, curvature="mc"))
    with refused(BadOption, "likelihood", "Categorical", "Bernoulli"):
        hot = nn.functional.one_hot(Y, 3).float()
        whence.merge(fit(model), whence.laplace(model, (X, hot), likelihood="binary"))
    with refused(BadOption, "differ in network, selection"):
        whence.merge(fit(model), fit(model, layers="last"))
    with refused(BadOption, "merge", "str"):
        whence.merge(fit(model), "posterior")


def test_merge_of_two_masks() -> None:
    model = mlp()
    masks = [{"2.bias": torch.tensor(m)} for m in ([True, False, True], [True, True, False])]
    one, two = (fit(model, structure="full", layers=mask) for mask in masks)
    with refused(BadOption, "differ in network, selection"):
        whence.merge(one, two)


def test_bad_data_for_an_update() -> None:
    model = mlp()
    posterior = fit(model)
    x, y = data()
    y[3] = 9
    with refused(whence.errors.BadData, "label 9", "0 to 2", model=model):
        posterior.update((x, y))


def test_module_of_a_likelihood_that_has_none() -> None:
    own = whence.Custom(lambda f, y: 0.5 * (f - y).square().sum(1))
    posterior = whence.laplace(mlp(outputs=1), (X, X[:, :1]), likelihood=own)
    with refused(NotDefined, "as_module()", "Custom", "draw()"):
        posterior.as_module()


def test_per_layer_tuning_of_what_is_joint() -> None:
    with refused(BadOption, "per-layer", "'full'", "'lowrank'", "tune(per_layer=True)"):
        fit(structure="full").tune((X, Y), per_layer=True)


def test_dense_outputs() -> None:
    model = nn.Conv1d(1, 3, 3, padding=1)
    x, y = torch.randn(6, 1, 5), torch.arange(30).reshape(6, 5) % 3
    posterior = whence.laplace(model, (x, y), likelihood="classification")
    with refused(NotDefined, "dense outputs", "probes=", "num_samples=", model=model):
        posterior.predict(x, method="linearised", probes="exact")
    with refused(NotDefined, "linearised", "[N, C]", model=model):
        posterior.predict(x, joint=True)
    with refused(NotDefined, "dense outputs", "labels=", model=model):
        posterior.where(x).by_class()


def test_table_of_a_mask() -> None:
    mask = {"2.bias": torch.ones(3, dtype=torch.bool)}
    with refused(NotDefined, "mask", "variance()"):
        fit(structure="full", layers=mask).where()


def test_no_input_at_all() -> None:
    with refused(whence.errors.BadData, "int"):
        fit().predict(3)


def test_batches_with_outputs_of_different_shapes() -> None:
    class Tokens(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.table, self.out = nn.Embedding(7, 4), nn.Linear(4, 5)

        def forward(self, ids: torch.Tensor) -> torch.Tensor:
            return self.out(self.table(ids))

    loader = [(torch.randint(7, (4, t)), torch.randint(5, (4, t))) for t in (3, 5)]
    posterior = whence.laplace(Tokens(), loader, likelihood=whence.Categorical(class_dim=-1), progress=False)
    found = posterior.predict(loader)  # shorter sequences end in NaN
    assert found.probs.shape == (8, 5, 5) and bool(found.probs[:4, 3:].isnan().all())
    alone = [posterior.predict(ids).probs for ids, _ in loader]
    torch.testing.assert_close(found.probs[:4, :3], alone[0])
    torch.testing.assert_close(found.probs[4:], alone[1])
    assert posterior.where([ids for ids, _ in loader]).shares.variance.shape[0] == 8
