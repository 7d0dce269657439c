"""How well a score tells positives from negatives: AUROC, average precision, false positive rate.

Index legend: B rows of weights, P positives, M negatives; both sorted from the highest score down.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, Unpack

import torch
from torch import Tensor

from whence.errors import BadData, BadOption
from whence.metrics.bootstrap import measure
from whence.metrics.elements import (
    ArrayLike,
    Common,
    Elements,
    Options,
    check_share,
    elements,
    finite,
    fit,
    read,
    tensor,
    truth,
    whole_groups,
)
from whence.metrics.estimate import Estimate


@dataclass(frozen=True)
class Ranked:
    """Positives, then negatives, each from the highest score down."""

    elements: Elements
    positives: int
    above: Tensor  # [P] negatives above each positive
    level: Tensor  # [P] negatives above it or tied with it
    tied: Tensor  # [P] last positive that is tied with it

    @property
    def trials(self) -> tuple[int, int]:
        """Groups that hold positives, and negatives."""
        group = self.elements.group
        if group is None:
            return self.positives, self.elements.count - self.positives
        return len(group[: self.positives].unique()), len(group[self.positives :].unique())

    def rows(self, counts: Tensor) -> tuple[Tensor, Tensor]:
        """Weights of positives [B, P]; cumulated weights of negatives from the top, with 0 before, [B, M + 1]."""
        weights = self.elements.rows(counts)
        up = torch.nn.functional.pad(weights[:, self.positives :], (1, 0)).cumsum(1)
        return weights[:, : self.positives], up


def auroc(scores: ArrayLike, positive: ArrayLike, **common: Unpack[Common]) -> Estimate:
    """Area under the ROC curve: P(positive scores above negative), ties counted half (Mann & Whitney 1947)."""
    return _score("auroc", scores, positive, read("auroc", common), _auroc, min)


def aupr(scores: ArrayLike, positive: ArrayLike, **common: Unpack[Common]) -> Estimate:
    """Average precision: Σ (R_n − R_{n−1}) P_n over thresholds, without interpolation.

    It depends on how many are positive, so that resamples leave that free, unlike those of the other two.
    """
    return _score("aupr", scores, positive, read("aupr", common), _aupr, min, stratified=False)


def fpr95(scores: ArrayLike, positive: ArrayLike, *, tpr: float = 0.95, **common: Unpack[Common]) -> Estimate:
    """Share of negatives at or above the highest threshold that keeps at least ``tpr`` of the positives."""
    check_share(tpr, "tpr", "0.95 keeps 95 % of the positives", closed=True)
    return _score("fpr95", scores, positive, read("fpr95", common), lambda r: _fpr(r, tpr), lambda n: n[1])


def detection(
    inside: ArrayLike, outside: ArrayLike, *, tpr: float = 0.95, **common: Unpack[Common]
) -> dict[str, Estimate]:
    """How well uncertainty tells inputs from outside the distribution: auroc, aupr_out, aupr_in, fpr95.

    Higher is more uncertain; outside is positive, but for aupr_in. ``mask``, ``weights`` and ``groups`` are pairs
    (of inside, of outside), either of which may be None.
    """
    read("detection", common)
    scores, positive, joined = _joined(inside, outside, common)
    options = read("detection", joined)
    return {
        "auroc": auroc(scores, positive, **joined),
        "aupr_out": _score("aupr_out", scores, positive, options, _aupr, min),
        "aupr_in": _score("aupr_in", -scores, ~positive, options, _aupr, min),
        "fpr95": fpr95(scores, positive, tpr=tpr, **joined),
    }


def _joined(inside: ArrayLike, outside: ArrayLike, common: Common) -> tuple[Tensor, Tensor, Common]:
    """Scores, whether they are from outside, and the keywords, for all of them flat."""
    first = tensor(inside, "inside")
    parts = [first, tensor(outside, "outside").to(first.device)]
    scores = torch.cat([p.reshape(-1).double() for p in parts])
    positive = torch.arange(len(scores), device=first.device) >= parts[0].numel()
    joined = common.copy()
    for key, default in (("mask", True), ("weights", 1.0)):
        if common.get(key) is not None:
            pair = _pair(common[key], key)  # type: ignore[literal-required]
            flat = [
                torch.full((p.numel(),), default) if v is None else fit(v, p.shape, key).cpu()
                for v, p in zip(pair, parts, strict=True)
            ]
            joined[key] = torch.cat(flat)  # type: ignore[literal-required]
    if common.get("groups") is not None or any(p.dim() > 1 and p.shape[1:].numel() > 1 for p in parts):
        given = common.get("groups")
        pair = (None, None) if given is None else _pair(given, "groups")
        ids = [_ids(v, p) for v, p in zip(pair, parts, strict=True)]
        if pair[0] is None or pair[1] is None:
            ids[1] = ids[1] - ids[1].min() + ids[0].max() + 1 if ids[0].numel() and ids[1].numel() else ids[1]
        joined["groups"] = torch.cat(ids)
    return scores, positive, joined


def _pair(value: Any, key: str) -> tuple[Any, Any]:
    if not isinstance(value, (tuple, list)) or len(value) != 2:
        raise BadOption(f"{key} of detection() is a pair (of inside, of outside); either may be None.")
    return value[0], value[1]


def _ids(groups: ArrayLike | None, scores: Tensor) -> Tensor:
    if groups is not None:
        return whole_groups(fit(groups, scores.shape, "groups")).cpu()
    return torch.arange(len(scores)).repeat_interleave(scores.shape[1:].numel())


def _score(
    name: str,
    scores: ArrayLike,
    positive: ArrayLike,
    options: Options,
    core: Callable[[Ranked], Callable[[Tensor], Tensor]],
    trials: Callable[[tuple[int, int]], int],
    stratified: bool = True,
) -> Estimate:
    """Resamples without one of the classes, which only those that are not stratified can be, do not count."""
    ranked = rank(scores, positive, options)
    members = ranked.elements if stratified else replace(ranked.elements, sizes=(ranked.elements.groups,))
    return measure(name, core(ranked), members, options, (0.0, 1.0), trials(ranked.trials), spread=True)


def rank(scores: ArrayLike, positive: ArrayLike, options: Options) -> Ranked:
    """Check, sort and stratify by class."""
    given = tensor(scores, "scores")
    is_one = tensor(positive, "positive").to(given.device)
    if is_one.dim() == 0:
        raise BadData("scores and positive need an example dimension: N numbers each.")
    found = elements(is_one.shape, options, given.device)
    value = finite(fit(given, is_one.shape, "scores")[found.keep], "scores").double()
    ones = truth(finite(is_one.reshape(-1)[found.keep], "positive"), "positive")
    for which, name in ((ones, "positive"), (~ones, "negative")):
        if not bool(which.any()):
            raise BadData(f"no {name} among the {found.count} elements that count; both classes are needed.")
    order = value.argsort(descending=True, stable=True)
    value, found, ones = value[order], found.ordered(order), ones[order]
    found, order = found.split(ones)
    count = int(ones.sum())
    down = -value[order]
    up, against = down[:count].contiguous(), down[count:].contiguous()
    return Ranked(
        elements=found,
        positives=count,
        above=torch.searchsorted(against, up),
        level=torch.searchsorted(against, up, right=True),
        tied=torch.searchsorted(up, up, right=True) - 1,
    )


def _auroc(ranked: Ranked) -> Callable[[Tensor], Tensor]:
    ties = bool((ranked.above != ranked.level).any())

    def core(counts: Tensor) -> Tensor:
        weights, up = ranked.rows(counts)
        lost = up.index_select(1, ranked.above)
        if ties:
            lost = (lost + up.index_select(1, ranked.level)) / 2
        return 1 - (weights * lost).sum(1) / (weights.sum(1) * up[:, -1])

    return core


def _aupr(ranked: Ranked) -> Callable[[Tensor], Tensor]:
    ties = bool((ranked.tied[1:] == ranked.tied[:-1]).any())

    def core(counts: Tensor) -> Tensor:
        weights, up = ranked.rows(counts)
        hits = weights.cumsum(1)
        if ties:
            hits = hits.index_select(1, ranked.tied)
        found = hits + up.index_select(1, ranked.level)
        precision = torch.where(hits > 0, hits / found, 0.0)
        area = (weights * precision).sum(1) / weights.sum(1)
        return torch.where(up[:, -1] > 0, area, torch.nan)

    return core


def _fpr(ranked: Ranked, tpr: float) -> Callable[[Tensor], Tensor]:
    def core(counts: Tensor) -> Tensor:
        weights, up = ranked.rows(counts)
        hits = weights.cumsum(1)
        needed = hits[:, -1:] * (tpr * (1 - 1e-12))
        last = torch.searchsorted(hits, needed).squeeze(1)  # [B] first positive with enough at or above it
        return up.gather(1, ranked.level[last.clamp(max=ranked.positives - 1)].unsqueeze(1)).squeeze(1) / up[:, -1]

    return core
