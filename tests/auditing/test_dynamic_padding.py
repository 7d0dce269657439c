"""Loaders that pad every batch to its own longest give what the same data padded to one length give."""

from __future__ import annotations

import functools
import warnings
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import whence
from whence.errors import BadData, Notice

PAD, LONGEST = 17, 13
Batches = list[dict[str, Tensor]]


class Transformer(nn.Module):
    """One block of attention with a mask; a label for each token or one for the sequence."""

    def __init__(self, by_token: bool, width: int = 8) -> None:
        super().__init__()
        self.by_token = by_token
        self.table, self.place = nn.Embedding(20, width), nn.Embedding(16, width)
        self.qkv, self.out, self.norm = nn.Linear(width, 3 * width), nn.Linear(width, width), nn.LayerNorm(width)
        self.head = nn.Linear(width, 3)

    def forward(self, input_ids: Tensor, attention_mask: Tensor) -> Tensor:
        x = self.table(input_ids) + self.place(torch.arange(input_ids.shape[1]))
        q, k, v = self.qkv(self.norm(x)).chunk(3, -1)
        seen = attention_mask[:, None, :].bool()
        x = x + self.out(nn.functional.scaled_dot_product_attention(q, k, v, attn_mask=seen))
        if self.by_token:
            return self.head(x)  # type: ignore[no-any-return]
        weight = attention_mask.unsqueeze(-1).to(x.dtype)
        return self.head((x * weight).sum(1) / weight.sum(1))  # type: ignore[no-any-return]


def batches(count: int, seed: int, by_token: bool, longest: int | None = None) -> Batches:
    g = torch.Generator().manual_seed(seed)
    rows = [torch.randint(1, 16, (int(torch.randint(3, 13, (1,), generator=g)),), generator=g) for _ in range(count)]
    found = []
    for start in range(0, count, 3):
        some = rows[start : start + 3]
        size = len(some), longest or max(map(len, some))
        ids, mask, labels = torch.full(size, PAD), torch.zeros(size, dtype=torch.long), torch.full(size, -100)
        for i, row in enumerate(some):
            ids[i, : len(row)], mask[i, : len(row)], labels[i, : len(row)] = row, 1, row % 3
        y = labels if by_token else torch.stack([row[0] % 3 for row in some])
        found.append({"input_ids": ids, "attention_mask": mask, "labels": y})
    return found


@functools.cache
def fitted(by_token: bool) -> tuple[nn.Module, Any]:
    torch.manual_seed(0)
    model = Transformer(by_token)
    optimiser = torch.optim.Adam(model.parameters(), 1e-2)
    for _ in range(6):
        for one in batches(60, 0, by_token):
            optimiser.zero_grad()
            out = model(one["input_ids"], one["attention_mask"]).reshape(-1, 3)
            nn.functional.cross_entropy(out, one["labels"].reshape(-1)).backward()
            optimiser.step()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", Notice)
        posterior = whence.laplace(
            model.eval(), batches(60, 0, by_token, LONGEST), likelihood=likelihood(by_token), progress=False
        )
        return model, posterior.tune(batches(30, 1, by_token, LONGEST), progress=False)


def likelihood(by_token: bool) -> whence.Categorical:
    return whence.Categorical(class_dim=-1 if by_token else 1)


@pytest.fixture(params=[False, True], ids=["sequence", "token"])
def by_token(request: pytest.FixtureRequest) -> bool:
    return bool(request.param)


@pytest.fixture(autouse=True)
def _quiet() -> Any:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", Notice)
        yield


@pytest.mark.parametrize(
    "options", [{}, {"method": "sampled", "num_samples": 3}, {"probes": 4}], ids=["linearised", "sampled", "probes"]
)
def test_predictions(by_token: bool, options: dict[str, Any]) -> None:
    _, posterior = fitted(by_token)
    own, whole = (
        posterior.predict(batches(24, 2, by_token, n), generator=torch.Generator().manual_seed(0), **options).probs
        for n in (None, LONGEST)
    )
    if by_token:
        counted = torch.cat([one["attention_mask"] for one in batches(24, 2, by_token, LONGEST)]).bool()
        longest = own.shape[1]
        assert longest == int(counted.sum(1).max())
        own, whole = own[counted[:, :longest]], whole[:, :longest][counted[:, :longest]]
    torch.testing.assert_close(own, whole, rtol=0, atol=1e-5)


def test_fit_and_tuning(by_token: bool) -> None:
    model, posterior = fitted(by_token)
    other = whence.laplace(model, batches(60, 0, by_token), likelihood=likelihood(by_token), progress=False)
    for name, variance in posterior.with_prior(1.0).with_data_scale(1.0).variance().items():
        own = other.with_prior(1.0).variance()[name]
        torch.testing.assert_close(own, variance, rtol=1e-4, atol=1e-5)
    tuned = other.tune(batches(30, 1, by_token), progress=False)
    assert tuned.prior_precision.tau == pytest.approx(posterior.prior_precision.tau, rel=1e-4)


def test_where_and_novelty(by_token: bool) -> None:
    _, posterior = fitted(by_token)
    own, whole = (posterior.where(batches(24, 2, by_token, n)).layers for n in (None, LONGEST))
    assert [row.variance_share for row in own] == pytest.approx([row.variance_share for row in whole], abs=1e-5)
    some, every = (whence.novelty(posterior, batches(24, 2, by_token, n)) for n in (None, LONGEST))
    torch.testing.assert_close(some.unexplained, every.unexplained, rtol=0, atol=1e-5)


def test_an_audit(by_token: bool) -> None:
    _, posterior = fitted(by_token)
    own, whole = (
        whence.audit(
            posterior,
            validation=batches(30, 1, by_token, n),
            test=batches(24, 2, by_token, n),
            ood=batches(15, 3, by_token, n),
            sections=["quality", "conformal", "inputs", "layers"],
            progress=False,
            inputs=3,
        ).results
        for n in (None, LONGEST)
    )
    assert own.quality is not None and whole.quality is not None
    for a, b in zip(own.quality.metrics, whole.quality.metrics, strict=True):
        assert a.bayesian is not None and b.bayesian is not None
        assert a.bayesian.value == pytest.approx(b.bayesian.value, abs=1e-5) and a.bayesian.count == b.bayesian.count
    assert own.conformal == whole.conformal
    assert [one.index for one in own.inputs or ()] == [one.index for one in whole.inputs or ()]
    for a, b in zip(own.inputs or (), whole.inputs or (), strict=True):
        assert a.uncertainty == pytest.approx(b.uncertainty, abs=1e-4)
        assert [token.text for token in a.tokens or ()] == [token.text for token in b.tokens or ()]
        assert str(PAD) not in [token.text for token in a.tokens or ()]


def test_a_comparison() -> None:
    _, posterior = fitted(True)
    methods = {"a": posterior, "b": posterior.with_prior(whence.Relative(5.0))}
    own, whole = (
        whence.compare(
            methods, batches(24, 2, True, n), ood=batches(15, 3, True, n), reference="a", progress=False
        ).results
        for n in (None, LONGEST)
    )
    for a, b in zip(own.metrics, whole.metrics, strict=True):
        assert [v and v.value for v in a.values] == pytest.approx([v and v.value for v in b.values], abs=1e-5), a.name
    assert own.rejection == whole.rejection and own.uncertainty == whole.uncertainty
    assert own.distance is not None and whole.distance is not None
    for one, other in zip(own.distance.total_variation, whole.distance.total_variation, strict=True):
        assert (one and one.value) == pytest.approx(other and other.value, abs=1e-6)
    assert own.uncertainty is not None and own.uncertainty.label == "mean entropy per token (nats)"


def test_sequences_without_a_mask_are_refused() -> None:
    _, posterior = fitted(False)
    bare = [{"input_ids": torch.ones(2, n, dtype=torch.long), "labels": torch.zeros(2).long()} for n in (3, 4)]
    with pytest.raises(BadData, match="pass mappings with an attention_mask"):
        whence.audit(posterior, test=bare, progress=False)
