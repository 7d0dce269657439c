"""Shown inputs with an answer for every pixel or token; intervals that resample inputs, not pixels."""

from __future__ import annotations

import functools
import warnings
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import whence
from tests.auditing.cases import trained
from tests.auditing.test_dynamic_padding import batches, fitted
from whence.auditing.dense import averaged, picked, read_tokens
from whence.errors import BadOption, Notice
from whence.report.page.dense import Scales, pictures
from whence.report.record.dense import DenseMaps


@pytest.fixture(autouse=True)
def _quiet() -> Any:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", Notice)
        yield


def scenes(count: int, seed: int, side: int = 8) -> tuple[Tensor, Tensor]:
    x = torch.randn(count, 1, side, side, generator=torch.Generator().manual_seed(seed))
    y = (x[:, 0] > 0).long() + (x[:, 0] > 1).long()
    y[:, 0] = -100
    return x, y


@functools.cache
def segmented() -> tuple[whence.Audit, tuple[Tensor, Tensor]]:
    torch.manual_seed(0)
    train, validation, test = (scenes(n, seed) for seed, n in enumerate((30, 30, 20)))
    model = nn.Sequential(nn.Conv2d(1, 4, 1), nn.Tanh(), nn.Conv2d(4, 3, 1))
    trained(model, *train, nn.functional.cross_entropy, 40)
    options: dict[str, Any] = {"sections": ["quality", "conformal", "inputs"], "inputs": 3, "progress": False}
    options["classes"] = ["none", "<some>", "much"]
    data: dict[str, Any] = {
        "validation": validation,
        "test": test,
        "ood": 4 * scenes(6, 9)[0],
    }
    return whence.audit(model, train, likelihood="classification", **data, **options), test


def test_maps_are_those_of_the_prediction() -> None:
    audit, (x, y) = segmented()
    prediction = audit.posterior.predict(x)
    shown = [one for one in audit.results.inputs or () if one.set == "test"]
    assert len(shown) == 3
    for one in shown:
        maps = one.maps
        assert maps is not None and maps.kind == "classes" and maps.epistemic is not None and maps.wrong is not None
        predicted = torch.tensor(maps.predicted, dtype=torch.float64)
        assert torch.equal(predicted, prediction.labels[one.index].double())
        torch.testing.assert_close(
            torch.tensor(maps.total), prediction.entropy[one.index].float(), rtol=1e-2, atol=1e-3
        )
        assert all(value is None for value in maps.wrong[0])  # ignored
        wrong = prediction.labels[one.index][1:] != y[one.index][1:]
        assert torch.equal(torch.tensor(maps.wrong[1:]).bool(), wrong)
        assert (maps.pixels, maps.mistakes) == (56, int(wrong.sum()))
        assert maps.truth is not None and all(value is None for value in maps.truth[0])
        assert torch.equal(torch.tensor(maps.truth[1:]).long(), y[one.index][1:])
    outside = next(one for one in audit.results.inputs or () if one.set == "ood")
    assert (
        outside.maps is not None
        and outside.maps.truth is None
        and outside.maps.wrong is None
        and outside.maps.mistakes is None
    )


def test_maps_are_drawn(tmp_path: Any) -> None:
    audit, _ = segmented()
    page = audit.html(tmp_path / "a.html").read_text()
    assert 'alt="Map of the predicted classes' in page and "Map of the entropy (nats)" in page
    shown = [one for one in audit.results.inputs or () if one.maps is not None and one.maps.epistemic is not None]
    large = Scales.of(shown).shows_parts
    assert ("Map of the part from weights" in page) == large and ("and has no maps" in page) == (not large)
    assert "&lt;some&gt;" in page and "pixels are wrong" in page and "<some>" not in page
    assert whence.Audit.read(audit.json(tmp_path / "a.json")).results == audit.results


@pytest.mark.parametrize(("part", "maps"), [(0.2, 4), (1e-4, 3)])
def test_a_part_from_weights_that_is_tiny_has_no_map(part: float, maps: int) -> None:
    total = ((0.5, 1.0), (0.2, 0.1))
    epistemic = tuple(tuple(part * v for v in line) for line in total)
    found = DenseMaps("classes", ((0, 1), (1, 0)), ("a", "b"), "entropy", total, epistemic, ((0, 1), (None, 0)), 3, 1)
    entry = SimpleNamespace(maps=found, tokens=None)
    made = pictures(found, Scales.of([entry]))  # type: ignore[list-item]
    assert len(made) == maps and made[-1].label == "1 of 3 pixels are wrong"


def test_large_maps_are_averaged() -> None:
    image = torch.rand(128, 256, dtype=torch.float64)
    image[0, :4] = image[1, :4] = image[2, :4] = image[3, :4] = torch.nan
    image[0, 4] = torch.nan
    small = averaged(image)
    assert small.shape == (32, 64) and bool(small[0, 0].isnan())
    assert float(small[0, 1]) == pytest.approx(float(image[:4, 4:8].nansum() / 15))  # of those that are known
    torch.testing.assert_close(small[1, 2], image[4:8, 8:12].mean())
    classes = torch.randint(9, (128, 256)).double()
    assert set(picked(classes).unique().tolist()) <= set(range(9)) and picked(classes).shape == (32, 64)


def test_pixels_are_counted_and_inputs_resampled() -> None:
    """Every image four times as large, with the same errors: more labels, but no narrower intervals."""
    torch.manual_seed(0)
    probs = torch.rand(30, 3, 4, 4).softmax(1)
    hard = torch.rand(30, 1, 1) < 0.4  # errors go together in an image
    y = torch.where(hard, torch.randint(3, (30, 4, 4)), probs.argmax(1))
    small = whence.metrics.accuracy(probs, y)
    large = whence.metrics.accuracy(probs.repeat(1, 1, 2, 2), y.repeat(1, 2, 2))
    assert (large.count, small.count) == (30 * 64, 30 * 16)
    assert large.high - large.low == pytest.approx(small.high - small.low, rel=1e-6)


def test_the_difference_from_the_plain_network_has_an_interval() -> None:
    audit, _ = segmented()
    assert audit.results.quality is not None
    nll = next(row for row in audit.results.quality.metrics if row.name == "nll")
    assert nll.difference is not None and nll.gain is not None and nll.bayesian is not None and nll.plain is not None
    assert nll.difference.value == pytest.approx((nll.bayesian.value or 0) - (nll.plain.value or 0), abs=1e-5)
    assert nll.difference.count == 20 * 56 and nll.difference.low is not None
    brier = next(row for row in audit.results.quality.metrics if row.name == "brier")
    assert brier.difference is not None and brier.bayesian is not None and brier.plain is not None
    assert brier.difference.value == pytest.approx((brier.bayesian.value or 0) - (brier.plain.value or 0), abs=1e-5)


def test_dense_numbers_have_maps_too() -> None:
    torch.manual_seed(0)
    x = torch.randn(60, 1, 6, 6)
    y = x + 0.1 * torch.randn(60, 1, 6, 6)
    model = trained(nn.Conv2d(1, 1, 1), x[:20], y[:20], nn.functional.mse_loss)
    sets: dict[str, Any] = {"validation": (x[20:40], y[20:40]), "test": (x[40:], y[40:])}
    audit = whence.audit(
        model, (x[:20], y[:20]), likelihood="regression", **sets, unit="m", progress=False, inputs=1,
        sections=["quality", "conformal", "inputs"],
    )  # fmt: skip
    one = (audit.results.inputs or ())[0]
    assert one.maps is not None and one.maps.kind == "numbers" and one.maps.names is None
    assert audit.results.conformal is not None and "position drawn" in audit.results.conformal.guarantee


# Text


def test_tokens_have_their_uncertainty(tmp_path: Any) -> None:
    _, posterior = fitted(True)
    names = [f"<{i}>" for i in range(20)]
    audit = whence.audit(
        posterior, validation=batches(30, 1, True), test=batches(24, 2, True), sections=["inputs"], progress=False,
        inputs=3, tokens=names, classes=["a", "b", "c"],
    )  # fmt: skip
    rows = [row for one in batches(24, 2, True) for row in zip(one["input_ids"], one["labels"], strict=True)]
    for one in audit.results.inputs or ():
        ids, labels = rows[one.index]
        real = ids[labels >= 0]
        assert one.tokens is not None and [token.text for token in one.tokens] == [names[int(i)] for i in real]
        assert [token.target for token in one.tokens] == ["abc"[int(i) % 3] for i in real]
        assert all(token.correct == (token.predicted == token.target) for token in one.tokens)
        mean = sum(token.uncertainty or 0 for token in one.tokens) / len(one.tokens)
        assert mean == pytest.approx(one.uncertainty, rel=1e-3)
    page = audit.html(tmp_path / "a.html").read_text()
    assert "&lt;3&gt;: uncertainty" in page and "<3>" not in page and "Numbers of its tokens" in page


def test_tokens_of_sequences_with_one_answer_are_shown_without_numbers() -> None:
    _, posterior = fitted(False)
    audit = whence.audit(posterior, test=batches(24, 2, False), sections=["inputs"], progress=False, inputs=2)
    one = (audit.results.inputs or ())[0]
    assert one.tokens and all(token.uncertainty is None and token.text.isdigit() for token in one.tokens)


class Tokenizer:
    def convert_ids_to_tokens(self, ids: list[int]) -> list[str]:
        return [f"t{i}" for i in ids]


def test_ways_to_name_tokens() -> None:
    for given in (Tokenizer(), lambda ids: [f"t{i}" for i in ids], {3: "t3", 1: "t1"}, ["t0", "t1", "t2", "t3"]):
        decode = read_tokens(given)
        assert decode is not None and decode([3, 1]) == ["t3", "t1"]
    assert read_tokens(None) is None
    for given in ("words", 3):
        with pytest.raises(BadOption, match="tokens= is a"):
            read_tokens(given)
    _, posterior = fitted(False)
    few = batches(6, 2, False)
    audit = whence.audit(posterior, test=few, sections=["inputs"], progress=False, inputs=1, tokens=lambda _: ["one"])
    why = next(one.why for one in audit.results.run.left_out if one.what == "inputs")
    assert "tokens= gave 1 strings for" in why
