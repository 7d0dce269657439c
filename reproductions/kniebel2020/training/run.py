"""Training by training."""

from __future__ import annotations

from functools import partial

from reproductions.experiment import Context
from reproductions.kniebel2020.training.config import Config
from reproductions.kniebel2020.training.watch import watched
from reproductions.store import Results


def run(config: Config, results: Results, context: Context) -> None:
    for cell in config.cells:
        for seed in cell.seeds:
            results.unit(f"{cell.name}/{seed}", partial(watched, config, cell, seed, context))
