"""The verdict names a layer only if it leads under weaker and stronger priors too."""

from __future__ import annotations

from dataclasses import fields
from types import SimpleNamespace
from typing import Any

from whence.auditing.verdict import leading_layer
from whence.report.record.sections import Layer, Sensitivity, Shares


def context(shares: dict[float, dict[str, float]]) -> Any:
    rows = [Sensitivity(f, n, s, None) for f, table in shares.items() for n, s in table.items()]
    return SimpleNamespace(sensitivity=rows)


def layer(name: str, test: Shares | None) -> Layer:
    empty: dict[str, Any] = {one.name: None for one in fields(Layer)}
    return Layer(**{**empty, "name": name, "test": test})


def layers(shares: dict[str, float]) -> list[Layer]:
    return [layer(name, Shares(share, 0.3, None, 0.4, 0.7)) for name, share in shares.items()]


def test_a_layer_that_leads_throughout_is_named_with_its_range() -> None:
    every = {0.1: {"a": 0.4, "b": 0.3}, 1.0: {"a": 0.6, "b": 0.4}, 10.0: {"a": 0.7, "b": 0.3}}
    found = leading_layer(layers({"a": 0.6, "b": 0.4}), context(every))
    assert found is not None and not found.elsewhere
    assert found.briefly() == "`a` contributes the largest share of the variance (60%)."
    assert found.words() == (
        "`a` contributes the largest share of the variance (60%; 40% to 70% under priors ten times weaker to ten times "
        "stronger; 30% under the prior alone)."
    )


def test_one_that_does_not_is_not_named_alone() -> None:
    every = {0.1: {"a": 0.4, "b": 0.6}, 1.0: {"a": 0.6, "b": 0.4}, 10.0: {"a": 0.7, "b": 0.3}}
    found = leading_layer(layers({"a": 0.6, "b": 0.4}), context(every))
    assert found is not None and found.elsewhere == ((0.1, "b"),)
    assert "depends on the prior" in found.briefly() and "`a`" not in found.briefly()
    assert found.words() == (
        "No layer has the largest share of the variance under every prior: `a` under this one (60%; 30% under the "
        "prior alone), `b` under one ten times weaker."
    )


def test_without_shares_there_is_none() -> None:
    assert leading_layer([layer("a", None)], context({})) is None
    assert leading_layer([], context({})) is None
    found = leading_layer(layers({"a": 1.0}), context({}))  # drawn posteriors have no other priors
    assert found is not None and not found.elsewhere
