"""Network by network."""

from __future__ import annotations

from functools import partial

from reproductions.experiment import Context
from reproductions.kniebel2020.cells import Cell
from reproductions.kniebel2020.pruning.config import Config
from reproductions.kniebel2020.pruning.measure import measured
from reproductions.kniebel2020.subject import subject
from reproductions.store import Results, Values


def run(config: Config, results: Results, context: Context) -> None:
    for cell in config.cells:
        for seed in cell.seeds:
            results.unit(f"{cell.name}/{seed}", partial(_one, config, cell, seed, context))


def _one(config: Config, cell: Cell, seed: int, context: Context) -> Values:
    return measured(config, subject(cell, seed, context))
