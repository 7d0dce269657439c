"""Prior precision and data scale, chosen by validation data or by the evidence.

With r = δ / s the covariance is V(δ, s) = V(r, 1) / s, so a pass over the validation data that knows V(r) at some
nodes r gives the loss on the whole grid of (r, s). The grid is widened while its best point lies on an edge, and
then made finer around it.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from tqdm import tqdm

from whence.batches import Batch, Data, Inputs, size_of
from whence.errors import BadOption, NotPositiveDefinite, notice, one_of
from whence.likelihoods import Gaussian
from whence.posteriors.block import BlockGaussian
from whence.posteriors.evidence import best_noise, best_precision, log_evidence
from whence.predictive import linearised
from whence.predictive.projection import Projection, project
from whence.predictive.score import gaussian_losses, mixture_loss
from whence.randomness import seed_from

if TYPE_CHECKING:
    from whence.posteriors.laplace import Laplace

DECADE = math.log(10)
POINTS = 128  # fixed points of the Monte Carlo link while tuning
DRAWS = 20  # weight draws while tuning the sampled predictive
FLAT = 1e-5  # nats per example and decade; less than this is no difference
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


@torch.inference_mode(False)
def tune(
    posterior: Laplace,
    data: Any,
    per_layer: bool,
    method: str,
    data_scale: bool,
    num_samples: int | None,
    generator: torch.Generator | None,
    progress: bool,
) -> Laplace:
    """See :meth:`whence.posteriors.laplace.Laplace.tune`."""
    one_of(method, ("linearised", "sampled"), "method")
    if data is None:
        if method != "linearised" or num_samples is not None or generator is not None:
            raise BadOption(
                "without validation data the evidence is maximised, which draws nothing: method, num_samples and "
                "generator have no part in it. Pass validation data, or leave them out."
            )
        return _by_evidence(posterior, per_layer)
    network = posterior.network
    loader = Data(data, network.device, network.dtype, "validation")
    loader.require_passes(2, "tuning")
    if method == "linearised" and len(posterior.record.output_shape) != 1:
        raise BadOption("dense outputs are tuned with method='sampled'.")
    search = _Search(posterior, loader, method, data_scale, num_samples, generator, progress)
    return search.run(per_layer)


class _Search:
    """Coordinate search over log r (one for all, then one for each layer if asked) and log s."""

    def __init__(
        self,
        posterior: Laplace,
        data: Data,
        method: str,
        data_scale: bool,
        num_samples: int | None,
        generator: torch.Generator | None,
        progress: bool,
    ) -> None:
        self.start, self.data, self.method = posterior, data, method
        self.scales, self.progress = data_scale, progress
        self.num_samples = num_samples or (POINTS if method == "linearised" else DRAWS)
        self.seed = seed_from(generator) if method == "sampled" else 0
        self.trials: list[Trial] = []
        self.scores: dict[tuple[float, float], float] = {}
        self.count = 0  # examples of the last pass

    def run(self, per_layer: bool) -> Laplace:
        r, s = self._grid(self.start, "")
        best = self._at(self.start, r, s)
        if per_layer:
            best = self._layers(best)
        score = min(t.score for t in self.trials)
        return replace(best, tuning=Tuning("validation", self.trials, score, self.method))

    def _at(self, posterior: Laplace, r: float, s: float) -> Laplace:
        """Prior factor r · s (so that δ / s moves by r) and data scale s, both relative to ``posterior``."""
        factors = {p.name: math.exp(r + s) for b in posterior.blocks for p in b.params}
        return replace(
            posterior, prior=posterior.prior.scaled_by(factors), data_scale=posterior.data_scale * math.exp(s)
        )

    def _grid(self, posterior: Laplace, layer: str) -> tuple[float, float]:
        """A grid that does not depend on where tuning starts, widened at its edges, then refined."""
        present = posterior.prior.flat([p for b in posterior.blocks for p in b.params]) / posterior.data_scale
        start = float(present.log().mean())
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
        for step in (DECADE, DECADE / 3, DECADE / 9):
            r, s = self._best()
            near = [s - step, s, s + step] if self.scales else [s]
            self._score(posterior, [r - step, r, r + step], near)
        return self._best()

    def _best(self) -> tuple[float, float]:
        """The lowest score; where scores hardly differ, the one nearest to the start."""
        return min(self.scores, key=lambda key: self.scores[key] + FLAT * (abs(key[0]) + abs(key[1])) / DECADE)

    def _gains(self, best: float, values: list[float], place: int) -> bool:
        """Whether the score still falls noticeably towards the edge that the best value lies on."""
        inner = values[1] if best == values[0] else values[-2]
        lowest = min(self.scores.values())
        other = min(v for k, v in self.scores.items() if k[place] == inner)
        return other - lowest > 10 * FLAT

    def _score(self, posterior: Laplace, rs: list[float], ss: list[float]) -> None:
        """Mean NLL at every (r, s) that has none yet, in one pass over the data."""
        rs = [r for r in rs if any((r, s) not in self.scores for s in ss)]
        if not rs:
            return
        grid = self._linearised(posterior, rs, ss) if self.method == "linearised" else self._sampled(posterior, rs, ss)
        for i, r in enumerate(rs):
            for j, s in enumerate(ss):
                self.scores[r, s] = float(grid[i, j])
                self.trials.append(Trial(math.exp(r + s), math.exp(s), float(grid[i, j])))

    def _linearised(self, posterior: Laplace, rs: list[float], ss: list[float]) -> Tensor:
        scales = [math.exp(s) for s in ss]
        total = torch.zeros(len(rs), len(ss), dtype=torch.float64)
        for piece, targets, index in self._pieces(posterior):
            mean, covs = _covariances(posterior, piece, rs)
            targets = posterior.likelihood.check(mean, targets, index)
            total += torch.stack([self._losses(posterior, mean, cov, targets, scales) for cov in covs]).cpu()
        return torch.nan_to_num(total / self.count, nan=math.inf)

    def _pieces(self, posterior: Laplace) -> Iterator[tuple[Inputs, Tensor, int]]:
        """The validation data in pieces that fit the memory budget, with their targets and batch index."""
        self.count = 0
        for batch in self._passed():
            seen = 0
            for piece in linearised.pieces(posterior, _one(batch.inputs)):
                yield piece, batch.targets[seen : seen + size_of(piece)], batch.index
                seen += size_of(piece)
            self.count += seen

    def _passed(self) -> Iterator[Batch]:
        """One pass over the validation data, with a progress bar if it takes long."""
        hidden = not self.progress
        yield from tqdm(self.data, "tuning", self.data.length(), unit="batch", delay=3, leave=False, disable=hidden)

    def _losses(self, posterior: Laplace, mean: Tensor, cov: Tensor, targets: Tensor, scales: list[float]) -> Tensor:
        return gaussian_losses(posterior.likelihood, mean, cov, targets, scales, self.num_samples)

    def _sampled(self, posterior: Laplace, rs: list[float], ss: list[float]) -> Tensor:
        total = torch.zeros(len(rs), len(ss), dtype=torch.float64)
        for i, r in enumerate(rs):
            for j, s in enumerate(ss):
                generator = torch.Generator().manual_seed(self.seed)  # the same noise at every point
                draws = self._at(posterior, r, s).draw(self.num_samples, generator=generator)
                count = 0
                for batch in self._passed():
                    with torch.no_grad():
                        outputs = draws.outputs(_one(batch.inputs))
                    targets = posterior.likelihood.check(outputs[0], batch.targets, batch.index)
                    total[i, j] += float(mixture_loss(posterior.likelihood, outputs, targets).double().sum())
                    count += len(outputs[0])
                total[i, j] /= count
        return torch.nan_to_num(total, nan=float("inf"))

    def _layers(self, posterior: Laplace) -> Laplace:
        """One layer's prior at a time, keeping a move only if it helps."""
        if posterior.curvature.joint:
            raise BadOption(
                "per-layer tuning on validation data needs a structure by layer; with 'full' or 'lowrank' use the "
                "evidence: tune(per_layer=True)."
            )
        best = min(t.score for t in self.trials)
        for step in (DECADE, DECADE / 3):
            for block in posterior.blocks:
                scores = self._layer_scores(posterior, block.name, [-2 * step, -step, 0.0, step, 2 * step])
                move = min(scores, key=lambda k: scores[k])
                self.trials += [Trial(math.exp(k), posterior.data_scale, v, block.name) for k, v in scores.items()]
                if scores[move] < best - 1e-9:
                    best = scores[move]
                    factors = {p.name: math.exp(move) for p in block.params}
                    posterior = replace(posterior, prior=posterior.prior.scaled_by(factors))
        return posterior

    def _layer_scores(self, posterior: Laplace, layer: str, moves: list[float]) -> dict[float, float]:
        """Mean NLL with one layer's prior moved by each factor."""
        totals = dict.fromkeys(moves, 0.0)
        if self.method == "sampled":
            for move in moves:
                moved = _moved(posterior, layer, move)
                totals[move] = float(self._sampled(moved, [0.0], [0.0]))
            return totals
        for piece, targets, index in self._pieces(posterior):
            mean, rest, covs = _one_layer(posterior, piece, layer, moves)
            targets = posterior.likelihood.check(mean, targets, index)
            for move, cov in zip(moves, covs, strict=True):
                totals[move] += float(self._losses(posterior, mean, rest + cov, targets, [1.0]))
        return {move: math.inf if math.isnan(t) else t / self.count for move, t in totals.items()}


def resolution(posterior: Laplace) -> float:
    """The least δ / s that the curvature's precision resolves: rounding of its largest eigenvalue."""
    top = max(float(g.spectral.values.max()) for g, _ in posterior.gaussians())
    noise = posterior.scale / posterior.data_scale
    return max(torch.finfo(posterior.network.dtype).eps * top * noise * 1e-2, 1e-30)


def _moved(posterior: Laplace, layer: str, move: float) -> Laplace:
    factors = {p.name: math.exp(move) for b in posterior.blocks if b.name == layer for p in b.params}
    return replace(posterior, prior=posterior.prior.scaled_by(factors))


def _one(inputs: Any) -> Any:
    """Inputs as ``predict`` takes them: a list would be read as a loader."""
    return tuple(inputs) if isinstance(inputs, list) else inputs


def _beyond(best: float, values: list[float]) -> list[float]:
    """New values past the edge that the best one lies on."""
    if len(values) > WIDEST:
        return []
    if best == values[0]:
        return [best - 4 * DECADE, best - 2 * DECADE]
    if best == values[-1]:
        return [best + 2 * DECADE, best + 4 * DECADE]
    return []


def _covariances(posterior: Laplace, piece: Any, rs: list[float]) -> tuple[Tensor, list[Tensor]]:
    """V(r) of one piece for every r: one forward and backward pass, one turn into the eigenbasis."""
    mean, grads = linearised.differentiate(posterior, piece)
    totals: list[Tensor | None] = [None] * len(rs)
    for gaussian, blocks in posterior.gaussians():
        projection = project(gaussian, blocks, grads, posterior.curvature.keep)
        for i, r in enumerate(rs):
            moved = replace(gaussian, delta=gaussian.delta * math.exp(r))
            part = _weighed(projection, moved)
            totals[i] = part if totals[i] is None else totals[i] + part  # type: ignore[operator]
    return mean.detach(), [t.detach() for t in totals if t is not None]


def _weighed(projection: Projection, gaussian: BlockGaussian) -> Tensor:
    """J Σ Jᵀ; NaN where the precision is not positive definite (a Hessian under too small a prior)."""
    try:
        return projection.weigh(1 / gaussian.precision, 1 / gaussian.rest)
    except NotPositiveDefinite:
        return projection.weigh(torch.full_like(gaussian.spectral.values, math.nan), gaussian.rest)


def _one_layer(posterior: Laplace, piece: Any, layer: str, moves: list[float]) -> tuple[Tensor, Tensor, list[Tensor]]:
    """V of all other layers, and of one layer for each move of its prior."""
    mean, grads = linearised.differentiate(posterior, piece)
    rest = mean.new_zeros(*mean.shape, mean.shape[-1])
    moved: list[Tensor] = []
    for gaussian, blocks in posterior.gaussians():
        projection = project(gaussian, blocks, grads, None)
        if blocks[0].name != layer:
            rest = rest + projection.weigh(1 / gaussian.precision, 1 / gaussian.rest)
            continue
        for move in moves:
            other = replace(gaussian, delta=gaussian.delta * math.exp(move))
            moved.append(_weighed(projection, other))
    return mean, rest, moved


def _by_evidence(posterior: Laplace, per_layer: bool) -> Laplace:
    """Maximise the evidence over the prior, and over the noise of a Gaussian with one."""
    if posterior.damping == "factored":
        raise BadOption("the evidence is not defined for damping='factored'; pass validation data to tune().")
    trials = []
    noisy = isinstance(posterior.likelihood, Gaussian) and posterior.likelihood.noise.dim() == 0
    tuned = posterior
    last = -math.inf
    for _ in range(100 if noisy else 1):
        tuned = best_precision(tuned, per_layer)
        if noisy:
            tuned = best_noise(tuned)
        score = float(log_evidence(tuned))
        trials.append(Trial(_mean_factor(tuned, posterior), tuned.data_scale, -score))
        if abs(score - last) < 1e-9 * (abs(score) + 1):
            break
        last = score
    tuned = replace(tuned, tuning=Tuning("evidence", trials, float(log_evidence(tuned))))
    _warn_if_harmful(tuned)
    return tuned


def _mean_factor(tuned: Laplace, start: Laplace) -> float:
    """Geometric mean of the change in precision."""
    params = [p for b in tuned.blocks for p in b.params]
    return float((tuned.prior.flat(params).log() - start.prior.flat(params).log()).mean().exp())


def _warn_if_harmful(posterior: Laplace) -> None:
    """The evidence can choose a prior that drowns the network; training confidence below accuracy shows it."""
    accuracy = posterior.record.accuracy
    if accuracy is None or posterior.probe is None:
        return
    prediction = posterior.predict(posterior.probe[0])
    confidence = float(prediction.confidence.mean())  # type: ignore[union-attr]
    if confidence < accuracy - 0.01:
        notice(
            f"the prior that the evidence chose makes the network underconfident: mean confidence {confidence:.1%} on "
            f"training data that it classifies with {accuracy:.1%} accuracy. Tune on validation data instead: "
            "posterior.tune(validation_data)."
        )
