"""Mistakes that people make first: each is answered with what to write instead."""

from __future__ import annotations

import warnings
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.testing import assert_close

import whence
from whence.errors import BadData, BadOption, Notice


def vectors() -> tuple[Tensor, Tensor]:
    x = torch.randn(30, 8, generator=torch.Generator().manual_seed(0))
    return x, (x[:, 0] > 0).long() + (x[:, 1] > 0).long()


def mlp() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(8, 6), nn.ReLU(), nn.Linear(6, 3))


def fitted() -> Any:
    return whence.laplace(mlp(), vectors(), likelihood="classification")


class Tokens(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embedding, self.head = nn.Embedding(11, 4), nn.Linear(4, 3)

    def forward(self, tokens: Tensor) -> Tensor:
        return self.head(self.embedding(tokens).mean(-2))  # type: ignore[no-any-return]


# One example without its batch dimension


@pytest.mark.filterwarnings("ignore::whence.errors.Notice")
@pytest.mark.parametrize("ask", ["predict", "sampled", "where", "novelty", "tune"])
def test_one_vector(ask: str) -> None:
    posterior, (x, y) = fitted(), vectors()
    asked = {
        "predict": lambda: posterior.predict(x[0]),
        "sampled": lambda: posterior.predict(x[0], method="sampled"),
        "where": lambda: posterior.where(x[0]),
        "novelty": lambda: whence.novelty(posterior, x[0], reference=x),
        "tune": lambda: posterior.tune((x[0], y[:8]), progress=False),
    }
    with pytest.raises(BadData, match=r"without a batch dimension.*x.unsqueeze\(0\)"):
        asked[ask]()


def test_one_image_that_convolutions_take_unbatched() -> None:
    torch.manual_seed(0)
    net = nn.Sequential(nn.Conv2d(3, 3, 3, padding=1), nn.ReLU(), nn.Conv2d(3, 3, 1))  # runs on [3, H, W] too
    x, y = torch.randn(6, 3, 5, 5), torch.randint(0, 3, (6, 5, 5))
    posterior = whence.laplace(net, (x, y), likelihood="classification")
    with pytest.raises(BadData, match=r"shape \[3, 5, 5\] without a batch dimension"):
        posterior.predict(x[0])
    with pytest.raises(BadData, match=r"shape \[3, 4, 4\] without a batch dimension.*shape \[3, 5, 5\]"):
        posterior.predict(x[0, :, :4, :4])


def test_one_sequence_of_any_length() -> None:
    torch.manual_seed(0)
    tokens = torch.randint(0, 11, (9, 5))
    posterior = whence.laplace(Tokens(), (tokens, tokens[:, 0] % 3), likelihood="classification")
    for one in (tokens[0], tokens[0, :3]):
        with pytest.raises(BadData, match="without a batch dimension"):
            posterior.predict(one)


@pytest.mark.parametrize("kind", ["variational", "swag", "hmc", "ensemble"])
def test_other_posteriors_know_it_too(kind: str) -> None:
    x, y = vectors()
    posterior: Any = {
        "variational": lambda: whence.variational(mlp(), (x, y), likelihood="classification", epochs=1, progress=False),
        "swag": lambda: whence.swag(mlp(), (x, y), likelihood="classification", epochs=2, progress=False),
        "hmc": lambda: whence.hmc(
            mlp(), (x, y), likelihood="classification", num_samples=2, warmup=2, chains=1, progress=False
        ),
        "ensemble": lambda: whence.ensemble([mlp(), mlp()], likelihood="classification"),
    }[kind]()
    with pytest.raises(BadData, match=r"batch dimension|unsqueeze"):
        posterior.predict(x[0])


def test_inputs_with_fewer_dimensions_that_are_a_batch_pass() -> None:
    torch.manual_seed(0)
    net = nn.Sequential(nn.Flatten(), nn.Linear(16, 3))
    x, y = torch.randn(12, 1, 4, 4), torch.arange(12) % 3
    posterior = whence.laplace(net, (x, y), likelihood="classification")
    assert_close(posterior.predict(x.squeeze(1)).probs, posterior.predict(x).probs)  # [12, 4, 4]: a batch
    assert_close(posterior.predict(x[0]).probs, posterior.predict(x[:1]).probs)  # [1, 4, 4]: read either way


# Targets


@pytest.mark.parametrize(
    ("targets", "words"),
    [
        (lambda y: y.float(), "targets.long()"),
        (lambda y: nn.functional.one_hot(y, 3), "one-hot: pass targets.argmax(1)"),
        (lambda y: nn.functional.one_hot(y, 3).float(), "one-hot: pass targets.argmax(1)"),
        (lambda y: y + 1, "pass targets - 1"),
        (lambda y: y + 7, "labels go from 0 to 2"),
        (lambda y: torch.rand(len(y), 3), "Probabilities of classes are no labels"),
        (lambda y: y[:5], "30 inputs but 5 targets"),
    ],
)
def test_class_labels(targets: Any, words: str) -> None:
    x, y = vectors()
    with pytest.raises(BadData) as error:
        whence.laplace(mlp(), (x, targets(y)), likelihood="classification")
    assert words in str(error.value)


def test_labels_with_an_extra_dimension_are_read() -> None:
    x, y = vectors()
    found = whence.laplace(mlp(), (x, y[:, None]), likelihood="classification")
    assert_close(found.predict(x).probs, fitted().predict(x).probs)


def test_class_labels_for_regression() -> None:
    x, y = vectors()
    with pytest.raises(BadData, match="use likelihood='classification'"):
        whence.laplace(mlp(), (x, y), likelihood="binary")


# Inputs


def test_inputs_of_another_type() -> None:
    x, _ = vectors()
    posterior = fitted()
    assert_close(posterior.predict(x.double()).probs, posterior.predict(x).probs)
    with pytest.raises(BadData, match=r"pass x.to\(torch.float32\)"):
        posterior.predict(x.long())
    with pytest.raises(BadData, match=r"One example of the training data has shape \[8\]"):
        posterior.predict(x[:, :5])


def test_mode_does_not_matter() -> None:
    x, y = vectors()
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(8, 6), nn.BatchNorm1d(6), nn.ReLU(), nn.Dropout(0.5), nn.Linear(6, 3))
    found = [whence.laplace(net.train(mode), (x, y), likelihood="classification") for mode in (True, False)]
    assert_close(found[0].predict(x).probs, found[1].predict(x).probs)


# A posterior for a model, a model for a posterior


def test_a_posterior_where_a_model_is_wanted_and_the_other_way_round() -> None:
    posterior, data = fitted(), vectors()
    for verb in (whence.laplace, whence.variational, whence.swag, whence.hmc, whence.track):
        with pytest.raises(BadData, match="is a posterior already"):
            verb(posterior, data, likelihood="classification")  # type: ignore[operator]
    with pytest.raises(BadOption, match=r"not a posterior. Fit one: whence.laplace"):
        whence.novelty(mlp(), data[0])  # type: ignore[arg-type]
    with pytest.raises(BadOption, match=r"not a posterior. Fit one: whence.laplace"):
        whence.compare({"a": mlp()}, data)  # type: ignore[dict-item]
    with pytest.raises(BadData, match="The model comes first"):
        whence.laplace(data, mlp(), likelihood="classification")  # type: ignore[call-overload]


# Tuning on training data


@pytest.mark.parametrize("how", ["same", "copied", "shuffled", "loader"])
def test_tuning_on_training_data_is_said(how: str) -> None:
    x, y = vectors()
    order = torch.randperm(30)
    data: Any = {
        "same": (x, y),
        "copied": (x.clone(), y.clone()),
        "shuffled": (x[order], y[order]),
        "loader": [(x[:11], y[:11]), (x[11:], y[11:])],
    }[how]
    with pytest.warns(Notice, match=r"contain training examples \(30 of the 30.*overconfident"):
        fitted().tune(data, progress=False, reference=False)


def test_tuning_on_new_data_says_nothing() -> None:
    x, y = vectors()
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        fitted().tune((x + 0.01, y), progress=False, reference=False)
    assert not [w for w in said if "training examples" in str(w.message)]


def test_inputs_that_agree_by_chance_are_not_taken_for_training_data() -> None:
    x = torch.randint(0, 2, (60, 2), generator=torch.Generator().manual_seed(0)).float()
    y = x[:, 0].long()
    torch.manual_seed(0)
    posterior = whence.laplace(nn.Linear(2, 2), (x[:30], y[:30]), likelihood="classification")
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        posterior.tune((x[30:], y[30:]), progress=False, reference=False)
    assert not [w for w in said if "training examples" in str(w.message)]


# Names of other libraries


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"hessian_structure": "kron"}, "It is structure= here"),
        ({"subset_of_weights": "last_layer"}, "It is layers= here"),
        ({"prior_prec": 1.0}, "It is prior_precision= here"),
        ({"sigma_noise": 1.0}, "whence.Gaussian"),
        ({"struktur": "kron"}, "Did you mean 'structure'?"),
        ({"val_loader": None}, "It is validation= here"),
    ],
)
def test_keywords(options: dict[str, Any], words: str) -> None:
    with pytest.raises(TypeError, match=words):
        whence.laplace(mlp(), vectors(), likelihood="classification", **options)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"structure": "kfac"}, "'kron'"),
        ({"structure": "K-FAC"}, "'kron'"),
        ({"structure": "kflr"}, "'kron'"),
        ({"curvature": "Fisher"}, "'mc'"),
        ({"curvature": "GGN"}, "'ggn'"),
        ({"curvature": "CurvlinopsEF"}, "'empirical'"),
        ({"likelihood": "cross-entropy"}, "'classification'"),
        ({"likelihood": "mse"}, "'regression'"),
        ({"likelihood": nn.BCEWithLogitsLoss()}, "pass 'binary'"),
        ({"likelihood": nn.functional.mse_loss}, "pass 'regression'"),
        ({"layers": "last_layer"}, "layers='last'"),
        ({"layers": "all"}, "leave layers out"),
    ],
)
def test_values(options: dict[str, Any], words: str) -> None:
    with pytest.raises(whence.errors.WhenceError) as error:
        whence.laplace(mlp(), vectors(), **({"likelihood": "classification"} | options))
    assert words in str(error.value)


def test_a_missing_likelihood_is_asked_for() -> None:
    with pytest.raises(TypeError, match="needs likelihood='classification', 'binary' or 'regression'"):
        whence.laplace(mlp(), vectors())  # type: ignore[call-overload]


def test_methods_and_attributes() -> None:
    posterior, (x, y) = fitted(), vectors()
    with pytest.raises(TypeError, match="It is method= here: 'linearised'"):
        posterior.predict(x, pred_type="glm")
    with pytest.raises(TypeError, match="It is num_samples= here"):
        posterior.predict(x, n_samples=3)
    with pytest.raises(BadOption, match=r"call tune\(\) without data"):
        posterior.tune((x, y), method="marglik")
    with pytest.raises(AttributeError, match=r"call posterior.tune"):
        posterior.optimize_prior_precision()
    assert not hasattr(posterior, "nonsense")


@pytest.mark.parametrize(
    ("name", "likelihood"),
    [
        ("poisson", whence.Poisson()),
        ("heteroscedastic", whence.HeteroscedasticGaussian()),
        ("gaussian:0.3", whence.Gaussian(noise=0.3)),
    ],
)
def test_likelihood_names_of_the_command(name: str, likelihood: Any) -> None:
    x, _ = vectors()
    net, y = nn.Linear(8, 2), torch.ones(30, 1 if name == "heteroscedastic" else 2)
    found = whence.laplace(net, (x, y), likelihood=name)  # type: ignore[call-overload]
    assert found.likelihood == likelihood
