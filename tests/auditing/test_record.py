"""The record of an audit: what stands in it is what the engine says, and it fits its schema."""

from __future__ import annotations

import json
import math
import warnings
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import torch
from torch import nn

import whence
from tests.auditing.cases import Given, classification
from whence import metrics
from whence.auditing import SECTIONS, schema
from whence.errors import BadData, BadFile, BadOption

Made = tuple[Given, whence.Audit]


def rows_of(section: list[dict[str, Any]], key: str = "name") -> dict[str, dict[str, Any]]:
    return {row[key]: row for row in section}


def test_every_kind_of_task_fits_the_schema(every: Made) -> None:
    _, audit = every
    jsonschema.Draft202012Validator(schema()).validate(audit.record)
    json.dumps(audit.record, allow_nan=False)
    missing = {item["what"] for item in audit.record["run"]["left_out"]}
    assert missing == {name for name in SECTIONS if audit.record.get(name) is None} - {"comparison", "groups"}
    assert audit.record["verdict"]["words"]


def test_the_prior_can_be_chosen(plain: Made) -> None:
    given, _ = plain
    options = {"likelihood": "classification", "sections": ["layers"], "progress": False}
    for prior, shown in ((None, "Relative(τ = 1)"), (whence.Relative(5.0), "Relative(τ = 5)"), (2.0, "2")):
        audit = whence.audit(given.model, given.train, test=given.test, prior_precision=prior, **options)
        assert audit.record["run"]["posterior"]["prior"] == shown
    with pytest.raises(BadOption, match="prior_precision=: a posterior was given"):
        whence.audit(audit.posterior, test=given.test, prior_precision=1.0, sections=["layers"], progress=False)


def test_nothing_is_left_out_where_everything_was_given(plain: Made, pictures: Made) -> None:
    for _, audit in (plain, pictures):
        assert audit.record["run"]["left_out"] == []
        assert not audit.interrupted


def test_metrics_are_those_of_the_two_predictions(plain: Made) -> None:
    given, audit = plain
    x, y = given.test
    posterior = audit.posterior
    found = rows_of(audit.record["quality"]["metrics"])
    bayesian = metrics.evaluate(posterior.predict(x), y, ood=posterior.predict(given.ood))
    with torch.no_grad():
        probs, outside = (given.model(v).softmax(1) for v in (x, given.ood))
    network = metrics.evaluate(probs, y, ood=outside)
    for name in ("accuracy", "nll", "brier", "ece", "ood_auroc"):
        for kind, scores in (("bayesian", bayesian), ("plain", network)):
            entry = found[name][kind]
            assert entry["value"] == pytest.approx(float(scores[name]), rel=1e-4), (name, kind)
            assert entry["low"] == pytest.approx(scores[name].low, rel=1e-4)
            assert entry["high"] == pytest.approx(scores[name].high, rel=1e-4)
    gap = found["nll"]["difference"]
    assert gap["value"] == pytest.approx(float(bayesian["nll"]) - float(network["nll"]), abs=1e-5)
    assert gap["low"] < gap["value"] < gap["high"]
    wrong = posterior.predict(x).labels != y
    direct = metrics.auroc(posterior.predict(x).entropy, wrong)
    assert found["error_auroc"]["bayesian"]["value"] == pytest.approx(float(direct), rel=1e-5)


def test_thresholds_are_chosen_on_validation_data_and_measured_on_test_data(plain: Made) -> None:
    given, audit = plain
    posterior = audit.posterior
    held, test = (posterior.predict(pair[0]) for pair in (given.validation, given.test))
    wrong = [(p.labels != pair[1]).double() for p, pair in ((held, given.validation), (test, given.test))]
    for row in audit.record["deferral"]["rows"]:
        if row["aim"] == "coverage" and row["target"] == 1.0:
            assert row["threshold"] is None
            assert row["test"]["coverage"]["value"] == 1.0
            assert row["test"]["error"]["value"] == pytest.approx(float(wrong[1].mean()), rel=1e-5)
            continue
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            asked = {row["aim"]: row["target"]}
            if row["confidence"] is not None:
                asked["confidence"] = row["confidence"]
            rule = metrics.defer(held.entropy, wrong[0], **asked)
        if math.isinf(rule.threshold):
            assert row["threshold"] is None
            assert row["test"]["coverage"]["value"] == 0.0
            continue
        answered = test.entropy.double() <= rule.threshold
        assert row["threshold"] == pytest.approx(rule.threshold, rel=1e-5)
        assert row["test"]["coverage"]["value"] == pytest.approx(float(answered.double().mean()), rel=1e-5)
        assert row["test"]["error"]["value"] == pytest.approx(float(wrong[1][answered].mean()), rel=1e-5)


def test_deferral_of_numbers_is_by_variance(numbers: Made) -> None:
    given, audit = numbers
    rows = audit.record["deferral"]["rows"]
    assert [row["target"] for row in rows] == [1.0, 0.95, 0.9, 0.8, 0.5]
    prediction = audit.posterior.predict(given.test[0])
    half = rows[-1]
    kept = (prediction.variance <= half["threshold"] * (1 + 1e-6)).squeeze(1)
    error = (prediction.mean - given.test[1])[kept].square().mean().sqrt()
    assert half["test"]["error"]["value"] == pytest.approx(float(error), rel=1e-3)
    assert half["validation"]["coverage"] == pytest.approx(0.5, abs=0.01)


def test_the_layer_table_is_that_of_where(plain: Made) -> None:
    given, audit = plain
    for name, x in (("test", given.test[0]), ("ood", given.ood)):
        for entry, row in zip(audit.record["layers"], audit.posterior.where(x).layers, strict=True):
            assert entry["name"] == row.name
            for key in ("variance_share", "prior_share", "explained"):
                assert entry[name][key] == pytest.approx(getattr(row, key), rel=1e-4)
            assert entry["identified"] == pytest.approx(row.identified, rel=1e-4)


def test_novelty_and_detectors_are_those_of_the_engine(plain: Made) -> None:
    given, audit = plain
    found = audit.record["novelty"]
    direct = whence.novelty(audit.posterior, given.ood)
    outside = rows_of(found["sets"], "key")["ood"]
    level = found["level"]
    assert outside["flagged"] == pytest.approx(float((direct.p_value <= level).double().mean()), rel=1e-5)
    first = outside["layers"][0]
    assert first["q50"] == pytest.approx(float(direct.unexplained[:, 0].quantile(0.5)), rel=1e-4)
    assert sum(outside["p_values"]["counts"]) == len(given.ood)
    table = whence.compare_detectors(
        audit.posterior, given.test[0], given.ood, train=given.train, reference=given.validation
    )
    for entry in found["detectors"]:
        # the reference of tuning and the one made here are equal up to rounding, which may move an input by one rank
        slack = {"abs": 1e-3} if entry["name"] in ("combined", "novelty_entropy") else {"rel": 1e-4}
        assert entry["auroc"]["value"] == pytest.approx(float(table[entry["name"]].auroc), **slack)


def test_pruning_is_the_curve(plain: Made) -> None:
    given, audit = plain
    curve = whence.prune_curve(audit.posterior, given.test, progress=False)
    rows = audit.record["pruning"]["rows"]
    assert [(r["by"], r["fraction"]) for r in rows] == [(r.by, r.fraction) for r in curve.rows]
    assert [r["nll"] for r in rows] == pytest.approx([r.nll for r in curve.rows], rel=1e-4)


def test_shown_inputs_are_the_most_uncertain(plain: Made, pictures: Made, numbers: Made) -> None:
    given, audit = plain
    prediction = audit.posterior.predict(given.test[0])
    entries = [e for e in audit.record["inputs"] if e["set"] == "test"]
    assert [e["index"] for e in entries] == prediction.entropy.argsort(descending=True)[:4].tolist()
    assert len([e for e in audit.record["inputs"] if e["set"] == "ood"]) == 2
    top = entries[0]
    i = top["index"]
    assert top["target"] == str(int(given.test[1][i]))
    assert top["correct"] == (int(prediction.labels[i]) == int(given.test[1][i]))
    assert top["confidence"] == pytest.approx(float(prediction.probs[i].max()), rel=1e-4)
    assert top["aleatoric"] + top["epistemic"] == pytest.approx(top["uncertainty"], rel=1e-3)
    assert [n for n, _ in top["row"]] == [f"x{k}" for k in range(6)]
    assert sum(v for _, v in top["layers"]) == pytest.approx(1, abs=1e-5)
    p = whence.novelty(audit.posterior, given.test[0][i : i + 1]).p_value
    assert top["p_value"] == pytest.approx(float(p), rel=1e-4)
    image = pictures[1].record["inputs"][0]
    assert image["row"] is None and len(image["pixels"]) == 6 and len(image["pixels"][0]) == 6
    assert all(0 <= v <= 255 and isinstance(v, int) for line in image["pixels"] for v in line)
    number = numbers[1].record["inputs"][0]
    assert number["prediction"]["std"] > 0 and number["probs"] is None


def test_weight_maps_hold_the_weights(untuned: Made) -> None:
    given, audit = untuned
    maps = {m["layer"]: m for m in audit.record["maps"]}
    tile = maps["0"]["tiles"][0]
    weight = given.model[0].weight[tile["unit"], 0]
    assert torch.allclose(torch.tensor(tile["weight"]), weight, rtol=5e-3)
    std = audit.posterior.variance()["0.weight"].sqrt()[tile["unit"], 0]
    assert torch.allclose(torch.tensor(tile["std"]), std, rtol=5e-3)
    assert maps["3"]["kind"] == "filters" and maps["3"]["width"] == 4 * 3 - 1  # four channels with gaps between them
    assert maps["6"]["kind"] == "matrix" and maps["6"]["width"] == 64
    assert len(maps["3"]["tiles"]) == 16 and "16 of 30" in maps["3"]["note"]


def test_a_first_layer_on_images_is_shown_as_pixels() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Flatten(), nn.Linear(36, 5), nn.ReLU(), nn.Linear(5, 3))
    x, y = torch.randn(40, 1, 6, 6), torch.randint(3, (40,))
    audit = whence.audit(
        model, (x, y), likelihood="classification", test=x, sections=["maps", "layers"], progress=False
    )
    first = audit.record["maps"][0]
    assert (first["kind"], first["height"], first["width"], len(first["tiles"])) == ("pixels", 6, 6, 5)
    tile = first["tiles"][0]
    assert torch.allclose(torch.tensor(tile["weight"]), model[1].weight[tile["unit"]].reshape(6, 6), rtol=5e-3)


def test_without_targets_there_are_shares_but_no_scores() -> None:
    given = classification()
    audit = whence.audit(
        given.model, given.train, likelihood="classification", test=given.test[0], progress=False, inputs=2
    )
    assert audit.record["quality"] is None and audit.record["pruning"] is None
    assert audit.record["profile"] is not None
    reasons = {item["what"]: item["why"] for item in audit.record["run"]["left_out"]}
    assert reasons["quality"] == "the test data have no targets."
    assert reasons["novelty"].startswith("no validation data")
    assert audit.record["run"]["posterior"]["tuned_on"] == "nothing"


def test_a_posterior_can_be_audited_without_its_training_data(plain: Made) -> None:
    given, audit = plain
    again = whence.audit(audit.posterior, test=given.test, ood=given.ood, progress=False, inputs=2)
    assert again.posterior is audit.posterior
    beside = ("recalibrated", "gain")  # which need the validation data
    for ours, others in zip(again.record["quality"]["metrics"], audit.record["quality"]["metrics"], strict=True):
        assert ours == {key: value for key, value in others.items() if key not in beside}
    assert again.record["novelty"] is not None  # its reference was kept from tuning


def test_the_same_seed_gives_the_same_record_and_the_model_stays_as_it_was() -> None:
    given = classification()
    given.model.train()
    before = {k: v.clone() for k, v in given.model.state_dict().items()}
    first, second = (
        whence.audit(given.model, given.train, **given.data(), progress=False, inputs=3).record for _ in range(2)
    )
    assert given.model.training
    assert all(torch.equal(before[k], v) for k, v in given.model.state_dict().items())
    for record in (first, second):
        record.pop("created")
        record["run"].pop("seconds")
        record["trace"].pop("record")  # it covers both
        for answer in record["answers"]:
            answer.pop("words"), answer.pop("numbers")  # they hold times
    assert first == second


def test_a_prior_that_drowns_the_profile_is_replaced_there_and_said() -> None:
    given = classification()
    posterior = whence.laplace(given.model, given.train, likelihood="classification", prior_precision=1e6)
    audit = whence.audit(posterior, test=given.test, sections=["layers", "profile"], progress=False)
    profile = audit.record["profile"]
    assert "evidence prefers" in profile["note"]
    assert profile["prior_precision"] < 1e4
    assert profile["views"][0]["explained"][0] > 0.1
    assert audit.record["run"]["posterior"]["prior_precision"] == 1e6


def test_large_sets_are_cut_and_said_to_be() -> None:
    given = classification()
    loader = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(*given.test), batch_size=32, shuffle=True)
    audit = whence.audit(
        given.model,
        given.train,
        likelihood="classification",
        test=loader,
        validation=given.validation,
        examples=50,
        profiled=20,
        sections=["quality", "profile"],
        progress=False,
    )
    assert audit.record["data"]["test"] == {"inputs": 50, "cut": True}
    assert audit.record["quality"]["metrics"][0]["bayesian"]["count"] == 50
    assert audit.record["profile"]["views"][0]["inputs"] == 20


def interrupt(*_: Any, **__: Any) -> None:
    raise KeyboardInterrupt


def test_ctrl_c_keeps_what_was_finished(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    given = classification()
    monkeypatch.setitem(SECTIONS, "novelty", interrupt)
    with pytest.warns(whence.errors.Notice, match="interrupted during 'novelty'; finished sections are kept"):
        audit = whence.audit(given.model, given.train, **given.data(), progress=False, inputs=2)
    assert audit.interrupted and audit.record["run"]["interrupted"] == "novelty"
    assert audit.record["profile"] is not None and audit.record["novelty"] is None
    assert audit.record["pruning"] is None
    jsonschema.Draft202012Validator(schema()).validate(audit.record)
    again = whence.Audit.read(audit.json(tmp_path / "audit.json"))
    assert again.record == audit.record and again.interrupted
    assert "Stopped during novelty" in str(again)


def test_ctrl_c_before_there_is_a_posterior_goes_through(monkeypatch: pytest.MonkeyPatch) -> None:
    given = classification()
    monkeypatch.setattr("whence.auditing.fitting.laplace", interrupt)
    with pytest.raises(KeyboardInterrupt):
        whence.audit(given.model, given.train, **given.data(), progress=False)


def test_steps_are_told_in_order() -> None:
    given = classification()
    seen: list[tuple[str, int, int]] = []
    whence.audit(
        given.model,
        given.train,
        **given.data(),
        sections=["quality", "layers"],
        on_step=lambda *step: seen.append(step),
    )
    assert [name for name, _, _ in seen] == ["data", "fit", "tune", "examine", "quality", "layers"]
    assert [(done, total) for _, done, total in seen] == [(i, 6) for i in range(6)]


def wrong_shape() -> dict[str, Any]:
    return {"test": (torch.randn(10, 7), torch.zeros(10, dtype=torch.long))}


@pytest.mark.parametrize(
    ("changes", "error", "words"),
    [
        ({"likelihood": None}, BadOption, "likelihood= is needed"),
        ({"train": None}, BadOption, "train= is needed"),
        ({"sections": ["qualty"]}, BadOption, "Did you mean 'quality'"),
        ({"sections": "quality"}, BadOption, r"\['quality'\]"),
        ({"examples": 0}, BadOption, "examples=0"),
        ({"inputs": -1}, BadOption, "inputs=-1"),
        ({"classes": ["a", "b"]}, BadOption, "2 names for 3 classes"),
        (wrong_shape(), BadData, r"test: the network fails on inputs of shape \[1, 7\].*\[6\] each"),
        ({"validation": torch.randn(4, 9)}, BadData, r"validation: the network fails on inputs of shape \[1, 9\]"),
        ({"ood": torch.full((4, 6), math.nan)}, BadData, "NaN"),
        ({"test": []}, BadData, "test is empty"),
        ({"test": ["abc"]}, BadData, "batch 0 is a str"),
        ({"test": [("abc", torch.zeros(3))]}, BadData, "contains no tensor"),
        ({"test": 3}, BadData, "neither a loader nor tensors"),
        ({"train": [(torch.randn(4, 9), torch.zeros(4))]}, BadData, r"train: the network fails .*\[1, 9\]"),
    ],
)
def test_bad_input_is_refused_in_one_line(changes: dict[str, Any], error: type[Exception], words: str) -> None:
    given = classification()
    keywords = {**given.data(), "train": given.train, **changes, "progress": False}
    with pytest.raises(error, match=words) as caught:
        whence.audit(given.model, keywords.pop("train"), **keywords)
    assert "\n" not in str(caught.value)


def test_a_model_that_is_none_is_refused() -> None:
    with pytest.raises(BadOption, match=r"the model is a list; pass a torch\.nn\.Module"):
        whence.audit([1], None)


def test_files_are_whole_or_not_there(plain: Made, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    audit = plain[1]
    path = audit.json(tmp_path / "new" / "audit.json")
    before = path.read_text()
    assert json.loads(before) == audit.record
    with pytest.raises(BadOption, match="is a folder"):
        audit.json(tmp_path)
    with pytest.raises(BadFile, match="cannot write"):
        audit.json(path / "below" / "audit.json")

    def full(*_: Any) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("whence.engine.files.os.replace", full)
    with pytest.raises(BadFile, match="No space left on device"):
        audit.json(path)
    assert path.read_text() == before
    assert [p.name for p in path.parent.iterdir()] == ["audit.json"]


@pytest.mark.parametrize(
    ("text", "words"),
    [("{", "not JSON"), ("[1]", "has no schema"), ('{"schema": "other/1"}', "'other/1'"), (None, "no such file")],
)
def test_what_is_no_audit_is_not_read(text: str | None, words: str, tmp_path: Path) -> None:
    path = tmp_path / "a.json"
    if text is not None:
        path.write_text(text)
    with pytest.raises(BadFile, match=words):
        whence.Audit.read(path)


def test_tuning_can_be_left_out() -> None:
    given = classification()
    posterior = whence.laplace(given.model, given.train, likelihood="classification", prior_precision=3.0)
    held = {k: v for k, v in given.data().items() if k != "likelihood"}
    audit = whence.audit(posterior, given.train, **held, tune=False, progress=False, inputs=2)
    assert audit.posterior is posterior and audit.record["run"]["posterior"]["tuned_on"] == "nothing"
    reasons = {item["what"]: item["why"] for item in audit.record["run"]["left_out"]}
    assert reasons["tuning"] == "it was not requested; the prior precision is unchanged."
    assert audit.record["novelty"] is not None  # validation data are still what it is held against
    tuned = whence.audit(posterior, given.train, **held, sections=["quality"], progress=False).posterior
    assert tuned.tuning is not None and posterior.tuning is None


def test_execution_reaches_the_fit(plain: Made, tmp_path: Path) -> None:
    given, _ = plain
    file = tmp_path / "sums.safetensors"
    execution = whence.Execution(offload=True, checkpoint=file, checkpoint_every=0)
    options = {"likelihood": "classification", "sections": ["layers"], "progress": False, "execution": execution}
    audit = whence.audit(given.model, given.train, test=given.test, **options)
    assert audit.posterior.execution.offload and not file.exists()
    del options["likelihood"]
    with pytest.raises(BadOption, match="execution=: a posterior was given"):
        whence.audit(audit.posterior, test=given.test, **options)
