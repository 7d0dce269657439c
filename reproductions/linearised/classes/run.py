"""Set by set, split by split."""

from __future__ import annotations

from functools import partial

from reproductions.experiment import Context
from reproductions.linearised.classes.config import Config, units
from reproductions.linearised.classes.hmc import hmc_scores
from reproductions.linearised.classes.methods import measured
from reproductions.store import Results


def run(config: Config, results: Results, context: Context) -> None:
    for unit in units(config):
        first, second = unit.split("/")
        work = partial(hmc_scores, config, second) if first == "hmc" else partial(measured, config, first, int(second))
        results.unit(unit, work)
