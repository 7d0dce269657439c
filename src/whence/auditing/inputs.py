"""The most uncertain inputs, their predictions, and where the uncertainty comes from."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from whence.auditing.context import Context, view_key
from whence.auditing.dense import dense_maps, shown_tokens
from whence.auditing.detection import combined_p_values, flag_level
from whence.engine.batches import Inputs
from whence.numerals import p_value
from whence.report.record.sections import Feature, LayerShare, ShownInput
from whence.where.examined import Examined
from whence.where.novelty import Novelty, novelty_given
from whence.where.shares import Shares

SIDE = 64  # pixels of a picture, at most
FEATURES = 40  # of a row
NOTHING = dict.fromkeys(("predicted", "target", "correct", "confidence", "probs", "prediction"))


def inputs(context: Context) -> tuple[ShownInput, ...]:
    """One entry for each input that is shown."""
    found = []
    for name in ("test", "ood"):
        mine = [index for place, index in context.most_uncertain if place == name]
        if not mine:
            continue
        seen = context.shown_examined(name) if context.posterior.has_curvature else None
        known = _novelty(context, seen)
        by_layer = None if seen is None else seen.own
        found += [_entry(context, name, index, place, by_layer, known) for place, index in enumerate(mine)]
    return tuple(found)


@dataclass(frozen=True)
class _Known:
    """The novelty of the inputs shown, and their p-values by the combination of detectors."""

    by_layer: Novelty
    combined: Tensor | None  # [N]

    def combined_p(self, place: int) -> float | None:
        return None if self.combined is None else float(self.combined[place])


def _novelty(context: Context, seen: Examined | None) -> _Known | None:
    if seen is None or seen.unexplained is None or context.reference is None:
        return None
    by_layer = novelty_given(context.reference, seen.unexplained)
    return _Known(by_layer, combined_p_values(context, seen.inputs, by_layer))


def _entry(
    context: Context, name: str, index: int, place: int, by_layer: Shares | None, known: _Known | None
) -> ShownInput:
    """``place`` is the input's row in ``by_layer`` and ``known``."""
    examples, prediction = context.need(name), context.prediction(name)
    target = None if examples.targets is None or name == "ood" else examples.targets[index]
    aleatoric, epistemic = (
        context.task.part(prediction, part, examples.counted_positions) for part in ("aleatoric", "epistemic")
    )
    text = shown_tokens(context, name, index)
    return ShownInput(
        set=name,  # type: ignore[arg-type]
        index=index,
        view=view_key(name, index) if context.posterior.has_curvature else None,
        uncertainty=float(context.uncertainty(name)[index]),
        aleatoric=None if aleatoric is None else float(aleatoric[index]),
        epistemic=None if epistemic is None else float(epistemic[index]),
        p_value=None if known is None else float(known.by_layer.p_value[place]),
        combined_p_value=None if known is None else known.combined_p(place),
        pixels=pixels(examples.inputs, index),
        row=features(examples.inputs, index, context.features),
        layers=() if by_layer is None else _layer_shares(by_layer, place),
        words="" if known is None else _novelty_words(known, place),
        maps=dense_maps(context, name, index),
        tokens=None if text is None else text[0],
        more_tokens=text[1] if text is not None and text[1] else None,
        **{**NOTHING, **context.task.describe(prediction, index, target, context.class_name)},
    )


def _layer_shares(found: Shares, place: int) -> tuple[LayerShare, ...]:
    """Each layer's share of one input's variance."""
    parts = found.variance[place] / found.variance[place].sum().clamp(min=1e-300)
    return tuple(map(LayerShare, found.names, parts.tolist()))


def _novelty_words(known: _Known, place: int) -> str:
    """Whether an input is flagged: by the combination of detectors, if there is one, and by novelty by layer."""
    found, p = known.by_layer, known.combined_p(place)
    level = flag_level(found.reference.size)
    words = found.words(place, level).removeprefix(f"input {place} ")
    if p is None:
        words = words.removeprefix("is ")
        return words[0].upper() + words[1:]
    flags = "flags it" if p <= level else "does not flag it"
    return f"The combination of detectors {flags} (p = {p_value(p)}). By layer, it {words}"


def pixels(inputs: Inputs, index: int) -> tuple[Any, ...] | None:
    """Grey values or red, green and blue in 0..255, if inputs are images; small enough for a page."""
    if not isinstance(inputs, Tensor) or not inputs.is_floating_point():
        return None
    image = inputs[index].double()
    if image.dim() == 2:
        image = image.unsqueeze(0)
    if image.dim() != 3 or image.shape[0] not in (1, 3) or min(image.shape[1:]) < 4:
        return None
    low, high = _black_and_white(inputs)
    if max(image.shape[1:]) > SIDE:
        scale = SIDE / max(image.shape[1:])
        size = (max(1, round(image.shape[1] * scale)), max(1, round(image.shape[2] * scale)))
        image = torch.nn.functional.adaptive_avg_pool2d(image.unsqueeze(0), size)[0]
    shades = ((image - low) / (high - low) * 255).round().clamp(0, 255).to(torch.uint8)
    return tuple(shades[0].tolist() if len(shades) == 1 else shades.permute(1, 2, 0).tolist())


def _black_and_white(inputs: Tensor) -> tuple[float, float]:
    """The values shown as black and white: the extremes over part of the set."""
    some = inputs[:: max(1, len(inputs) // 256)].double()
    low, high = float(some.min()), float(some.max())
    return low, high if high > low else low + 1


def features(inputs: Inputs, index: int, names: tuple[str, ...] | None) -> tuple[Feature, ...] | None:
    """Feature names and values, if inputs are rows of a table."""
    if not isinstance(inputs, Tensor) or inputs.dim() != 2 or not inputs.is_floating_point():
        return None
    values = inputs[index].double().tolist()
    if names is None or len(names) != len(values):
        names = tuple(f"x{i}" for i in range(len(values)))
    return tuple(map(Feature, names[:FEATURES], values[:FEATURES]))
