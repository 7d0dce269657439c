"""Performance of a network as more of it is pruned, by criterion."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributions import Distribution, Normal
from torch.distributions import Poisson as PoissonDistribution

from whence.engine.batches import Data
from whence.engine.progress import progress_bar
from whence.engine.randomness import resolve_seed
from whence.errors import BadOption, explains_keywords, one_of
from whence.extras.pruning.criteria import CRITERIA, By
from whence.extras.pruning.masks import Pieces, PruningPlan, UnitsOption, check_fraction
from whence.functional import Network
from whence.likelihoods import Bernoulli, Categorical, Gaussian, HeteroscedasticGaussian, Likelihood, Poisson
from whence.metrics import accuracy, nll, rmse
from whence.metrics.intervals import UNBOUNDED
from whence.metrics.means import mean_of
from whence.metrics.proportions import exact_interval
from whence.posteriors.base import WeightPosterior
from whence.recording.selection import Layers
from whence.tables import Table, html_of, text

FEW = 10  # changed answers, below which resamples say little
TINY = 1e-300
AS_SALIENCY = ("relative_curvature",)  # of single weights the same order as by saliency
FRACTIONS = (0.0, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 0.95, 0.99)


@dataclass(frozen=True)
class PruneRow:
    """One pruned network on the test data. None: not defined for the likelihood."""

    by: str
    fraction: float  # requested
    sparsity: float  # achieved: share of the prunable weights that is masked
    parameters: int  # unmasked parameters of the whole network
    accuracy: float | None
    rmse: float | None
    nll: float  # of the masked network, without its posterior
    change: float | None = None  # of the accuracy, the error or the log loss, from the network with all its weights
    change_low: float | None = None  # its 95% interval, of the same examples before and after
    change_high: float | None = None
    examples: int | None = None  # in the test data


@dataclass(frozen=True, repr=False)
class PruneCurve:
    """A row for each criterion and fraction."""

    rows: list[PruneRow]

    def _table(self) -> Table:
        return Table.of_rows(PruneRow, self.rows).filled()

    @property
    def columns(self) -> list[str]:
        """Names of the columns that are not empty."""
        return list(self._table())

    def to_pandas(self) -> Any:
        """The curve as a ``pandas.DataFrame``."""
        return self._table().to_pandas()

    def __str__(self) -> str:
        rows = [[_text(value) for value in row.values()] for row in self._table().rows()]
        return text(self.columns, rows)

    def __repr__(self) -> str:
        criteria = ", ".join(dict.fromkeys(row.by for row in self.rows))
        return f"PruneCurve({len(self.rows)} rows by {criteria}; print it, or call to_pandas())"

    def _repr_html_(self) -> str:
        return html_of(self._table(), repr(self))


def _text(value: Any) -> str:
    if isinstance(value, float):
        return f"{value:.4g}"
    return f"{value:,}" if isinstance(value, int) else str(value)


@explains_keywords
@torch.inference_mode(False)
@torch.no_grad()
def prune_curve(
    posterior: WeightPosterior,
    test: Any,
    *,
    fractions: Sequence[float] = FRACTIONS,
    by: By | Sequence[By] | None = None,
    units: UnitsOption = False,
    per_layer: bool = False,
    layers: Layers = None,
    seed: int | None = None,
    generator: torch.Generator | None = None,
    progress: bool = True,
) -> PruneCurve:
    """Prune by each criterion to each fraction, and score the masked network on test data.

    ``by``: one criterion, some, or all that are defined for the posterior and give different orders. The options are
    those of :func:`whence.prune`; ``test`` is read once per network. Labels give accuracy and log loss, numbers and
    counts the root mean squared error and log loss, other likelihoods only the log loss.
    """
    seed = resolve_seed(seed, generator)
    names = list(CRITERIA) if by is None else [by] if isinstance(by, str) else list(by)
    criteria = [CRITERIA[one_of(name, CRITERIA, "by")] for name in names]
    asked = [check_fraction(fraction) for fraction in fractions]
    if not asked or not criteria:
        raise BadOption("nothing to compute: fractions and by need at least one entry each.")
    plan = PruningPlan.make(posterior, Pieces.of(units), layers)
    if by is None:
        criteria = [criterion for criterion in criteria if not criterion.lacks(posterior)]
        if plan.pieces is Pieces.WEIGHTS:
            criteria = [c for c in criteria if c.name not in AS_SALIENCY]
    for criterion in criteria:
        criterion.check(posterior)
    data = posterior.network.read(test, "test")
    total = len(asked) * len(criteria)
    data.require_passes(total + 1, "the curve")
    parameters = sum(p.numel() for p in posterior.network.params.values())
    rows: list[PruneRow] = []
    whole = Scored.of(plan.apply(plan.rank(criteria[0], per_layer, seed).keep(0.0)), data, posterior.likelihood)
    with progress_bar(total=total, label="prune", unit="network", shown=progress) as bar:
        for criterion in criteria:
            ranking = plan.rank(criterion, per_layer, seed)
            for fraction in asked:
                keep = ranking.keep(fraction)
                module, sparsity = plan.apply(keep), plan.sparsity(keep)
                found = whole if not sparsity else Scored.of(module, data, posterior.likelihood)
                left = parameters - masked(module)
                rows.append(PruneRow(criterion.name, fraction, sparsity, left, **found.scores, **found.change(whole)))
                bar.update()
    return PruneCurve(rows)


def masked(module: nn.Module) -> int:
    """Parameters that a mask of ``torch.nn.utils.prune`` sets to zero."""
    return sum(int((b == 0).sum()) for name, b in module.named_buffers() if name.endswith("_mask"))


def score(module: nn.Module, data: Data, likelihood: Likelihood) -> dict[str, Any]:
    """Accuracy or error, and log loss, of a network."""
    return Scored.of(module, data, likelihood).scores


@dataclass(frozen=True)
class Scored:
    """A network on test data."""

    scores: dict[str, Any]
    losses: Tensor  # [N], which add up to N times the score: correct answers, squared errors, or log losses

    @classmethod
    def of(cls, module: nn.Module, data: Data, likelihood: Likelihood) -> Scored:
        outputs, targets, nll = _outputs(module, data, likelihood)
        scores = {"accuracy": None, "rmse": None, "nll": float(nll.mean()), **_scores(outputs, targets, likelihood)}
        return cls(scores, _losses(outputs, targets, likelihood, nll).cpu())

    def change(self, whole: Scored) -> dict[str, Any]:
        """The change of the score from that of the whole network, with the interval of the paired difference."""
        of_shares = self.scores["accuracy"] is not None
        found = mean_of("change", self.losses - whole.losses, (-1.0, 1.0) if of_shares else UNBOUNDED, seed=0)
        before, after = whole.scores["rmse"], self.scores["rmse"]
        scale = 1.0 if before is None else 1 / max(before + after, TINY)  # a − b = (a² − b²) / (a + b)
        names = ("change", "change_low", "change_high")
        few = of_few_answers(self.losses - whole.losses) if of_shares else None
        values = (scale * float(v) for v in (found, *(few or (found.low, found.high))))
        return dict(zip(names, values, strict=True)) | {"examples": len(self.losses)}


def of_few_answers(change: Tensor) -> tuple[float, float] | None:
    """Interval of a mean of −1, 0 and 1 (worse, same, better) where few differ from 0; None for other values.

    From the exact intervals of the shares of better and of worse answers (Zou & Donner 2008): resamples of a handful of
    answers do not show how many could have changed.
    """
    values = change.double()
    if int((values != 0).sum()) >= FEW or not bool(((values == 0) | (values.abs() == 1)).all()):
        return None
    better, worse = (int((values == sign).sum()) for sign in (1, -1))
    (low, high), (least, most) = (exact_interval(count, len(values)) for count in (better, worse))
    up, down = better / len(values), worse / len(values)
    return up - down - math.hypot(up - low, most - down), up - down + math.hypot(high - up, down - least)


def _losses(outputs: Tensor, targets: Tensor, likelihood: Likelihood, nll: Tensor) -> Tensor:
    """Of each example, so that the mean is the accuracy, the mean squared error, or the log loss."""
    size = len(outputs)
    if isinstance(likelihood, Categorical):
        keep = targets != likelihood.ignore_index
        right = (outputs.argmax(-1) == targets) & keep
        return right.double().reshape(size, -1).sum(1) * size / max(int(keep.sum()), 1)
    if isinstance(likelihood, Bernoulli):
        right = (outputs.reshape(size, -1) > 0) == (targets.reshape(size, -1) > 0.5)
        return right.double().mean(1)
    mean = _mean(outputs, likelihood)
    return nll if mean is None else (mean.reshape(size, -1) - targets.double().reshape(size, -1)).square().mean(1)


def _mean(outputs: Tensor, likelihood: Likelihood) -> Tensor | None:
    """The predicted numbers; None if the outputs are none."""
    if isinstance(likelihood, Gaussian):
        return outputs
    if isinstance(likelihood, HeteroscedasticGaussian):
        return likelihood.halves(outputs)[0]
    return outputs.exp() if isinstance(likelihood, Poisson) else None


def _outputs(module: nn.Module, data: Data, likelihood: Likelihood) -> tuple[Tensor, Tensor, Tensor]:
    """Outputs [N, M, C] in float64, checked targets, and log losses [N]."""
    network = Network(module)
    found = []
    for batch in data:
        outputs = network(batch.inputs)
        targets = likelihood.check(outputs, batch.targets, batch.index)
        found.append((likelihood.flatten(outputs).double(), targets, likelihood.nll(outputs, targets).double()))
    outputs, targets, losses = (torch.cat(parts) for parts in zip(*found, strict=True))
    return outputs, targets, losses


def _scores(outputs: Tensor, targets: Tensor, likelihood: Likelihood) -> dict[str, float]:
    """The scores for the likelihood; outputs [N, M, C] in float64, checked targets."""
    if isinstance(likelihood, Categorical):
        return _label_scores(outputs.flatten(0, 1).softmax(1), targets, ignore_index=likelihood.ignore_index)
    if isinstance(likelihood, Bernoulli):
        return _label_scores(outputs.flatten().sigmoid(), targets)
    if isinstance(likelihood, Gaussian):
        mean, std = outputs.flatten(), likelihood.variance(outputs).sqrt().flatten()
        return _number_scores(mean, Normal(mean, std), targets)
    if isinstance(likelihood, HeteroscedasticGaussian):
        mean, log_var = (half.flatten() for half in likelihood.halves(outputs))
        return _number_scores(mean, Normal(mean, (0.5 * log_var).exp()), targets)
    if isinstance(likelihood, Poisson):
        rate = outputs.flatten().exp()
        return _number_scores(rate, PoissonDistribution(rate), targets)
    return {}


def _label_scores(probs: Tensor, targets: Tensor, **options: Any) -> dict[str, float]:
    labels = targets.flatten()
    return {
        "accuracy": float(accuracy(probs, labels, resamples=0, **options)),
        "nll": float(nll(probs, labels, resamples=0, **options)),
    }


def _number_scores(mean: Tensor, density: Distribution, targets: Tensor) -> dict[str, float]:
    y = targets.double().flatten()
    return {"rmse": float(rmse(mean, y, resamples=0)), "nll": float(nll(density, y, resamples=0))}
