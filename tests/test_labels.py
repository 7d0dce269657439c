"""Labels of language models, shifted as their own loss does."""

from __future__ import annotations

import types
import warnings
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import whence
from tests.comparison import assert_close
from whence.errors import BadData, Notice

X = torch.randn(12, 4, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
Y = torch.arange(12) % 3


def fit(model: nn.Module, x: Any = X, y: Tensor = Y, **options: Any) -> whence.Laplace:
    options = {"likelihood": "classification", "progress": False} | options
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", Notice)
        return whence.laplace(model, (x, y), **options)


class Model(nn.Module):
    """A tiny model with the face of those of transformers."""

    def __init__(self, words: int = 7) -> None:
        super().__init__()
        self.table, self.head = nn.Embedding(words, 4), nn.Linear(4, words)

    def forward(self, input_ids: Tensor) -> Any:
        h = self.table(input_ids)
        h = h.cumsum(1) / torch.arange(1, h.shape[1] + 1).unsqueeze(1)
        return types.SimpleNamespace(logits=self.head(torch.tanh(h)))


class TinyForCausalLM(Model):
    pass


def test_labels_of_causal_models_are_shifted_as_their_loss_does() -> None:
    torch.manual_seed(0)
    model = TinyForCausalLM().double()
    ids = torch.randint(7, (10, 5))
    likelihood = whence.Categorical(class_dim=-1)
    batches = [{"input_ids": ids, "labels": ids}]
    with pytest.warns(Notice, match="labels are shifted by one token"):
        posterior = whence.laplace(model, batches, likelihood=likelihood, progress=False)
    logits = model(ids).logits
    loss = F.cross_entropy(logits[:, :-1].flatten(0, 1), ids[:, 1:].flatten(), reduction="sum")
    assert posterior.record.loss == pytest.approx(float(loss))
    shifted = torch.cat([ids[:, 1:], torch.full((10, 1), -100)], 1)
    plain = fit(model, {"input_ids": ids}, shifted, likelihood=likelihood)
    for name, value in plain.variance().items():
        assert_close(posterior.variance()[name], value, 1e-12)


def test_labels_of_other_models_that_look_unshifted_are_said() -> None:
    ids = torch.randint(7, (10, 5))
    with pytest.warns(Notice, match="every label is the token at its own position"):
        whence.laplace(
            Model().double(), [{"input_ids": ids, "labels": ids}], likelihood=whence.Categorical(class_dim=-1),
            progress=False,
        )  # fmt: skip


class Decoding(nn.Module):
    """An encoder and a decoder, with the face of those of transformers."""

    def __init__(self) -> None:
        super().__init__()
        self.config = types.SimpleNamespace(is_encoder_decoder=True)
        self.source, self.target, self.head = nn.Embedding(7, 4), nn.Embedding(7, 4), nn.Linear(4, 7)

    def prepare_decoder_input_ids_from_labels(self, labels: Tensor) -> Tensor:
        shifted = labels.roll(1, 1)
        shifted[:, 0] = 0
        return shifted.clamp(min=0)

    def forward(self, input_ids: Tensor, decoder_input_ids: Tensor | None = None) -> Any:
        if decoder_input_ids is None:
            raise ValueError("You have to specify either decoder_input_ids or decoder_inputs_embeds")
        h = self.source(input_ids).mean(1, keepdim=True) + self.target(decoder_input_ids)
        return types.SimpleNamespace(logits=self.head(torch.tanh(h)))


def test_decoders_read_the_labels_before() -> None:
    torch.manual_seed(0)
    model = Decoding().double()
    ids, labels = torch.randint(7, (10, 5)), torch.randint(7, (10, 6))
    labels[3, 4:] = -100
    likelihood = whence.Categorical(class_dim=-1)
    posterior = fit_batches(model, [{"input_ids": ids, "labels": labels}], likelihood=likelihood)
    logits = model(ids, model.prepare_decoder_input_ids_from_labels(labels)).logits
    loss = F.cross_entropy(logits.flatten(0, 1), labels.flatten(), reduction="sum")
    assert posterior.record.loss == pytest.approx(float(loss))
    batch = {"input_ids": ids, "labels": labels}
    probs = posterior.predict([batch], method="sampled", num_samples=3).probs
    assert probs.shape[0] == 10


def shift_tokens_right(labels: Tensor, pad: int, start: int) -> Tensor:
    """As in the files of models that have no method for it."""
    shifted = labels.roll(1, 1)
    shifted[:, 0] = start
    return shifted.masked_fill(shifted == -100, pad)


def test_decoders_whose_file_shifts_the_labels() -> None:
    torch.manual_seed(0)

    class Plain(Decoding):
        prepare_decoder_input_ids_from_labels = None  # type: ignore[assignment]

    model = Plain().double()
    model.config.pad_token_id, model.config.decoder_start_token_id = 1, 2
    ids, labels = torch.randint(7, (10, 5)), torch.randint(7, (10, 6))
    labels[3, 4:] = -100
    likelihood = whence.Categorical(class_dim=-1)
    posterior = fit_batches(model, [{"input_ids": ids, "labels": labels}], likelihood=likelihood)
    logits = model(ids, shift_tokens_right(labels, 1, 2)).logits
    loss = F.cross_entropy(logits.flatten(0, 1), labels.flatten(), reduction="sum")
    assert posterior.record.loss == pytest.approx(float(loss))
    model.config.decoder_start_token_id = None
    with pytest.raises(BadData, match="no 'decoder_input_ids'"):
        fit_batches(model, [{"input_ids": ids, "labels": labels}], likelihood=likelihood)


def fit_batches(model: nn.Module, batches: Any, **options: Any) -> whence.Laplace:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", Notice)
        return whence.laplace(model, batches, progress=False, **options)


def test_classes_that_could_lie_either_way_are_asked_for() -> None:
    ids = torch.randint(5, (10, 5))
    model = Model(5).double()
    with pytest.raises(BadData, match=r"can be N × classes × positions or N × positions × classes"):
        fit(model, ids, ids.roll(1, 1))
    fit(model, ids, ids.roll(1, 1), likelihood=whence.Categorical(class_dim=-1))
