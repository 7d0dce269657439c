"""The questions that a profile is for, answered in plain words, each with its numbers."""

from __future__ import annotations

import math
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from whence.batches import from_numpy, is_pair
from whence.curvature.units import units_of
from whence.errors import BadData
from whence.metrics import auroc, ece, nll, rmse
from whence.posteriors.restrict import restricted
from whence.where.breakdown import sensitivity
from whence.where.shares import Shares, shares
from whence.where.weights import identified_of

if TYPE_CHECKING:
    from whence.posteriors.laplace import Laplace

COVER = 0.95  # of the predictive variance
UNKNOWN = 0.01  # a unit whose weights are identified less than this has learnt nothing
NAMED = 8  # layers that are named
TINY = torch.finfo(torch.float64).tiny
CHECKED = 256  # inputs on which the prior is varied


@dataclass(frozen=True)
class Answer:
    """A question, the answer in words, and the numbers behind it."""

    question: str
    words: str
    numbers: dict[str, Any] = field(default_factory=dict)

    def __str__(self) -> str:
        return f"{self.question}\n  {self.words}"


@dataclass(frozen=True)
class Answers:
    """All that could be answered with the data at hand."""

    items: tuple[Answer, ...]

    def __str__(self) -> str:
        return "\n\n".join(map(str, self.items))

    __repr__ = __str__

    def to_dict(self) -> list[dict[str, Any]]:
        return [{"question": a.question, "words": a.words, "numbers": a.numbers} for a in self.items]


def answers(posterior: Laplace, test: Any, *, ood: Any = None, profile: Laplace | None = None) -> Answers:
    """Is the last layer enough, and which layers are? What is unidentified? And for novel inputs? And the prior?

    ``test`` is an (inputs, targets) pair; ``ood`` bare inputs, or a pair. ``profile`` is the posterior that shares are
    of, where that is not the one that predicts.
    """
    profile = posterior if profile is None else profile
    test = from_numpy(test)
    if not is_pair(test):
        raise BadData("test is a pair (inputs, targets) here; the answers compare predictions with targets.")
    x, y = test
    novel = None if ood is None else (ood[0] if is_pair(from_numpy(ood)) else from_numpy(ood))
    inside = shares(profile, x)
    outside = None if novel is None else shares(profile, novel)
    found = [_unidentified(profile), _prior(profile, x, inside)]
    if not posterior.curvature.joint and len(posterior.blocks) > 1:
        whole = _quality(posterior, x, y, novel)
        found = [
            _last_layer(posterior, inside, whole, x, y, novel),
            _fewest(posterior, inside, whole, x, y, novel),
            *found,
        ]
    if outside is not None:
        found.append(_elsewhere(inside, outside))
    return Answers(tuple(found))


def _quality(posterior: Laplace, x: Any, y: Tensor, novel: Any) -> dict[str, float]:
    """NLL, ECE or RMSE, AUROC against novel inputs, and the seconds of the prediction."""
    times = []
    for _ in range(3):  # the first decomposes, the others are timed
        start = time.perf_counter()
        prediction = posterior.predict(x)
        times.append(time.perf_counter() - start)
    scores = {"seconds": min(times[1:]), "nll": float(nll(prediction, y, resamples=0))}
    if posterior.likelihood.task == "classification":
        scores["ece"] = float(ece(prediction, y, resamples=0))
    elif hasattr(prediction, "mean"):
        scores["rmse"] = float(rmse(prediction, y, resamples=0))
    if novel is not None:
        apart = [_uncertainty(prediction), _uncertainty(posterior.predict(novel))]
        labels = torch.cat([torch.full((len(u),), i > 0) for i, u in enumerate(apart)])
        scores["ood_auroc"] = float(auroc(torch.cat(apart), labels, resamples=0))
    return scores


def _uncertainty(prediction: Any) -> Tensor:
    values = prediction.entropy if hasattr(prediction, "entropy") else prediction.variance
    return values.reshape(len(values), -1).sum(1).double().cpu()


def _share(found: Shares) -> Tensor:
    sums = found.variance.sum(0)
    return sums / sums.sum()


def _change(few: dict[str, float], whole: dict[str, float]) -> str:
    names = {"nll": "NLL", "ece": "ECE", "rmse": "RMSE", "ood_auroc": "AUROC against novel inputs"}
    return ", ".join(f"{label} {whole[k]:.4g} → {few[k]:.4g}" for k, label in names.items() if k in whole)


def _last_layer(posterior: Laplace, inside: Shares, whole: dict[str, float], x: Any, y: Tensor, novel: Any) -> Answer:
    last = _last_name(posterior)
    index = inside.names.index(last)
    share = float(_share(inside)[index])
    explained = 1 - float(inside.variance[:, index].sum() / inside.prior[:, index].sum())
    few = _quality(restricted(posterior, [last]), x, y, novel)
    same = abs(few["nll"] - whole["nll"]) < 1e-3 and abs(few.get("ood_auroc", 0) - whole.get("ood_auroc", 0)) < 0.005
    enough = "Yes" if share >= COVER else "For prediction yes, as an account of the uncertainty no" if same else "No"
    words = (
        f"{enough}: {last!r} causes {share:.1%} of the variance (the data have settled "
        f"{explained:.0%} of what its prior left open). With it alone: {_change(few, whole)}."
    )
    numbers = {"layer": last, "share": share, "explained": explained, "whole": whole, "last_layer": few}
    return Answer("Is it enough to treat only the last layer as Bayesian?", words, numbers)


def _last_name(posterior: Laplace) -> str:
    """The last layer with a weight matrix, in the network's order."""
    matrices = [b.name for b in posterior.blocks if b.form is not None]
    return matrices[-1] if matrices else posterior.blocks[-1].name


def _fewest(posterior: Laplace, inside: Shares, whole: dict[str, float], x: Any, y: Tensor, novel: Any) -> Answer:
    share = _share(inside)
    order = share.argsort(descending=True)
    needed = int((share[order].cumsum(0) < COVER).sum()) + 1
    chosen = [inside.names[i] for i in sorted(order[:needed].tolist())]
    few = _quality(restricted(posterior, chosen), x, y, novel)
    weights = sum(b.size for b in posterior.blocks if b.name in chosen) / posterior.parameters
    faster = few["seconds"] / max(whole["seconds"], 1e-9)
    cost = f" takes {faster:.0%} of the time and" if needed < len(inside.names) and faster < 0.9 else ""
    named = ", ".join(map(repr, chosen[:NAMED])) + (f" and {needed - NAMED} more" if needed > NAMED else "")
    words = (
        f"{needed} of {len(inside.names)}: {named}, with {weights:.1%} of the weights. Predicting with them "
        f"alone{cost} gives {_change(few, whole)}."
    )
    numbers = {"layers": chosen, "share": float(share[order[:needed]].sum()), "weights": weights, "kept": few}
    return Answer(f"Which layers cover {COVER:.0%} of the predictive variance?", words, numbers)


def _unidentified(posterior: Laplace) -> Answer:
    dead: dict[str, list[int]] = {}
    layers = {}
    for block in posterior.blocks:
        identified = identified_of(posterior, block)
        units = units_of(posterior.network, block)
        mean = units.total(identified) / units.total(torch.ones_like(identified))
        layers[block.name] = float(identified.mean())
        dead[block.name] = (mean < UNKNOWN).nonzero().flatten().tolist()
    least = min(layers, key=layers.__getitem__)
    count, total = sum(map(len, dead.values())), sum(units_of(posterior.network, b).count for b in posterior.blocks)
    places = sorted(((len(units), name) for name, units in dead.items() if units), reverse=True)
    where = ", ".join(f"{number} in {name!r}" for number, name in places[:NAMED])
    where += f" and the rest in {len(places) - NAMED} more layers" if len(places) > NAMED else ""
    words = (
        f"{count} of {total} units are identified less than {UNKNOWN:.0%}{': ' + where if where else ''}. The least "
        f"identified layer is {least!r} (mean {layers[least]:.2g}). What is unidentified could be pruned: see "
        "prune_curve."
    )
    return Answer("Which layers or units stayed unidentified?", words, {"identified": layers, "units": dead})


def _prior(posterior: Laplace, x: Any, inside: Shares) -> Answer:
    some = x[:CHECKED] if isinstance(x, Tensor) else x
    rows = list(sensitivity(posterior, some, (0.1, 1.0, 10.0), "variance").rows())
    table = {f: [r["variance_share"] for r in rows if r["factor"] == f] for f in (0.1, 1.0, 10.0)}
    moved = max(sum(abs(a - b) for a, b in zip(table[f], table[1.0], strict=True)) / 2 for f in (0.1, 10.0))
    prior = inside.prior.sum(0) / inside.prior.sum()
    own = _share(inside)
    apart = float((own - prior).abs().sum()) / 2
    explained = 1 - float(inside.variance.sum() / inside.prior.sum())
    words = (
        f"Training reduced the prior variance by {explained:.0%}. Shares differ from those of the prior alone by "
        f"{apart:.0%} of the variance; a prior ten times weaker or stronger moves them by up to {moved:.0%}."
    )
    return Answer(
        "How much of the answer is the prior?", words, {"explained": explained, "from_prior": apart, "moved": moved}
    )


def _elsewhere(inside: Shares, outside: Shares) -> Answer:
    own, other = _share(inside), _share(outside)
    apart = float((own - other).abs().sum()) / 2
    explained = [1 - s.variance.sum(0) / s.prior.sum(0).clamp(min=TINY) for s in (inside, outside)]
    drop = torch.nan_to_num(explained[0] - explained[1], nan=-math.inf)
    most = int(drop.argmax())
    place = "the same place" if apart < 0.1 else "another place"
    falls = (
        f"Explained falls most in {inside.names[most]!r}, from {float(explained[0][most]):.0%} to "
        f"{float(explained[1][most]):.0%}"
        if float(drop[most]) > 0.01
        else "What the data explain does not fall in any layer"
    )
    ratio = float(outside.total.mean() / inside.total.mean().clamp(min=TINY))
    words = (
        f"It sits in {place}: {apart:.0%} of the variance lies in other layers. {falls}; the mean variance is "
        f"{ratio:.2g} times that of test inputs."
    )
    numbers = {
        "moved": apart,
        "layers": list(inside.names),
        "explained_inside": explained[0].tolist(),
        "explained_outside": explained[1].tolist(),
    }
    return Answer("Does the uncertainty sit in the same place for novel inputs?", words, numbers)
