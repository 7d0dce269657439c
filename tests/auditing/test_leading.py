"""The verdict names a layer only if it leads under weaker and stronger priors too."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from whence.auditing.leading import leader


def context(shares: dict[float, dict[str, float]]) -> Any:
    rows = [{"factor": f, "name": n, "variance_share": s} for f, table in shares.items() for n, s in table.items()]
    return SimpleNamespace(sensitivity=rows)


def made(shares: dict[str, float]) -> dict[str, Any]:
    def row(name: str, share: float) -> dict[str, Any]:
        return {
            "name": name,
            "test": {"variance_share": share, "prior_share": 0.3, "share_low": 0.4, "share_high": 0.7},
        }

    return {"layers": [row(name, share) for name, share in shares.items()]}


def test_a_layer_that_leads_throughout_is_named_with_its_range() -> None:
    every = {0.1: {"a": 0.4, "b": 0.3}, 1.0: {"a": 0.6, "b": 0.4}, 10.0: {"a": 0.7, "b": 0.3}}
    found = leader(context(every), made({"a": 0.6, "b": 0.4}))
    assert found is not None and found.throughout
    assert found.briefly() == "`a` contributes the largest share of the variance (60%)."
    assert found.words() == (
        "`a` contributes the largest share of the variance (60%; 40% to 70% under priors ten times weaker to ten times "
        "stronger; 30% under the prior alone)."
    )


def test_one_that_does_not_is_not_named_alone() -> None:
    every = {0.1: {"a": 0.4, "b": 0.6}, 1.0: {"a": 0.6, "b": 0.4}, 10.0: {"a": 0.7, "b": 0.3}}
    found = leader(context(every), made({"a": 0.6, "b": 0.4}))
    assert found is not None and not found.throughout
    assert "depends on the prior" in found.briefly() and "`a`" not in found.briefly()
    assert found.words() == (
        "No layer has the largest share of the variance under every prior: `a` under this one (60%; 30% under the "
        "prior alone), `b` under one ten times weaker."
    )


def test_without_shares_there_is_none() -> None:
    assert leader(context({}), {"layers": [{"name": "a", "test": None}]}) is None
    assert leader(context({}), {}) is None
    found = leader(context({}), made({"a": 1.0}))  # drawn posteriors have no other priors
    assert found is not None and found.throughout
