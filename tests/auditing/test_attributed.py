"""Attributions in an audit: those of ``posterior.attribute``, on the page, and left out where they cannot be had."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

import whence
from tests.metrics.cases import rng
from whence.auditing.attributed import _check
from whence.numerals import minus
from whence.report.page.attributed import attributed_columns, attribution_sum
from whence.report.page.render import render
from whence.report.record.attributions import AttributedInput, Part
from whence.report.record.sections import Feature

QUIET: dict[str, Any] = {"progress": False, "sections": ["inputs", "attribution"]}


def page_of(audit: whence.Audit) -> str:
    return render(audit.results)


def rows(count: int = 60) -> tuple[nn.Module, tuple[torch.Tensor, torch.Tensor]]:
    torch.manual_seed(0)
    x = torch.randn(count, 4, generator=rng(0))
    y = (x[:, 0] > 0).long()
    model = nn.Sequential(nn.Linear(4, 6), nn.Tanh(), nn.Linear(6, 2))
    whence.zoo.train(model, (x, y), epochs=20, lr=0.05, batch_size=20, progress=False)
    return model, (x, y)


def test_columns_are_those_of_attribute_and_add_up() -> None:
    model, (x, y) = rows()
    audit = whence.audit(
        model, (x, y), likelihood="classification", test=(x[:30], y[:30]), ood=3 * x[:10], inputs=4, tune=False,
        features=list("abcd"), **QUIET,
    )  # fmt: skip
    found = audit.results.attribution
    assert found is not None and [one.set for one in found.inputs] == ["test"] * 4 + ["ood"] * 2
    posterior = audit.posterior
    for one in found.inputs:
        given = (x[:30] if one.set == "test" else 3 * x[:10])[one.index : one.index + 1]
        own = posterior.attribute(given, of="total", baseline=x[:30].double().mean(0), steps=found.steps)
        assert one.columns is not None and one.map is None and one.tokens is None
        parts = {part.name: part.value for part in one.columns}
        assert parts == pytest.approx(dict(zip("abcd", own.values[0].tolist(), strict=True)), abs=1e-5)
        sizes = [abs(part.value or 0.0) for part in one.columns]
        assert sizes == sorted(sizes, reverse=True)
        assert one.sum == pytest.approx((one.uncertainty or 0.0) - (one.at_baseline or 0.0), rel=0.05, abs=5e-3)
        assert one.uncertainty == pytest.approx(float(posterior.predict(given).entropy), abs=1e-5)
    assert found.correlation is not None and found.correlations is not None and len(found.correlations) == 5
    assert found.correlation == pytest.approx(sum(v or 0.0 for v in found.correlations) / 5, abs=1e-5)
    assert minus(f"{found.correlation:.2f} on average") in found.words[-1]
    assert found.title == "Adds (nats)" and "adds (+) to the entropy" in found.words[0]
    assert "columns" in found.words[0] and "the mean test input" in found.words[0]
    page = page_of(audit)
    assert found.title in page and found.words[0] in page
    for one in found.inputs:
        assert one.at_baseline + one.sum + one.rest == pytest.approx(one.uncertainty, abs=1e-9)  # type: ignore[operator]
        assert attribution_sum(one, "nats") in page


def jumping() -> tuple[AttributedInput, ...]:
    """A ReLU network, whose linearised variance jumps where units switch."""
    torch.manual_seed(1)
    x = torch.randn(60, 4, generator=rng(7))
    model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 1))
    whence.zoo.train(model, (x, x[:, :1]), epochs=20, lr=0.02, batch_size=20, progress=False)
    audit = whence.audit(model, (x, x[:, :1]), likelihood="regression", test=(x, x[:, :1]), inputs=8, unit="kW",
                         tune=False, **QUIET)  # fmt: skip
    found = audit.results.attribution
    assert (
        found is not None
        and found.title == "Adds (kW²)"
        and "square of the predicted standard deviation" in found.words[0]
    )
    return found.inputs


def test_parts_that_do_not_add_up_take_more_steps_and_the_rest_is_said() -> None:
    found = jumping()
    assert {one.steps for one in found} <= {10, 40, 160}
    for one in found:
        assert one.steps != 10 or abs(one.missed or 0.0) <= 0.05 + 1e-4
        assert (one.rest or 0.0) == pytest.approx(
            (one.missed or 0.0) * abs((one.uncertainty or 0.0) - (one.at_baseline or 0.0))
        )
    assert any((one.steps or 0) > 10 for one in found)


def test_how_far_the_parts_miss_decides_what_is_shown() -> None:
    columns = (Part("a", 0.2), Part("b", 0.1))
    close, rough, off = (AttributedInput("test", 0, 0.5, 0.1, total, columns=columns) for total in (0.38, 0.34, 0.2))
    assert close.missed == pytest.approx(0.05) and rough.missed == pytest.approx(0.15)
    assert attribution_sum(close, "nats") == "Start 0.100, parts +0.380, rest +0.020, together 0.500 nats."
    assert attribution_sum(rough, None) == "Approximate: start 0.100, parts +0.340, rest +0.060, together 0.500."
    assert close.is_shown and rough.is_shown and not off.is_shown
    assert attribution_sum(off, "nats") == "Parts left out: of a rise by 0.400, they miss 0.200."
    row = (Feature("a", 1.0), Feature("b", 2.0))
    assert [one.part for one in attributed_columns(row, rough)] == [0.2, 0.1]
    assert [one.part for one in attributed_columns(row, off)] == [None, None]


def test_what_shuffled_weights_show() -> None:
    assert _check((0.1, 0.2, 0.3)).endswith("no sign that the parts ignore what the network has learned.")
    for some in ((0.1, 0.2, 0.55), (0.45, 0.48, 0.46)):
        assert "only weak evidence" in _check(some)
    assert "may show the inputs rather" in _check((0.4, 0.7, 0.8))
    assert "is 0.10 on average, −0.10 to 0.30" in _check((-0.1, 0.1, 0.3))


def test_pixels_and_their_sum_in_a_large_image() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(
        nn.Conv2d(3, 2, 3, stride=4), nn.Tanh(), nn.AdaptiveAvgPool2d(2), nn.Flatten(), nn.Linear(8, 3)
    )
    x, y = torch.randn(12, 3, 128, 64, generator=rng(1)), torch.arange(12) % 3
    audit = whence.audit(model, (x, y), likelihood="classification", test=(x, y), inputs=2, tune=False, **QUIET)
    found = audit.results.attribution
    assert found is not None
    one = found.inputs[0]
    assert one.map is not None and (len(one.map), len(one.map[0])) == (64, 32)
    assert 4 * sum(v or 0.0 for line in one.map for v in line) == pytest.approx(one.sum, abs=1e-5)
    assert "Map of what pixels add" in page_of(audit)


class Words(nn.Module):
    """Mean of embeddings; 0 is padding."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding, self.head = nn.Embedding(9, 4), nn.Linear(4, 2)

    def forward(self, input_ids: torch.Tensor, attention_mask: torch.Tensor) -> torch.Tensor:
        mask = attention_mask.unsqueeze(-1).to(self.head.weight)
        return self.head((self.embedding(input_ids) * mask).sum(1) / mask.sum(1))


def test_tokens_without_padding() -> None:
    torch.manual_seed(0)
    ids = torch.randint(1, 9, (30, 5), generator=rng(2))
    mask = torch.arange(5) < torch.randint(2, 6, (30, 1), generator=rng(3))
    data = [({"input_ids": ids * mask, "attention_mask": mask.long()}, (ids[:, 0] > 4).long())]
    audit = whence.audit(
        Words(), data, likelihood="classification", test=data, inputs=3, tune=False, tokens=[f"w{i}" for i in range(9)],
        layers=["head"], **QUIET,
    )  # fmt: skip
    found, shown = audit.results.attribution, audit.results.inputs
    assert found is not None and shown is not None
    for one, item in zip(found.inputs, shown, strict=True):
        assert one.tokens is not None and item.tokens is not None
        assert len(one.tokens) == len(item.tokens) == int(mask[one.index].sum())
        assert sum(part or 0.0 for part in one.tokens) == pytest.approx(one.sum, abs=1e-5)  # padding adds nothing
    assert "an embedding of zeros" in found.words[0]
    assert 'style="background:#' in page_of(audit)


def test_where_it_cannot_be_had_it_is_left_out_with_the_reason() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv2d(1, 2, 3, padding=1), nn.ReLU(), nn.Conv2d(2, 3, 1))
    x, y = torch.randn(10, 1, 6, 6), torch.randint(3, (10, 6, 6))
    dense = whence.audit(model, (x, y), likelihood="classification", test=(x, y), tune=False, **QUIET)
    many = nn.Linear(3, 101)
    wide = whence.audit(many, (torch.randn(20, 3), torch.arange(20)), likelihood="classification",
                        test=(torch.randn(20, 3), torch.arange(20)), tune=False, **QUIET)  # fmt: skip
    for audit, why in ((dense, "every pixel or token"), (wide, "101 outputs")):
        assert audit.results.attribution is None
        assert any(item.what == "attribution" and why in item.why for item in audit.results.run.left_out)


def test_ensembles_and_numbers_are_attributed_too() -> None:
    torch.manual_seed(0)
    x = torch.randn(40, 3, generator=rng(5))
    y = x[:, :1] + 0.1 * torch.randn(40, 1, generator=rng(6))
    members = [nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 1)) for _ in range(3)]
    posterior = whence.ensemble(members, likelihood=whence.Gaussian(noise=0.1))
    audit = whence.audit(posterior, (x, y), test=(x, y), inputs=2, **QUIET)
    found = audit.results.attribution
    assert found is not None and found.inputs[0].columns is not None
    assert len({part.name for part in found.inputs[0].columns}) == 3


def test_a_quick_audit_leaves_it_out() -> None:
    model, data = rows(40)
    audit = whence.audit(model, data, likelihood="classification", test=data, quick=True, progress=False)
    assert audit.results.attribution is None
    assert any(item.what == "attribution" for item in audit.results.run.left_out)
