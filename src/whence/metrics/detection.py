"""How well a score separates positives from negatives: AUROC, average precision, false positive rate.

Index legend: B rows of weights, P positives, M negatives; both sorted from the highest score down.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, Unpack

import torch
from torch import Tensor

from whence.errors import BadData, BadOption, fraction
from whence.metrics.elements import (
    ArrayLike,
    Common,
    Elements,
    MetricOptions,
    as_bool,
    elements,
    finite,
    per_element,
    tensor,
    whole_groups,
)
from whence.metrics.intervals import SHARE, UNBOUNDED, Estimate, Statistic, bootstrap


def auroc(scores: ArrayLike, positive: ArrayLike, **common: Unpack[Common]) -> Estimate:
    """Area under the ROC curve: P(positive scores above negative), ties counted half (Mann & Whitney 1947)."""
    return Ranking.read("auroc", scores, positive, common).auroc()


def auroc_difference(first: ArrayLike, second: ArrayLike, positive: ArrayLike, **common: Unpack[Common]) -> Estimate:
    """AUROC of ``first`` minus that of ``second``, two scores of the same elements, with a paired interval.

    Every resample draws the same elements for both, so what makes an element hard for both cancels.
    """
    read = (Ranking.read("auroc_difference", scores, positive, common) for scores in (first, second))
    one, other = (ranking.by_element() for ranking in read)

    def difference(counts: Tensor) -> Tensor:
        return one.area(counts) - other.area(counts)

    area = float(one.area(one.elements.once))
    ends = (-1.0, 1.0) if area in (0.0, 1.0) else UNBOUNDED  # two perfect scores may differ on other elements
    return bootstrap("auroc_difference", difference, one.elements, ends, min(one.trials), per_element=True)


def aupr(scores: ArrayLike, positive: ArrayLike, **common: Unpack[Common]) -> Estimate:
    """Average precision: Σ (R_n − R_{n−1}) P_n over thresholds, without interpolation.

    It depends on the share of positives, so resamples do not keep it fixed, unlike for the other two metrics.
    """
    return Ranking.read("aupr", scores, positive, common).aupr(stratified=False)


def fpr95(scores: ArrayLike, positive: ArrayLike, *, tpr: float = 0.95, **common: Unpack[Common]) -> Estimate:
    """Share of negatives at or above the highest threshold that keeps at least ``tpr`` of the positives."""
    fraction(tpr, "tpr", "0.95 keeps 95% of the positives", one=True)
    return Ranking.read("fpr95", scores, positive, common).fpr(tpr)


def detection(
    inside: ArrayLike, outside: ArrayLike, *, tpr: float = 0.95, **common: Unpack[Common]
) -> dict[str, Estimate]:
    """How well uncertainty separates out-of-distribution inputs: auroc, aupr_out, aupr_in, fpr95.

    Higher is more uncertain; outside is positive, except for aupr_in. ``mask``, ``weights`` and ``groups`` are pairs
    (of inside, of outside), either of which may be None.
    """
    MetricOptions.read("detection", common)
    fraction(tpr, "tpr", "0.95 keeps 95% of the positives", one=True)
    scores, positive, joined = _joined(inside, outside, common)
    ranking = Ranking.read("detection", scores, positive, joined)
    return {
        "auroc": ranking.auroc(),
        "aupr_out": ranking.aupr("aupr_out"),
        "aupr_in": Ranking.read("detection", -scores, ~positive, joined).aupr("aupr_in"),
        "fpr95": ranking.fpr(tpr),
    }


def _joined(inside: ArrayLike, outside: ArrayLike, common: Common) -> tuple[Tensor, Tensor, Common]:
    """Scores, whether they are from outside, and the keywords, all flattened."""
    first = tensor(inside, "inside")
    parts = [first, tensor(outside, "outside").to(first.device)]
    scores = torch.cat([p.reshape(-1).double() for p in parts])
    positive = torch.arange(len(scores), device=first.device) >= first.numel()
    joined, groups = common.copy(), common.get("groups")
    if (mask := common.get("mask")) is not None:
        joined["mask"] = torch.cat(_pair(mask, "mask", parts, lambda p: torch.ones(p.numel(), dtype=torch.bool)))
    if (weights := common.get("weights")) is not None:
        joined["weights"] = torch.cat(_pair(weights, "weights", parts, lambda p: torch.ones(p.numel())))
    if groups is not None or any(p.dim() > 1 and p.shape[1:].numel() > 1 for p in parts):
        pair = (None, None) if groups is None else groups
        ids = [whole_groups(v) for v in _pair(pair, "groups", parts, _examples)]
        if any(v is None for v in pair) and ids[0].numel() and ids[1].numel():  # separate groups
            ids[1] = ids[1] - ids[1].min() + ids[0].max() + 1
        joined["groups"] = torch.cat(ids)
    return scores, positive, joined


def _pair(given: Any, key: str, parts: list[Tensor], default: Callable[[Tensor], Tensor]) -> list[Tensor]:
    """One value for each score of inside and of outside, flat; ``default`` if it is None."""
    if not isinstance(given, (tuple, list)) or len(given) != 2:
        raise BadOption(f"{key} of detection() is a pair (of inside, of outside); either may be None.")
    pairs = zip(given, parts, strict=True)
    return [default(p) if value is None else per_element(value, p.shape, key).cpu() for value, p in pairs]


def _examples(scores: Tensor) -> Tensor:
    """The example that each score belongs to."""
    return torch.arange(len(scores)).repeat_interleave(scores.shape[1:].numel())


@dataclass(frozen=True)
class Ranking:
    """Positives, then negatives, each from the highest score down."""

    elements: Elements
    positives: int
    above: Tensor  # [P] negatives above each positive
    level: Tensor  # [P] negatives above it or tied with it
    tied: Tensor  # [P] last positive that is tied with it

    @classmethod
    def read(cls, metric: str, scores: ArrayLike, positive: ArrayLike, common: Common) -> Ranking:
        """Read and check the user's arguments."""
        given = tensor(scores, "scores")
        is_one = tensor(positive, "positive").to(given.device)
        if is_one.dim() == 0:
            raise BadData("scores and positive need an example dimension: N numbers each.")
        members = elements(is_one.shape, MetricOptions.read(metric, common), given.device)
        value = finite(per_element(given, is_one.shape, "scores")[members.keep], "scores").double()
        ones = as_bool(finite(is_one.reshape(-1)[members.keep], "positive"), "positive")
        for which, name in ((ones, "positive"), (~ones, "negative")):
            if not bool(which.any()):
                raise BadData(f"no {name} among the {members.count} scored elements; both classes are needed.")
        return cls.of(value, ones, members)

    @classmethod
    def of(cls, scores: Tensor, positive: Tensor, members: Elements) -> Ranking:
        """Sort, and stratify by class."""
        order = scores.argsort(descending=True, stable=True)
        scores, positive = scores[order], positive[order]
        members, order = members.sorted_by(order).split(positive)
        count = int(positive.sum())
        down = -scores[order]
        own, others = down[:count].contiguous(), down[count:].contiguous()
        return cls(
            elements=members,
            positives=count,
            above=torch.searchsorted(others, own),
            level=torch.searchsorted(others, own, right=True),
            tied=torch.searchsorted(own, own, right=True) - 1,
        )

    @property
    def trials(self) -> tuple[int, int]:
        """Numbers of groups with positives and with negatives."""
        group = self.elements.group
        if group is None:
            return self.positives, self.elements.count - self.positives
        return len(group[: self.positives].unique()), len(group[self.positives :].unique())

    def rows(self, counts: Tensor) -> tuple[Tensor, Tensor]:
        """Weights of positives [B, P]; cumulative weights of negatives from the top, starting with 0, [B, M + 1]."""
        weights = self.elements.rows(counts)
        negatives = torch.nn.functional.pad(weights[:, self.positives :], (1, 0)).cumsum(1)
        return weights[:, : self.positives], negatives

    def by_element(self) -> Ranking:
        """The same with groups numbered by where elements stand in the data, not in this ranking."""
        keep, group = self.elements.keep, self.elements.group
        if group is not None:
            return self
        places = [part.argsort().argsort() for part in (keep[: self.positives], keep[self.positives :])]
        group = torch.cat([places[0], places[1] + self.positives])
        return replace(self, elements=replace(self.elements, group=group))

    def area(self, counts: Tensor) -> Tensor:
        """The area under the ROC curve of every row of counts [B, G], [B]."""
        weights, negatives = self.rows(counts)
        lost = negatives.index_select(1, self.above)
        if bool((self.above != self.level).any()):  # ties
            lost = (lost + negatives.index_select(1, self.level)) / 2
        return 1 - (weights * lost).sum(1) / (weights.sum(1) * negatives[:, -1])

    def auroc(self) -> Estimate:
        return self._estimate("auroc", self.area, min(self.trials))

    def aupr(self, name: str = "aupr", stratified: bool = True) -> Estimate:
        """Average precision; resamples that lost a class, which happens without strata, are ignored."""
        ties = bool((self.tied[1:] == self.tied[:-1]).any())

        def area(counts: Tensor) -> Tensor:
            weights, negatives = self.rows(counts)
            hits = weights.cumsum(1)
            if ties:
                hits = hits.index_select(1, self.tied)
            found = hits + negatives.index_select(1, self.level)
            precision = torch.where(hits > 0, hits / found, 0.0)
            average = (weights * precision).sum(1) / weights.sum(1)
            return torch.where(negatives[:, -1] > 0, average, torch.nan)

        return self._estimate(name, area, min(self.trials), stratified)

    def fpr(self, tpr: float) -> Estimate:
        def rate(counts: Tensor) -> Tensor:
            weights, negatives = self.rows(counts)
            hits = weights.cumsum(1)
            needed = hits[:, -1:] * (tpr * (1 - 1e-12))
            last = torch.searchsorted(hits, needed).squeeze(1)  # [B] first positive with enough at or above it
            at = self.level[last.clamp(max=self.positives - 1)].unsqueeze(1)
            return negatives.gather(1, at).squeeze(1) / negatives[:, -1]

        return self._estimate("fpr95", rate, self.trials[1])

    def _estimate(self, name: str, statistic: Statistic, trials: int, stratified: bool = True) -> Estimate:
        members = self.elements if stratified else replace(self.elements, strata=(self.elements.groups,))
        return bootstrap(name, statistic, members, SHARE, trials, per_element=True)
