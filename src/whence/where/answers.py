"""Answers to the main questions about a profile, in words and numbers."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from whence.engine.batches import as_source, bare, is_pair
from whence.errors import BadData
from whence.metrics import auroc, ece, nll, rmse
from whence.numerals import area, number, percent, percent_in_words, points
from whence.predictive.links import predict_draws
from whence.predictive.predictions import ClassificationPrediction
from whence.recording.units import units_of
from whence.where.examined import FACTORS, Examined, examined
from whence.where.shares import TINY, Shares
from whence.where.weights import identified_of

if TYPE_CHECKING:
    from whence.posteriors.laplace.posterior import Laplace

COVER = 0.95  # share of the predictive variance
SAME_NLL, SAME_AUROC = 1e-3, 0.005  # smaller differences are ignored
UNIDENTIFIED = 0.01  # a unit whose weights are identified less than this has learnt nothing
SAME, OTHER = 0.02, 0.1  # part of the variance that moves: below it comes from the same layers, from it on from others
NAMED = 8  # layers that are listed
LABELS = {"nll": "NLL", "ece": "ECE", "rmse": "RMSE", "ood_auroc": "AUROC against novel inputs"}


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
    """All questions that can be answered with the given data."""

    items: tuple[Answer, ...]

    def __str__(self) -> str:
        return "\n\n".join(map(str, self.items))

    __repr__ = __str__

    def to_dict(self) -> list[dict[str, Any]]:
        return [{"question": a.question, "words": a.words, "numbers": a.numbers} for a in self.items]


@dataclass(frozen=True)
class _Scorer:
    """Test data and novel inputs, and the scores of predictions for them."""

    inside: Examined
    y: Tensor
    outside: Examined | None

    @property
    def posterior(self) -> Laplace:
        return self.inside.posterior

    def scores(self, layers: list[str] | None = None) -> dict[str, float]:
        """NLL, ECE or RMSE, and AUROC against novel inputs; perhaps of some layers only."""
        return self._scores_of([self.inside.prediction(layers), *self._outside(layers)])

    def without_weights(self) -> dict[str, float] | None:
        """The same of the plain network; None if its outputs are not kept."""
        outputs = [one.own.outputs for one in (self.inside, self.outside) if one is not None]
        if any(found is None for found in outputs):
            return None
        likelihood = self.posterior.likelihood
        return self._scores_of([predict_draws(likelihood, found[None]) for found in outputs if found is not None])

    def _outside(self, layers: list[str] | None) -> list[Any]:
        return [] if self.outside is None else [self.outside.prediction(layers)]

    def _scores_of(self, predictions: list[Any]) -> dict[str, float]:
        """Of the predictions for test data, and for novel inputs if there are any."""
        prediction = predictions[0]
        found = {"nll": float(nll(prediction, self.y, resamples=0))}
        if isinstance(prediction, ClassificationPrediction):
            found["ece"] = float(ece(prediction, self.y, resamples=0))
        elif hasattr(prediction, "mean"):
            found["rmse"] = float(rmse(prediction, self.y, resamples=0))
        if len(predictions) > 1:
            both = [_uncertainty(one) for one in predictions]
            positive = torch.cat([torch.full((len(u),), i > 0) for i, u in enumerate(both)])
            found["ood_auroc"] = float(auroc(torch.cat(both), positive, resamples=0))
        return found


def answers(posterior: Laplace, test: Any, *, ood: Any = None) -> Answers:
    """Is the last layer enough, and which layers are? What is unidentified? And for novel inputs? And the prior?

    ``test`` is an (inputs, targets) pair; ``ood`` bare inputs, or a pair.
    """
    test = as_source(test)
    if not is_pair(test):
        raise BadData("test must be a pair (inputs, targets); the answers compare predictions with targets.")
    x, y = test
    outside = None if ood is None else examined(posterior, bare(ood))
    return answers_given(examined(posterior, x, factors=FACTORS), y, outside)


def answers_given(inside: Examined, y: Tensor, outside: Examined | None, profile: Laplace | None = None) -> Answers:
    """The answers for test inputs that have been examined, under :data:`FACTORS`, and novel ones.

    ``profile`` is the posterior of the shares, if it is not the one that predicts.
    """
    posterior = inside.posterior
    scorer, profile = _Scorer(inside, y, outside), posterior if profile is None else profile
    found = [_unidentified(profile), _prior(inside)]
    if not posterior.curvature.joint and len(posterior.blocks) > 1:
        whole = scorer.scores()
        found = [_last_layer(scorer, inside.own, whole), _fewest_layers(scorer, inside.own, whole), *found]
    if outside is not None:
        found.append(_novel_inputs(inside.own, outside.own))
    return Answers(tuple(found))


def _uncertainty(prediction: Any) -> Tensor:
    values = prediction.entropy if hasattr(prediction, "entropy") else prediction.variance
    return values.reshape(len(values), -1).sum(1).double().cpu()


def _in_points(error: float) -> str:
    return f"{points(error)} percentage points"


def _change(few: dict[str, float], whole: dict[str, float]) -> str:
    shown: dict[str, Callable[[float], str]] = {"ece": _in_points, "ood_auroc": area}
    rows = [(label, shown.get(k, number), few[k], whole[k]) for k, label in LABELS.items() if k in whole]
    return ", ".join(f"{label} {show(some)} (all layers: {show(every)})" for label, show, some, every in rows)


def _last_layer(scorer: _Scorer, inside: Shares, whole: dict[str, float]) -> Answer:
    blocks = scorer.posterior.blocks
    last = next((b.name for b in reversed(blocks) if b.form is not None), blocks[-1].name)  # with a weight matrix
    index, sums = inside.names.index(last), inside.over_inputs()
    share = float(sums.variance_share[index])
    explained = 1 - float(sums.variance[index] / sums.prior[index])
    few, plain = scorer.scores([last]), scorer.without_weights()
    words = (
        f"{_enough(share, few, whole, plain)}: layer `{last}` contributes {percent(share)} of the variance, and "
        f"training reduced its prior variance by {percent_in_words(explained, 0)}. With its weights alone uncertain, "
        f"{len(scorer.y):,} test inputs have {_change(few, whole)}."
    )
    if few["nll"] < whole["nll"] - SAME_NLL:
        words += " It predicts better alone, so the prior of the other layers may be too weak; tune it."
    numbers = {"layer": last, "share": share, "explained": explained, "whole": whole, "last_layer": few}
    numbers |= {} if plain is None else {"plain": plain}
    return Answer("Is it enough to treat only the last layer as Bayesian?", words, numbers)


def _enough(share: float, few: dict[str, float], whole: dict[str, float], plain: dict[str, float] | None = None) -> str:
    """By the share of the variance; otherwise by predictions, if they do not get worse, and if uncertain weights
    change them at all."""
    if share >= COVER:
        return "Yes"
    if plain is not None and _same(plain, whole):
        return (
            "Cannot be judged by the predictions: under their prior the weights have hardly any uncertainty, and no "
            "layer changes them. By the variance, no"
        )
    worse = few["nll"] > whole["nll"] + SAME_NLL
    worse = worse or few.get("ood_auroc", 0) < whole.get("ood_auroc", 0) - SAME_AUROC
    return "No" if worse else "Yes for prediction, no for locating the uncertainty"


def _same(one: dict[str, float], other: dict[str, float]) -> bool:
    """Whether the scores that the answer depends on are equal, but for differences that are ignored."""
    limits = {"nll": SAME_NLL, "ood_auroc": SAME_AUROC}
    return all(abs(one[key] - other[key]) <= limit for key, limit in limits.items() if key in one and key in other)


def _fewest_layers(scorer: _Scorer, inside: Shares, whole: dict[str, float]) -> Answer:
    share, posterior = inside.over_inputs().variance_share, scorer.posterior
    order = share.argsort(descending=True)
    needed = int((share[order].cumsum(0) < COVER).sum()) + 1
    chosen = [inside.names[i] for i in sorted(order[:needed].tolist())]
    few = scorer.scores(chosen)
    weights = sum(b.size for b in posterior.blocks if b.name in chosen) / posterior.parameters
    named = ", ".join(f"`{name}`" for name in chosen[:NAMED]) + (
        f" and {needed - NAMED} more" if needed > NAMED else ""
    )
    words = (
        f"{needed} of {len(inside.names)} layers ({named}), with {percent(weights)} of the weights. With these alone "
        "uncertain, "
        f"{len(scorer.y):,} test inputs have {_change(few, whole)}."
    )
    if needed == len(inside.names):
        words = f"All {needed} of them."
    numbers = {"layers": chosen, "share": float(share[order[:needed]].sum()), "weights": weights, "kept": few}
    return Answer(f"Which layers cover {COVER:.0%} of the predictive variance?", words, numbers)


def _unidentified(posterior: Laplace) -> Answer:
    dead: dict[str, list[int]] = {}
    layers, total = {}, 0
    for block in posterior.blocks:
        identified = identified_of(posterior, block)
        units = units_of(posterior.network, block)
        mean = units.total(identified) / units.total(torch.ones_like(identified))
        layers[block.name], total = float(identified.mean()), total + units.count
        dead[block.name] = (mean < UNIDENTIFIED).nonzero().flatten().tolist()
    least = min(layers, key=layers.__getitem__)
    places = sorted(((len(units), name) for name, units in dead.items() if units), reverse=True)
    where = ", ".join(f"{count:,} in layer `{name}`" for count, name in places[:NAMED])
    if len(places) == 1:
        where = f"{'all' if places[0][0] > 1 else 'it is'} in layer `{places[0][1]}`"
    where += f" and the rest in {len(places) - NAMED} more layers" if len(places) > NAMED else ""
    few = f"{percent(UNIDENTIFIED)}{': ' + where if where else ''}"
    words = (
        f"In {sum(map(len, dead.values())):,} of {total:,} units training reduced the variance of the weights by less "
        f"than {few}. The layer whose single weights it identified least is `{least}` ({percent(layers[least])} on "
        "average). Whether weights can be removed is another question, which a pruning curve answers."
    )
    return Answer("Which layers or units stayed unidentified?", words, {"identified": layers, "units": dead})


def _prior(examined: Examined) -> Answer:
    inside = examined.own
    by_factor = {factor: shares.over_inputs().variance_share for factor, shares in examined.shares.items()}
    moved = max(float((share - by_factor[1.0]).abs().sum()) / 2 for share in by_factor.values())
    sums = inside.over_inputs()
    from_prior = float((sums.variance_share - sums.prior_share).abs().sum()) / 2
    explained = 1 - float(inside.variance.sum() / inside.prior.sum())
    words = (
        f"Training reduced the prior variance by {percent_in_words(explained, 0)}. Compared with the shares under the "
        f"prior alone, {percent(from_prior, 0)} of the variance is in other layers. A prior ten times weaker or "
        f"stronger moves {'less than 1%' if moved < 0.01 else f'up to {percent(moved, 0)}'} of the variance to other "
        "layers."
    )
    numbers = {"explained": explained, "from_prior": from_prior, "moved": moved}
    return Answer("How much do the shares depend on the prior?", words, numbers)


def _novel_inputs(inside: Shares, outside: Shares) -> Answer:
    own, other = inside.over_inputs(), outside.over_inputs()
    moved = float((own.variance_share - other.variance_share).abs().sum()) / 2
    explained = [1 - s.variance / s.prior.clamp(min=TINY) for s in (own, other)]
    drop = torch.nan_to_num(explained[0] - explained[1], nan=-math.inf)
    most = int(drop.argmax())
    place = "from the same layers"
    if moved >= SAME:
        place = "mostly from the same layers" if moved < OTHER else "from other layers"
    change = other.variance_share - own.variance_share
    at = int(change.argmax())
    shares = [percent(float(one.variance_share[at]), 1) for one in (own, other)]
    rises = f" The share of layer `{inside.names[at]}` rises most, from {shares[0]} to {shares[1]}."
    largest = rises if moved >= SAME else ""
    falls = (
        f"The part of the prior variance that training explains falls most in layer `{inside.names[most]}`, from "
        f"{percent(float(explained[0][most]), 0)} to {percent(float(explained[1][most]), 0)}"
        if float(drop[most]) > 0.01
        else "The part of the prior variance that training explains does not fall in any layer"
    )
    ratio = float(outside.total.mean() / inside.total.mean().clamp(min=TINY))
    words = (
        f"It comes {place}: {percent(moved, 0)} of the variance moves between layers.{largest} {falls}; the mean "
        "variance of "
        f"{len(outside.total):,} novel inputs is {number(ratio, 2)} times that of {len(inside.total):,} test inputs."
    )
    numbers = {
        "moved": moved,
        "layers": list(inside.names),
        "explained_inside": explained[0].tolist(),
        "explained_outside": explained[1].tolist(),
    }
    return Answer("Does the uncertainty come from the same layers for novel inputs?", words, numbers)
