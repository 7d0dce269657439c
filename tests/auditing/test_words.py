"""What an audit says holds for unusual networks, priors and posteriors too."""

from __future__ import annotations

import re
import warnings
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import whence
from tests.auditing.cases import classification, regression, trained
from whence.auditing.deferral import _target_words
from whence.errors import BadOption, Notice
from whence.report.record.audit import Chosen, DeferralRule, Reached
from whence.report.record.common import Estimate


@pytest.fixture(autouse=True)
def _quiet() -> Any:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", Notice)
        yield


def test_what_can_be_pruned_is_a_part_of_all_weights() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Embedding(50, 8), nn.Flatten(), nn.Linear(24, 3))
    x, y = torch.randint(50, (90, 3)), torch.randint(3, (90,))
    posterior = whence.laplace(model, (x, y), likelihood="classification", progress=False)
    audit = whence.audit(posterior, test=(x, y), sections=["pruning"], progress=False)
    rows = audit.record["pruning"]["rows"]
    most = 1 - min(r["parameters"] for r in rows) / max(r["parameters"] for r in rows)
    said = [int(found) for found in re.findall(r"(\d+)%", audit.record["pruning"]["words"][0])]
    assert max(said) <= round(100 * most)


def test_a_layer_that_reaches_nothing_is_not_said_to_fall() -> None:
    given = classification()

    class WithUnused(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.used, self.unused = given.model, nn.Linear(3, 3)

        def forward(self, x: Tensor) -> Tensor:
            return self.used(x)

    posterior = whence.laplace(WithUnused(), given.train, likelihood="classification", progress=False)
    audit = whence.audit(posterior, test=given.test, ood=given.ood, sections=["answers", "layers"], progress=False)
    words = " ".join(a["words"] for a in audit.record["answers"])
    assert "nan" not in words and "nan" not in audit.record["verdict"]["words"]


@pytest.mark.parametrize("count", [50, 200])
def test_a_calibrated_network_is_not_called_overconfident(count: int) -> None:
    """Labels are drawn from the network's own probabilities; few of them cannot show a fault."""
    given = classification()
    posterior = whence.laplace(
        given.model, given.train, likelihood="classification", prior_precision=1e8, progress=False
    )
    poor = 0
    for seed in range(12):
        g = torch.Generator().manual_seed(seed)
        x = 2 * torch.randn(count, 6, generator=g)
        probs = given.model(x).softmax(1).detach()
        y = torch.multinomial(probs, 1, generator=g).squeeze(1)
        audit = whence.audit(posterior, test=(x, y), sections=["quality"], progress=False)
        tones = {p["label"]: p["tone"] for p in audit.record["verdict"]["points"]}
        poor += tones["Calibration"] in ("poor", "mixed")
    assert poor <= 2


def test_one_number_for_each_example_is_an_output_like_any_other() -> None:
    given = regression()

    class Squeezed(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = given.model

        def forward(self, x: Tensor) -> Tensor:
            return self.inner(x).squeeze(-1)

    x, y = given.train
    flat = whence.laplace(Squeezed(), (x, y.squeeze(1)), likelihood="regression", progress=False)
    column = whence.laplace(given.model, (x, y), likelihood="regression", progress=False)
    test = given.test[0]
    assert torch.allclose(flat.predict(test).variance, column.predict(test).variance, rtol=1e-4)
    assert [r.variance_share for r in flat.where(test).layers] == pytest.approx(
        [r.variance_share for r in column.where(test).layers], rel=1e-4
    )
    audit = whence.audit(
        flat, test=(test, given.test[1].squeeze(1)), sections=["quality", "profile", "layers"], progress=False
    )
    assert audit.record["quality"] is not None and audit.record["profile"] is not None


def test_what_a_posterior_has_cannot_be_asked_for_again() -> None:
    given = classification()
    posterior = whence.laplace(given.model, given.train, likelihood="classification", progress=False)
    with pytest.raises(BadOption, match="structure= and layers=: a posterior was given"):
        whence.audit(posterior, test=given.test, structure="diag", layers="last", progress=False)
    with pytest.raises(BadOption, match="likelihood="):
        whence.audit(posterior, test=given.test, likelihood="binary", progress=False)
    whence.audit(posterior, test=given.test, likelihood="classification", sections=["layers"], progress=False)


def test_several_binary_labels_have_their_own_words() -> None:
    torch.manual_seed(0)
    x = torch.randn(150, 4)
    y = (x[:, :3] > 0).float()
    model = nn.Linear(4, 3)
    trained(model, x, y, nn.functional.binary_cross_entropy_with_logits)
    audit = whence.audit(
        model, (x[:100], y[:100]), likelihood="binary", test=(x[100:], y[100:]), classes=["a", "b", "c"],
        sections=["quality"], progress=False,
    )  # fmt: skip
    assert "of 150 labels of 50 test inputs correctly" in audit.record["verdict"]["words"]
    rows = {r["name"]: r for r in audit.record["quality"]["metrics"]}
    apart = rows["nll"]["bayesian"]["value"] - rows["nll"]["plain"]["value"]
    assert rows["nll"]["difference"]["value"] == pytest.approx(apart, abs=1e-5)


def test_no_ranking_of_numbers_is_said() -> None:
    given = regression()
    posterior = whence.laplace(given.model, given.train, likelihood="regression", prior_precision=1e9, progress=False)
    audit = whence.audit(posterior, test=given.test, validation=given.validation, sections=["deferral"], progress=False)
    words = audit.record["deferral"]["words"][0]
    assert ("does not show which inputs" in words) == (audit.posterior.prior_precision > 1e6)


def rule(value: float, low: float, high: float) -> DeferralRule:
    error = Estimate(value, low, high, 0.95, 400)
    reached = Reached(Estimate(0.8, 0.7, 0.9, 0.95, 500), error, None)
    return DeferralRule("max_error", 0.05, 0.95, 0.3, "some", Chosen(0.8, 0.04), reached)


def test_a_target_that_the_test_data_miss_is_explained() -> None:
    assert list(_target_words([])) == []
    assert len(list(_target_words([rule(0.04, 0.02, 0.06)]))) == 1, "it is met: nothing to explain"
    _, words = _target_words([rule(0.052, 0.03, 0.07)])
    assert words == (
        "For the target of 5% the test data show 5.2% (95% interval 3% to 7%, n = 400): no significant difference."
    )
    _, words = _target_words([rule(0.09, 0.07, 0.12)])
    assert "significantly more" in words and "one of the 5% of choices that fail" in words
