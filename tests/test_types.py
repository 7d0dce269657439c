"""What type checkers and autocompletion are told agrees with what there is."""

from __future__ import annotations

import inspect

import whence
from whence.posteriors.laplace.front import LaplaceOptions
from whence.predictive.links import PredictOptions


def test_options_of_laplace_are_those_of_its_signature() -> None:
    parameters = set(inspect.signature(whence.laplace).parameters) - {"model", "data", "likelihood", "unknown"}
    assert set(LaplaceOptions.__annotations__) == parameters


def test_options_of_predict_are_those_of_its_signature() -> None:
    parameters = set(inspect.signature(whence.Laplace.predict).parameters) - {"self", "x", "joint"}
    assert set(PredictOptions.__annotations__) == parameters


def test_autocompletion_shows_the_public_names_alone() -> None:
    assert dir(whence) == sorted(whence.__all__)
    for name in whence.__all__:
        assert getattr(whence, name) is not None
