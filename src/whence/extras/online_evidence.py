"""Prior precisions and noise that are learned during training by the evidence, without validation data.

After every few epochs a Laplace posterior of the current network gives the precision δ_b of each layer that maximises
its evidence, and the noise; in between the network is trained on −log p(y | f) + ½ Σ_b δ_b ‖θ_b‖² / N for each example
(Immer et al. 2021, "Scalable marginal likelihood estimation for model selection in deep learning").

Index legend: N training examples, P weights.
"""

from __future__ import annotations

import copy
import math
import time
import warnings
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal

import torch
from torch import Tensor, nn

from whence.engine.randomness import resolve_seed
from whence.errors import BadOption, Notice, explains_keywords, whole_number
from whence.extras.tracking.measure import undisturbed
from whence.extras.tracking.subset import gather
from whence.functional import Network, source_for
from whence.likelihoods import Gaussian, Likelihood, LikelihoodName
from whence.posteriors.laplace.front import laplace
from whence.posteriors.laplace.posterior import Laplace
from whence.priors import PriorPrecision, Relative
from whence.recording.blocks import Block
from whence.recording.selection import Layers
from whence.tables import Table, number

CHANGE = 10.0  # largest factor by which one update changes a precision, or a noise


@dataclass(frozen=True)
class EvidenceRecord:
    """One update."""

    step: int
    log_evidence: float  # under the prior and noise before the update, at the weights of that step
    loss: float  # −log p of the training data
    effective_parameters: float  # γ
    noise: float | None  # after the update, of a Gaussian with one noise
    precision: dict[str, float]  # after the update, by layer: geometric mean over its weights
    seconds: float


@explains_keywords
def online_evidence(
    model: nn.Module,
    data: Any,
    *,
    likelihood: Likelihood | LikelihoodName,
    prior_precision: float | Relative = 1.0,
    every: int = 5,
    burn_in: int = 10,
    per_layer: bool = True,
    structure: Literal["full", "block", "kron", "ekfac", "diag", "lowrank"] = "kron",
    curvature: Literal["auto", "ggn", "mc", "empirical", "kfra"] = "auto",
    examples: int | None = None,
    layers: Layers = None,
    keep_best: bool = True,
    seed: int | None = None,
    generator: torch.Generator | None = None,
) -> OnlineEvidence:
    """Learn prior precisions (and the noise) while a network trains, in any loop.

    Use ``loss(outputs, targets)`` instead of your own and call ``step()`` after every epoch, or pass both to
    :func:`whence.zoo.train`. No validation data are needed.

    Args:
        model: the network in training.
        data: its training data, without augmentation: a loader, or a pair of tensors.
        likelihood: as for :func:`whence.laplace`; the noise of a Gaussian is learned too.
        prior_precision: where it starts: a number for all weights, or ``Relative(τ)``, whose scales are computed from
            the network at every update and held in between (a penalty that followed the weights would decay nothing).
        every: steps between updates.
        burn_in: steps before the first update; evidence means little for a network that is not trained.
        per_layer: one precision for each layer, or one factor for all.
        structure: of the curvature, as for :func:`whence.laplace`; so are ``curvature`` and ``layers``.
        examples: random examples, always the same, for the curvature (None: all).
        keep_best: whether the weights of the update with the highest evidence are kept, for ``restore()``.
        seed: of the examples and of sampled labels (0); or a ``generator`` to draw it from.
    """
    if isinstance(prior_precision, bool) or not isinstance(prior_precision, (int, float, Relative)):
        raise BadOption(
            f"prior_precision={prior_precision!r} must be a number or whence.Relative(τ); layers get their own."
        )
    seed = resolve_seed(seed, generator)
    whole_number(every, "every")
    whole_number(burn_in, "burn_in", 0)
    settings: dict[str, Any] = {"structure": structure, "curvature": curvature, "layers": layers}
    given = data
    if examples is not None:
        network = Network.snapshot(model)
        subset = gather(
            source_for(network.module, data), whole_number(examples, "examples"), seed, network.device, network.dtype
        )
        given, settings["data_size"] = (subset.inputs, subset.targets), subset.size
    found = OnlineEvidence(model, given, likelihood, settings, seed)
    found.every, found.burn_in, found.per_layer, found.keep_best = every, burn_in, per_layer, keep_best
    found.begin(prior_precision)
    return found


class OnlineEvidence:
    """Made by :func:`whence.online_evidence`: the loss, its updates, and their history."""

    every: int
    burn_in: int
    per_layer: bool
    keep_best: bool
    posterior: Laplace  # of the last update, under the prior that it chose

    def __init__(self, model: nn.Module, data: Any, likelihood: Any, settings: dict[str, Any], seed: int) -> None:
        self._model, self._data, self._settings, self._seed = model, data, settings, seed
        self.likelihood: Likelihood = likelihood
        self.steps = 0
        self.records: list[EvidenceRecord] = []
        self.best: tuple[float, int, dict[str, Tensor]] | None = None  # evidence, step and state of the best update
        self._factors: dict[str, float] = {}  # by parameter, relative to the shape of the prior
        self._shape: float | Relative = 1.0

    def begin(self, prior_precision: float | Relative) -> None:
        """Fit once, so that errors appear before the training."""
        self._shape = prior_precision if isinstance(prior_precision, Relative) else float(prior_precision)
        posterior = self._fit(self._shape)
        self.likelihood = posterior.likelihood
        self._factors = dict.fromkeys(posterior.names(), 1.0)
        self._keep(posterior)

    def _fit(self, prior: Any) -> Laplace:
        generator = torch.Generator().manual_seed(self._seed)
        options = {"likelihood": self.likelihood, "prior_precision": prior, "progress": False, "generator": generator}
        with undisturbed(self._model, self._seed), warnings.catch_warnings():
            warnings.simplefilter("ignore", Notice)
            return laplace(self._model, self._data, **options, **self._settings)

    def _keep(self, posterior: Laplace) -> None:
        self.posterior, self.data_size = posterior, posterior.record.data_size
        self._precisions = _on_device(posterior.prior, posterior.names(), next(self._model.parameters()))

    # In the loop

    def loss(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """Mean of −log p over a batch under the present noise, and :meth:`penalty`."""
        outputs = getattr(outputs, "logits", outputs)
        return self.likelihood.nll(outputs, self.likelihood.check(outputs, targets)).mean() + self.penalty()

    def penalty(self) -> Tensor:
        """½ Σ δ θ² / N over the weights of the network as they are now, for a mean loss."""
        params, device = dict(self._model.named_parameters()), next(self._model.parameters()).device
        total = torch.zeros((), device=device)
        for name, precision in self._precisions.items():
            total = total + (precision * params[name].square()).sum()
        return 0.5 * total / self.data_size

    def step(self) -> EvidenceRecord | None:
        """Count a step; update after ``burn_in`` and every ``every`` of them."""
        self.steps += 1
        due = self.steps > self.burn_in and (self.steps - self.burn_in - 1) % self.every == 0
        return self.update() if due else None

    def update(self) -> EvidenceRecord:
        """Fit the posterior of the present network, and choose precisions and noise by its evidence."""
        start = time.perf_counter()
        posterior = self._fit(self._shape)
        posterior = posterior.under(posterior.prior.scaled_by(self._factors))
        evidence = float(posterior.log_evidence())
        gamma = sum(float(g.effective_parameters()) for g, _ in posterior.gaussians())
        if self.keep_best and math.isfinite(evidence) and (self.best is None or evidence > self.best[0]):
            self.best = evidence, self.steps, copy.deepcopy(self._model.state_dict())
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", Notice)
            chosen = posterior.tune(per_layer=self.per_layer, progress=False)
        factors: dict[str, float] = {}
        for block in posterior.blocks:
            change = _mean_level(chosen.prior, block) / _mean_level(posterior.prior, block)
            factors |= dict.fromkeys([p.name for p in block.params], _limited(change))
        self._factors = {name: self._factors[name] * factor for name, factor in factors.items()}
        self._keep(replace(posterior.under(posterior.prior.scaled_by(factors)), likelihood=self._noise(chosen)))
        self.likelihood = self.posterior.likelihood
        record = EvidenceRecord(
            step=self.steps,
            log_evidence=evidence,
            loss=posterior.record.loss,
            effective_parameters=gamma,
            noise=self.likelihood.number if isinstance(self.likelihood, Gaussian) else None,
            precision={b.name: _mean_level(self.posterior.prior, b) for b in posterior.blocks},
            seconds=time.perf_counter() - start,
        )
        self.records.append(record)
        return record

    def _noise(self, chosen: Laplace) -> Likelihood:
        """The likelihood with the chosen noise, changed by at most CHANGE."""
        before, after = self.likelihood, chosen.likelihood
        if not (isinstance(before, Gaussian) and isinstance(after, Gaussian)):
            return before
        old, new = before.number, after.number
        return before if old is None or new is None else Gaussian(old * _limited(new / old))

    # Afterwards

    def restore(self) -> None:
        """Load the weights of the update with the highest evidence into the network."""
        if self.best is None:
            raise BadOption("there is no best state: no update was made yet, or keep_best=False.")
        self._model.load_state_dict(self.best[2])

    @property
    def log_evidence(self) -> float:
        """Of the last update."""
        return self.records[-1].log_evidence if self.records else math.nan

    def table(self) -> Table:
        """One row for each update and layer."""
        rows: dict[str, list[Any]] = {
            name: [] for name in ("step", "log_evidence", "loss", "effective_parameters", "noise", "name", "precision")
        }
        for record in self.records:
            for layer, precision in record.precision.items():
                values = (record.step, record.log_evidence, record.loss, record.effective_parameters, record.noise)
                for key, value in zip(rows, (*values, layer, precision), strict=True):
                    rows[key].append(value)
        return Table(rows).filled() if self.records else Table(rows)

    def to_pandas(self) -> Any:
        return self.table().to_pandas()

    def __repr__(self) -> str:
        if not self.records:
            return f"OnlineEvidence({self.steps} steps, no update yet)"
        last = self.records[-1]
        noise = "" if last.noise is None else f", noise {number(last.noise)}"
        return (
            f"OnlineEvidence({self.steps} steps, {len(self.records)} updates; log evidence "
            f"{number(last.log_evidence)}{noise})"
        )


def _limited(factor: float) -> float:
    return min(max(factor, 1 / CHANGE), CHANGE) if math.isfinite(factor) and factor > 0 else 1.0


def _level(prior: PriorPrecision, name: str) -> float:
    """Geometric mean of a parameter's precisions."""
    value = prior.values[name]
    return math.exp(float(value.double().log().mean())) if isinstance(value, Tensor) else float(value)


def _mean_level(prior: PriorPrecision, block: Block) -> float:
    """Of all weights of a layer."""
    sizes = [p.numel for p in block.params]
    logs = [math.log(_level(prior, p.name)) for p in block.params]
    return math.exp(sum(size * log for size, log in zip(sizes, logs, strict=True)) / sum(sizes))


def _on_device(prior: PriorPrecision, names: list[str], like: Tensor) -> Mapping[str, Tensor]:
    values = {name: torch.as_tensor(prior.values[name]) for name in names}
    return {name: value.to(like.device, like.dtype) for name, value in values.items()}
