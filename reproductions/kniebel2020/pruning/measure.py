"""One network, pruned in every order: weights, units, whole layers."""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Sequence
from functools import cached_property

import torch
from torch import nn

import whence
from reproductions.kniebel2020.pruning.config import Config
from reproductions.kniebel2020.stability import FACTORS, STRUCTURES
from reproductions.kniebel2020.subject import Subject, outputs
from reproductions.store import Values
from whence.errors import NothingSelected
from whence.extras.pruning.criteria import CRITERIA
from whence.extras.pruning.masks import Pieces, PruningPlan

WITH_PRIOR = ("snr", "identified")  # criteria that depend on the prior
OF_CURVATURE = {
    Pieces.WEIGHTS: ("saliency",),  # the relative curvature orders single weights in the same way
    Pieces.UNITS: ("saliency", "relative_curvature"),
    Pieces.LAYERS: ("saliency", "relative_curvature"),
}


class Pruner:
    """A network and everything that ranks its pieces."""

    def __init__(self, config: Config, subject: Subject) -> None:
        self.config, self.subject = config, subject
        self.sets = {"validation": subject.validation, "test": subject.test}
        self.fitted = {
            s: whence.laplace(
                subject.network, subject.train, likelihood="classification", structure=s, progress=False  # type: ignore[arg-type]
            )
            for s in STRUCTURES
        }  # fmt: skip

    def measured(self) -> Values:
        found: Values = {"whole": self.scored(self.subject.network), "parameters": self.fitted["kron"].parameters}
        found |= {pieces.value: dict(self.curves(pieces)) for pieces in Pieces}
        if self.with_variational:
            found["variational"] = self.scored(self.variational.network.module)
            found["variational"]["kl_weight"] = self.variational.kl_weight.temperature
        return found

    @property
    def with_variational(self) -> bool:
        return self.subject.cell.name not in self.config.without_variational

    def scored(self, network: nn.Module) -> Values:
        """Accuracy on validation data; accuracy and log loss on test data."""
        found: Values = {}
        for name, (x, y) in self.sets.items():
            logits, labels = outputs(network, x), y.cpu()
            found[name] = float((logits.argmax(-1) == labels).double().mean())
        return found | {"nll": float(nn.functional.cross_entropy(logits, labels))}

    def curves(self, pieces: Pieces) -> Iterator[tuple[str, Values]]:
        """By the name of the order: criterion, structure, factor on τ."""
        kron = self.fitted["kron"]
        try:
            PruningPlan.make(kron, pieces)
        except NothingSelected:
            return
        for structure, posterior in self.fitted.items():
            for factor in FACTORS:
                own = posterior.with_prior(whence.Relative(float(factor)))
                for name in WITH_PRIOR:
                    yield f"{name}, {structure} {factor}", self.curve(own, name, pieces)
            for name in OF_CURVATURE[pieces]:
                yield f"{name}, {structure}", self.curve(posterior, name, pieces)
        validation = self.sets["validation"]
        isotropic = kron.with_prior(1.0).tune(validation, data_scale=False, reference=False, progress=False)
        yield "snr, isotropic", self.curve(isotropic, "snr", pieces)
        yield "magnitude", self.curve(kron, "magnitude", pieces)
        for seed in range(self.config.random):
            yield f"random {seed}", self.curve(kron, "random", pieces, seed)
        if pieces is Pieces.WEIGHTS and self.with_variational:
            for name in ("snr", "identified", "magnitude"):
                yield f"{name}, variational", self.curve(self.variational, name, pieces)

    @cached_property
    def variational(self) -> whence.Variational:
        """Mean field from the trained weights, under the same prior precision for every weight.

        Validation data choose the weight of the divergence, by the log loss of the mean network.
        """
        kron = self.fitted["kron"]
        precision = {name: 1 / value for name, value in kron.prior_variance().items()}
        x, y = self.sets["validation"]
        found: dict[float, whence.Variational] = {}
        for weight in self.config.kl_weights:
            torch.manual_seed(self.subject.seed)
            found[weight] = whence.variational(
                self.subject.network, self.subject.train.with_(batch_size=128).passes(self.subject.seed),
                likelihood="classification", prior_precision=precision, seed=self.subject.seed, progress=False,
                kl_weight=weight, **self.config.variational,
            )  # fmt: skip
        losses = {w: nn.functional.cross_entropy(outputs(p.network.module, x), y.cpu()) for w, p in found.items()}
        return found[min(losses, key=lambda weight: float(losses[weight]))]

    def curve(self, posterior: whence.WeightPosterior, by: str, pieces: Pieces, seed: int = 0) -> Values:
        """Scores at every fraction, by column."""
        plan = PruningPlan.make(posterior, pieces)
        ranking = plan.rank(CRITERIA[by], seed=seed)
        rows = []
        for fraction in self.fractions(pieces, len(plan.names)):
            keep = ranking.keep(fraction)
            rows.append({"fraction": fraction, "sparsity": plan.sparsity(keep), **self.scored(plan.apply(keep))})
        return {column: [row[column] for row in rows] for column in rows[0]}

    def fractions(self, pieces: Pieces, layers: int) -> Sequence[float]:
        if pieces is Pieces.LAYERS:
            return [count / layers for count in range(1, layers, max(1, layers // 10))]
        return self.config.weights if pieces is Pieces.WEIGHTS else self.config.units


def measured(config: Config, subject: Subject) -> Values:
    with warnings.catch_warnings(), torch.no_grad():
        warnings.simplefilter("ignore")
        return Pruner(config, subject).measured()
