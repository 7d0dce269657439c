"""The search over prior precision and data scale on validation data.

With r = δ / s the covariance is V(δ, s) = V(r, 1) / s, so a pass over the validation data that computes V(r) at some
nodes r gives the loss at any data scale s there. The loss is steep in the size of V and flat along lines of equal size,
which run diagonally in r and s; so points are chosen by r and by size. The grid is extended while its best point is on
an edge, and then refined around it.

The loss is often flat along (r, s). A data scale other than that of the start departs from Bayes' rule, so with
``"auto"`` it is used only if it is better by more than two standard errors of the paired difference.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from enum import Enum
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from whence.engine.batches import Data
from whence.engine.randomness import seed_from
from whence.errors import BadOption, notice
from whence.likelihoods import Gaussian
from whence.posteriors.laplace.description import Trial, Tuning
from whence.posteriors.laplace.drawn_losses import (
    DRAWS,
    SPANNED,
    DrawnLosses,
    LinearisedLosses,
    WeightLosses,
    scaled_prior,
)
from whence.posteriors.laplace.validation import ByLayer, ProjectedExamples, Validation, scaled_priors
from whence.predictive.dispatch import Method
from whence.predictive.score import gaussian_losses

if TYPE_CHECKING:
    from whence.posteriors.laplace.posterior import Laplace

DECADE = math.log(10)
POINTS_TOGETHER = 2**28  # output draws per call of the likelihood on a GPU
POINTS = 128  # fixed points of the Monte Carlo link while tuning
FLAT = 1e-5  # nats per example and decade below which a difference is ignored
STANDARD_ERRORS = 2.0  # by which another data scale must be better to be chosen
WIDEST = 8  # how often a grid is extended at most
ACROSS = (-2, -1, -0.5, 0, 0.5, 1, 2, 3, 4)  # decades around the best prior at which the scale is tried
ALONG = (-0.5, -0.25, -0.125, 0.0, 0.125, 0.25, 0.5)  # decades around the best variance
CLOSE = (-0.09, -0.06, -0.03, 0.03, 0.06, 0.09)  # decades around the best of one prior factor
NEARLY, FINALISTS = 0.005, 6  # nats from the best score within which, and prior factors for which, CLOSE is tried
PLAIN = 1e-3  # negligible variance of logits, or of outputs relative to the noise
LARGEST_SCALE = 8 * DECADE  # largest change of the data scale, up or down


class ScaleSearch(Enum):
    """Whether the data scale is changed."""

    FIXED = False
    BEST = True
    SOBER = "auto"  # only if another is better by more than STANDARD_ERRORS


class Search:
    """Coordinate search over log r (one for all layers, then optionally one per layer) and log s."""

    def __init__(
        self,
        posterior: Laplace,
        data: Data,
        method: Method,
        scale: ScaleSearch,
        directions: int | None,
        num_samples: int | None,
        generator: torch.Generator | None,
        progress: bool,
    ) -> None:
        self.start, self.method = posterior, method
        self.validation = Validation(data, progress)
        self.scales, self.sober = scale is not ScaleSearch.FIXED, scale is ScaleSearch.SOBER
        linearised = method is Method.LINEARISED
        self.num_samples = num_samples or POINTS
        seed = 0 if linearised and generator is None else seed_from(generator)
        self.drawn: DrawnLosses | None = None  # None: all outputs are differentiated
        if not linearised:
            self.drawn = WeightLosses(self.validation, num_samples or DRAWS, seed)
        elif directions is not None:
            self.drawn = LinearisedLosses(self.validation, directions, SPANNED, seed)
        self.trials: list[Trial] = []
        self.scores: dict[tuple[float, float], float] = {}
        self.sizes: dict[float, float] = {}  # log of the mean variance of the outputs, by r
        self.floor = -math.inf  # lower bound of r

    def run(self, per_layer: bool) -> Laplace:
        r, s = self._grid(self.start)
        best, score = self._at(self.start, r, s), self.scores[r, s]
        if self.drawn is not None:
            score = float(self._each(self.start, r, s).mean())  # without interpolation
        self._notify_if_no_effect(best, r, s)
        if per_layer:
            best, score = self._layers(best, score)
        return replace(best, tuning=Tuning("validation", self.trials, score, self.method))

    def _notify_if_no_effect(self, best: Laplace, r: float, s: float) -> None:
        """Give a notice if the prior is so strong that the posterior has no effect."""
        self._measure(self.start, [r])
        noise = best.likelihood.noise if isinstance(best.likelihood, Gaussian) else None
        usual = 0.0 if noise is None else 2 * float(noise.double().log().mean())
        if self._size(r) - s - usual > math.log(PLAIN):
            return
        notice(
            f"tuning chose a very strong prior (precision {best.prior.describe()}): the posterior predicts the same "
            "as the network alone, with no gain on this validation data. That can be chance if there are few "
            "validation data, or happen if the network was trained on them. Shares under this prior only repeat it."
        )

    def _at(self, posterior: Laplace, r: float, s: float) -> Laplace:
        """Prior factor r · s (so that δ / s changes by r) and data scale s, both relative to ``posterior``."""
        return replace(scaled_prior(posterior, r + s), data_scale=posterior.data_scale * math.exp(s))

    def _grid(self, posterior: Laplace) -> tuple[float, float]:
        """A grid that does not depend on the start, extended at its edges, then refined."""
        start = level(posterior) - math.log(posterior.data_scale)
        self.floor = math.log(resolution(posterior)) - start
        rs = [r for r in (k * DECADE - start for k in range(-6, 11)) if r > self.floor] or [self.floor]
        self.scores, self.sizes = {}, {}
        if self.drawn is not None:
            self.drawn.begin(posterior)
        self._score(posterior, {r: [0.0] for r in rs})
        self._widen(posterior, scales=False)
        plain = self._refined(posterior, scales=False)
        if not self.scales:
            return plain
        nodes = [r for r in (plain[0] + k * DECADE for k in ACROSS) if r >= min(plain[0], self.floor)]
        self._measure(posterior, nodes)
        around = [self._size(plain[0]) + k * DECADE for k in ALONG]
        self._score(posterior, {r: [self._size(r) - m for m in around] for r in nodes})
        self._widen(posterior, scales=True)
        self._score(posterior, self._nearly_best())
        best = self._refined(posterior, scales=True)
        if not self.sober or best[1] == 0.0:
            return best
        gain = self._each(posterior, *plain) - self._each(posterior, *best)
        error = float(gain.std()) / math.sqrt(len(gain)) if len(gain) > 1 else math.inf
        return best if float(gain.mean()) > STANDARD_ERRORS * error else plain

    def _nearly_best(self) -> dict[float, list[float]]:
        """Finer steps of the variance for every prior factor that may still be best: the valley along r is narrow."""
        tops = {r: min((self.scores[r, s], s) for x, s in self.scores if x == r) for r in self._nodes()}
        limit = min(score for score, _ in tops.values()) + NEARLY
        near = sorted((score, r, s) for r, (score, s) in tops.items() if score <= limit)[:FINALISTS]
        return {r: [s + k * DECADE for k in CLOSE] for _, r, s in near}

    def _nodes(self) -> list[float]:
        """All prior factors tried so far, in order."""
        return sorted({r for r, _ in self.scores})

    def _widen(self, posterior: Laplace, scales: bool) -> None:
        """Extend the grid past an edge with the best point, while the score still falls."""
        for _ in range(WIDEST):
            r, s = self._best(scales)
            beyond = [x for x in _past_edge(r, self._nodes()) if x > self.floor and self._gains(r)]
            wanted: dict[float, list[float]] = {x: [0.0] for x in beyond}
            if scales:
                self._measure(posterior, [r, *beyond])
                m = self._size(r) - s
                wanted = {x: [self._size(x) - m + k * DECADE for k in ALONG] for x in beyond}
                tried = sorted(t for x, t in self.scores if x == r)
                outward = -1 if s == tried[0] else 1
                if s in (tried[0], tried[-1]) and abs(s) < LARGEST_SCALE and self._gains_scale(r, s, tried):
                    wanted.setdefault(r, []).extend(s + outward * k * DECADE for k in (0.25, 0.5, 1.0))
            if not wanted:
                return
            self._score(posterior, wanted)

    def _refined(self, posterior: Laplace, scales: bool) -> tuple[float, float]:
        """Refine around the best point: by prior factor, and along equal size of the variance."""
        steps = [DECADE / 2**k for k in range(1, 6)]
        middle = self._best(scales)[0]
        if self.drawn is not None:
            self.drawn.refine(middle)
        self.validation.expect([middle + k * steps[-1] for k in range(-32, 33)])
        if not scales:
            self._score(posterior, {middle + k * DECADE / 4: [0.0] for k in range(-4, 5)})
        for step in steps[0 if scales else 2 :]:
            r, s = self._best(scales)
            rs = [r - step, r, r + step]
            if scales:
                self._measure(posterior, rs)
                m = self._size(r) - s
                wanted = {x: [self._size(x) - m + k * step / 4 for k in (-1, 0, 1)] for x in rs}
                wanted[r] = [s - step / 4, s, s + step / 4]
            else:
                wanted = {x: [0.0] for x in rs}
            self._score(posterior, wanted)
        return self._best(scales)

    def _best(self, scales: bool = True) -> tuple[float, float]:
        """The point with the lowest score; among nearly equal scores the one nearest to the start."""
        points = self.scores if scales else [key for key in self.scores if key[1] == 0.0]
        return min(points, key=lambda key: self.scores[key] + FLAT * (abs(key[0]) + abs(key[1])) / DECADE)

    def _gains(self, best: float) -> bool:
        """Whether the score still falls noticeably towards the edge at the best prior factor."""
        nodes = self._nodes()
        if len(nodes) < 2:
            return True
        inner = nodes[1] if best == nodes[0] else nodes[-2]
        lowest = min(v for k, v in self.scores.items() if k[0] == best)
        return min(v for k, v in self.scores.items() if k[0] == inner) - lowest > 10 * FLAT

    def _gains_scale(self, r: float, s: float, tried: list[float]) -> bool:
        inner = tried[1] if s == tried[0] else tried[-2]
        return len(tried) > 1 and self.scores[r, inner] - self.scores[r, s] > 10 * FLAT

    # The size of the variance, along which the loss is steep: V(r, s) = V(r) / s

    def _size(self, r: float) -> float:
        """log of the mean variance of the outputs at a data scale of 1."""
        return self.sizes[r]

    def _measure(self, posterior: Laplace, rs: Sequence[float]) -> None:
        """Measure it on the first validation examples."""
        missing = [r for r in rs if r not in self.sizes]
        if not missing:
            return
        if self.drawn is None:
            covs = self.validation.first_covariances(posterior, missing)
            found = [float(cov.diagonal(dim1=-2, dim2=-1).double().mean()) for cov in covs]
        else:
            found = [self.drawn.mean_variance(posterior, r) for r in missing]
        for r, size in zip(missing, found, strict=True):
            self.sizes[r] = math.log(max(size, 1e-300)) if math.isfinite(size) else 0.0

    # Scores

    def _score(self, posterior: Laplace, points: dict[float, list[float]]) -> None:
        """Compute the mean NLL at every (r, s) without a score, in one pass over the data."""
        kept = {r: [min(max(s, -LARGEST_SCALE), LARGEST_SCALE) for s in ss] for r, ss in points.items()}
        wanted = {r: [s for s in dict.fromkeys(ss) if (r, s) not in self.scores] for r, ss in kept.items()}
        wanted = {r: missing for r, missing in wanted.items() if missing}
        if not wanted:
            return
        found = self._linearised(posterior, wanted) if self.drawn is None else self._drawn(posterior, wanted)
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

    def _losses(self, posterior: Laplace, piece: ProjectedExamples, covs: list[Tensor], ss: Sequence[float]) -> Tensor:
        """NLL of each example under each covariance at each data scale e^s, [len(covs), len(ss), N]."""
        scales = [math.exp(s) for s in ss]
        together = max(1, POINTS_TOGETHER // max(piece.mean.numel() * self.num_samples * len(ss), 1))
        if piece.mean.device.type == "cpu":
            together = 1
        pieces = [
            gaussian_losses(
                posterior.likelihood,
                piece.mean,
                torch.stack(covs[i : i + together]),
                piece.targets,
                scales,
                self.num_samples,
            )
            for i in range(0, len(covs), together)
        ]
        return torch.cat(pieces)

    def _each(self, posterior: Laplace, r: float, s: float) -> Tensor:
        """NLL of each validation example at one point, [N]."""
        if self.drawn is not None:
            self.drawn.make_exact(r)
            return self.drawn.losses(posterior, r, [s])[0]
        losses = []
        for piece, covs in self.validation.covariances(posterior, [r]):
            losses.append(self._losses(posterior, piece, covs, [s])[0, 0].cpu())
        return torch.cat(losses)

    def _drawn(self, posterior: Laplace, wanted: dict[float, list[float]]) -> dict[tuple[float, float], float]:
        assert self.drawn is not None
        found: dict[tuple[float, float], float] = {}
        for r, ss in wanted.items():
            means = self.drawn.losses(posterior, r, ss).mean(1).tolist()
            found |= {(r, s): math.inf if math.isnan(mean) else mean for s, mean in zip(ss, means, strict=True)}
        return found

    def _layers(self, posterior: Laplace, best: float) -> tuple[Laplace, float]:
        """Change one layer's prior at a time, and keep a change only if it helps."""
        if posterior.curvature.joint:
            raise BadOption(
                "per-layer tuning on validation data needs one structure per layer; with 'full' or 'lowrank' use the "
                "evidence: tune(per_layer=True)."
            )
        for step in (DECADE, DECADE / 3):
            moves = [-2 * step, -step, 0.0, step, 2 * step]
            known = self.validation.by_layer(posterior, moves) if self.drawn is None else None
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
                    posterior = posterior.under(posterior.prior.scaled_by(factors))
        return posterior, best

    def _known_scores(
        self, posterior: Laplace, known: ByLayer, taken: list[int], layer: int, moves: list[float]
    ) -> dict[float, float]:
        """Mean NLL with one layer's prior changed by each factor, and the other layers as chosen so far."""
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
        """Mean NLL with one layer's prior changed by each factor."""
        totals = dict.fromkeys(moves, 0.0)
        if self.drawn is not None:
            for move in moves:
                moved = _with_layer_prior(posterior, layer, move)
                totals[move] = self._drawn(moved, {0.0: [0.0]})[0.0, 0.0]
            return totals
        for piece in self.validation.pieces(posterior):
            rest, covs = _one_layer(posterior, piece, layer, moves)
            losses = self._losses(posterior, piece, [rest + cov for cov in covs], [0.0]).sum((1, 2)).tolist()
            for move, loss in zip(moves, losses, strict=True):
                totals[move] += loss
        return {move: math.inf if math.isnan(t) else t / self.validation.count for move, t in totals.items()}


def level(posterior: Laplace) -> float:
    """log δ of the prior, averaged over weights."""
    groups = [
        (sum(b.size for b in blocks), posterior.block_prior(blocks).delta) for blocks in posterior.curvature.groups
    ]
    return sum(size * math.log(delta) for size, delta in groups) / sum(size for size, _ in groups)


def resolution(posterior: Laplace) -> float:
    """The smallest δ / s that the curvature's precision resolves: rounding of its largest eigenvalue."""
    top = max(float(g.spectral.values.max()) for g, _ in posterior.gaussians())
    noise = posterior.scale / posterior.data_scale
    return max(torch.finfo(posterior.network.dtype).eps * top * noise * 1e-2, 1e-30)


def _with_layer_prior(posterior: Laplace, layer: str, move: float) -> Laplace:
    factors = {p.name: math.exp(move) for b in posterior.blocks if b.name == layer for p in b.params}
    return posterior.under(posterior.prior.scaled_by(factors))


def _past_edge(best: float, values: list[float]) -> list[float]:
    """New values past the edge if the best value is on it."""
    if best == values[0]:
        return [best - 2 * DECADE, best - DECADE]
    if best == values[-1]:
        return [best + DECADE, best + 2 * DECADE]
    return []


def _one_layer(posterior: Laplace, piece: ProjectedExamples, layer: str, moves: list[float]) -> tuple[Tensor, Tensor]:
    """V of all other layers, and of one layer for each change of its prior."""
    rest = piece.mean.new_zeros(*piece.mean.shape, piece.mean.shape[-1])
    moved = rest
    for (gaussian, blocks), projection in zip(posterior.gaussians(), piece.projections, strict=True):
        if blocks[0].name == layer:
            moved = projection.weighted_priors(scaled_priors(gaussian, moves))
        else:
            rest = rest + projection.weighted_priors(scaled_priors(gaussian, [0.0]))[0]
    return rest, moved
