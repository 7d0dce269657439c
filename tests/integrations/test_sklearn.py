"""The scikit-learn estimators: the library's own checks, pipelines and searches, and what they are made of."""

from __future__ import annotations

import pickle
import warnings
from typing import Any

import numpy as np
import pytest
import torch
from sklearn.base import clone
from sklearn.datasets import load_breast_cancer, load_diabetes, load_wine
from sklearn.exceptions import NotFittedError
from sklearn.model_selection import GridSearchCV, cross_val_score, train_test_split
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.utils.estimator_checks import check_estimator
from torch import nn

import whence
from whence.integrations.sklearn import WhenceClassifier, WhenceRegressor

QUICK: dict[str, Any] = {"epochs": 15, "lr": 1e-2, "hidden": (16,), "patience": None}


@pytest.mark.parametrize("kind", [WhenceClassifier, WhenceRegressor])
def test_the_librarys_own_checks(kind: Any) -> None:
    found = check_estimator(kind(**QUICK), on_fail=None, on_skip=None)
    assert len(found) > 50
    assert not [(r["check_name"], str(r["exception"])[:200]) for r in found if r["status"] == "failed"]


def test_a_classifier_on_real_data() -> None:
    x, y = load_breast_cancer(return_X_y=True)
    names = np.array(["malignant", "benign"])[y]
    train_x, test_x, train_y, test_y = train_test_split(x, names, random_state=0)
    model = WhenceClassifier(random_state=0, **QUICK).fit(train_x, train_y)
    assert model.score(test_x, test_y) > 0.94 and list(model.classes_) == ["benign", "malignant"]
    probs = model.predict_proba(test_x)
    assert probs.shape == (143, 2) and np.allclose(probs.sum(1), 1)
    assert isinstance(model.posterior_, whence.Laplace) and model.posterior_.tuning is not None
    wrong = model.predict(test_x) != test_y
    assert model.epistemic(test_x)[wrong].mean() > 2 * model.epistemic(test_x)[~wrong].mean()
    assert sum(row.variance_share for row in model.where(test_x[:20]).layers) == pytest.approx(1)
    with pytest.raises(NotFittedError):
        WhenceClassifier().predict(x)


def test_a_regressor_on_real_data() -> None:
    x, y = load_diabetes(return_X_y=True)
    train_x, test_x, train_y, test_y = train_test_split(x, y, random_state=0)
    model = WhenceRegressor(random_state=0, **QUICK).fit(train_x, train_y)
    assert model.score(test_x, test_y) > 0.3
    mean, std = model.predict(test_x, return_std=True)
    low, high = model.predict_interval(test_x, 0.9)
    assert mean.shape == std.shape == low.shape == (111,)
    assert 0.8 < np.mean((low < test_y) & (test_y < high)) < 0.98
    assert np.allclose((low + high) / 2, mean, atol=1e-6)
    assert np.all(model.epistemic(test_x) < std)
    both = WhenceRegressor(random_state=0, **QUICK).fit(train_x, np.stack([train_y, -train_y], 1))
    assert both.predict(test_x).shape == (111, 2) and both.predict(test_x, return_std=True)[1].shape == (111, 2)


def test_in_pipelines_and_searches() -> None:
    x, y = load_wine(return_X_y=True)
    pipeline = make_pipeline(StandardScaler(), WhenceClassifier(random_state=0, standardise=False, **QUICK))
    assert cross_val_score(pipeline, x, y, cv=3).mean() > 0.85
    search = GridSearchCV(
        WhenceClassifier(random_state=0, **QUICK), {"structure": ["diag", "kron"]}, cv=2, scoring="neg_log_loss"
    ).fit(x, y)
    assert search.best_params_["structure"] in ("diag", "kron") and search.best_score_ > -0.6
    copied = clone(search.best_estimator_)
    assert not hasattr(copied, "posterior_") and copied.get_params() == search.best_estimator_.get_params()


def test_the_users_own_networks() -> None:
    x, y = load_wine(return_X_y=True)
    torch.manual_seed(0)
    module = nn.Sequential(nn.Linear(13, 8), nn.Tanh(), nn.Linear(8, 3))
    before = {n: p.clone() for n, p in module.named_parameters()}
    found = WhenceClassifier(module, random_state=0, **QUICK).fit(x, y)
    assert all(torch.equal(p, before[n]) for n, p in module.named_parameters()), "the module was copied"
    assert isinstance(found.network_[1], nn.Tanh) and found.score(x, y) > 0.8
    made = WhenceClassifier(lambda i, o: nn.Linear(i, o), random_state=0, **QUICK).fit(x, y)
    assert isinstance(made.network_, nn.Linear) and made.network_.weight.shape == (3, 13)
    images = np.random.default_rng(0).normal(size=(40, 1, 4, 4))
    net = nn.Sequential(nn.Conv2d(1, 2, 3), nn.ReLU(), nn.Flatten(), nn.Linear(8, 2))
    dense = WhenceClassifier(net, random_state=0, **QUICK).fit(images, np.arange(40) % 2)
    assert dense.predict_proba(images).shape == (40, 2)


def test_options_change_what_they_say() -> None:
    x, y = load_wine(return_X_y=True)
    one = WhenceClassifier(random_state=0, **QUICK).fit(x, y)
    same = WhenceClassifier(random_state=0, **QUICK).fit(x, y)
    assert np.array_equal(one.predict_proba(x), same.predict_proba(x))
    other = WhenceClassifier(random_state=1, **QUICK).fit(x, y)
    assert not np.array_equal(one.predict_proba(x), other.predict_proba(x))
    whole = WhenceClassifier(random_state=0, validation_fraction=0, prior_precision=7.0, **QUICK).fit(x, y)
    assert whole.posterior_.tuning is None and whole.posterior_.prior_precision == 7.0
    assert whole.posterior_.record.data_size == 178 and one.posterior_.record.data_size == 143
    single = WhenceClassifier(random_state=0, dtype="float32", **QUICK).fit(x, y)
    assert single.posterior_.network.dtype == torch.float32 and one.posterior_.network.dtype == torch.float64
    assert np.allclose(single.predict_proba(x), one.predict_proba(x), atol=1e-2)
    diag = WhenceClassifier(random_state=0, structure="diag", **QUICK).fit(x, y)
    assert {s.structure for s in diag.posterior_.structures.values()} == {"diag"}
    again = pickle.loads(pickle.dumps(one))
    assert np.allclose(again.predict_proba(x), one.predict_proba(x))
    stopped = WhenceClassifier(random_state=0, **{**QUICK, "epochs": 60, "patience": 2, "lr": 0.05}).fit(x, y)
    assert len(stopped.history_) < 60


def test_rare_classes_stay_in_the_training_part() -> None:
    x = np.random.default_rng(0).normal(size=(40, 3))
    y = np.array([0] * 38 + [1] + [2])
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        found = WhenceClassifier(random_state=0, **QUICK).fit(x, y)
    assert found.predict_proba(x).shape == (40, 3)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"validation_fraction": 1.0}, "validation_fraction"),
        ({"dtype": "half"}, "dtype"),
        ({"structure": "kfac"}, "kron"),
    ],
)
def test_options_that_are_refused(options: dict[str, Any], message: str) -> None:
    x, y = load_wine(return_X_y=True)
    with pytest.raises(ValueError, match=message):
        WhenceClassifier(**{**QUICK, **options}).fit(x, y)


def test_an_audit_takes_the_data_as_fit_does() -> None:
    frame, y = load_wine(return_X_y=True, as_frame=True)
    names = np.array(["Barolo", "Grignolino", "Barbera"])[y]
    train_x, test_x, train_y, test_y = train_test_split(frame, names, random_state=0)
    model = WhenceClassifier(random_state=0, **QUICK).fit(train_x, train_y)
    found = model.audit(test_x, test_y, sections=["quality", "inputs"], progress=False).results
    assert found.quality is not None and found.inputs is not None
    accuracy = next(row.bayesian for row in found.quality.metrics if row.name == "accuracy")
    assert accuracy is not None and accuracy.value == pytest.approx(model.score(test_x, test_y))
    assert [row.name for row in found.quality.classes] == ["Barbera", "Barolo", "Grignolino"]
    with pytest.raises(ValueError, match="has not seen: \\['Merlot'\\]"):
        model.audit(test_x, ["Merlot"] * len(test_x))


def test_an_audit_of_a_regressor_is_in_standard_deviations() -> None:
    x, y = load_diabetes(return_X_y=True)
    train_x, test_x, train_y, test_y = train_test_split(x, y, random_state=0)
    model = WhenceRegressor(random_state=0, **QUICK).fit(train_x, train_y)
    found = model.audit(test_x, test_y, ood=test_x + 1, sections=["quality"], progress=False).results
    assert found.quality is not None
    rmse = next(row.bayesian for row in found.quality.metrics if row.name == "rmse")
    expected = np.sqrt(np.mean((model.predict(test_x) - test_y) ** 2)) / train_y.std()
    assert rmse is not None and rmse.value == pytest.approx(expected, rel=1e-6)
