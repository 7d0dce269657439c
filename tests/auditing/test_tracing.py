"""Digests, the call and the commit in the record, and checking a record against a network and data."""

from __future__ import annotations

import copy
import json
import subprocess
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import whence
from tests.auditing.cases import Given, classification
from whence.auditing.tracing import call_of, digest_of_train, git_state, shown
from whence.auditing.verification import NO_TRACE
from whence.errors import BadOption
from whence.report.record.trace import record_digest


@pytest.fixture(scope="module")
def traced() -> tuple[Given, whence.Audit]:
    given = classification()
    loader = DataLoader(TensorDataset(*given.train), batch_size=33, shuffle=True)
    options = {**given.data(), "sections": ["quality", "layers"], "progress": False}
    return given, whence.audit(given.model, loader, **options)


def changed_somewhere(value: Any, place: str = "") -> list[tuple[str, Any]]:
    """Paths of all numbers and strings in JSON."""
    if isinstance(value, dict):
        return [found for key, item in value.items() for found in changed_somewhere(item, f"{place}/{key}")]
    if isinstance(value, list):
        return [found for i, item in enumerate(value) for found in changed_somewhere(item, f"{place}/{i}")]
    return [] if value is None else [(place, value)]


def put(data: Any, place: str, value: Any) -> Any:
    made = copy.deepcopy(data)
    *path, last = place.strip("/").split("/")
    inside = made
    for key in path:
        inside = inside[int(key)] if isinstance(inside, list) else inside[key]
    inside[int(last) if isinstance(inside, list) else last] = value
    return made


def test_the_record_says_what_it_is_about(traced: tuple[Given, whence.Audit]) -> None:
    given, audit = traced
    trace = audit.results.trace
    assert trace is not None
    jsonschema.validate(audit.record, whence.auditing.schema())
    assert {one.name: one.examples for one in trace.data} == {"train": 200, "test": 120, "validation": 130, "ood": 60}
    assert trace.data_of("train") == digest_of_train(given.train)  # a shuffled loader and a pair of tensors
    assert [one.targets for one in trace.data if one.name == "ood"] == [False]
    assert trace.call["likelihood"] == "'classification'" and trace.call["sections"] == "['quality', 'layers']"
    assert "progress" not in trace.call and "structure" not in trace.call
    assert trace.call_words.startswith("whence.audit(<Sequential") and "batch size 33>" in trace.call_words
    assert trace.command is None


def test_an_untouched_record_passes_every_check(traced: tuple[Given, whence.Audit], tmp_path: Path) -> None:
    given, audit = traced
    again = whence.Audit.read(audit.json(tmp_path / "audit.json"))
    for one in (audit, again):
        found = one.verify(given.model, train=given.train, **_sets(given))
        assert found and found.passed, found
        assert [check.what for check in found.checks] == [
            "record", "weights", "training data", "validation data", "test data", "OOD data",
        ]  # fmt: skip
    shuffled = torch.randperm(120)
    loader = DataLoader(TensorDataset(given.test[0][shuffled], given.test[1][shuffled]), batch_size=7)
    assert again.verify(given.model, test=loader)
    trace = audit.results.trace
    assert trace is not None and again.verify(digest=trace.record[:16]) and not again.verify(digest="0" * 64)
    with pytest.raises(BadOption, match="at least 12 hexadecimal digits"):
        again.verify(digest="nonsense")


def _sets(given: Given) -> dict[str, Any]:
    return {key: value for key, value in given.data().items() if key in ("validation", "test", "ood")}


def test_any_changed_number_or_word_is_found(traced: tuple[Given, whence.Audit], tmp_path: Path) -> None:
    """One at a time, through the whole file."""
    given, audit = traced
    data = json.loads(audit.json(tmp_path / "audit.json").read_text())
    places = changed_somewhere(data)
    assert len(places) > 200
    for place, value in places:
        other = (not value) if isinstance(value, bool) else f"{value} " if isinstance(value, str) else value * 1.01 + 1
        same = record_digest(put(data, place, other)) == data["trace"]["record"]
        assert same == (place == "/trace/record"), place
    path = tmp_path / "changed.json"
    for place, other in (("/quality/metrics/0/plain/value", 0.999), ("/verdict/tone", "good"), ("/note", "more")):
        path.write_text(json.dumps(put(data, place, other)))
        found = whence.Audit.read(path).verify(given.model)
        assert not found and [check.passed for check in found.checks] == [False, True]
        assert "changed after it was written" in str(found)
    data["trace"]["record"] = "0" * 64
    path.write_text(json.dumps(data))
    assert not whence.Audit.read(path).verify()


def test_layout_and_empty_keys_do_not_matter(traced: tuple[Given, whence.Audit], tmp_path: Path) -> None:
    """A file that another program wrote again with the same contents, or that a later version completed."""
    _, audit = traced
    data = {**dict(reversed(audit.record.items())), "new_section": None, "new_rows": []}
    path = tmp_path / "audit.json"
    path.write_text(json.dumps(data, indent=3).replace(": 1.0,", ": 1,"))
    assert whence.Audit.read(path).verify()


def test_one_changed_weight_is_found_and_the_order_of_the_state_is_not(traced: tuple[Given, whence.Audit]) -> None:
    given, audit = traced
    state = given.model.state_dict()
    assert audit.verify(state) and audit.verify(dict(reversed(state.items())))
    assert audit.verify({f"module.{name}": value for name, value in state.items()})
    assert audit.verify(torch.nn.DataParallel(given.model)) and audit.verify(audit.posterior)
    other = copy.deepcopy(given.model)
    with torch.no_grad():
        next(other.parameters()).view(-1)[5] += 1e-6
    found = audit.verify(other)
    assert not found and "was audited" in str(found.checks[1])
    assert not audit.verify(copy.deepcopy(given.model).double())
    assert not audit.verify([given.model, given.model])
    fewer = dict(list(state.items())[1:])
    assert f"{len(fewer)} tensors instead of {len(state)}" in str(audit.verify(fewer))
    with pytest.raises(BadOption, match=r"pass a torch\.nn\.Module"):
        audit.verify(3)


def test_other_data_are_found(traced: tuple[Given, whence.Audit]) -> None:
    given, audit = traced
    x, y = given.test
    assert not audit.verify(test=(x, y.flip(0)))
    assert "119 examples instead of 120" in str(audit.verify(test=(x[1:], y[1:])))
    assert not audit.verify(test=given.validation)
    assert not audit.verify(ood=given.ood + 1e-3)
    assert not audit.verify(train=(given.train[0].clone() * 1.001, given.train[1]))


def test_sets_that_were_cut_or_not_given_and_posteriors() -> None:
    given = classification()
    posterior = whence.laplace(given.model, given.train, likelihood="classification", progress=False)
    loader = DataLoader(TensorDataset(*given.train), batch_size=50)
    options: dict[str, Any] = {"examples": 40, "sections": ["quality"], "progress": False}
    audit = whence.audit(posterior, loader, test=given.test, **options)
    trace = audit.results.trace
    assert trace is not None and trace.data[1].cut and "has more, which were not read" in trace.data[1].covers
    assert trace.data[0].sha256 is None and "a fitted posterior was given" in trace.data[0].covers
    assert audit.verify(given.model, test=given.test)
    found = audit.verify(given.model, train=given.train, validation=given.validation)
    assert [check.passed for check in found.checks] == [True, True, None, False] and not found
    members = whence.ensemble(
        [given.model, copy.deepcopy(given.model).requires_grad_(True)], likelihood="classification"
    )
    two = whence.audit(members, test=given.test, **options)
    assert two.results.trace is not None and len(two.results.trace.weights) == 2
    assert two.verify([given.model, given.model]) and not two.verify(given.model)


def test_records_of_earlier_versions_open_and_say_that_they_cannot_be_checked(
    traced: tuple[Given, whence.Audit], tmp_path: Path
) -> None:
    given, audit = traced
    data = audit.record
    del data["trace"]
    path = tmp_path / "audit.json"
    path.write_text(json.dumps(data))
    found = whence.Audit.read(path).verify(given.model)
    assert not found and [check.passed for check in found.checks] == [None, None] and NO_TRACE in str(found)


def test_a_watched_loader_gives_what_the_loader_gives() -> None:
    """Hashing the training data must not change the fit: the same batches, sampler and generator."""
    given = classification()
    results = []
    for watched in (False, True):
        torch.manual_seed(3)
        loader = DataLoader(TensorDataset(*given.train), batch_size=33, shuffle=True)
        if watched:
            audit = whence.audit(given.model, loader, likelihood="classification", sections=["layers"], progress=False)
            results.append(float(audit.posterior.log_evidence()))
        else:
            generator = torch.Generator().manual_seed(0)
            posterior = whence.laplace(
                given.model, loader, likelihood="classification", generator=generator, progress=False
            )
            results.append(float(posterior.log_evidence()))
    assert results[0] == pytest.approx(results[1], rel=1e-5)


def test_training_data_that_cannot_be_hashed_are_left_out_with_the_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    given = classification()

    def fails(*_: Any) -> None:
        raise RuntimeError("no bytes")

    monkeypatch.setattr("whence.auditing.tracing.ExamplesDigest.add", fails)
    batches = [given.train]
    audit = whence.audit(given.model, batches, likelihood="classification", sections=["layers"], progress=False)
    trace = audit.results.trace
    assert trace is not None and trace.data[0].sha256 is None and trace.data[0].why is not None
    assert "could not be hashed (no bytes)" in trace.data[0].why


def test_the_commit_of_the_caller(tmp_path: Path) -> None:
    assert git_state(tmp_path) is None
    who = ["-c", "user.name=a", "-c", "user.email=a@b.c"]
    for command in (["init", "-q"], ["commit", "-q", "--allow-empty", "-m", "x"]):
        subprocess.run(["git", *who, *command], cwd=tmp_path, check=True)
    first = git_state(tmp_path)
    assert first is not None and len(first.commit) == 40 and (first.changed, first.untracked) == (False, 0)
    assert first.words.endswith("tracked files unchanged")
    (tmp_path / "new.py").write_text("1")
    second = git_state(tmp_path)
    assert second is not None and (second.changed, second.untracked) == (False, 1)
    subprocess.run(["git", "add", "new.py"], cwd=tmp_path, check=True)
    third = git_state(tmp_path)
    assert third is not None and (third.changed, third.untracked) == (True, 0)
    assert third.words.endswith("with uncommitted changes")


def test_arguments_are_short_and_defaults_are_left_out() -> None:
    def verb(model: Any, train: Any = None, *, names: Any = None, tune: bool = True, seed: Any = None) -> None: ...

    given = {"model": nn.Linear(2, 3), "train": torch.zeros(5, 2), "names": list("ab" * 20), "tune": True, "seed": 0}
    found = call_of(verb, given)
    assert found["model"] == "<Linear, 9 parameters>" and found["train"] == "<Tensor [5, 2] float32>"
    assert found["names"].endswith("… 40 in all]") and "tune" not in found and found["seed"] == "0"
    assert shown(whence.Gaussian(noise=0.3)).startswith("Gaussian(") and len(shown("x" * 999)) <= 160
    assert shown(object()) == "<object>" and "0x" not in shown(verb)
