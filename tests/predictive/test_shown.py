"""Predictions as tables: in pandas, in notebooks, and in one line."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

import whence
from whence.errors import NotDefined

X = torch.randn(14, 4, generator=torch.Generator().manual_seed(0))


def fitted(outputs: int, likelihood: Any, y: torch.Tensor) -> whence.Laplace:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 5), nn.Tanh(), nn.Linear(5, outputs))
    return whence.laplace(model, (X, y), likelihood=likelihood, progress=False)


def test_classes() -> None:
    prediction = fitted(3, "classification", torch.arange(14) % 3).predict(X)
    frame = prediction.to_pandas()
    assert list(frame) == [
        "label", "confidence", "entropy", "aleatoric", "epistemic", "probability_0", "probability_1", "probability_2",
    ]  # fmt: skip
    assert frame["label"].tolist() == prediction.labels.tolist()
    assert frame["epistemic"].tolist() == pytest.approx(prediction.epistemic.tolist())
    assert frame["probability_2"].tolist() == pytest.approx(prediction.probs[:, 2].tolist())
    assert len(repr(prediction)) < 160 and repr(prediction).startswith("ClassificationPrediction(14 inputs, 3 outputs")
    html = prediction._repr_html_()
    assert html.count("<tr>") == 13 and "2 more rows" in html


def test_what_is_not_defined_is_left_out() -> None:
    prediction = fitted(3, "classification", torch.arange(14) % 3).predict(X, link="probit")
    assert list(prediction.to_pandas())[:3] == ["label", "confidence", "entropy"]
    assert "epistemic" not in prediction.table().columns


def test_numbers_and_labels_of_several_outputs() -> None:
    regression = fitted(2, whence.Gaussian(noise=0.5), torch.randn(14, 2)).predict(X)
    assert list(regression.to_pandas()) == [
        f"{name}_{k}" for name in ("mean", "std", "aleatoric", "epistemic") for k in range(2)
    ]
    assert "mean std" in repr(regression)
    binary = fitted(1, "binary", (torch.arange(14) % 2).float().unsqueeze(1)).predict(X)
    assert list(binary.to_pandas())[:2] == ["label", "confidence"] and "1 output," in repr(binary)
    counts = fitted(1, whence.Poisson(), torch.ones(14, 1)).predict(X)
    assert list(counts.to_pandas())[:2] == ["mean", "std"]


def test_dense_outputs_have_no_table() -> None:
    prediction = whence.ensemble([nn.Conv2d(1, 3, 1)], likelihood="classification").predict(torch.randn(2, 1, 4, 4))
    with pytest.raises(NotDefined, match="no table"):
        prediction.to_pandas()
    assert "of shape [3, 4, 4]" in repr(prediction) and prediction._repr_html_().startswith("<p>Class")


# What others call it


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"structure": "kfac"}, "Did you mean 'kron'"),
        ({"structure": "diagonal"}, "Did you mean 'diag'"),
        ({"curvature": "fisher"}, "Did you mean 'mc'"),
        ({"layers": "last_layer"}, "layers='last'"),
        ({"likelihood": "multilabel"}, "Did you mean 'binary'"),
    ],
)
def test_other_names_of_an_option_are_known(options: dict[str, Any], words: str) -> None:
    with pytest.raises(whence.errors.WhenceError, match=words):
        whence.laplace(nn.Linear(4, 3), (X, torch.arange(14) % 3), **{"likelihood": "classification"} | options)


KEYWORDS = {
    "hessian_structure": "structure=",
    "subset_of_weights": "'last'",
    "prior_prec": "prior_precision=",
    "sigma_noise": "Gaussian",
    "structur": "Did you mean 'structure'",
    "xyz": "unexpected keyword argument 'xyz'",
}


@pytest.mark.parametrize(("name", "words"), KEYWORDS.items())
def test_keywords_of_other_libraries_get_an_answer(name: str, words: str) -> None:
    options: dict[str, Any] = {name: 1}
    with pytest.raises(TypeError, match=words):
        whence.laplace(nn.Linear(4, 3), (X, torch.arange(14) % 3), likelihood="classification", **options)


def test_data_sets_are_data() -> None:
    y = torch.arange(14) % 3
    wanted = fitted(3, "classification", y)

    class Own(torch.utils.data.Dataset[Any]):
        def __len__(self) -> int:
            return 14

        def __getitem__(self, i: int) -> Any:
            return X[i], y[i]

    for data in (torch.utils.data.TensorDataset(X, y), Own()):
        found = whence.laplace(wanted.network.module, data, likelihood="classification", progress=False)
        torch.testing.assert_close(found.covariance(), wanted.covariance(), rtol=1e-4, atol=1e-6)
        torch.testing.assert_close(found.predict(data).probs, wanted.predict(X).probs)
        assert found.tune(data, progress=False).tuning is not None
        audit = whence.audit(found, test=data, sections=["quality"], progress=False)
        assert audit.results.quality is not None
