"""Cell by cell, seed by seed, prior by prior."""

from __future__ import annotations

from functools import partial

from reproductions.experiment import Context
from reproductions.kniebel2020.cells import Cell
from reproductions.kniebel2020.methods.config import Config
from reproductions.kniebel2020.methods.measure import measured
from reproductions.kniebel2020.methods.posteriors import Case
from reproductions.store import Results, Values


def run(config: Config, results: Results, context: Context) -> None:
    for cell in config.cells:
        for seed in cell.seeds:
            for factor in config.factors:
                results.unit(f"{cell.name}/{seed}/{factor}", partial(_one, config, cell, seed, float(factor), context))


def _one(config: Config, cell: Cell, seed: int, factor: float, context: Context) -> Values:
    return measured(Case(config, cell, seed, factor, context))
