from __future__ import annotations

import functools
import warnings

import pytest

import whence
from tests.auditing.cases import ALL, Given


@functools.cache
def made(name: str) -> tuple[Given, whence.Audit]:
    given = ALL[name]()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", whence.errors.Notice)
        return given, whence.audit(given.model, given.train, **given.data(), progress=False, inputs=4)


@pytest.fixture(params=ALL)
def every(request: pytest.FixtureRequest) -> tuple[Given, whence.Audit]:
    return made(request.param)


@pytest.fixture
def plain() -> tuple[Given, whence.Audit]:
    return made("classification")


@pytest.fixture
def pictures() -> tuple[Given, whence.Audit]:
    return made("images")


@pytest.fixture
def untuned() -> tuple[Given, whence.Audit]:
    """Pictures under a prior that does not drown them."""
    given = ALL["images"]()
    posterior = whence.laplace(
        given.model, given.train, likelihood=given.likelihood, prior_precision=0.02, progress=False
    )
    sections = ["layers", "profile", "maps"]
    return given, whence.audit(posterior, test=given.test, ood=given.ood, sections=sections, progress=False, inputs=2)


@pytest.fixture
def numbers() -> tuple[Given, whence.Audit]:
    return made("regression")
