"""The comparison of priors, small; and what its page says of the committed results."""

from __future__ import annotations

import copy
import json
from dataclasses import asdict
from pathlib import Path

import pytest
import torch
from PIL import Image

import whence
from reproductions import readme
from reproductions.experiment import Context
from reproductions.own import COLLECTION
from reproductions.own.priors import EXPERIMENT
from reproductions.own.priors.rules import prior_of
from reproductions.own.priors.subjects import Subject, subjects
from reproductions.own.priors.tables import LAWFUL
from reproductions.store import Values, read, values
from tests.priors.networks import inputs, made
from tests.priors.test_rescaling import rescaled, targets
from tests.reproductions import laws
from whence.predictive.linearised import moments

COMMITTED = COLLECTION.home / "priors" / "results.json"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return laws.in_order("priors", laws.quick("priors", tmp_path_factory.mktemp("priors"), COLLECTION), COLLECTION)


@pytest.fixture(scope="module")
def units() -> Values:
    return values(read(COMMITTED))


def test_every_unit_is_there_and_none_is_done_twice(folder: Path) -> None:
    laws.complete_and_done_once("priors", folder, COLLECTION)


def test_pictures_are_drawn(folder: Path) -> None:
    for name in ("nll.png", "shares.png"):
        with Image.open(folder / name) as image:
            assert min(image.size) > 200


@pytest.mark.parametrize("rule", [*LAWFUL, "signal, ν = 0.1", "by layer", "isotropic"])
@pytest.mark.parametrize("name", ["relu", "batch norm"])
def test_which_rules_rescalings_leave_alone(rule: str, name: str) -> None:
    model = made(name, 0)
    x, y = inputs(name, 40, 1), targets(name, 40, 2)
    found = []
    for network in (model, rescaled(model, 1)):
        posterior = whence.laplace(network, (x, y), likelihood="classification", progress=False)
        subject = Subject(network, "classification", (x, y), (x, y), (x, y), {})
        found.append(moments(posterior.with_prior(prior_of(rule, posterior, subject)), x[:5]).cov)
    same = torch.allclose(found[0], found[1], rtol=1e-5, atol=1e-9)
    assert same == (rule not in ("by layer", "isotropic"))


def test_verdicts_follow_the_numbers(units: Values) -> None:
    changed = copy.deepcopy(units)
    for name, value in changed.items():
        if name.startswith("mlp/") and name.endswith("/signal"):
            value["tuned"]["nll"] += 1.0
    before, after = (
        {c.claim: c.verdict for c in EXPERIMENT.claims(each)} for each in (units, changed)
    )  # fmt: skip
    claim = next(c for c in before if c.startswith("ReLU") and "tuned NLL" in c)
    assert before[claim] == "holds" and after[claim] == "does not hold"


def test_a_rule_without_a_posterior_is_named(units: Values) -> None:
    changed = copy.deepcopy(units)
    changed["mlp/1/g-prior"] = {"failed": "no"}
    assert "No figure for: g-prior" in EXPERIMENT.tables(changed).partition("LeNet")[0]


def test_the_pages_say_what_the_results_say() -> None:
    content = read(COMMITTED)
    folder = COMMITTED.parent
    assert (folder / "README.md").read_text() == readme.expected(folder, readme.section(EXPERIMENT, content))
    assert (folder.parent / "README.md").read_text() == readme.expected(folder.parent, readme.summary(COLLECTION))
    for path, part in EXPERIMENT.elsewhere:
        assert path.read_text() == readme.filled(path.read_text(), part(values(content)))
    assert content["config"] == json.loads(json.dumps(asdict(EXPERIMENT.config(False))))
    assert set(content["units"]) <= set(EXPERIMENT.units(EXPERIMENT.config(False)))


def test_a_rule_that_lacks_a_seed_is_not_compared(units: Values) -> None:
    without = {name: value for name, value in units.items() if name != "mlp/2/signal"}
    assert not any(c.claim.startswith("ReLU") for c in EXPERIMENT.claims(without))


def test_a_run_that_goes_on_has_the_same_network(tmp_path: Path) -> None:
    context = Context("cpu", tmp_path, progress=False)
    first, again = (subjects(EXPERIMENT.config(True), "mlp", 0, context)[""].network for _ in range(2))
    assert len(list(tmp_path.glob("priors-mlp-0-*"))) == 1
    for a, b in zip(first.parameters(), again.parameters(), strict=True):
        assert torch.equal(a, b)
