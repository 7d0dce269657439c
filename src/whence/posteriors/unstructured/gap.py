"""How far a structured posterior is from draws without structure, on given inputs; Monte Carlo error apart.

y_s = J(x) z_s are draws of the outputs with the exact covariance V(x) (their mean is known to be 0), K(x) is what the
structured posterior says. What S draws estimate is kept free of bias: ‖V − K‖² = ‖V‖² − 2⟨V, K⟩ + ‖K‖² takes ‖V‖²
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

from whence.batches import Inputs, to_device
from whence.errors import BadOption, need, notice
from whence.likelihoods import Gaussian, Likelihood
from whence.linalg.dense import psd_root
from whence.posteriors.unstructured.posterior import moves
from whence.predictive import linearised
from whence.predictive.links import predict_draws, predict_gaussian
from whence.randomness import Points

if TYPE_CHECKING:
    from whence.posteriors.laplace import Laplace
    from whence.posteriors.unstructured.posterior import Unstructured

FEWEST = 3  # draws
POINTS = 256  # of the structured posterior's Monte Carlo link
LEVELS = (0.05, 0.25, 0.5, 0.75, 0.95)
PAIRS = 2**22  # products of two draws that are held at once
SEED = 1906
ALIKE = 1e-6  # relative difference of two precisions or scales that are the same


@dataclass(frozen=True)
class Value:
    """An estimate from the draws with its standard error (by the jackknife over draws)."""

    value: float
    error: float

    def __str__(self) -> str:
        return f"{self.value:.3g} ± {self.error:.1g}"


@dataclass(frozen=True)
class LayerGap:
    """One layer's part of the variance of the outputs, as shares of the whole variance."""

    name: str
    own: float  # Var(J_b z_b) without structure
    own_error: float
    cross: float  # Σ_{a ≠ b} Cov(J_b z_b, J_a z_a), which layers kept apart leave out; the own and cross add up to 1
    cross_error: float
    structured: float | None  # its share under the structured posterior


@dataclass(frozen=True)
class Noisy:
    """A mean distance, and what as many draws of one and the same posterior would show."""

    value: float
    noise: float

    def __str__(self) -> str:
        return f"{self.value:.2g} (draws alone: {self.noise:.2g})"


@dataclass(frozen=True)
class Gap:
    """Made by ``unstructured.distance(x)``. Ratios above 1: the structured posterior is too sure."""

    structure: str
    joint: bool  # whether the structure keeps correlation between layers
    inputs: int
    draws: int
    variance_ratio: Value  # Σ V / Σ K over inputs and outputs
    mean_ratio: Value  # mean of V / K
    quantiles: dict[float, float]  # of V / K over inputs and outputs; they hold the draws' own scatter
    scatter: float  # √(2 / S): relative scatter of one V that the draws cause
    squared_distance: Value  # Σ‖V − K‖² / Σ‖V‖² over inputs, free of bias: it may fall below 0
    noise_distance: float  # what the draws' scatter would have added to the distance
    cross_share: Value  # 1 − Σ_b Var(J_b z_b) / Var(J z): what correlation between layers does to the variance
    layers: list[LayerGap]
    total_variation: Noisy | None  # of the predicted labels or targets
    divergence: Noisy | None  # KL(p‖q) + KL(q‖p), in nats
    ratios: Tensor = field(repr=False)  # V / K (N, C)

    @property
    def covariance_distance(self) -> float:
        """‖V − K‖ / ‖V‖ over all inputs, the Monte Carlo error taken out; 0 where nothing is left."""
        return math.sqrt(max(self.squared_distance.value, 0.0))

    def to_pandas(self) -> Any:
        """The layer table as a ``pandas.DataFrame``."""
        return need("pandas", "pandas").DataFrame([asdict(row) for row in self.layers])

    def summary(self) -> str:
        """In words."""
        return "\n".join(_words(self))

    __str__ = summary


def _words(gap: Gap) -> Iterator[str]:
    seen = gap.squared_distance.value > 2 * gap.squared_distance.error
    yield (
        f"On {gap.inputs:,} inputs, the variance of the outputs without structure is {gap.variance_ratio} times that "
        f"of the {gap.structure} posterior (over single outputs {gap.quantiles[0.05]:.2g} to {gap.quantiles[0.95]:.2g} "
        f"times, of which ± {gap.scatter:.0%} is the scatter of {gap.draws} draws)."
    )
    if seen:
        low, high = (math.sqrt(max(gap.squared_distance.value + k * gap.squared_distance.error, 0)) for k in (-2, 2))
        yield (
            f"Its covariance of the outputs is off by {gap.covariance_distance:.0%} ({low:.0%} to {high:.0%}) in "
            f"Frobenius norm, the {gap.noise_distance:.0%} from so few draws not counted."
        )
    else:
        yield (
            f"Its covariance of the outputs cannot be told from the one without structure by {gap.draws} draws: the "
            f"distance is below {math.sqrt(max(gap.squared_distance.value + 2 * gap.squared_distance.error, 0)):.0%}."
        )
    if len(gap.layers) > 1:
        top = max(gap.layers, key=lambda row: abs(row.cross))
        left_out = "" if gap.joint else f", which a {gap.structure} posterior leaves out,"
        yield (
            f"The layers' own variances add up to {1 - gap.cross_share.value:.3g} ± {gap.cross_share.error:.1g} times "
            f"the whole; correlation between layers{left_out} is the difference, most of it at {top.name!r}."
        )
    if gap.total_variation is not None:
        yield f"Predictions differ by a total variation of {gap.total_variation} on average."


def gap(posterior: Unstructured, structured: Laplace, x: Any) -> Gap:
    """See :meth:`whence.posteriors.unstructured.Unstructured.distance`."""
    if len(posterior) < FEWEST:
        raise BadOption(f"{len(posterior)} draws are too few to tell a distance from their scatter; take 16 or more.")
    if structured.network.hash != posterior.network.hash:
        raise BadOption("the two posteriors belong to networks with different weights.")
    _refuse_other_weights(posterior, structured)
    _say_other_model(posterior, structured)
    sums = _Sums(len(posterior), posterior.groups, structured)
    network = posterior.network

    def parts(piece: Inputs) -> tuple[Tensor, Tensor, linearised.Moments]:
        own = to_device(piece, network.device, network.dtype)
        by_group = [{n: posterior.deviations[n] for n in names} for names in posterior.groups.values()]
        found = [moves(network, own, along) for along in by_group]
        moved = torch.stack([m.detach() for _, m in found]).double()
        return found[0][0].detach().double(), moved, linearised.moments(structured, piece, by_block=True)

    for piece in linearised.pieces(structured, x):
        for mean, moved, moments in linearised.fitting(structured, parts, piece, "the distance"):
            sums.add(mean, moved, moments)
    return sums.result()


def _refuse_other_weights(posterior: Unstructured, structured: Laplace) -> None:
    """A posterior over other weights of the network answers another question."""
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
            f"{structured.parameters:,} for the structured posterior, by other masks. Fit both with the same mask."
        )


def _say_other_model(posterior: Unstructured, structured: Laplace) -> None:
    """Notice what else than the structure tells the two apart."""
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
            f"the draws and the structured posterior differ in {' and '.join(found)}: the distance is not that of the "
            "structure alone."
        )


class _Sums:
    """Sums over the inputs, apart for each draw where an error is wanted."""

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
        if self.likelihood.task == "classification":
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

    def result(self) -> Gap:
        ratios = torch.cat(self.ratios)
        trace = sum(self.traces)
        total = (self.own + self.cross).sum(0)  # Σ y², [S]
        rows, known = [], self._by_layer()
        for b, name in enumerate(self.layers):
            own, cross = (_share(part[b], total) for part in (self.own, self.cross))
            share = known[name] / trace if name in known else None
            rows.append(LayerGap(name, own.value, own.error, cross.value, cross.error, share))
        levels = torch.tensor(LEVELS, dtype=torch.float64)
        quantiles = torch.quantile(_some(ratios.flatten()), levels).tolist()
        return Gap(
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
        """Σ tr K_b of the layers that the structured posterior has by itself, under the same name and weights."""
        groups = self.structured.groups()
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


def _some(values: Tensor, most: int = 2**20) -> Tensor:
    """Evenly picked values, where torch's quantile would take no more."""
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
    """Total variation and symmetric KL of each input, [2, N] each: of the draws, and of draws from the structured one.

    NaN where the predictive distribution has no such distance here.
    """
    normals = Points(len(moved), SEED).normals(mean.numel(), mean.device, mean.dtype).reshape(moved.shape)
    null = torch.einsum("ncd,snd->snc", psd_root(cov), normals)  # as many draws of the structured posterior
    if likelihood.task in ("classification", "binary"):
        nothing = _nothing
        q = predict_gaussian(likelihood, mean, cov, "mc", Points(POINTS), nothing).probs  # type: ignore[union-attr]
        found = []
        for draws in (moved, null):
            p = predict_draws(likelihood, mean + torch.cat([draws, -draws])).probs  # type: ignore[union-attr]
            found.append(_of_labels(p, q, likelihood.task == "binary"))
    elif isinstance(likelihood, Gaussian):
        noise = likelihood.variance(mean).reshape(mean.shape)
        q = cov.diagonal(dim1=-2, dim2=-1) + noise
        found = [_of_normals(draws.square().mean(0) + noise, q) for draws in (moved, null)]
    else:
        return [torch.full((2, len(mean)), math.nan)] * 2
    return [torch.stack([f[i] for f in found]).cpu() for i in range(2)]


def _nothing() -> Tensor:
    raise AssertionError("no covariance is asked for here")


def _of_labels(p: Tensor, q: Tensor, binary: bool) -> tuple[Tensor, Tensor]:
    """[N] each; of binary labels the mean over them."""
    tiny = torch.finfo(p.dtype).tiny
    if binary:
        p, q = (torch.stack([v, 1 - v], dim=-1) for v in (p, q))  # [N, K, 2]
    variation = (p - q).abs().sum(-1) / 2
    divergence = ((p - q) * (p.clamp(min=tiny).log() - q.clamp(min=tiny).log())).sum(-1)
    return (variation.mean(-1), divergence.mean(-1)) if binary else (variation, divergence)


def _of_normals(a: Tensor, b: Tensor) -> tuple[Tensor, Tensor]:
    """Of N(m, a) and N(m, b), the mean over outputs, [N] each: 2 [Φ(x/√low) − Φ(x/√high)] at their crossing x."""
    low, high = torch.minimum(a, b), torch.maximum(a, b)
    excess = (high / low - 1).clamp(min=1e-12)
    crossing = (torch.log1p(excess) * (1 + excess) / excess).sqrt()  # in units of √low
    variation = 2 * (torch.special.ndtr(crossing) - torch.special.ndtr(crossing / (1 + excess).sqrt()))
    return variation.mean(-1), ((a / b + b / a) / 2 - 1).mean(-1)
