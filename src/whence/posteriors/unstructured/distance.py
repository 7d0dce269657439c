"""The distance of a structured posterior from unstructured draws on given inputs, without Monte Carlo error.

y_s = J(x) z_s are draws of the outputs with the exact covariance V(x) (their mean is known to be 0), K(x) is the
covariance of the structured posterior. Estimates are unbiased: ‖V − K‖² = ‖V‖² − 2⟨V, K⟩ + ‖K‖² takes ‖V‖²
from products of *different* draws. Logits of classes are centred first: a common shift changes no probability.

Index legend: S draws, N inputs, C outputs, B layers.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from whence.curvature.jvp import tangents
from whence.engine.batches import Inputs, to_device
from whence.engine.randomness import Points
from whence.errors import BadOption, need, notice
from whence.likelihoods import Gaussian, Likelihood
from whence.linalg.dense import psd_root
from whence.predictive import linearised
from whence.predictive.links import OutputGaussian, predict_draws, predict_gaussian

if TYPE_CHECKING:
    from whence.posteriors.laplace.posterior import Laplace
    from whence.posteriors.unstructured.posterior import Unstructured

FEWEST = 3  # draws
POINTS = 256  # points of the structured posterior's Monte Carlo link
LEVELS = (0.05, 0.25, 0.5, 0.75, 0.95)
PAIRS = 2**22  # products of two draws in memory at once
SEED = 1906
ALIKE = 1e-6  # relative difference up to which two precisions or scales are equal


@dataclass(frozen=True)
class Value:
    """An estimate from the draws with its standard error (by the jackknife over draws)."""

    value: float
    error: float

    def __str__(self) -> str:
        return f"{self.value:.3g} ± {self.error:.1g}"


@dataclass(frozen=True)
class LayerDistance:
    """One layer's contribution to the variance of the outputs, as shares of the total."""

    name: str
    own: float  # Var(J_b z_b) without structure
    own_error: float
    cross: float  # Σ_{a ≠ b} Cov(J_b z_b, J_a z_a), ignored if layers are independent; own and cross sum to 1
    cross_error: float
    structured: float | None  # its share under the structured posterior


@dataclass(frozen=True)
class Noisy:
    """A mean distance, and the distance that this many draws of the same posterior would show."""

    value: float
    noise: float

    def __str__(self) -> str:
        return f"{self.value:.2g} (draws alone: {self.noise:.2g})"


@dataclass(frozen=True)
class StructureDistance:
    """Made by ``unstructured.distance(x)``. Ratios above 1: the structured posterior is overconfident."""

    structure: str
    joint: bool  # whether the structure has correlations between layers
    inputs: int
    draws: int
    variance_ratio: Value  # Σ V / Σ K over inputs and outputs
    mean_ratio: Value  # mean of V / K
    quantiles: dict[float, float]  # of V / K over inputs and outputs; includes the Monte Carlo scatter
    scatter: float  # √(2 / S): relative Monte Carlo scatter of one V
    squared_distance: Value  # Σ‖V − K‖² / Σ‖V‖² over inputs, unbiased, so it may be negative
    noise_distance: float  # Monte Carlo contribution that was removed from the distance
    cross_share: Value  # 1 − Σ_b Var(J_b z_b) / Var(J z): the effect of correlations between layers on the variance
    layers: list[LayerDistance]
    total_variation: Noisy | None  # of the predicted labels or targets
    divergence: Noisy | None  # KL(p‖q) + KL(q‖p), in nats
    ratios: Tensor = field(repr=False)  # V / K (N, C)

    @property
    def covariance_distance(self) -> float:
        """‖V − K‖ / ‖V‖ over all inputs, without the Monte Carlo error; 0 if nothing is left."""
        return math.sqrt(max(self.squared_distance.value, 0.0))

    def to_pandas(self) -> Any:
        """The layer table as a ``pandas.DataFrame``."""
        return need("pandas", "pandas").DataFrame([asdict(row) for row in self.layers])

    def summary(self) -> str:
        """The result as a sentence."""
        return "\n".join(_words(self))

    __str__ = summary


def _words(d: StructureDistance) -> Iterator[str]:
    seen = d.squared_distance.value > 2 * d.squared_distance.error
    yield (
        f"On {d.inputs:,} inputs, the variance of the outputs without structure is {d.variance_ratio} times that "
        f"of the {d.structure} posterior (over single outputs {d.quantiles[0.05]:.2g} to {d.quantiles[0.95]:.2g} "
        f"times, including a Monte Carlo scatter of ± {d.scatter:.0%} from {d.draws} draws)."
    )
    if seen:
        low, high = (math.sqrt(max(d.squared_distance.value + k * d.squared_distance.error, 0)) for k in (-2, 2))
        yield (
            f"Its output covariance differs by {d.covariance_distance:.0%} ({low:.0%} to {high:.0%}) in "
            f"Frobenius norm, not counting {d.noise_distance:.0%} from Monte Carlo error."
        )
    else:
        yield (
            f"The difference of its output covariance is not significant with {d.draws} draws: the "
            f"distance is below {math.sqrt(max(d.squared_distance.value + 2 * d.squared_distance.error, 0)):.0%}."
        )
    if len(d.layers) > 1:
        top = max(d.layers, key=lambda row: abs(row.cross))
        left_out = "" if d.joint else f", which a {d.structure} posterior ignores,"
        yield (
            f"The layers' own variances sum to {1 - d.cross_share.value:.3g} ± {d.cross_share.error:.1g} times "
            f"the total; the difference is correlation between layers{left_out} most of it in {top.name!r}."
        )
    if d.total_variation is not None:
        yield f"Predictions differ by a total variation of {d.total_variation} on average."


def distance_between(posterior: Unstructured, structured: Laplace, x: Any) -> StructureDistance:
    """See :meth:`whence.posteriors.unstructured.Unstructured.distance`."""
    if len(posterior) < FEWEST:
        raise BadOption(f"{len(posterior)} draws are too few to measure a distance; take 16 or more.")
    if structured.network.hash != posterior.network.hash:
        raise BadOption("the two posteriors belong to networks with different weights.")
    _refuse_other_weights(posterior, structured)
    _notify_other_model(posterior, structured)
    sums = _Sums(len(posterior), posterior.groups, structured)
    network = posterior.network

    def parts(piece: Inputs) -> tuple[Tensor, Tensor, linearised.Moments]:
        own = to_device(piece, network.device, network.dtype)
        by_group = [{n: posterior.deviations[n] for n in names} for names in posterior.groups.values()]
        found = [tangents(network, own, along) for along in by_group]
        moved = torch.stack([m.detach() for _, m in found]).double()
        return found[0][0].detach().double(), moved, linearised.moments(structured, piece, by_block=True)

    for piece in linearised.pieces(structured, x):
        for mean, moved, moments in linearised.fitting(structured, parts, piece, "the distance"):
            sums.add(mean, moved, moments)
    return sums.result()


def _refuse_other_weights(posterior: Unstructured, structured: Laplace) -> None:
    """Refuse posteriors over different weights of the network."""
    mine, its = posterior.names(), structured.names()
    if other := sorted(set(mine) ^ set(its)):
        has, lacks = ("draws", "structured posterior") if other[0] in mine else ("structured posterior", "draws")
        raise BadOption(
            f"the two posteriors are over different weights: {other[0]!r} is Bayesian for the {has} and not for the "
            f"{lacks}. Fit both with the same layers=…."
        )
    keep = structured.curvature.keep
    same = posterior.parameters == structured.parameters
    if same and keep is not None:
        params = [p for b in structured.blocks for p in b.params]
        moved = torch.cat([(posterior.deviations[p.name] != 0).any(0).flatten() for p in params])
        moved[keep.to(moved.device)] = False
        same = not bool(moved.any())
    if not same:
        raise BadOption(
            f"the two posteriors are over different weights: {posterior.parameters:,} for the draws and "
            f"{structured.parameters:,} for the structured posterior, with different masks. Use the same mask."
        )


def _notify_other_model(posterior: Unstructured, structured: Laplace) -> None:
    """Give a notice if the two differ in more than the structure."""
    params = [p for b in structured.blocks for p in b.params]
    mine, its = posterior.prior.flat(params), structured.prior.flat(params)
    if (keep := structured.curvature.keep) is not None:
        mine, its = mine[keep.cpu()], its[keep.cpu()]
    found = []
    if not torch.allclose(mine, its, rtol=ALIKE, atol=0.0):
        found.append(f"prior precision ({posterior.prior.describe()}, {structured.prior.describe()})")
    if not math.isclose(posterior.data_scale, structured.data_scale, rel_tol=ALIKE):
        found.append(f"data scale ({posterior.data_scale:.4g}, {structured.data_scale:.4g})")
    if posterior.likelihood != structured.likelihood:
        found.append(f"likelihood ({posterior.likelihood!r}, {structured.likelihood!r})")
    if found:
        notice(
            f"the draws and the structured posterior differ in {' and '.join(found)}: the distance is not due to the "
            "structure alone."
        )


class _Sums:
    """Sums over the inputs, kept per draw where an error estimate needs it."""

    def __init__(self, draws: int, layers: dict[str, tuple[str, ...]], structured: Laplace) -> None:
        self.layers, self.structured, self.draws = layers, structured, draws
        self.likelihood = structured.likelihood
        self.own = self.cross = self.pairs = self.inner = self.ratio = 0.0  # type: Any
        self.squares = 0.0  # Σ ‖K‖²
        self.traces: list[Any] = []  # Σ tr K_b
        self.ratios: list[Tensor] = []
        self.distances: list[Tensor] = []

    def add(self, mean: Tensor, parts: Tensor, moments: linearised.Moments) -> None:
        """Outputs [N, C], derivatives by layer [B, S, N, C], and the structured moments of some inputs."""
        cov = moments.cov.detach().double()
        by_block = [c.detach().double() for c in moments.by_block or []]
        self.distances.append(torch.stack(_predictive(self.likelihood, mean, parts.sum(0), cov)))
        if self.likelihood.shift_invariant:
            parts = parts - parts.mean(-1, keepdim=True)
            cov, by_block = _centred(cov), [_centred(c) for c in by_block]
        whole = parts.sum(0)  # [S, N, C]
        variance = cov.diagonal(dim1=-2, dim2=-1)  # [N, C]
        safe = variance.clamp(min=torch.finfo(torch.float64).tiny)
        self.own = self.own + parts.square().sum((2, 3))  # [B, S]
        self.cross = self.cross + (parts * (whole - parts)).sum((2, 3))
        for some in whole.transpose(0, 1).split(max(1, PAIRS // self.draws**2)):  # [n, S, C]
            self.pairs = self.pairs + (some @ some.mT).square().sum(0)  # [S, S]
        self.inner = self.inner + torch.einsum("snc,ncd,snd->s", whole, cov, whole)
        self.ratio = self.ratio + (whole.square() / safe).sum((1, 2))  # [S]
        self.squares += float(cov.square().sum())
        traces = [float(c.diagonal(dim1=-2, dim2=-1).sum()) for c in by_block]
        self.traces = [a + b for a, b in zip(self.traces or [0.0] * len(traces), traces, strict=True)]
        self.ratios.append((whole.square().mean(0) / safe).cpu())

    def result(self) -> StructureDistance:
        ratios = torch.cat(self.ratios)
        trace = sum(self.traces)
        total = (self.own + self.cross).sum(0)  # Σ y², [S]
        rows, known = [], self._by_layer()
        for b, name in enumerate(self.layers):
            own, cross = (_share(part[b], total) for part in (self.own, self.cross))
            share = known[name] / trace if name in known else None
            rows.append(LayerDistance(name, own.value, own.error, cross.value, cross.error, share))
        levels = torch.tensor(LEVELS, dtype=torch.float64)
        quantiles = torch.quantile(_thinned(ratios.flatten()), levels).tolist()
        return StructureDistance(
            structure=self.structured.curvature.options.structure,
            joint=self.structured.curvature.joint,
            inputs=len(ratios),
            draws=self.draws,
            variance_ratio=_mean(total / trace),
            mean_ratio=_mean(self.ratio / ratios.numel()),
            quantiles=dict(zip(LEVELS, quantiles, strict=True)),
            scatter=math.sqrt(2 / self.draws),
            squared_distance=self._squared(),
            noise_distance=self._noise(),
            cross_share=_share(self.cross.sum(0), total),
            layers=rows,
            total_variation=self._noisy(0),
            divergence=self._noisy(1),
            ratios=ratios,
        )

    def _by_layer(self) -> dict[str, float]:
        """Σ tr K_b of the layers that the structured posterior has with the same name and weights."""
        groups = self.structured.curvature.groups
        if len(self.traces) != len(groups):
            return {}
        alone = ((blocks[0], t) for blocks, t in zip(groups, self.traces, strict=True) if len(blocks) == 1)
        return {b.name: t for b, t in alone if {p.name for p in b.params} == set(self.layers.get(b.name, ()))}

    def _norms(self) -> tuple[Tensor, Tensor]:
        """Σ ‖V‖² from pairs of different draws: of all of them, and without each draw in turn [S]."""
        count, alone = self.draws, self.pairs.diagonal()
        rows = self.pairs.sum(1) - alone
        return rows.sum() / (count * (count - 1)), (rows.sum() - 2 * rows) / ((count - 1) * (count - 2))

    def _squared(self) -> Value:
        """Σ ‖V − K‖² / Σ ‖V‖²."""
        norm, norms = self._norms()
        inner, inners = self.inner.mean(), (self.inner.sum() - self.inner) / (self.draws - 1)
        return _jackknife((norm - 2 * inner + self.squares) / norm, (norms - 2 * inners + self.squares) / norms)

    def _noise(self) -> float:
        norm = float(self._norms()[0])
        return math.sqrt(max(float(self.pairs.mean()) - norm, 0.0) / norm)

    def _noisy(self, which: int) -> Noisy | None:
        found = torch.cat(self.distances, dim=2)[which]  # [2, N]
        value, noise = found.mean(1).tolist()
        return None if math.isnan(value) else Noisy(value, noise)


def _centred(cov: Tensor) -> Tensor:
    """P K P with P = I − 1 1ᵀ / C."""
    cov = cov - cov.mean(-1, keepdim=True)
    return cov - cov.mean(-2, keepdim=True)


def _thinned(values: Tensor, most: int = 2**20) -> Tensor:
    """Evenly spaced values, since torch's quantile has a size limit."""
    return values[:: -(-len(values) // most)]


# Errors


def _jackknife(value: Tensor, without: Tensor) -> Value:
    """A value of all draws, and of all without each in turn [S]."""
    spread = (without - without.mean()).square().mean() * (len(without) - 1)
    return Value(float(value), float(spread.sqrt()))


def _share(part: Tensor, total: Tensor) -> Value:
    """Σ part / Σ total over the draws."""
    return _jackknife(part.sum() / total.sum(), (part.sum() - part) / (total.sum() - total))


def _mean(values: Tensor) -> Value:
    return Value(float(values.mean()), float(values.std()) / math.sqrt(len(values)))


# Predictive distributions


def _predictive(likelihood: Likelihood, mean: Tensor, moved: Tensor, cov: Tensor) -> list[Tensor]:
    """Total variation and symmetric KL of each input, [2, N] each: for the draws, and for structured draws.

    NaN if it is not implemented for the predictive distribution.
    """
    normals = Points(len(moved), SEED).normals(mean.numel(), mean.device, mean.dtype).reshape(moved.shape)
    null = torch.einsum("ncd,snd->snc", psd_root(cov), normals)  # as many draws of the structured posterior
    if likelihood.has_labels:
        q = predict_gaussian(likelihood, OutputGaussian(mean, cov, Points(POINTS))).probs  # type: ignore[union-attr]
        found = []
        for draws in (moved, null):
            p = predict_draws(likelihood, mean + torch.cat([draws, -draws])).probs  # type: ignore[union-attr]
            found.append(_of_labels(p, q, not likelihood.shift_invariant))
    elif isinstance(likelihood, Gaussian):
        noise = likelihood.variance(mean).reshape(mean.shape)
        q = cov.diagonal(dim1=-2, dim2=-1) + noise
        found = [_of_normals(draws.square().mean(0) + noise, q) for draws in (moved, null)]
    else:
        return [torch.full((2, len(mean)), math.nan)] * 2
    return [torch.stack([f[i] for f in found]).cpu() for i in range(2)]


def _of_labels(p: Tensor, q: Tensor, binary: bool) -> tuple[Tensor, Tensor]:
    """The two distances, [N] each; averaged over binary labels."""
    tiny = torch.finfo(p.dtype).tiny
    if binary:
        p, q = (torch.stack([v, 1 - v], dim=-1) for v in (p, q))  # [N, K, 2]
    variation = (p - q).abs().sum(-1) / 2
    divergence = ((p - q) * (p.clamp(min=tiny).log() - q.clamp(min=tiny).log())).sum(-1)
    return (variation.mean(-1), divergence.mean(-1)) if binary else (variation, divergence)


def _of_normals(a: Tensor, b: Tensor) -> tuple[Tensor, Tensor]:
    """Distances of N(m, a) and N(m, b), mean over outputs, [N] each: 2 [Φ(x/√low) − Φ(x/√high)] at their crossing x."""
    low, high = torch.minimum(a, b), torch.maximum(a, b)
    excess = (high / low - 1).clamp(min=1e-12)
    crossing = (torch.log1p(excess) * (1 + excess) / excess).sqrt()  # in units of √low
    variation = 2 * (torch.special.ndtr(crossing) - torch.special.ndtr(crossing / (1 + excess).sqrt()))
    return variation.mean(-1), ((a / b + b / a) / 2 - 1).mean(-1)
