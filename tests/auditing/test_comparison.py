"""The comparison: each row is what the method itself gives, and only chance decides who is best."""

from __future__ import annotations

import functools
import json
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import torch
from torch import nn

import whence
from tests.auditing.cases import Given, classification, regression, trained
from whence import metrics
from whence.auditing import schema
from whence.auditing.run import Peak
from whence.auditing.scores import METRICS, Scores, losses_of
from whence.errors import BadData, BadOption
from whence.metrics import Estimate


@functools.cache
def several() -> tuple[Given, dict[str, Any]]:
    given = classification()

    def network(seed: int) -> nn.Module:
        torch.manual_seed(seed)
        model = nn.Sequential(nn.Linear(6, 20), nn.ReLU(), nn.Dropout(0.3), nn.Linear(20, 3))
        return trained(model, *given.train, nn.functional.cross_entropy)

    members = [network(seed) for seed in range(3)]
    return given, {
        "Laplace": whence.laplace(members[0], given.train, likelihood="classification", progress=False),
        "dropout": whence.dropout(members[0], likelihood="classification"),
        "ensemble": whence.ensemble(members, likelihood="classification"),
        "variational": whence.variational(
            members[0], given.train, likelihood="classification", epochs=5, seed=0, progress=False
        ),
    }


@functools.cache
def compared() -> whence.Comparison:
    given, posteriors = several()
    return whence.compare(posteriors, given.test, ood=given.ood, reference="ensemble", progress=False)


def test_it_fits_the_schema_and_comes_back_from_a_file(tmp_path: Path) -> None:
    found = compared()
    jsonschema.Draft202012Validator(schema("comparison")).validate(found.record)
    assert whence.Comparison.read(found.json(tmp_path / "c.json")).record == found.record
    json.dumps(found.record, allow_nan=False)
    assert found.methods == ["plain network", "Laplace", "dropout", "ensemble", "variational"]


def test_rows_are_what_each_method_gives() -> None:
    given, posteriors = several()
    found = compared()
    x, y = given.test
    for name in ("Laplace", "ensemble"):
        direct = metrics.evaluate(posteriors[name].predict(x), y, ood=posteriors[name].predict(given.ood))
        for metric in ("accuracy", "nll", "brier", "ece", "ood_auroc"):
            assert found[name][metric] == pytest.approx(float(direct[metric]), rel=1e-4)
    drawn = posteriors["dropout"].predict(x, generator=torch.Generator().manual_seed(0))
    assert found["dropout"]["nll"] == pytest.approx(float(metrics.nll(drawn, y)), rel=1e-4)
    with torch.no_grad():
        probs = posteriors["Laplace"].network.module(x).softmax(1)
    assert found["plain network"]["nll"] == pytest.approx(float(metrics.nll(probs, y)), rel=1e-4)
    frame = found.to_pandas()
    assert list(frame["method"]) == found.methods
    assert frame["nll"][1] == found["Laplace"]["nll"] and frame["nll_low"][1] < frame["nll"][1]
    with pytest.raises(KeyError, match="was not compared"):
        found["other"]


def test_layers_are_side_by_side_and_what_has_no_meaning_is_said() -> None:
    given, posteriors = several()
    layers = compared().record["layers"]
    assert layers["names"] == ["0", "2 (dropout)", "3", "output"]
    plain, laplace, dropout, ensemble, variational = layers["share"]
    assert plain is None and ensemble is None
    direct = posteriors["Laplace"].where(given.test[0]).layers
    assert laplace[1] is None and laplace[3] is None
    assert laplace[0::2] == pytest.approx([row.variance_share for row in direct], rel=1e-4)
    assert dropout[1] == pytest.approx(1.0) and dropout[0] is None
    own = posteriors["variational"].where(given.test[0])
    assert variational[0] == pytest.approx(own.layers[0].variance_share, rel=1e-4)
    assert "permuted" in layers["why_not"][3] and layers["why_not"][1] is None
    for disagreement in layers["activations"][1:]:
        assert disagreement is not None and disagreement[-1] is not None
    agreement = compared().record["agreement"]
    assert agreement["methods"] == ["Laplace", "dropout", "variational"]
    assert agreement["rho"][0][0] == 1.0 and agreement["total_variation"][0][0] == 0.0
    a, b = ([v[0], v[2]] for v in (laplace, variational))
    wanted = sum(abs(p / sum(a) - q / sum(b)) for p, q in zip(a, b, strict=True)) / 2
    assert agreement["total_variation"][0][2] == pytest.approx(wanted, abs=1e-5)


def test_distance_from_a_reference() -> None:
    given, posteriors = several()
    distance = compared().record["distance"]
    assert distance["reference"] == "ensemble"
    probs = [posteriors[n].predict(given.test[0]).probs.double() for n in ("Laplace", "ensemble")]
    wanted = float((probs[0] - probs[1]).abs().sum(1).mean() / 2)
    assert distance["total_variation"][1]["value"] == pytest.approx(wanted, rel=1e-4)
    assert distance["total_variation"][3]["value"] == 0.0
    assert distance["wasserstein"][1] is None  # classes have none


def test_numbers_are_compared_too() -> None:
    given = regression()
    posterior = whence.laplace(given.model, given.train, likelihood="regression", progress=False)
    found = whence.compare(
        {"linearised": posterior, "wide": posterior.with_prior(0.01)}, given.test, ood=given.ood, progress=False
    )
    jsonschema.Draft202012Validator(schema("comparison")).validate(found.record)
    assert found.record["reliability"] is None
    direct = metrics.evaluate(posterior.predict(given.test[0]), given.test[1])
    assert found["linearised"]["rmse"] == pytest.approx(float(direct["rmse"]), rel=1e-4)
    losses = losses_of("nll", posterior.predict(given.test[0]), given.test[1])
    assert float(losses.mean()) == pytest.approx(float(direct["nll"]), rel=1e-5)
    drawn = posterior.predict(given.test[0], method="sampled", num_samples=7)
    losses = losses_of("nll", drawn, given.test[1])
    assert float(losses.mean()) == pytest.approx(float(metrics.nll(drawn, given.test[1])), rel=1e-4)


def not_worse(metric: str, values: list[Estimate | None], losses: list[torch.Tensor | None]) -> list[bool]:
    return list(Scores(next(one for one in METRICS if one.name == metric), values, losses).not_worse(0))


def test_only_chance_decides_who_is_not_worse() -> None:
    torch.manual_seed(0)
    base = torch.rand(200, dtype=torch.float64)
    near, far = base + 0.01 * torch.randn(200, dtype=torch.float64), base + 0.1
    values = [Estimate(float(v.mean())) for v in (base, near, far)]
    assert not_worse("nll", values, [base, near, far]) == [True, True, False]
    without = [Estimate(0.9, 0.85, 0.95), Estimate(0.86, 0.8, 0.9), Estimate(0.7, 0.6, 0.8), None]
    assert not_worse("accuracy", without, [None] * 4) == [True, True, False, False]
    covered = [Estimate(0.99, 0.98, 1.0), Estimate(0.94, 0.92, 0.96)]
    assert not_worse("coverage", covered, [None, None]) == [False, True]


def test_an_audit_holds_the_comparison_when_other_methods_are_given() -> None:
    given, posteriors = several()
    audit = whence.audit(
        posteriors["Laplace"],
        test=given.test,
        ood=given.ood,
        methods={"dropout": posteriors["dropout"]},
        sections=["quality", "comparison"],
        progress=False,
    )
    jsonschema.Draft202012Validator(schema()).validate(audit.record)
    section = audit.record["comparison"]
    assert [m["name"] for m in section["methods"]] == ["plain network", "Laplace", "dropout"]
    rows = {r["name"]: r for r in audit.record["quality"]["metrics"]}
    compared_nll = next(r for r in section["metrics"] if r["name"] == "nll")["values"][1]
    assert compared_nll == rows["nll"]["bayesian"]


def test_memory_is_that_of_the_peak() -> None:
    with Peak(None) as peak:
        block = torch.ones(32_000_000)  # too large for the allocator to serve from memory it kept
        for _ in range(3):
            block = block * 1.01
    assert peak.bytes is None or peak.bytes > 64_000_000


@pytest.mark.parametrize(
    ("changes", "error", "words"),
    [
        ({"posteriors": {}}, BadOption, "mapping from names"),
        ({"posteriors": {"a": nn.Linear(1, 1)}}, BadOption, "'a' is a Linear, not a posterior"),
        ({"posteriors": {"plain network": None}}, BadOption, "not a posterior"),
        ({"reference": "hmc"}, BadOption, "not one of 'Laplace'"),
        ({"test": torch.randn(4, 6)}, BadData, "no targets"),
        ({"test": (torch.randn(4, 9), torch.zeros(4))}, BadData, r"fails on inputs of shape \[1, 9\]"),
    ],
)
def test_bad_input_is_refused_in_one_line(changes: dict[str, Any], error: type[Exception], words: str) -> None:
    given, posteriors = several()
    keywords = {"posteriors": {"Laplace": posteriors["Laplace"]}, "test": given.test, "progress": False, **changes}
    with pytest.raises(error, match=words) as caught:
        whence.compare(**keywords)
    assert "\n" not in str(caught.value)


def test_other_tasks_are_not_compared() -> None:
    given, posteriors = several()
    other = regression()
    numbers = whence.laplace(other.model, other.train, likelihood="regression", progress=False)
    with pytest.raises(BadOption, match="cannot be compared"):
        whence.compare({"a": posteriors["Laplace"], "b": numbers}, given.test)


def test_other_outputs_are_not_compared() -> None:
    given, posteriors = several()
    wider = whence.ensemble([nn.Linear(6, 5), nn.Linear(6, 5)], likelihood="classification")
    with pytest.raises(BadOption, match=r"\[3\] per input and 'b' \[5\]"):
        whence.compare({"a": posteriors["Laplace"], "b": wider}, given.test, progress=False)
    with pytest.raises(BadOption, match="give this posterior another name"):
        whence.compare({"plain network": posteriors["Laplace"]}, given.test, progress=False)
    with pytest.raises(BadData, match=r"fails on inputs of shape \[1, 9\]"):
        whence.compare({"e": posteriors["ensemble"]}, (torch.randn(4, 9), torch.zeros(4)), progress=False)


def test_layers_keep_their_names_whatever_they_are_called() -> None:
    """A module of the user's may be called as the wrappers of draws are."""

    class Nested(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.network = nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Dropout(0.2), nn.Linear(8, 3))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.network(x)

    given, _ = several()
    model = Nested().eval()
    found = whence.compare(
        {
            "Laplace": whence.laplace(model, given.train, likelihood="classification", progress=False),
            "dropout": whence.dropout(model, likelihood="classification"),
        },
        given.test,
        progress=False,
    ).record["layers"]
    assert found["names"] == ["network.0", "network.2 (dropout)", "network.3", "output"]
    for row in found["activations"][1:]:
        assert row[0] is not None and row[2] is not None and row[3] is not None
