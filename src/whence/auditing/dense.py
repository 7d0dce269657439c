"""Shown inputs with an answer for every pixel or token: uncertainty maps over the image, tokens with their uncertainty.

Index legend: N inputs, C classes, T tokens; h and w of the map on the page.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from whence.auditing.context import Context
from whence.auditing.data import token_ids
from whence.auditing.tasks import Classes
from whence.auditing.words import is_tokenizer, words
from whence.errors import BadOption, WhenceError
from whence.report.record.common import Grid
from whence.report.record.dense import DenseMaps, Token

SIDE = 64  # pixels of a map, at most
TOKENS = 160  # of a sequence, at most
LABELS = 100  # classes whose names are kept
Decode = Callable[[list[int]], list[str]]


# Images


def dense_maps(context: Context, name: str, index: int) -> DenseMaps | None:
    """Maps of one input; None unless its outputs lie on a grid of pixels."""
    prediction, examples = context.prediction(name), context.need(name)
    answers = _answers(context, prediction)  # [N, h, w]
    if answers is None:
        return None
    total, epistemic = (_map(prediction, measure, answers, index) for measure in (context.task.measure, "epistemic"))
    assert total is not None
    known = examples.targets is not None and name != "ood"
    wrong, pixels, mistakes = None, 0, None
    if known and examples.targets is not None:
        wrong, pixels, mistakes = _wrong(context, answers[index], examples.targets[index])
    labels = context.task.has_labels
    return DenseMaps(
        "classes" if labels else "numbers",
        _grid(picked(answers[index].double()) if labels else averaged(answers[index].double())),
        _names(context, prediction) if labels else None,
        context.task.measure,
        _grid(averaged(total)),
        None if epistemic is None else _grid(averaged(epistemic)),
        None if wrong is None else _grid(averaged(wrong)),
        pixels,
        mistakes,
        _truth(answers[index], examples.targets[index]) if known and labels and examples.targets is not None else None,
    )


def _truth(answer: Tensor, target: Tensor) -> Grid:
    """The true classes on the grid of the answers; NaN where the truth is ignored."""
    truth = target.reshape(answer.shape).double()
    return _grid(picked(torch.where(truth >= 0, truth, torch.nan)))


def _answers(context: Context, prediction: Any) -> Tensor | None:
    """The most probable class, or the mean, of every pixel, [N, h, w]."""
    found = prediction.labels if context.task.has_labels else prediction.mean
    found = found.detach().cpu()
    if found.dim() == 4 and found.shape[1] == 1:
        found = found[:, 0]
    return found if found.dim() == 3 and min(found.shape[1:]) > 3 else None


def _map(prediction: Any, measure: str, answers: Tensor, index: int) -> Tensor | None:
    try:
        found = getattr(prediction, measure)[index].detach().double().cpu()
    except (WhenceError, AttributeError):
        return None
    return found.reshape(answers.shape[1:]).clamp(min=0)


def _wrong(context: Context, answer: Tensor, target: Tensor) -> tuple[Tensor, int, int | None]:
    """Errors (NaN: ignored), the number of pixels with a truth, and of mistakes."""
    truth = target.reshape(answer.shape)
    if not context.task.has_labels:
        return (answer.double() - truth.double()).abs(), answer.numel(), None
    counted = truth >= 0
    wrong = (answer != truth) & counted
    shown = torch.where(counted, wrong.double(), torch.nan)
    return shown, int(counted.sum()), int(wrong.sum())


def _names(context: Context, prediction: Any) -> tuple[str, ...] | None:
    count = prediction.probs.shape[prediction.class_dim] if isinstance(context.task, Classes) else 2
    return tuple(context.class_name(c) for c in range(count)) if count <= LABELS else None


def _size(image: Tensor) -> tuple[int, int]:
    scale = min(1.0, SIDE / max(image.shape))
    return max(1, round(image.shape[0] * scale)), max(1, round(image.shape[1] * scale))


def averaged(image: Tensor) -> Tensor:
    """Means of neighbours, of those that are known."""
    known = ~image.isnan()
    pool = torch.nn.functional.adaptive_avg_pool2d
    values, parts = (pool(one[None], _size(image))[0] for one in (image.nan_to_num(), known.double()))
    return torch.where(parts > 0, values / parts.clamp(min=1e-9), torch.nan)


def picked(image: Tensor) -> Tensor:
    """Some of the pixels, evenly spaced."""
    return torch.nn.functional.interpolate(image[None, None], _size(image), mode="nearest-exact")[0, 0]


def _grid(values: Tensor) -> Grid:
    return tuple(map(tuple, values.tolist()))


# Text


def read_tokens(given: Any) -> Decode | None:
    """``tokens=``: a function from ids to strings, a tokenizer with ``convert_ids_to_tokens``, or a list of strings."""
    if given is None:
        return None
    if is_tokenizer(given):
        return words(given)
    convert = getattr(given, "convert_ids_to_tokens", given)
    if callable(convert):
        return lambda ids: [str(one) for one in convert(ids)]
    if isinstance(given, Mapping) or (isinstance(given, Sequence) and not isinstance(given, str)):
        return lambda ids: [str(given[i]) for i in ids]
    raise BadOption(
        f"tokens= is a {type(given).__name__}; pass a function from a list of ids to strings, a tokenizer with "
        "convert_ids_to_tokens, or a list of strings by id."
    )


def shown_tokens(context: Context, name: str, index: int) -> tuple[tuple[Token, ...], int] | None:
    """The tokens of one input, without padding, and how many more there are; None if inputs are no text."""
    examples = context.need(name)
    every = token_ids(examples.inputs)
    if every is None:
        return None
    counted = examples.counted_positions
    places = torch.arange(every.shape[1]) if counted is None else counted[index].nonzero().flatten()
    ids, more = every[index][places].tolist(), max(0, len(places) - TOKENS)
    texts = [str(i) for i in ids] if context.decode is None else context.decode(ids)
    if len(texts) != len(ids):
        raise BadOption(f"tokens= gave {len(texts)} strings for {len(ids)} ids; pass a function that gives one each.")
    columns = _by_token(context, name, index, every.shape, places) or [(None,) * 5] * len(ids)
    found = tuple(Token(text, *column) for text, column in zip(texts, columns, strict=True))
    return found[:TOKENS], more


def _by_token(
    context: Context, name: str, index: int, shape: torch.Size, places: Tensor
) -> list[tuple[float | None, float | None, str | None, str | None, bool | None]] | None:
    """Uncertainty, epistemic part, prediction, truth and whether it is right, for every token; None if there is one
    answer for the sequence."""
    prediction, examples = context.prediction(name), context.need(name)
    if not isinstance(context.task, Classes) or prediction.labels.shape != shape:
        return None
    labels = prediction.labels[index].cpu()
    total = prediction.entropy[index].detach().double().cpu()
    try:
        parts: Tensor | None = prediction.epistemic[index].detach().double().cpu()
    except WhenceError:
        parts = None
    known = examples.targets is not None and name != "ood" and examples.targets.shape == shape
    found: list[tuple[float | None, float | None, str | None, str | None, bool | None]] = []
    for t in places.tolist():
        truth = int(examples.targets[index, t]) if known and examples.targets is not None else -1
        target, right = (context.class_name(truth), truth == int(labels[t])) if truth >= 0 else (None, None)
        part = None if parts is None else float(parts[t])
        found.append((float(total[t]), part, context.class_name(int(labels[t])), target, right))
    return found
