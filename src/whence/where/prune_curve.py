"""How much a network loses as more of it is pruned, by criterion."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, fields
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributions import Normal
from torch.distributions import Poisson as PoissonDistribution
from tqdm import tqdm

from whence.batches import Data
from whence.curvature.selection import Layers
from whence.errors import BadOption, need, one_of
from whence.functional import Network
from whence.likelihoods import (
    Bernoulli,
    Categorical,
    Gaussian,
    HeteroscedasticGaussian,
    Likelihood,
    Poisson,
)
from whence.metrics.classification import accuracy
from whence.metrics.loss import nll
from whence.metrics.regression import rmse
from whence.metrics.tables import text
from whence.posteriors.base import WeightPosterior
from whence.randomness import resolve_seed
from whence.where.prune import PruningPlan, check_fraction
from whence.where.pruning_scores import CRITERIA, check_criterion, criteria_of

FRACTIONS = (0.0, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 0.95, 0.99)


@dataclass(frozen=True)
class PruneRow:
    """One pruned network on the test data. What does not suit the likelihood is None."""

    by: str
    fraction: float  # asked for
    sparsity: float  # reached: part of the prunable weights that is masked
    parameters: int  # of the whole network, that are not masked
    accuracy: float | None
    rmse: float | None
    nll: float  # of the plain network with masks, without its posterior


@dataclass(frozen=True)
class PruneCurve:
    """A row for each criterion and fraction."""

    rows: list[PruneRow]

    @property
    def columns(self) -> list[str]:
        """Names of the columns that hold something."""
        return [f.name for f in fields(PruneRow) if any(getattr(row, f.name) is not None for row in self.rows)]

    def to_pandas(self) -> Any:
        """The curve as a ``pandas.DataFrame``."""
        columns = self.columns
        table = [{name: asdict(row)[name] for name in columns} for row in self.rows]
        return need("pandas", "pandas").DataFrame(table, columns=columns)

    def __str__(self) -> str:
        return text(self.columns, [[_text(getattr(row, name)) for name in self.columns] for row in self.rows])


def _text(value: Any) -> str:
    if isinstance(value, float):
        return f"{value:.4g}"
    return f"{value:,}" if isinstance(value, int) else str(value)


@torch.inference_mode(False)
@torch.no_grad()
def prune_curve(
    posterior: WeightPosterior,
    test: Any,
    *,
    fractions: Sequence[float] = FRACTIONS,
    by: str | Sequence[str] | None = None,
    units: bool = False,
    per_layer: bool = False,
    layers: Layers = None,
    seed: int | None = None,
    generator: torch.Generator | None = None,
    progress: bool = True,
) -> PruneCurve:
    """Prune by each criterion to each fraction, and score the plain masked network on test data.

    ``by``: one criterion, some, or all that have a meaning for the posterior. The options are those of
    :func:`whence.prune`; ``test`` is read once for each network. Labels give accuracy and log
    loss, numbers and counts the root mean squared error and log loss, other likelihoods the log loss alone.
    """
    seed = resolve_seed(seed, generator)
    criteria = [by] if isinstance(by, str) else list(by) if by is not None else list(CRITERIA)
    for name in criteria:
        one_of(name, CRITERIA, "by")
    asked = [check_fraction(fraction) for fraction in fractions]
    if not asked or not criteria:
        raise BadOption("there is no row to compute: fractions and by need at least one entry each.")
    plan = PruningPlan.make(posterior, units, layers)
    criteria = list(criteria_of(posterior)) if by is None else [check_criterion(posterior, name) for name in criteria]
    data = posterior.network.read(test, "test")
    data.require_passes(len(asked) * len(criteria), "the curve")
    total = sum(p.numel() for p in posterior.network.params.values())
    rows: list[PruneRow] = []
    whole: dict[str, float | None] | None = None  # scores of the network that nothing is taken from
    bar = tqdm(
        total=len(asked) * len(criteria), desc="prune", unit="network", delay=3, leave=False, disable=not progress
    )
    with bar:
        for name in criteria:
            ranking = plan.rank(name, per_layer, seed)
            for fraction in asked:
                keep = ranking.keep(fraction)
                module = plan.apply(keep)
                sparsity = plan.sparsity(keep)
                scored = whole if whole is not None and not sparsity else score(module, data, posterior.likelihood)
                whole = scored if not sparsity else whole
                rows.append(PruneRow(name, fraction, sparsity, total - masked(module), **scored))  # type: ignore[arg-type]
                bar.update()
    return PruneCurve(rows)


def masked(module: nn.Module) -> int:
    """Parameters that a mask of ``torch.nn.utils.prune`` sets to zero."""
    return sum(int((b == 0).sum()) for name, b in module.named_buffers() if name.endswith("_mask"))


def score(module: nn.Module, data: Data, likelihood: Likelihood) -> dict[str, float | None]:
    """Accuracy or error, and log loss, of a plain network."""
    network = Network(module)
    found = []
    for batch in data:
        outputs = network(batch.inputs)
        targets = likelihood.check(outputs, batch.targets, batch.index)
        found.append((likelihood.flatten(outputs).double(), targets, likelihood.nll(outputs, targets).double()))
    outputs, targets, losses = (torch.cat(parts) for parts in zip(*found, strict=True))
    return {"accuracy": None, "rmse": None, "nll": float(losses.mean()), **_scores(outputs, targets, likelihood)}


def _scores(outputs: Tensor, targets: Tensor, likelihood: Likelihood) -> dict[str, float]:
    """What suits the likelihood; outputs [N, M, C] in float64, targets as it checked them."""
    if isinstance(likelihood, Categorical):
        probs, labels, ignore = outputs.flatten(0, 1).softmax(1), targets.flatten(), likelihood.ignore_index
        return {
            "accuracy": float(accuracy(probs, labels, resamples=0, ignore_index=ignore)),
            "nll": float(nll(probs, labels, resamples=0, ignore_index=ignore)),
        }
    if isinstance(likelihood, Bernoulli):
        probs, labels = outputs.flatten().sigmoid(), targets.flatten()
        return {"accuracy": float(accuracy(probs, labels, resamples=0)), "nll": float(nll(probs, labels, resamples=0))}
    if isinstance(likelihood, Gaussian):
        mean, std = outputs.flatten(), likelihood.variance(outputs).sqrt().flatten()
        return _of_numbers(mean, Normal(mean, std), targets)
    if isinstance(likelihood, HeteroscedasticGaussian):
        mean, log_var = likelihood.halves(outputs)
        return _of_numbers(mean.flatten(), Normal(mean.flatten(), (0.5 * log_var).exp().flatten()), targets)
    if isinstance(likelihood, Poisson):
        rate = outputs.flatten().exp()
        return _of_numbers(rate, PoissonDistribution(rate), targets)
    return {}


def _of_numbers(mean: Tensor, density: Any, targets: Tensor) -> dict[str, float]:
    y = targets.double().flatten()
    return {"rmse": float(rmse(mean, y, resamples=0)), "nll": float(nll(density, y, resamples=0))}
