"""Data as users have them: several inputs, ignored labels, mappings, arrays; what cannot be used is refused."""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import whence
from tests.auditing.cases import Given, blobs, classification, parts
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
    for near in (given.ood[0], given.test[0][0]):
        several = {"far": given.ood[0][0], "near": near}
        with pytest.raises(BadData, match=r"one batch of named inputs \(here 'far', 'near'\), not several sets: pass"):
            whence.audit(given.model, given.train, **{**given.data(), "ood": several}, progress=False)


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


def test_names_are_counted() -> None:
    given = classification()
    with pytest.raises(BadOption, match="2 names for 6 columns of test"):
        whence.audit(given.model, given.train, **given.data(), features=["a", "b"], progress=False)


def test_numpy_in_mappings_and_datasets() -> None:
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
    again = whence.audit(
        given.model, given.train, likelihood="classification", progress=False, sections=["quality"],
        test=torch.utils.data.TensorDataset(x, y),
    )  # fmt: skip
    assert again.record["quality"]["metrics"][0]["bayesian"]["count"] == len(y)
