"""Checks of predicted numbers, and their units."""

from __future__ import annotations

import re
import warnings
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import whence
from tests.auditing.cases import Given, classification, heteroscedastic, regression, trained
from tests.auditing.conftest import made
from whence import metrics
from whence.errors import BadOption, Notice


def audited(given: Given, **options: Any) -> whence.Audit:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", Notice)
        return whence.audit(given.model, given.train, **{**given.data(), "progress": False, "inputs": 2, **options})


def several(outputs: int = 2) -> Given:
    torch.manual_seed(0)

    def make(n: int, seed: int) -> tuple[Tensor, Tensor]:
        g = torch.Generator().manual_seed(seed)
        x = torch.randn(n, 3, generator=g)
        return x, torch.stack([(10**k) * (x[:, 0] + 0.2 * torch.randn(n, generator=g)) for k in range(outputs)], 1)

    train, validation, test = (make(n, seed) for seed, n in enumerate((150, 100, 100)))
    model = trained(nn.Linear(3, outputs), *train, nn.functional.mse_loss)
    return Given(model, train, validation, test, None, "regression")


@pytest.mark.parametrize("name", ["regression", "counts", "heteroscedastic"])
def test_coverage_at_every_level_is_that_of_the_intervals(name: str) -> None:
    given, audit = made(name)
    assert audit.results.quality is not None
    checks = audit.results.quality.numbers
    assert checks is not None and [row.level for row in checks.coverage] == [0.5, 0.8, 0.9, 0.95, 0.99]
    x, y = given.test
    prediction = audit.posterior.predict(x)
    for row in checks.coverage:
        slow = metrics.coverage(prediction, y, of=row.level, resamples=0)
        assert row.bayesian.value == pytest.approx(float(slow), abs=1e-6)
        assert row.bayesian.low is not None and row.bayesian.low <= slow <= (row.bayesian.high or 0)
    assert sum(checks.pit.counts.bayesian) == len(y)
    (output,) = checks.outputs
    assert output.rmse.value == pytest.approx(float(metrics.rmse(prediction, y, resamples=0)), rel=1e-4)
    assert output.true == pytest.approx(y.flatten().tolist(), rel=1e-4)


def test_a_wrong_distribution_is_told_and_a_right_one_is_not() -> None:
    made, noise = several(1), 0.2
    x = torch.randn(400, 3, generator=torch.Generator().manual_seed(11))
    y = x[:, :1] + noise * torch.randn(400, 1, generator=torch.Generator().manual_seed(12))
    given = Given(made.model, made.train, made.validation, (x, y), None, "regression")
    with torch.no_grad():  # the function that the targets were made from
        given.model.weight.copy_(torch.tensor([[1.0, 0.0, 0.0]]))
        given.model.bias.zero_()
    plain: dict[str, Any] = {"sections": ["quality"], "tune": False, "prior_precision": 1e6}
    right = audited(given, likelihood=whence.Gaussian(noise), **plain)
    wrong = audited(given, likelihood=whence.Gaussian(noise / 4), **plain)
    words = []
    for audit in (right, wrong):
        assert audit.results.quality is not None and audit.results.quality.numbers is not None
        words.append(" ".join(audit.results.quality.numbers.words))
    assert "All bars" in words[0] and "no level's coverage is off significantly" in words[0]
    assert "outside the band" in words[1] and "significantly fewer than 90% (corrected" in words[1]


def test_the_unit_stands_everywhere(tmp_path: Any, capsys: pytest.CaptureFixture[str]) -> None:
    audit = audited(regression(), unit="kW")
    assert audit.results.unit == "kW" and audit.record["unit"] == "kW"
    page = audit.html(tmp_path / "a.html").read_text()
    for text in (
        "RMSE (kW)",
        "CRPS (kW)",
        "Width of 95% intervals (kW)",
        "Mean width (kW)",
        "true target (kW)",
        "predicted standard deviation (kW)",
    ):
        assert text in page, text
    parts = r"Adds to the variance \(kW²\)|together [\d.,]+ kW²"  # of an input: variances add up
    assert re.search(parts, page) and "kW²" not in re.sub(parts, "", page)
    assert "kW</h4>" in page or " kW <small>" in page or "kW</small>" in page
    assert "kW on 120 test inputs" in audit.results.verdict.words
    assert audit.results.deferral is not None and audit.results.deferral.error == "root mean squared error (kW)"
    assert audit.results.deferral.label == "variance of the prediction in kW²"
    audit.show()
    shown = capsys.readouterr().out
    assert "RMSE (kW)" in shown and "width (kW)" in shown
    assert whence.Audit.read(audit.json(tmp_path / "a.json")).results == audit.results


def test_outputs_of_different_units() -> None:
    given = several()
    audit = audited(given, unit=["m", "kg"], targets=["height", "weight"], sections=["quality", "conformal"])
    assert audit.results.unit is None and audit.results.quality is not None
    checks = audit.results.quality.numbers
    assert checks is not None
    assert [(one.name, one.unit) for one in checks.outputs] == [("height", "m"), ("weight", "kg")]
    x, y = given.test
    errors = (audit.posterior.predict(x).mean - y).double().square().mean(0).sqrt()
    assert [one.rmse.value for one in checks.outputs] == pytest.approx(errors.tolist(), rel=1e-4)
    assert sum(checks.pit.counts.plain) == 200
    assert audit.results.conformal is not None and len(audit.results.conformal.rows[0].thresholds) == 2


def test_many_outputs_are_counted() -> None:
    audit = audited(several(6), unit="m", sections=["quality"])
    assert audit.results.quality is not None and audit.results.quality.numbers is not None
    assert len(audit.results.quality.numbers.outputs) == 4 and audit.results.quality.numbers.unlisted == 2


def test_wrong_units_are_refused() -> None:
    with pytest.raises(BadOption, match="unit= is for predicted numbers; this is classification"):
        audited(classification(), unit="kW")
    with pytest.raises(BadOption, match="unit= has 2 entries for 1 outputs"):
        audited(heteroscedastic(), unit=["a", "b"])
    with pytest.raises(BadOption, match="pass a list"):
        audited(regression(), targets="load")
    with pytest.raises(BadOption, match="empty unit"):
        audited(regression(), unit=" ")
