"""A wide residual network, its data, and every way to predict with it; made once and kept in the cache."""

from __future__ import annotations

import hashlib
import json
import math
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cached_property
from pathlib import Path
from typing import Any, Literal

import torch
from torch import nn

import whence
from reproductions.experiment import Context
from reproductions.ritter2018.mnist import DETERMINISTIC, DIAGONAL, DROPOUT, KRONECKER, LINEARISED, Method
from reproductions.ritter2018.wrn.config import Config
from reproductions.store import Values
from whence import zoo

TRAINING = ("recipe", "data", "depth", "width", "shortcut", "epochs", "batch_size", "lr", "amp", "crop")
How = Literal["sampled", "linearised"]


@contextmanager
def coarse_products(allowed: bool) -> Iterator[None]:
    """Matrix products in TF32 inside, where the device has it."""
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("high" if allowed else before)
    try:
        yield
    finally:
        torch.set_float32_matmul_precision(before)


class Subject:
    """One trained network; what belongs to it is made when it is asked for first."""

    def __init__(self, config: Config, seed: int, dropout: float, context: Context) -> None:
        self.config, self.seed, self.dropout, self.context = config, seed, dropout, context
        self._fitted: dict[str, whence.Laplace] = {}
        context.cache.mkdir(parents=True, exist_ok=True)

    # Network and data

    @cached_property
    def augment(self) -> zoo.augment.Augment:
        return zoo.augment.Compose(zoo.augment.Crop(self.config.crop), zoo.augment.Flip())

    @cached_property
    def recipe(self) -> zoo.Recipe:
        c = self.config
        return zoo.recipe(
            c.recipe, depth=c.depth, width=c.width, shortcut=c.shortcut, dropout=self.dropout, epochs=c.epochs,
            batch_size=c.batch_size, lr=c.lr, amp=c.amp, augment=self.augment,
        )  # fmt: skip

    @cached_property
    def data(self) -> zoo.DataSet:
        """All training images are trained on: half of the test images stand in for a validation part."""
        device = self.context.device
        return zoo.load(self.config.data, seed=self.seed, validation=0, device=device, progress=False)

    @cached_property
    def training(self) -> zoo.Training:
        return zoo.trained(
            self.recipe, seed=self.seed, data=self.data, device=self.context.device,
            cache=self.context.cache / "weights", progress=self.context.progress,
        )  # fmt: skip

    @property
    def network(self) -> nn.Module:
        return self.training.network

    @cached_property
    def train(self) -> zoo.Examples:
        assert self.data.train is not None
        return self.data.train.with_(augment=self.augment, batch_size=self.config.batch)

    @cached_property
    def validation(self) -> zoo.Examples:
        """The part of the test images that hyperparameters may see."""
        assert self.data.test is not None
        return self.data.test.take(slice(*self.config.validation))

    @cached_property
    def tuning(self) -> zoo.Examples:
        return self.validation.take(self.config.tuning_images)

    @cached_property
    def test(self) -> zoo.Examples:
        """The part of the test images that is reported on."""
        assert self.data.test is not None
        return self.data.test.take(slice(*self.config.reported))

    @cached_property
    def outside(self) -> zoo.Examples:
        """Images of another kind, as the network would see them."""
        if self.config.outside == "turned":
            found = self.test.with_(raw=self.test.raw.transpose(2, 3).contiguous())
        else:
            other = zoo.load(self.config.outside, device=self.context.device, progress=False).test
            assert other is not None
            found = other.like(self.test)
        return found.take(self.config.outside_images)

    # Posteriors

    def method(self, name: str) -> Method:
        make: dict[str, Callable[[], Method]] = {
            DETERMINISTIC: lambda: self._method(name, whence.ensemble([self.network], likelihood="classification")),
            DROPOUT: lambda: self._method(name, whence.dropout(self.network, likelihood="classification")),
            DIAGONAL: lambda: self._method(name, self.laplace("diag", tuned="sampled"), method="sampled"),
            KRONECKER: lambda: self._method(
                name, self.laplace("kron", damping="factored", tuned="sampled"), method="sampled"
            ),
            LINEARISED: lambda: self._method(name, self.laplace("kron", tuned="linearised"), method="linearised"),
        }
        return make[name]()

    def _method(self, name: str, posterior: whence.Posterior, **how: Any) -> Method:
        return Method(name, posterior, how, self.context.device)

    def laplace(
        self, structure: Literal["kron", "diag"], *, damping: Literal["exact", "factored"] = "exact",
        tuned: How | None = None,
    ) -> whence.Laplace:  # fmt: skip
        """Curvature over augmented copies; ``tuned`` on validation images for this kind of prediction."""
        fitted = self.fitted(structure)
        fitted = fitted if structure == "diag" else fitted.with_damping(damping)
        if tuned is None:
            return fitted
        chosen = self.tuned(structure, damping, tuned)
        return fitted.with_prior(chosen["prior_precision"]).with_data_scale(chosen["data_scale"])

    def fitted(self, structure: Literal["kron", "diag"]) -> whence.Laplace:
        """Kronecker factors of convolutions and of the head, dense blocks of batch normalisation; or all diagonal."""
        if structure in self._fitted:
            return self._fitted[structure]
        copies = self.config.copies
        path = self._path("laplace", [structure, copies, self.config.batch], ".safetensors")
        if path.exists():
            found = whence.load(path, self.network)
        else:
            found = whence.laplace(
                self.network, self.train.augmented(copies, seed=self.seed), likelihood="classification",
                structure=structure, curvature="mc", prior_precision=1.0, data_size=self.train.size,
                progress=self.context.progress,
                generator=torch.Generator().manual_seed(self.seed),
            )  # fmt: skip
            beside = path.with_suffix(".part")
            found.save(beside)
            beside.rename(path)
        self._fitted[structure] = found
        return found

    def tuned(self, structure: Literal["kron", "diag"], damping: Literal["exact", "factored"], how: How) -> Values:
        """Prior precision and data scale that the tuning images prefer."""
        c = self.config
        what = [structure, damping, how, c.copies, c.batch, c.tuning_images, c.tuning_draws, c.data_scale]
        path = self._path("tuned", what, ".json")
        if not path.exists():
            start = self.laplace(structure, damping=damping)
            options: dict[str, Any] = {"method": how, "data_scale": c.data_scale, "reference": False, "progress": False}
            if how == "sampled":
                options |= {"num_samples": c.tuning_draws, "generator": torch.Generator().manual_seed(self.seed)}
            begun = time.perf_counter()
            chosen = start.tune(self.tuning, **options)
            found = summary(chosen) | {"seconds": round(time.perf_counter() - begun, 2)}
            beside = path.with_suffix(".part")
            beside.write_text(json.dumps(found))
            beside.rename(path)
        found = json.loads(path.read_text())
        return found

    def _path(self, kind: str, what: list[Any], suffix: str) -> Path:
        training = [getattr(self.config, name) for name in TRAINING]
        key = json.dumps([training, self.dropout, self.seed, what, self.config.validation])
        return self.context.cache / f"wrn-{kind}-{hashlib.sha256(key.encode()).hexdigest()[:16]}{suffix}"


def summary(posterior: whence.Laplace) -> Values:
    """The hyperparameters of a tuned posterior, and whether they lie inside what was searched."""
    tuning = posterior.tuning
    assert tuning is not None and isinstance(posterior.prior_precision, float)
    delta, scale = posterior.prior_precision, posterior.data_scale
    ratios = [math.log(t.prior_factor / t.data_scale) for t in tuning.trials]
    scales = [math.log(t.data_scale) for t in tuning.trials]
    return {
        "prior_precision": delta,
        "data_scale": scale,
        "nll": tuning.score,
        "trials": len(tuning.trials),
        "edge": _at_edge(math.log(delta / scale), ratios) or _at_edge(math.log(scale), scales),
        "nll_of_strongest_prior": _strongest(tuning.trials),
    }


def _at_edge(value: float, tried: list[float]) -> bool:
    """Whether the best of several values is the least or the largest."""
    return max(tried) > min(tried) and not min(tried) + 1e-6 < value < max(tried) - 1e-6


def _strongest(trials: list[Any]) -> float:
    """NLL under the strongest prior that was tried: all but that of the deterministic network."""
    return float(max(trials, key=lambda t: t.prior_factor).score)
