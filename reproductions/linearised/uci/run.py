"""Group by group of splits: choose on validation rows, train on all rows, score on test rows."""

from __future__ import annotations

from functools import partial

from reproductions.experiment import Context
from reproductions.linearised.data import load
from reproductions.linearised.uci.config import Config, groups
from reproductions.linearised.uci.hmc import hmc_scores
from reproductions.linearised.uci.methods import Choices, choose, predictors
from reproductions.linearised.uci.scores import scored
from reproductions.store import Results, Values


def run(config: Config, results: Results, context: Context) -> None:
    for kind in ("standard", "gap"):
        for name in config.standard if kind == "standard" else config.gap:
            for i, numbers in enumerate(groups(config, kind, name)):
                results.unit(f"{kind}/{name}/{i}", partial(measured, config, kind, name, numbers))
    for name in config.hmc:
        results.unit(f"hmc/{name}", partial(hmc_scores, config, name))


def measured(config: Config, kind: str, name: str, numbers: tuple[int, ...]) -> Values:
    """Scores of every method on every split of a group, in the unit of the target."""
    chosen = choose(config, name, numbers, load(name, numbers, kind, validation=True))
    splits = load(name, numbers, kind, validation=False)
    found: Values = {"splits": list(numbers), "chosen": _shown(chosen), "methods": {}}
    for method, predict in predictors(config, name, numbers, splits, chosen).items():
        rows = [
            scored(one, splits.test.of(k), splits.train.of(k)[0], splits.spread[k]) for k, one in enumerate(predict)
        ]
        found["methods"][method] = {key: [row[key] for row in rows] for key in rows[0]}
    return found


def _shown(chosen: Choices) -> Values:
    return {
        "decay": chosen.decay, "noise": chosen.noise, "value": chosen.value,
        "laplace": {
            method: {key: [getattr(c, key) for c in each] for key in ("ratio", "noise", "nll")}
            for method, each in chosen.laplace.items()
        },
    }  # fmt: skip
