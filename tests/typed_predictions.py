# pyright: strict
"""Read by mypy and pyright in strict mode, never run: the class of a prediction follows from the likelihood."""

from typing import Any, assert_type

from torch import nn

import whence
from whence.predictive.predictions import (
    BinaryPrediction,
    ClassificationPrediction,
    CountPrediction,
    JointPrediction,
    Prediction,
    RegressionPrediction,
)


def predictions(network: nn.Module, data: Any, unknown: whence.Likelihood) -> None:
    labels = whence.laplace(network, data, likelihood="classification", structure="diag")
    assert_type(labels, whence.Laplace[ClassificationPrediction])
    assert_type(labels.predict(data, link="probit"), ClassificationPrediction)
    assert_type(labels.tune(data).with_prior(1.0).to("cpu").predict(data), ClassificationPrediction)
    assert_type(labels.predict(data, joint=True), JointPrediction)
    assert_type(whence.laplace(network, data, likelihood=whence.Categorical()).predict(data), ClassificationPrediction)
    assert_type(whence.laplace(network, data, likelihood="binary").predict(data), BinaryPrediction)
    assert_type(whence.laplace(network, data, likelihood="regression").predict(data), RegressionPrediction)
    assert_type(whence.laplace(network, data, likelihood=whence.Poisson()).predict(data), CountPrediction)
    assert_type(whence.laplace(network, data, likelihood=unknown).predict(data), Prediction)
