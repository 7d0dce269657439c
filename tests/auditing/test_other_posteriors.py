"""Audits of posteriors without closed forms: what has a meaning is there, the rest says why not."""

from __future__ import annotations

from typing import Any

import jsonschema
import pytest
import torch

import whence
from tests.auditing.test_comparison import several
from whence import metrics
from whence.auditing import schema


@pytest.mark.parametrize("name", ["dropout", "ensemble", "variational"])
def test_every_posterior_can_be_audited(name: str) -> None:
    given, posteriors = several()
    posterior = posteriors[name]
    audit = whence.audit(
        posterior, test=given.test, validation=given.validation, ood=given.ood, progress=False, inputs=3
    )
    record = audit.record
    jsonschema.Draft202012Validator(schema()).validate(record)
    assert record["quality"] is not None and record["deferral"] is not None and record["inputs"] is not None
    rows = {row["name"]: row for row in record["quality"]["metrics"]}

    drawn = posterior.predict(given.test[0], generator=torch.Generator().manual_seed(0))
    assert rows["nll"]["bayesian"]["value"] == pytest.approx(float(metrics.nll(drawn, given.test[1])), rel=1e-4)
    reasons = {item["what"]: item["why"] for item in record["run"]["left_out"]}
    assert "needs the curvature of a Laplace posterior" in reasons["novelty"]
    if name == "ensemble":
        assert "permuted" in reasons["profile"]
        assert all(row["disagreement"] is not None for row in record["layers"])
    else:
        _check_profile(record, posterior, given)


def _check_profile(record: dict[str, Any], posterior: Any, given: Any) -> None:
    profile = record["profile"]
    view = profile["views"][0]
    assert sum(view["share"][1:]) == pytest.approx(1, abs=1e-5)
    where = posterior.where(given.test[0])
    assert view["share"][1:-1] == pytest.approx([row.variance_share for row in where.layers], rel=1e-4)
    assert view["share"][-1] == pytest.approx(where.interaction, abs=1e-5)
    assert [node["label"] for node in profile["nodes"][1:-1]] == [row.name for row in where.layers]
