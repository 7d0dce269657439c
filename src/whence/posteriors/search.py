"""The search over prior precision and data scale on validation data.

With r = δ / s the covariance is V(δ, s) = V(r, 1) / s, so a pass over the validation data that knows V(r) at some
nodes r gives the loss on the whole grid of (r, s). The grid is widened while its best point lies on an edge, and
then made finer around it.

The loss is often flat along (r, s). A data scale other than that of the start departs from Bayes' rule, so with
``"auto"`` it is taken only where it is better by more than two standard errors of the paired difference.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from whence.batches import Data
from whence.errors import BadOption
from whence.posteriors.validation import ByLayer, Piece, Validation, moved_by, one
from whence.predictive.score import gaussian_losses, mixture_loss
from whence.randomness import seed_from

if TYPE_CHECKING:
    from whence.posteriors.laplace import Laplace
    from whence.posteriors.tuning import ScaleChoice

DECADE = math.log(10)
POINTS_TOGETHER = 2**28  # output draws that go through the likelihood together on a GPU
POINTS = 128  # fixed points of the Monte Carlo link while tuning
DRAWS = 20  # weight draws while tuning the sampled predictive
FLAT = 1e-5  # nats per example and decade; less than this is no difference
STANDARD_ERRORS = 2.0  # by which another data scale must be better to be taken
WIDEST = 24  # values of one hyperparameter beyond which a grid is not widened


@dataclass(frozen=True)
class Trial:
    """One point of a tuning: prior factor r, data scale s, and what it scored (lower is better)."""

    prior_factor: float  # multiplies the prior precision that tuning started from
    data_scale: float
    score: float
    layer: str = ""  # which layer's prior was moved; empty for all


@dataclass(frozen=True)
class Tuning:
    """How a posterior was tuned."""

    criterion: str  # "validation" or "evidence"
    trials: list[Trial] = field(repr=False)
    score: float  # mean NLL per example, or log evidence
    method: str = "linearised"

    def to_dict(self) -> dict[str, Any]:
        return {
            "criterion": self.criterion,
            "method": self.method,
            "score": self.score,
            "trials": [[t.prior_factor, t.data_scale, t.score, t.layer] for t in self.trials],
        }

    @classmethod
    def from_dict(cls, d: dict[str, Any]) -> Tuning:
        return cls(d["criterion"], [Trial(*t) for t in d["trials"]], d["score"], d["method"])


class Search:
    """Coordinate search over log r (one for all, then one for each layer if asked) and log s."""

    def __init__(
        self,
        posterior: Laplace,
        data: Data,
        method: str,
        data_scale: ScaleChoice,
        num_samples: int | None,
        generator: torch.Generator | None,
        progress: bool,
    ) -> None:
        self.start, self.method = posterior, method
        self.validation = Validation(data, progress)
        self.scales, self.sober = bool(data_scale), data_scale == "auto"
        self.num_samples = num_samples or (POINTS if method == "linearised" else DRAWS)
        self.seed = seed_from(generator) if method == "sampled" else 0
        self.trials: list[Trial] = []
        self.scores: dict[tuple[float, float], float] = {}

    def run(self, per_layer: bool) -> Laplace:
        r, s = self._grid(self.start)
        best, score = self._at(self.start, r, s), self.scores[r, s]
        if per_layer:
            best, score = self._layers(best, score)
        return replace(best, tuning=Tuning("validation", self.trials, score, self.method))

    def _at(self, posterior: Laplace, r: float, s: float) -> Laplace:
        """Prior factor r · s (so that δ / s moves by r) and data scale s, both relative to ``posterior``."""
        factors = {p.name: math.exp(r + s) for b in posterior.blocks for p in b.params}
        return replace(
            posterior, prior=posterior.prior.scaled_by(factors), data_scale=posterior.data_scale * math.exp(s)
        )

    def _grid(self, posterior: Laplace) -> tuple[float, float]:
        """A grid that does not depend on where tuning starts, widened at its edges, then refined."""
        start = level(posterior) - math.log(posterior.data_scale)
        floor = math.log(resolution(posterior)) - start
        rs = [r for r in (2 * k * DECADE - start for k in range(-3, 6)) if r > floor]
        rs = rs or [floor]
        ss = [k * DECADE for k in (-2, -1, 0, 1, 2)] if self.scales else [0.0]
        self.scores = {}
        self._score(posterior, rs, ss)
        for _ in range(16):
            r, s = self._best()
            wider_r = [x for x in _beyond(r, rs) if x > floor and self._gains(r, rs, 0)]
            wider_s = _beyond(s, ss) if self.scales and self._gains(s, ss, 1) else []
            if not wider_r and not wider_s:
                break
            rs, ss = sorted(rs + wider_r), sorted(ss + wider_s)
            self._score(posterior, wider_r or rs, ss)
            self._score(posterior, rs, wider_s or ss)
        best = self._refined(posterior, self.scales)
        if not self.sober or best[1] == 0.0:
            return best
        with_scale = self._each(posterior, *best)
        plain = self._refined(posterior, scales=False)
        gain = self._each(posterior, *plain) - with_scale
        error = float(gain.std()) / math.sqrt(len(gain)) if len(gain) > 1 else math.inf
        return best if float(gain.mean()) > STANDARD_ERRORS * error else plain

    def _refined(self, posterior: Laplace, scales: bool) -> tuple[float, float]:
        """Finer and finer around the best point; of the start's own data scale if ``scales`` is False."""
        steps = (DECADE, DECADE / 3, DECADE / 9)
        around = [sum(moves) for moves in itertools.product(*([-step, 0.0, step] for step in steps))]
        self.validation.expect([self._best(scales)[0] + move for move in around])
        for step in steps:
            r, s = self._best(scales)
            near = [s - step, s, s + step] if scales else [s]
            self._score(posterior, [r - step, r, r + step], near)
        return self._best(scales)

    def _best(self, scales: bool = True) -> tuple[float, float]:
        """The lowest score; where scores hardly differ, the one nearest to the start."""
        points = self.scores if scales else [key for key in self.scores if key[1] == 0.0]
        return min(points, key=lambda key: self.scores[key] + FLAT * (abs(key[0]) + abs(key[1])) / DECADE)

    def _gains(self, best: float, values: list[float], place: int) -> bool:
        """Whether the score still falls noticeably towards the edge that the best value lies on."""
        inner = values[1] if best == values[0] else values[-2]
        lowest = min(self.scores.values())
        other = min(v for k, v in self.scores.items() if k[place] == inner)
        return other - lowest > 10 * FLAT

    def _score(self, posterior: Laplace, rs: list[float], ss: list[float]) -> None:
        """Mean NLL at every (r, s) that has none yet, in one pass over the data."""
        wanted = {r: [s for s in ss if (r, s) not in self.scores] for r in rs}
        wanted = {r: missing for r, missing in wanted.items() if missing}
        if not wanted:
            return
        found = self._linearised(posterior, wanted) if self.method == "linearised" else self._sampled(posterior, wanted)
        self.scores |= found
        self.trials += [Trial(math.exp(r + s), math.exp(s), score) for (r, s), score in found.items()]

    def _linearised(self, posterior: Laplace, wanted: dict[float, list[float]]) -> dict[tuple[float, float], float]:
        groups: dict[tuple[float, ...], list[float]] = {}
        for r, ss in wanted.items():
            groups.setdefault(tuple(ss), []).append(r)
        totals: Tensor | None = None
        for piece, covs in self.validation.covariances(posterior, [r for rs in groups.values() for r in rs]):
            found, at = [], 0
            for group, rs in groups.items():
                losses = self._losses(posterior, piece, covs[at : at + len(rs)], group)
                found.append(losses.sum(-1).flatten())
                at += len(rs)
            totals = torch.cat(found) if totals is None else totals + torch.cat(found)
        assert totals is not None
        means = torch.nan_to_num(totals / self.validation.count, nan=math.inf).tolist()
        points = ((r, s) for group, rs in groups.items() for r in rs for s in group)
        return dict(zip(points, means, strict=True))

    def _losses(self, posterior: Laplace, piece: Piece, covs: list[Tensor], ss: Sequence[float]) -> Tensor:
        """NLL of each example under each covariance at each data scale e^s, [len(covs), len(ss), N]."""
        targets = posterior.likelihood.check(piece.mean, piece.targets, piece.index)
        scales = [math.exp(s) for s in ss]
        together = max(1, POINTS_TOGETHER // max(piece.mean.numel() * self.num_samples * len(ss), 1))
        if piece.mean.device.type == "cpu":
            together = 1
        pieces = [
            gaussian_losses(
                posterior.likelihood, piece.mean, torch.stack(covs[i : i + together]), targets, scales, self.num_samples
            )
            for i in range(0, len(covs), together)
        ]
        return torch.cat(pieces)

    def _each(self, posterior: Laplace, r: float, s: float) -> Tensor:
        """NLL of each validation example at one point, [N]."""
        if self.method == "sampled":
            return self._drawn(self._at(posterior, r, s))
        losses = []
        for piece, covs in self.validation.covariances(posterior, [r]):
            losses.append(self._losses(posterior, piece, covs, [s])[0, 0].cpu())
        return torch.cat(losses)

    def _sampled(self, posterior: Laplace, wanted: dict[float, list[float]]) -> dict[tuple[float, float], float]:
        points = [(r, s) for r, ss in wanted.items() for s in ss]
        means = (float(self._drawn(self._at(posterior, r, s)).mean()) for r, s in points)
        return {point: math.inf if math.isnan(mean) else mean for point, mean in zip(points, means, strict=True)}

    def _drawn(self, posterior: Laplace) -> Tensor:
        """NLL of each validation example by weight draws, with the same noise at every point, [N]."""
        generator = torch.Generator(posterior.network.device).manual_seed(self.seed)  # a CPU's would keep a GPU waiting
        draws = posterior.draw(self.num_samples, generator=generator)
        losses = []
        for batch in self.validation.batches(posterior.likelihood):
            with torch.no_grad():
                outputs = draws.outputs(one(batch.inputs))
            targets = posterior.likelihood.check(outputs[0], batch.targets, batch.index)
            losses.append(mixture_loss(posterior.likelihood, outputs, targets).double().cpu())
        return torch.cat(losses)

    def _layers(self, posterior: Laplace, best: float) -> tuple[Laplace, float]:
        """One layer's prior at a time, keeping a move only if it helps."""
        if posterior.curvature.joint:
            raise BadOption(
                "per-layer tuning on validation data needs a structure by layer; with 'full' or 'lowrank' use the "
                "evidence: tune(per_layer=True)."
            )
        for step in (DECADE, DECADE / 3):
            moves = [-2 * step, -step, 0.0, step, 2 * step]
            known = None if self.method == "sampled" else self.validation.by_layer(posterior, moves)
            taken = [moves.index(0.0)] * len(posterior.blocks)
            for i, block in enumerate(posterior.blocks):
                if known is None:
                    scores = self._layer_scores(posterior, block.name, moves)
                else:
                    scores = self._known_scores(posterior, known, taken, i, moves)
                move = min(scores, key=lambda k: scores[k])
                self.trials += [Trial(math.exp(k), posterior.data_scale, v, block.name) for k, v in scores.items()]
                if scores[move] < best - 1e-9:
                    best, taken[i] = scores[move], moves.index(move)
                    factors = {p.name: math.exp(move) for p in block.params}
                    posterior = replace(posterior, prior=posterior.prior.scaled_by(factors))
        return posterior, best

    def _known_scores(
        self, posterior: Laplace, known: ByLayer, taken: list[int], layer: int, moves: list[float]
    ) -> dict[float, float]:
        """Mean NLL with one layer's prior moved by each factor, the others' as they were taken."""
        totals = torch.zeros(len(moves), dtype=torch.float64)
        for piece, parts in known:
            rest = torch.zeros_like(parts[layer][0])
            for i, (part, move) in enumerate(zip(parts, taken, strict=True)):
                rest = rest if i == layer else rest + part[move]
            losses = self._losses(posterior, piece, [rest + part for part in parts[layer]], [0.0])
            totals += losses.sum((1, 2)).cpu()
        means = torch.nan_to_num(totals / self.validation.count, nan=math.inf).tolist()
        return dict(zip(moves, means, strict=True))

    def _layer_scores(self, posterior: Laplace, layer: str, moves: list[float]) -> dict[float, float]:
        """Mean NLL with one layer's prior moved by each factor."""
        totals = dict.fromkeys(moves, 0.0)
        if self.method == "sampled":
            for move in moves:
                moved = _moved(posterior, layer, move)
                totals[move] = self._sampled(moved, {0.0: [0.0]})[0.0, 0.0]
            return totals
        for piece in self.validation.pieces(posterior):
            rest, covs = _one_layer(posterior, piece, layer, moves)
            losses = self._losses(posterior, piece, [rest + cov for cov in covs], [0.0]).sum((1, 2)).tolist()
            for move, loss in zip(moves, losses, strict=True):
                totals[move] += loss
        return {move: math.inf if math.isnan(t) else t / self.validation.count for move, t in totals.items()}


def level(posterior: Laplace) -> float:
    """log δ of the prior, meaned over weights."""
    groups = [(sum(b.size for b in blocks), posterior.block_prior(blocks).delta) for blocks in posterior.groups()]
    return sum(size * math.log(delta) for size, delta in groups) / sum(size for size, _ in groups)


def resolution(posterior: Laplace) -> float:
    """The least δ / s that the curvature's precision resolves: rounding of its largest eigenvalue."""
    top = max(float(g.spectral.values.max()) for g, _ in posterior.gaussians())
    noise = posterior.scale / posterior.data_scale
    return max(torch.finfo(posterior.network.dtype).eps * top * noise * 1e-2, 1e-30)


def _moved(posterior: Laplace, layer: str, move: float) -> Laplace:
    factors = {p.name: math.exp(move) for b in posterior.blocks if b.name == layer for p in b.params}
    return replace(posterior, prior=posterior.prior.scaled_by(factors))


def _beyond(best: float, values: list[float]) -> list[float]:
    """New values past the edge that the best one lies on."""
    if len(values) > WIDEST:
        return []
    if best == values[0]:
        return [best - 4 * DECADE, best - 2 * DECADE]
    if best == values[-1]:
        return [best + 2 * DECADE, best + 4 * DECADE]
    return []


def _one_layer(posterior: Laplace, piece: Piece, layer: str, moves: list[float]) -> tuple[Tensor, Tensor]:
    """V of all other layers, and of one layer for each move of its prior."""
    rest = piece.mean.new_zeros(*piece.mean.shape, piece.mean.shape[-1])
    moved = rest
    for (gaussian, blocks), projection in zip(posterior.gaussians(), piece.projections, strict=True):
        if blocks[0].name == layer:
            moved = projection.weigh_priors(moved_by(gaussian, moves))
        else:
            rest = rest + projection.weigh(*gaussian.weights())
    return rest, moved
