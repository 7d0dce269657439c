"""One Bayesian network on a fraction of the data, from scratch, with its history."""

from __future__ import annotations

import warnings
from functools import partial
from typing import Any

import torch

import whence
from reproductions.bayesian_cnn import subjects
from reproductions.bayesian_cnn.claims.config import Config, label
from reproductions.bayesian_cnn.subjects import Cell
from reproductions.experiment import Context
from reproductions.store import Results, Values
from whence.posteriors.variational import VariationalModule
from whence.posteriors.variational.history import ElboEpoch

WATCHED = 40  # records of a history that are kept, evenly spaced
SEEN = 2000  # training examples of the accuracy during training


def run(config: Config, results: Results, context: Context) -> None:
    for cell in config.cells:
        for fraction in config.fractions:
            for seed in cell.seeds:
                name = f"{cell.name}, {label(fraction)}/{seed}"
                results.unit(name, partial(one, config, cell, fraction, seed, context))


def one(config: Config, cell: Cell, fraction: float, seed: int, context: Context) -> Values:
    data = cell.load(seed, context, fraction, novel=0)
    probe = data.test.take(config.probe).inputs
    x, y = data.train.take(min(SEEN, data.train.size)).tensors()
    courses: dict[float, list[float]] = {}

    def fit_with(prior: float) -> dict[str, Any]:
        courses[prior] = []

        @torch.no_grad()
        def watch(module: VariationalModule, _: ElboEpoch) -> None:
            module.eval()
            hits = torch.cat([module(part).argmax(-1) for part in x.split(1000)]) == y
            courses[prior].append(float(hits.double().mean()))

        return {"prior_precision": prior, "callback": watch}

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", whence.errors.Notice)
        found = subjects.variational(
            lambda: cell.build(data, seed, context), cell, data, seed, context, [fit_with(p) for p in config.priors],
            start="scratch", initial_std=config.initial_std, probe=probe[: config.watched], batch_size=config.batch,
            epochs=config.epochs(cell, fraction),
            **dict(config.rates),
        )  # fmt: skip
        prediction = found.model.predict(probe, num_samples=config.draws, generator=torch.Generator().manual_seed(seed))
    labels = data.test.take(config.probe).targets
    prior = found.choice["prior_precision"]
    return {
        "train": data.train.size, "prior": prior, "epochs": len(found.model.history), "seconds": found.seconds,
        "aleatoric": float(prediction.aleatoric.double().mean()),
        "epistemic": float(prediction.epistemic.double().mean()),
        "entropy": float(prediction.entropy.double().mean()),
        "accuracy": float((prediction.probs.argmax(-1) == labels).double().mean()),
        "history": history(found.model.history.rows, courses[prior]),
    }  # fmt: skip


def history(rows: tuple[ElboEpoch, ...], accuracy: list[float]) -> Values:
    """Columns over some epochs, the last included; quantiles of each layer."""
    kept = sorted({round(i * (len(rows) - 1) / max(1, WATCHED - 1)) for i in range(WATCHED)} | {len(rows) - 1})
    some = [rows[i] for i in kept]
    found: Values = {
        "epoch": [row.epoch for row in some], "accuracy": [accuracy[i] for i in kept],
        "aleatoric": [row.aleatoric for row in some], "epistemic": [row.epistemic for row in some],
    }  # fmt: skip
    names = [layer.name for layer in rows[0].layers]
    for what in ("mean", "std"):
        found[what] = {n: [list(getattr(row.layers[i], what)) for row in some] for i, n in enumerate(names)}
    return found
