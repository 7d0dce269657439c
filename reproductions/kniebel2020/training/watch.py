"""One training, recorded after every epoch from the initial weights on.

Index legend: P weights, U units.
"""

from __future__ import annotations

import warnings
from typing import Any

import torch
from torch import Tensor, nn

import whence
from reproductions.experiment import Context
from reproductions.kniebel2020 import weights
from reproductions.kniebel2020.cells import Cell
from reproductions.kniebel2020.stability import CONDITIONS, FACTORS, STRUCTURES
from reproductions.kniebel2020.subject import data_of, outputs, untrained
from reproductions.kniebel2020.training.config import Config
from reproductions.store import Values
from whence import zoo
from whence.extras.pruning.criteria import CRITERIA, Criterion
from whence.extras.pruning.masks import Pieces, PruningPlan
from whence.where.one_pass import Asked, examine

PRUNED = (0.25, 0.5, 0.75)  # of the hidden units


class Watcher:
    """Records a network in training: by ``whence.track``, and by the same posterior under other conditions."""

    def __init__(self, config: Config, cell: Cell, seed: int, context: Context) -> None:
        self.data = data_of(cell, seed, context.device)
        self.network = untrained(cell, seed, self.data, context.device)
        self.validation, self.test = self.data.validation.tensors(), self.data.test.tensors()
        self.probe = self.validation[0][: config.probe]
        train = self.data.train.with_(augment=None)
        self.track = whence.track(
            self.network, train, likelihood="classification", probe=self.probe, every=1, subset=config.subset,
            curvature="ggn", seed=seed,
        )  # fmt: skip
        self.size = train.size
        self.losses: Values = {name: [] for name in ("train", "validation", "test", "accuracy")}
        self.series: Values = {_key(c): {"identified": [], "explained": []} for c in CONDITIONS}
        self.most: dict[str, Tensor] = {}  # the largest identified of every weight so far, by layer
        self.first: list[weights.Layer] = []
        self.last: whence.Laplace | None = None

    def record(self, network: nn.Module, _: Any = None) -> None:
        """After an epoch, or before the first."""
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            self.track.record() if not self.losses["test"] else self.track.step()
            self._losses(network)
            for structure in STRUCTURES:
                posterior = whence.laplace(
                    network, self.track.subset, likelihood="classification", structure=structure,  # type: ignore[arg-type]
                    curvature="ggn", data_size=self.size, progress=False,
                )  # fmt: skip
                self._under_priors(posterior, structure)
                if structure == "kron":
                    self._weights(posterior)

    def _losses(self, network: nn.Module) -> None:
        self.losses["train"].append(self.track.records[-1].loss)
        for name, (x, y) in (("validation", self.validation), ("test", self.test)):
            logits, labels = outputs(network, x), y.cpu()
            self.losses[name].append(float(nn.functional.cross_entropy(logits, labels)))
        self.losses["accuracy"].append(float((logits.argmax(-1) == labels).double().mean()))

    def _under_priors(self, posterior: whence.Laplace, structure: str) -> None:
        asked = {f: posterior.with_prior(whence.Relative(float(f))) for f in FACTORS}
        found = examine(self.probe, Asked(asked))
        for factor, own in asked.items():
            series = self.series[_key((structure, factor))]
            series["identified"].append([row.identified for row in own.where().layers])
            series["explained"].append(found[factor].over_inputs().explained.tolist())

    def _weights(self, posterior: whence.Laplace) -> None:
        layers = weights.layers_of(posterior)
        self.first = self.first or layers
        self.last = posterior
        for layer in layers:
            before = self.most.get(layer.name)
            self.most[layer.name] = layer.identified if before is None else before.maximum(layer.identified)

    def values(self) -> Values:
        assert self.last is not None
        matrices = [b.name for b in self.last.blocks if b.form is not None]
        return {
            "layers": [{"name": b.name, "parameters": b.size, "matrix": b.name in matrices} for b in self.last.blocks],
            **self.losses,
            "series": self.series,
            "unidentified": self._unidentified(),
            "pruned": self._pruned(),
            "overhead": self.track.overhead,
        }

    def _unidentified(self) -> list[Values]:
        """Units of every layer that are identified less than 1%: at the start, at the end, and all the time."""
        assert self.last is not None
        found = []
        for first, last in zip(self.first, weights.layers_of(self.last), strict=True):
            least = _mean_by_unit(self.most[last.name], last)
            found.append(
                {
                    "name": last.name, "units": last.units, "first": weights.unidentified(first)[0],
                    "last": weights.unidentified(last)[0], "throughout": int((least < weights.UNKNOWN).sum()),
                }
            )  # fmt: skip
        return found

    def _pruned(self) -> Values:
        """Accuracy on test data without the hidden units that were least identified during the whole training."""
        assert self.last is not None
        x, y = self.test
        by_block = {n: v for b in self.last.blocks for n, v in b.scatter(self.most[b.name]).items()}

        def throughout(_: Any, given: dict[str, Tensor], __: int) -> dict[str, Tensor]:
            return {name: by_block[name].double().cpu() for name in given}

        plan = PruningPlan.make(self.last, Pieces.UNITS)
        orders = {"throughout": Criterion("throughout", throughout)} | {
            name: CRITERIA[name] for name in ("identified", "magnitude", "random")
        }
        found: Values = {}
        for name, criterion in orders.items():
            ranking = plan.rank(criterion)
            masked = [plan.apply(ranking.keep(fraction)) for fraction in PRUNED]
            found[name] = [float((outputs(m, x).argmax(-1) == y.cpu()).double().mean()) for m in masked]
        return found


def _mean_by_unit(values: Tensor, layer: weights.Layer) -> Tensor:
    index = layer.unit.to(values.device)
    count = torch.bincount(index, minlength=layer.units).clamp(min=1)
    return torch.zeros(layer.units, dtype=values.dtype, device=values.device).index_add(0, index, values) / count


def _key(condition: tuple[str, str]) -> str:
    return " ".join(condition)


def watched(config: Config, cell: Cell, seed: int, context: Context) -> Values:
    """Train with a constant rate, so that nothing but the data ends the training."""
    watcher = Watcher(config, cell, seed, context)
    watcher.record(watcher.network)
    settings = cell.settings | {"epochs": config.epochs, "schedule": "constant"}
    settings.pop("amp", None)
    zoo.train(
        watcher.network, watcher.data.train.with_(augment=cell.augment), seed=seed, device=context.device,
        progress=False, callback=watcher.record, **settings,
    )  # fmt: skip
    return watcher.values()
