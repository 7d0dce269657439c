"""Group by group of splits, then images seed by seed."""

from __future__ import annotations

from functools import partial

from reproductions.experiment import Context
from reproductions.linearised.online import images, tabular
from reproductions.linearised.online.config import Config, groups, units
from reproductions.store import Results


def run(config: Config, results: Results, context: Context) -> None:
    for unit in units(config):
        kind, name, place = unit.split("/")
        if kind == "images":
            of, _, labels = name.rpartition("-")
            results.unit(unit, partial(images.measured, config, of, int(labels), int(place)))
        elif kind == "start":
            results.unit(unit, partial(tabular.by_start, config, name))
        else:
            numbers = groups(config, kind, name)[int(place)]
            results.unit(unit, partial(tabular.measured, config, kind, name, numbers))
