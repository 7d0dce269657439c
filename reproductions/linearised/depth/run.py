"""Data set by data set, seed by seed."""

from __future__ import annotations

from functools import partial

from reproductions.experiment import Context
from reproductions.linearised.depth.config import Config, units
from reproductions.linearised.depth.images import by_image_network
from reproductions.linearised.depth.measure import by_activation, by_depth
from reproductions.store import Results

WORK = {"depth": by_depth, "activation": by_activation, "images": by_image_network}


def run(config: Config, results: Results, context: Context) -> None:
    for unit in units(config):
        kind, name, seed = unit.split("/")
        results.unit(unit, partial(WORK[kind], config, name, int(seed)))
