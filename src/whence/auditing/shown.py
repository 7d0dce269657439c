"""The most uncertain inputs: what they are, what the network says of them, where its uncertainty comes from."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from whence.auditing.context import Context, part, uncertainty
from whence.auditing.pick import Picked, picked
from whence.auditing.plain import number
from whence.batches import from_numpy
from whence.errors import WhenceError
from whence.where.novelty import Novelty, novelty
from whence.where.shares import Shares, shares

SIDE = 64  # pixels of a picture, at most
FEATURES = 40  # of a row
PROBABLE = 3  # classes that are named


def inputs(context: Context) -> list[dict[str, Any]]:
    """One entry for each input that is shown."""
    found = []
    chosen = picked(context)
    for name in ("test", "ood"):
        mine = [one for one in chosen if one.held == name]
        if mine:
            index = torch.tensor([one.index for one in mine])
            some = context.need(name).at(index)
            layers = shares(context.where_posterior, some) if context.subject.laplace else None
            known = _novelty(context, some)
            for place, one in enumerate(mine):
                entry = _entry(context, one)
                entry["layers"] = [] if layers is None else _parts(layers, place)
                entry["p_value"] = None if known is None else number(known.p_value[place])
                entry["words"] = "" if known is None else _said(known, place)
                found.append(entry)
    return found


def _parts(found: Shares, place: int) -> list[list[Any]]:
    """Each layer's share of one input's variance."""
    part_of = found.variance[place] / found.variance[place].sum().clamp(min=1e-300)
    return [[n, number(v)] for n, v in zip(found.names, part_of, strict=True)]


def reference_for(context: Context) -> Any:
    """What novelty is held against: kept from tuning, or made of the validation data; None where there is neither."""
    known = getattr(context.posterior, "reference", None)
    if known is not None or not context.has("validation"):
        return known
    if "reference" not in context.made:
        from whence.where.reference import reference_of

        context.made["reference"] = reference_of(context.posterior, context.profiled["validation"].pair)
    return context.made["reference"]


def _novelty(context: Context, some: Any) -> Novelty | None:
    try:
        known = reference_for(context) if context.subject.laplace else None
        return None if known is None else novelty(context.posterior, some, reference=known)
    except WhenceError:
        return None


def _said(known: Novelty, place: int) -> str:
    """The sentence about one input, without its number in the batch."""
    words = known.words(place, max(0.01, 1 / (known.reference.size + 1)))
    rest = words.removeprefix(f"input {place} ")
    return rest[0].upper() + rest[1:]


def _entry(context: Context, one: Picked) -> dict[str, Any]:
    held, prediction = context.need(one.held), context.prediction(one.held)
    i = one.index
    target = None if held.targets is None or one.held == "ood" else held.targets[i]
    entry: dict[str, Any] = {"set": one.held, "index": i, "view": one.key if context.subject.laplace else None}
    entry |= {"predicted": None, "target": None, "correct": None, "confidence": None, "probs": None, "prediction": None}
    entry["uncertainty"] = number(uncertainty(prediction)[i])
    for name in ("aleatoric", "epistemic"):
        values = part(prediction, name)
        entry[name] = None if values is None else number(values[i])
    entry |= _said_by_network(context, prediction, i, target)
    return entry | {"pixels": pixels(held.inputs, i), "row": row(held.inputs, i, context.options.features)}


def _said_by_network(context: Context, prediction: Any, i: int, target: Tensor | None) -> dict[str, Any]:
    if context.task == "classification" and prediction.probs.dim() == 2:
        probs = prediction.probs[i].double()
        top = probs.argsort(descending=True)[:PROBABLE].tolist()
        name = context.class_name
        return {
            "predicted": name(top[0]),
            "target": None if target is None else name(int(target)),
            "correct": None if target is None else int(target) == top[0],
            "confidence": number(probs.max()),
            "probs": [[name(c), number(probs[c])] for c in top],
        }
    if context.task == "binary" and prediction.probs[i].numel() == 1:
        p = float(prediction.probs[i])
        one = target is not None and target.numel() == 1
        return {
            "predicted": context.class_name(int(p > 0.5)),
            "target": context.class_name(int(target)) if one and target is not None else None,
            "correct": bool(int(target) == int(p > 0.5)) if one and target is not None else None,
            "confidence": number(max(p, 1 - p)),
            "probs": [[context.class_name(c), number(q)] for c, q in ((1, p), (0, 1 - p))],
        }
    if hasattr(prediction, "mean") and prediction.mean[i].numel() == 1:
        spread = prediction.variance[i].double().clamp(min=0).sqrt()
        said = {"mean": number(prediction.mean[i]), "std": number(spread)}
        goal = None if target is None or target.numel() != 1 else f"{float(target):.4g}"
        return {"predicted": f"{float(prediction.mean[i]):.4g}", "target": goal, "prediction": said}
    return {}


def pixels(inputs: Any, index: int) -> list[Any] | None:
    """Grey values or red, green and blue in 0..255, if inputs are images; small enough for a page."""
    if not isinstance(inputs, Tensor) or not inputs.is_floating_point():
        return None
    image = inputs[index].double()
    if image.dim() == 2:
        image = image.unsqueeze(0)
    if image.dim() != 3 or image.shape[0] not in (1, 3) or min(image.shape[1:]) < 4:
        return None
    low, high = _range(inputs)
    if max(image.shape[1:]) > SIDE:
        scale = SIDE / max(image.shape[1:])
        size = (max(1, round(image.shape[1] * scale)), max(1, round(image.shape[2] * scale)))
        image = torch.nn.functional.adaptive_avg_pool2d(image.unsqueeze(0), size)[0]
    shades = ((image - low) / (high - low) * 255).round().clamp(0, 255).to(torch.uint8)
    return shades[0].tolist() if len(shades) == 1 else shades.permute(1, 2, 0).tolist()


def _range(inputs: Tensor) -> tuple[float, float]:
    """What is black and what is white: the extremes of some of the set."""
    some = inputs[:: max(1, len(inputs) // 256)].double()
    low, high = float(some.min()), float(some.max())
    return low, high if high > low else low + 1


def row(inputs: Any, index: int, names: tuple[str, ...] | None) -> list[list[Any]] | None:
    """Features with their names, if inputs are rows of a table."""
    inputs = from_numpy(inputs)
    if not isinstance(inputs, Tensor) or inputs.dim() != 2:
        return None
    values = inputs[index].double().tolist()
    named = names if names is not None and len(names) == len(values) else [f"x{i}" for i in range(len(values))]
    return [[n, number(v) if math.isfinite(v) else None] for n, v in zip(named, values, strict=True)][:FEATURES]
