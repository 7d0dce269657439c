"""Positions that no output depends on do not count: a posterior does not depend on how long its batches are padded."""

from __future__ import annotations

import warnings
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import whence
from tests.comparison import assert_close
from whence.errors import Notice
from whence.linalg.structures import Kronecker

PAD = 0


class Encoder(nn.Module):
    """A transformer that masks its own padding, and pools over what is there."""

    def __init__(self, pool: str, activation: str = "gelu") -> None:
        super().__init__()
        self.pool = pool
        self.table, self.place = nn.Embedding(11, 8), nn.Embedding(64, 8)
        layer = nn.TransformerEncoderLayer(8, 2, 12, batch_first=True, activation=activation, norm_first=True)
        self.body = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.head = nn.Linear(8, 3)

    def forward(self, tokens: Tensor) -> Tensor:
        there = tokens != PAD
        h = self.table(tokens) + self.place(torch.arange(tokens.shape[1]))
        h = self.body(h, src_key_padding_mask=~there)
        if self.pool == "first":
            return self.head(h[:, 0])
        if self.pool == "max":
            return self.head(h.masked_fill(~there.unsqueeze(-1), -torch.inf).amax(1))
        weight = there.unsqueeze(-1).to(h.dtype)
        return self.head((h * weight).sum(1) / weight.sum(1))


class Labels(nn.Module):
    """A language model: causal attention, a label for every token."""

    def __init__(self) -> None:
        super().__init__()
        self.table, self.place = nn.Embedding(11, 8), nn.Embedding(64, 8)
        self.body = nn.TransformerEncoderLayer(8, 2, 12, batch_first=True)
        self.head = nn.Linear(8, 11)

    def forward(self, tokens: Tensor) -> Tensor:
        length = tokens.shape[1]
        h = self.table(tokens) + self.place(torch.arange(length))
        mask = nn.Transformer.generate_square_subsequent_mask(length, dtype=h.dtype)
        return self.head(self.body(h, src_mask=mask, is_causal=True))


def sentences(count: int = 20) -> list[Tensor]:
    generator = torch.Generator().manual_seed(1)
    return [
        torch.randint(1, 11, (int(n),), generator=generator) for n in torch.randint(2, 8, (count,), generator=generator)
    ]


def padded(texts: list[Tensor], length: int, value: int = PAD) -> Tensor:
    return torch.stack([nn.functional.pad(t, (0, length - len(t)), value=value) for t in texts])


def fit(model: nn.Module, data: Any, **options: Any) -> whence.Laplace:
    options = {"likelihood": "classification", "progress": False} | options
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", Notice)
        return whence.laplace(model, data, **options)


def assert_same(one: whence.Laplace, other: whence.Laplace) -> None:
    if one.curvature.options.structure == "ekfac":  # eigenvectors may be turned round
        for name, value in one.variance().items():
            assert_close(other.variance()[name], value, 1e-8)
    else:
        for a, b in zip(one.curvature.structures, other.curvature.structures, strict=True):
            for key, value in a.tensors().items():
                assert_close(b.tensors()[key].double(), value.double(), 1e-9, floor=1e-18)
    for name, value in one.prior_variance().items():
        rows = min(len(value), 8) if name == "place.weight" else len(value)
        assert_close(other.prior_variance()[name][:rows], value[:rows], 1e-9)


@pytest.mark.parametrize("structure", ["kron", "ekfac", "diag", "block"])
@pytest.mark.parametrize("pool", ["first", "mean", "max"])
def test_padding_changes_nothing(pool: str, structure: str) -> None:
    torch.manual_seed(0)
    model = Encoder(pool).double().eval()
    texts, y = sentences(), torch.arange(20) % 3
    if structure == "block":
        model.table.requires_grad_(False)
        model.place.requires_grad_(False)
    fits = [fit(model, (padded(texts, length), y), structure=structure) for length in (8, 40)]
    assert_same(*fits)
    by_length = sorted(range(20), key=lambda i: len(texts[i]))
    batches = [([texts[i] for i in some], y[some]) for some in torch.tensor(by_length).split(5)]
    bucketed = [(padded(some, max(map(len, some))), labels) for some, labels in batches]
    again = fit(model, bucketed, structure=structure)
    for a, b in zip(fits[0].curvature.structures, again.curvature.structures, strict=True):
        if isinstance(a, Kronecker):
            assert_close(b.mean_input, a.mean_input, 1e-9)
            assert_close(b.grads, a.grads, 1e-9, floor=1e-18)


@pytest.mark.parametrize("sharing", ["expand", "reduce"])
@pytest.mark.parametrize("curvature", ["ggn", "empirical"])
def test_few_units_that_are_off_still_count(sharing: str, curvature: str) -> None:
    """ReLU in a narrow network: a position whose units are all off is there all the same."""
    torch.manual_seed(0)

    class Narrow(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner, self.head = nn.Linear(3, 2), nn.Linear(2, 3)

        def forward(self, x: Tensor, there: Tensor) -> Tensor:
            h = torch.relu(self.inner(x)) * there.unsqueeze(-1)
            return self.head(h.sum(1))

    model = Narrow().double()
    x, y = torch.randn(30, 6, 3, dtype=torch.float64), torch.randint(3, (30,))
    there = (torch.arange(6) < torch.randint(2, 7, (30, 1))).double()
    off = (model.inner(x) <= 0).all(-1) & (there > 0)
    assert bool(off.any())
    posterior = fit(model, ((x, there), y), sharing=sharing, curvature=curvature)
    structure = posterior.curvature.structures[0]
    a = torch.cat([x, torch.ones(30, 6, 1, dtype=torch.float64)], -1)
    if sharing == "expand":
        counted = a[there > 0]
        assert_close(structure.mean_input[0], counted.mT @ counted / len(counted))
    else:
        mean = (a * there.unsqueeze(-1)).sum(1) / there.sum(1, keepdim=True)
        assert_close(structure.mean_input[0], mean.mT @ mean / 30)


def test_a_maximum_drops_no_position_of_its_own() -> None:
    """Points of which none is ever masked: all of them count, also those that win nothing."""
    torch.manual_seed(0)

    class Points(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner, self.head = nn.Linear(3, 80), nn.Linear(80, 3)

        def forward(self, x: Tensor) -> Tensor:
            return self.head(torch.relu(self.inner(x)).max(dim=1).values)

    x = torch.randn(10, 100, 3, dtype=torch.float64)
    posterior = fit(Points().double(), (x, torch.randint(3, (10,))))
    assert float(posterior.curvature.structures[0].count) == 1000
    a = torch.cat([x, torch.ones(10, 100, 1, dtype=torch.float64)], -1).flatten(0, 1)
    assert_close(posterior.curvature.structures[0].mean_input[0], a.mT @ a / 1000)


@pytest.mark.parametrize("curvature", ["ggn", "mc", "empirical"])
def test_labels_that_do_not_count(curvature: str) -> None:
    """Tokens after the last label that counts, in a causal model."""
    torch.manual_seed(0)
    model = Labels().double().eval()
    texts = sentences(10)
    labels = [torch.roll(t, -1) for t in texts]
    likelihood = whence.Categorical(class_dim=-1)
    fits = []
    for length in (8, 30):
        data = padded(texts, length), padded(labels, length, -100)
        fits.append(
            fit(model, data, likelihood=likelihood, curvature=curvature, generator=torch.Generator().manual_seed(0))
        )
    if curvature == "mc":  # draws are by position in a batch's outputs, so gradients differ; inputs do not
        for a, b in zip(*(f.curvature.structures for f in fits), strict=True):
            if isinstance(a, Kronecker):
                assert_close(b.mean_input, a.mean_input, 1e-9)
        return
    assert_same(*fits)


def test_sure_predictions_still_count() -> None:
    """Logits so far apart that the loss is flat to the last bit: its tokens are there all the same."""
    torch.manual_seed(0)
    model = Encoder("mean").double().eval()
    with torch.no_grad():
        model.head.weight.mul_(1e5)
    texts, y = sentences(), torch.arange(20) % 3
    tokens = padded(texts, 8)
    total = sum(map(len, texts))
    for options in ({"curvature": "mc", "generator": torch.Generator().manual_seed(0)}, {"curvature": "ggn"}):
        posterior = fit(model, (tokens, y), **options)
        counts = {
            b.name: s.count
            for b, s in zip(posterior.blocks, posterior.curvature.structures, strict=True)
            if isinstance(s, Kronecker)
        }
        assert float(counts["body.layers.0.linear1"]) == total
        assert float(counts["head"]) == 20


def test_later_layers_of_a_class_token_count_it_alone() -> None:
    torch.manual_seed(0)
    model = Encoder("first").double().eval()
    texts = sentences()
    posterior = fit(model, (padded(texts, 8), torch.arange(20) % 3))
    counts = {
        b.name: s.count
        for b, s in zip(posterior.blocks, posterior.curvature.structures, strict=True)
        if isinstance(s, Kronecker)
    }
    assert float(counts["body.layers.0.linear1"]) == sum(map(len, texts))
    assert float(counts["body.layers.1.linear1"]) == 20
    assert float(counts["body.layers.1.self_attn"]) == sum(map(len, texts)), "keys and values of all tokens are read"


def test_maxima_and_bounds_of_numbers_stay_as_they_are() -> None:
    """Lengths that are compared, and positions clamped to the size of a table, in a narrow network."""
    torch.manual_seed(0)

    class Bounded(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.table, self.far, self.head = nn.Embedding(11, 4), nn.Embedding(3, 4), nn.Linear(4, 3)
            self.inner = nn.Linear(4, 4)

        def forward(self, tokens: Tensor) -> Tensor:
            there = tokens != PAD
            assert int(there.sum(1).max()) == float(there.sum(1).max().item()) <= tokens.shape[1]
            place = torch.clamp(input=torch.arange(tokens.shape[1]), max=2)
            h = torch.relu(self.inner(self.table(tokens) + self.far(place)))
            h = (h + 1e-3).clamp_(min=1e-6).log() * there.unsqueeze(-1)
            return self.head(h.sum(1))

    texts, y = sentences(), torch.arange(20) % 3
    model = Bounded().double()
    fits = [fit(model, (padded(texts, length), y)) for length in (8, 20)]
    assert_same(*fits)
    [inner] = [s for b, s in zip(fits[0].blocks, fits[0].curvature.structures, strict=True) if b.name == "inner"]
    assert float(inner.count) == sum(map(len, texts))


def test_tokens_that_are_kept_at_random_are_said() -> None:
    """Another number of positions in every pass, as in a transformer that samples its tokens."""
    torch.manual_seed(0)

    class Sampling(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner, self.head, self.passes = nn.Linear(3, 2), nn.Linear(2, 3), 0

        def forward(self, x: Tensor) -> Tensor:
            self.passes += 1
            h = torch.relu(self.inner(x[:, : 3 + self.passes % 3]))
            return self.head(h.sum(1))

    x, y = torch.randn(30, 6, 3, dtype=torch.float64), torch.randint(3, (30,))
    with pytest.warns(Notice, match="something is random in evaluation mode"):
        whence.laplace(Sampling().double(), (x, y), likelihood="classification", progress=False)
