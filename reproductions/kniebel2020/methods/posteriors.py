"""Every method for one network and one prior precision: the trained network is the mode of the same posterior."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from dataclasses import replace
from functools import cached_property
from typing import Any

import torch
from torch import nn

import whence
from reproductions.experiment import Context
from reproductions.kniebel2020.cells import Cell
from reproductions.kniebel2020.grid.measure import DENSE_UP_TO, loss
from reproductions.kniebel2020.methods.config import Config
from reproductions.kniebel2020.subject import Subject, subject

LAPLACE = ("laplace kron", "laplace diag", "laplace block", "laplace full")


class Case:
    """One cell and seed under a prior precision; ``factor`` multiplies what validation data chose."""

    def __init__(self, config: Config, cell: Cell, seed: int, factor: float, context: Context) -> None:
        self.config, self.cell, self.seed, self.factor, self.context = config, cell, seed, factor, context

    def decay(self, precision: float) -> dict[str, float]:
        """Of the mean loss: δ / N."""
        return {"weight_decay": precision / self.size}

    @cached_property
    def size(self) -> int:
        return subject(self.cell, self.seed, self.context).train.size

    @cached_property
    def chosen(self) -> float:
        """The precision whose Kronecker posterior predicts the validation data best."""
        if len(self.config.precisions) == 1:
            return self.config.precisions[0]
        losses = {}
        for precision in self.config.precisions:
            made = self.trained(precision)
            x, y = made.validation
            losses[precision] = loss(_laplace(made, "kron", precision).predict(x), y)
        return min(losses, key=losses.__getitem__)

    @property
    def precision(self) -> float:
        return self.factor * self.chosen

    def trained(self, precision: float) -> Subject:
        return subject(self.cell, self.seed, self.context, **self.decay(precision))

    @cached_property
    def subject(self) -> Subject:
        return self.trained(self.precision)

    def methods(self) -> dict[str, whence.Posterior]:
        """By name; ``hmc`` on the smallest."""
        network, train, precision = self.subject.network, self.subject.train, self.precision
        small = sum(p.numel() for p in network.parameters()) <= DENSE_UP_TO
        found: dict[str, whence.Posterior] = {
            name: _laplace(self.subject, name.removeprefix("laplace "), precision)
            for name in LAPLACE
            if small or name not in LAPLACE[2:]
        }
        settings, passes = self.cell.settings, self.config.passes[self.cell.training]
        batches = train.with_(batch_size=settings["batch_size"])
        found["laplace relative"] = whence.laplace(network, train, likelihood="classification", progress=False)
        found["variational"] = whence.variational(
            network, batches.passes(self.seed), likelihood="classification", prior_precision=precision, epochs=passes,
            seed=self.seed, progress=False, **self.config.variational,
        )  # fmt: skip
        found["swag"] = whence.swag(
            network, batches, likelihood="classification", seed=self.seed, progress=False, **self.decay(precision),
            **self.config.swag,
        )  # fmt: skip
        if self.cell.network != "perceptron":
            found["dropout"] = whence.dropout(self._with_dropout(), likelihood="classification")
        found["ensemble"] = self._ensemble(settings)
        if self.cell.name in self.config.reference:
            found["hmc"] = whence.hmc(
                network, train.tensors(), likelihood="classification", prior_precision=precision,
                generator=torch.Generator().manual_seed(self.seed), progress=False, device="cpu", **self.config.hmc,
            )  # fmt: skip
        return found

    def _with_dropout(self) -> nn.Module:
        cell = replace(self.cell, options=self.cell.options | {"dropout": self.config.dropout})
        return subject(cell, self.seed, self.context, **self.decay(self.precision)).network

    def _ensemble(self, settings: dict[str, Any]) -> whence.Ensemble:
        data, device = self.subject.data, self.context.device
        build: Callable[[], nn.Module] = lambda: self.cell.build(data.shape, data.classes).to(device)  # noqa: E731
        return whence.fit_ensemble(
            build, data.train, likelihood="classification", members=self.config.members, seed=self.seed,
            schedule="cosine", progress=False, **(settings | self.decay(self.precision)),
        )  # fmt: skip


def _laplace(made: Subject, structure: Any, precision: float) -> whence.Laplace:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return whence.laplace(
            made.network, made.train, likelihood="classification", structure=structure, prior_precision=precision,
            progress=False,
        )  # fmt: skip
