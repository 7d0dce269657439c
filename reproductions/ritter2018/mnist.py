"""The network of sections 5.2 and 5.3, and every way to predict with it; made once and kept in the cache.

Index legend: N examples, C classes, S draws.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import torch
from torch import nn

import whence
from reproductions.experiment import Context
from whence import zoo

DETERMINISTIC, DROPOUT, DIAGONAL, KRONECKER = "deterministic", "MC dropout", "diagonal Laplace", "Kronecker Laplace"
FACTORISED, LINEARISED, ENSEMBLE, SWAG = "factorised Gaussian", "linearised Kronecker", "deep ensemble", "SWAG"
PAPER = (DETERMINISTIC, DROPOUT, DIAGONAL, KRONECKER, FACTORISED)
METHODS = (*PAPER, LINEARISED, ENSEMBLE, SWAG)
LAYERED = "linearised Kronecker, a prior for each layer"


@dataclass(frozen=True)
class Setup:
    """Which network, trained how, and how the posteriors over its weights are made."""

    recipe: str = "mnist-ritter"
    changes: dict[str, Any] = field(default_factory=dict)
    outside: tuple[str, ...] = ("notmnist", "fashion-mnist", "kmnist")
    seeds: tuple[int, ...] = (0, 1, 2)
    members: int = 5
    copies: int = 100  # binarised copies of each training image that the curvature is averaged over
    draws: int = 100
    tuning_draws: int = 50
    batch: int = 500  # of the curvature
    variational: dict[str, Any] = field(
        default_factory=lambda: {
            "kl_weight": 0.01,
            "epochs": 100,
            "lr": 3e-3,
            "lr_std": 3e-2,
            "initial_std": 0.05,
            "batch": 500,
        }
    )  # the weight of the divergence is the one that validation data prefer; 1 is the bound itself
    swag: dict[str, Any] = field(default_factory=lambda: {"epochs": 20, "lr": 1e-2, "capture": True})


QUICK = Setup(
    recipe="digits-mlp", changes={"hidden": (32, 32), "dropout": 0.3, "epochs": 20},
    outside=("shuffled", "turned"), seeds=(0, 1), members=2, copies=2, draws=20, tuning_draws=5, batch=512,
    variational={"kl_weight": 0.1, "epochs": 10, "lr": 1e-2, "lr_std": 3e-2, "initial_std": 0.02, "batch": 128},
    swag={"epochs": 4, "lr": 1e-2},
)  # fmt: skip


@dataclass(frozen=True)
class Method:
    """A posterior, and how it is asked."""

    name: str
    posterior: whence.Posterior
    how: dict[str, Any]
    device: str = "cpu"

    def predict(self, x: Any, draws: int, seed: int = 0) -> Any:
        """The averaged prediction; the same draws for the same seed."""
        return self.posterior.predict(x, **self.arguments(draws, seed))

    def arguments(self, draws: int, seed: int = 0) -> dict[str, Any]:
        """Of ``predict``."""
        if self.how.get("method") == "linearised" or isinstance(self.posterior, whence.Ensemble):
            return dict(self.how)
        return self.how | {"num_samples": draws, "generator": torch.Generator(self.device).manual_seed(seed)}


class Subject:
    """One trained network with its data and its posteriors; each is made when it is asked for first."""

    def __init__(self, setup: Setup, seed: int, context: Context) -> None:
        self.setup, self.seed, self.context = setup, seed, context
        self._outside: dict[str, zoo.Examples] = {}
        context.cache.mkdir(parents=True, exist_ok=True)

    @cached_property
    def recipe(self) -> zoo.Recipe:
        return zoo.recipe(self.setup.recipe, **self.setup.changes)

    @cached_property
    def data(self) -> zoo.DataSet:
        return zoo.load(self.recipe.data, seed=self.seed, device=self.context.device, progress=False)

    @cached_property
    def train(self) -> zoo.Examples:
        """Training images, binarised anew wherever they are augmented."""
        assert self.data.train is not None
        return self.data.train.with_(augment=zoo.augment.Binarise(), batch_size=self.setup.batch)

    @cached_property
    def network(self) -> nn.Module:
        return self.member(0)

    def member(self, index: int) -> nn.Module:
        """Networks of the ensemble; the first is the one that all other methods look at."""
        seed = self.seed if index == 0 else 1000 * (self.seed + 1) + index
        return zoo.trained(
            self.recipe, seed=seed, data=self.data, device=self.context.device, cache=self.context.cache / "weights",
            progress=False,
        ).network  # fmt: skip

    def outside(self, name: str) -> zoo.Examples:
        """Inputs that are no digits, as the network would see them; read once."""
        if name not in self._outside:
            self._outside[name] = self._read_outside(name)
        return self._outside[name]

    def _read_outside(self, name: str) -> zoo.Examples:
        test = self.data.test
        assert test is not None
        if name == "shuffled":
            order = torch.randperm(test.raw[0].numel(), generator=torch.Generator().manual_seed(0))
            return test.with_(raw=test.raw.flatten(1)[:, order].reshape(test.raw.shape))
        if name == "turned":
            return test.with_(raw=test.raw.transpose(2, 3).contiguous())
        found = zoo.load(name, test_only=True, device=self.context.device, progress=False).test
        assert found is not None
        return found.like(test)

    # Posteriors

    def method(self, name: str) -> Method:
        make: dict[str, Callable[[], Method]] = {
            DETERMINISTIC: lambda: self._method(name, whence.ensemble([self.network], likelihood="classification")),
            DROPOUT: lambda: self._method(name, whence.dropout(self.network, likelihood="classification")),
            DIAGONAL: lambda: self._method(name, self.laplace("diag"), method="sampled"),
            KRONECKER: lambda: self._method(name, self.laplace("kron", damping="factored"), method="sampled"),
            LINEARISED: lambda: self._method(name, self.laplace("kron", tuned="linearised"), method="linearised"),
            LAYERED: lambda: self._method(name, self.laplace("kron", tuned="layered"), method="linearised"),
            FACTORISED: lambda: self._method(name, self.factorised()),
            ENSEMBLE: lambda: self._method(name, self.ensemble()),
            SWAG: lambda: self._method(name, self.swag()),
        }
        return make[name]()

    def _method(self, name: str, posterior: whence.Posterior, **how: Any) -> Method:
        return Method(name, posterior, how, self.context.device)

    def laplace(
        self, structure: str, *, damping: str = "exact", tuned: str | None = "sampled", curvature: str = "ggn",
        copies: int | None = None, batch: int | None = None,
    ) -> whence.Laplace:  # fmt: skip
        """Curvature over binarised copies (0: the grey images themselves), tuned on validation data (None: not)."""
        copies = self.setup.copies if copies is None else copies
        batch = self.setup.batch if batch is None else batch
        drawn = self.setup.tuning_draws if tuned == "sampled" else None
        what = [structure, damping, tuned, curvature, copies, batch, drawn]
        found = self._kept("laplace", what, lambda: self._laplace(structure, damping, tuned, curvature, copies, batch))
        assert isinstance(found, whence.Laplace)
        return found

    def _laplace(
        self, structure: Any, damping: Any, tuned: Any, curvature: Any, copies: int, batch: int
    ) -> whence.Laplace:
        if tuned is not None:
            fitted = self.laplace(structure, tuned=None, curvature=curvature, copies=copies, batch=batch)
            fitted = fitted.with_damping(damping)
            if tuned == "sampled":
                draws = {"num_samples": self.setup.tuning_draws, "generator": torch.Generator().manual_seed(self.seed)}
                return fitted.tune(self.data.validation, method="sampled", reference=False, progress=False, **draws)
            return fitted.tune(self.data.validation, per_layer=tuned == "layered", progress=False)
        train = self.train.with_(batch_size=batch)
        return whence.laplace(
            self.network, train.augmented(copies, seed=self.seed) if copies else train, likelihood="classification",
            structure=structure, curvature=curvature, prior_precision=1.0, data_size=train.size,
            progress=self.context.progress,
        )  # fmt: skip

    def factorised(self, **changes: Any) -> whence.Variational:
        """Trained from scratch with a standard normal prior and without dropout; ``changes`` of the setup's settings.

        ``kl_weight`` is that of the divergence from the prior; 1 is the bound itself.
        """
        settings = self.setup.variational | changes
        options = {name: value for name, value in settings.items() if name != "batch"}

        def make() -> whence.Posterior:
            data = self.train.with_(batch_size=settings["batch"]).passes(self.seed)
            return whence.variational(
                self._untrained(), data, likelihood="classification", start="scratch", prior_precision=1.0,
                seed=self.seed, progress=self.context.progress, **options,
            )  # fmt: skip

        found = self._kept("variational", [settings], make)
        assert isinstance(found, whence.Variational)
        return found

    def _untrained(self) -> nn.Module:
        """The same network without dropout, before any training."""
        with torch.random.fork_rng([]):
            torch.manual_seed(self.seed)
            return self.recipe.with_(dropout=0.0).build(self.data).to(self.context.device)

    def swag(self) -> whence.Swag:
        decay = self.recipe.settings.weight_decay

        def make() -> whence.Posterior:
            return whence.swag(
                self.network, self.train, likelihood="classification", seed=self.seed, weight_decay=decay,
                batch_size=self.recipe.settings.batch_size, progress=self.context.progress, **self.setup.swag,
            )  # fmt: skip

        found = self._kept("swag", [self.setup.swag, decay], make)
        assert isinstance(found, whence.Swag)
        return found

    def ensemble(self) -> whence.Ensemble:
        return whence.ensemble([self.member(i) for i in range(self.setup.members)], likelihood="classification")

    def _kept(self, kind: str, what: list[Any], make: Callable[[], whence.Posterior]) -> whence.Posterior:
        """A posterior from the cache, or made and put there."""
        about = [self.setup.recipe, str(self.setup.changes), self.seed, self.setup.batch, what]
        key = json.dumps(about, sort_keys=True)
        path = self.context.cache / f"{kind}-{hashlib.sha256(key.encode()).hexdigest()[:16]}.safetensors"
        if path.exists():
            return whence.load(path, self._untrained() if kind == "variational" else self.network)
        found = make()
        beside = path.with_suffix(f".{os.getpid()}.part")
        found.save(beside)
        beside.rename(path)
        return found
