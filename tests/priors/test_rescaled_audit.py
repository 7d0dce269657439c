"""The audit of a rescaled network says the same, word for word."""

from __future__ import annotations

import warnings
from typing import Any

import pytest

import whence
from tests.priors.networks import inputs, made
from tests.priors.test_rescaling import likelihood_of, rescaled, targets
from whence.errors import Notice

SECTIONS = ["quality", "layers", "profile", "sensitivity", "novelty", "answers"]


def audited(model: Any, name: str) -> dict[str, Any]:
    parts = {key: (inputs(name, 120, seed), targets(name, 120, seed)) for key, seed in (("test", 3), ("validation", 4))}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", Notice)
        train = inputs(name, 60, 1), targets(name, 60, 2)
        found = whence.audit(
            model, train, likelihood=likelihood_of(name), ood=3 * inputs(name, 40, 9), sections=SECTIONS,
            progress=False, **parts,
        )  # fmt: skip
    return found.record


def same(a: Any, b: Any, path: str = "") -> None:
    if isinstance(a, dict):
        assert a.keys() == b.keys(), path
        for key in a:
            if key not in ("std", "curvature"):  # which are of the weights as they are
                same(a[key], b[key], f"{path}.{key}")
    elif isinstance(a, list):
        assert len(a) == len(b), path
        for i, pair in enumerate(zip(a, b, strict=True)):
            same(*pair, f"{path}[{i}]")
    elif isinstance(a, float) and isinstance(b, float):
        assert a == pytest.approx(b, rel=2e-4, abs=2e-5), path
    else:
        assert a == b, path


@pytest.mark.parametrize("name", ["relu", "batch norm", pytest.param("convolutions", marks=pytest.mark.slow)])
def test_an_audit_says_the_same(name: str) -> None:
    model = made(name, 0)
    one, other = (audited(m, name) for m in (model, rescaled(model, 1)))
    assert one["verdict"] == other["verdict"]
    for section in ("quality", "layers", "profile", "sensitivity", "novelty"):
        same(*(_ours(record[section]) for record in (one, other)), section)


def _ours(section: Any) -> Any:
    """Without distances between features, which are of the features as they are."""
    if isinstance(section, dict) and "detectors" in section:
        choice = {key: section["choice"][key] for key in ("usual", "limits")}  # the rest compares with such distances
        invariant = ("combined", "novelty", "novelty_entropy", "entropy", "plain_entropy", "energy")
        detectors = [d for d in section["detectors"] if d["name"] in invariant]
        return section | {"detectors": sorted(detectors, key=lambda d: d["name"]), "choice": choice}
    return section
