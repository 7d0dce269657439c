"""What a demanding new user found: each finding once."""

from __future__ import annotations

import re
import warnings
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import whence
from tests.auditing.cases import Given, blobs, classification, parts, regression, trained
from whence.errors import BadData, BadOption, Notice


@pytest.fixture(autouse=True)
def _quiet() -> Any:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", Notice)
        yield


class Two(nn.Module):
    """A second input that may be left out."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Sequential(nn.Linear(12, 16), nn.Tanh(), nn.Linear(16, 3))

    def forward(self, x: Tensor, z: Tensor | None = None) -> Tensor:
        return self.inner(torch.cat([x, torch.zeros_like(x) if z is None else z], 1))


def two_inputs() -> Given:
    torch.manual_seed(0)

    def make(n: int, seed: int) -> tuple[Any, Tensor]:
        x, y = blobs(n, seed)
        return (torch.randn(x.shape, generator=torch.Generator().manual_seed(seed)), x), y

    train, validation, test = parts(make)
    model = Two()
    optimiser = torch.optim.Adam(model.parameters(), 0.03)
    for _ in range(60):
        optimiser.zero_grad()
        nn.functional.cross_entropy(model(*train[0]), train[1]).backward()
        optimiser.step()
    ood = ((torch.randn(60, 6), 5 + torch.randn(60, 6)), torch.zeros(60))
    return Given(model.eval(), train, validation, test, ood, "classification")


def test_both_inputs_of_a_network_count_everywhere() -> None:
    given = two_inputs()
    audit = whence.audit(given.model, given.train, **given.data(), progress=False, inputs=2)
    posterior = audit.posterior
    scores = [whence.novelty(posterior, pair[0]).score for pair in (given.test, given.ood)]
    labels = torch.cat([torch.zeros(len(scores[0])), torch.ones(len(scores[1]))]).bool()
    by_hand = float(whence.metrics.auroc(torch.cat(scores), labels))
    detectors = {d["name"]: d["auroc"]["value"] for d in audit.record["novelty"]["detectors"]}
    assert detectors["novelty"] == pytest.approx(by_hand, rel=1e-4)
    rows = {r["name"]: r for r in audit.record["quality"]["metrics"]}
    assert detectors["entropy"] == pytest.approx(rows["ood_auroc"]["bayesian"]["value"], rel=1e-4)
    last = audit.record["answers"][0]["numbers"]["whole"]
    assert last["ood_auroc"] == pytest.approx(detectors["entropy"], rel=1e-3)
    with pytest.raises(BadData, match=r"ood: its inputs are one tensor, those of the training data a tuple of 2"):
        whence.audit(given.model, given.train, **{**given.data(), "ood": given.ood[0]}, progress=False)


def test_ignored_labels_are_no_errors() -> None:
    given = classification()
    x, y = given.test
    masked = y.clone()
    masked[::3] = -100
    keep = masked >= 0
    sections = ["quality", "deferral", "inputs"]
    data = {"likelihood": "classification", "validation": given.validation, "sections": sections, "progress": False}
    first = whence.audit(given.model, given.train, test=(x, masked), **data).record
    second = whence.audit(given.model, given.train, test=(x[keep], y[keep]), **data).record
    assert first["quality"] == second["quality"] and first["deferral"] == second["deferral"]
    assert first["data"]["test"]["inputs"] == int(keep.sum())
    assert all(entry["target"] != "-100" for entry in first["inputs"])


def test_a_generator_is_refused_rather_than_cut() -> None:
    given = classification()
    x, y = given.train
    batches = ((x[i : i + 50], y[i : i + 50]) for i in range(0, 200, 50))
    with pytest.raises(BadData, match="one-shot iterator"):
        whence.audit(given.model, batches, likelihood="classification", test=given.test, progress=False)


def test_what_can_be_pruned_is_a_part_of_all_weights() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Embedding(50, 8), nn.Flatten(), nn.Linear(24, 3))
    x, y = torch.randint(50, (90, 3)), torch.randint(3, (90,))
    posterior = whence.laplace(model, (x, y), likelihood="classification", progress=False)
    audit = whence.audit(posterior, test=(x, y), sections=["pruning"], progress=False)
    rows = audit.record["pruning"]["rows"]
    most = 1 - min(r["parameters"] for r in rows) / max(r["parameters"] for r in rows)
    said = [int(found) for found in re.findall(r"(\d+)\u202f%", audit.record["pruning"]["words"][0])]
    assert max(said) <= round(100 * most)


def test_batches_of_different_lengths_are_refused_with_their_shapes() -> None:
    given = classification()
    batches = [(torch.randn(4, 5), torch.zeros(4)), (torch.randn(4, 7), torch.zeros(4))]
    with pytest.raises(BadData, match=r"examples of different shapes \(\[\[5\]\], \[\[7\]\]\)"):
        whence.audit(given.model, given.train, likelihood="classification", test=batches, progress=False)


def test_labels_without_an_output_are_refused_at_once() -> None:
    given = classification()
    x, y = given.test
    with pytest.raises(BadData, match="test: "):
        whence.audit(given.model, given.train, likelihood="classification", test=(x, y + 5), progress=False)


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
    poor = 0
    for seed in range(12):
        g = torch.Generator().manual_seed(seed)
        x = 2 * torch.randn(count, 6, generator=g)
        probs = given.model(x).softmax(1).detach()
        y = torch.multinomial(probs, 1, generator=g).squeeze(1)
        posterior = whence.laplace(
            given.model, given.train, likelihood="classification", prior_precision=1e8, progress=False
        )
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


def test_names_are_counted() -> None:
    given = classification()
    with pytest.raises(BadOption, match="2 names for 6 columns of test"):
        whence.audit(given.model, given.train, **given.data(), features=["a", "b"], progress=False)


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
    assert "of 150 test labels right" in audit.record["verdict"]["words"]
    rows = {r["name"]: r for r in audit.record["quality"]["metrics"]}
    apart = rows["nll"]["bayesian"]["value"] - rows["nll"]["plain"]["value"]
    assert rows["nll"]["difference"]["value"] == pytest.approx(apart, abs=1e-5)


def test_numpy_in_mappings_and_datasets_in_words() -> None:
    given = classification()
    x, y = given.test

    class Named(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = given.model

        def forward(self, x: Tensor) -> Tensor:
            return self.inner(x)

    train = [{"x": given.train[0].numpy(), "labels": given.train[1].numpy()}]
    audit = whence.audit(
        Named(), train, likelihood="classification", test={"x": np.asarray(x), "labels": np.asarray(y)},
        sections=["quality"], progress=False,
    )  # fmt: skip
    assert audit.record["quality"]["metrics"][0]["bayesian"]["count"] == len(y)
    with pytest.raises(BadData, match="test is a Dataset; wrap it"):
        whence.audit(
            given.model, given.train, likelihood="classification", progress=False,
            test=torch.utils.data.TensorDataset(x, y),
        )  # fmt: skip


def test_no_ranking_of_numbers_is_said() -> None:
    given = regression()
    posterior = whence.laplace(given.model, given.train, likelihood="regression", prior_precision=1e9, progress=False)
    audit = whence.audit(posterior, test=given.test, validation=given.validation, sections=["deferral"], progress=False)
    words = audit.record["deferral"]["words"][0]
    assert ("cannot tell which answers" in words) == (audit.posterior.prior_precision > 1e6)
