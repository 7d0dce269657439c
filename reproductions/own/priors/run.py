"""Network by network, seed by seed, prior by prior; a network is trained and fitted once in a run."""

from __future__ import annotations

from functools import cached_property, partial
from statistics import fmean
from typing import Any

import whence
from reproductions.experiment import Context
from reproductions.own.priors.config import Config
from reproductions.own.priors.measure import fitted, measured, plain
from reproductions.own.priors.subjects import Subject, subjects
from reproductions.store import Results, Values


class Case:
    """One network and seed, trained and fitted when it is asked for first."""

    def __init__(self, config: Config, name: str, seed: int, context: Context) -> None:
        self.config, self.name, self.seed, self.context = config, name, seed, context

    @cached_property
    def subjects(self) -> dict[str, Subject]:
        return subjects(self.config, self.name, self.seed, self.context)

    @cached_property
    def fits(self) -> dict[str, whence.Laplace]:
        return {key: fitted(subject) for key, subject in self.subjects.items()}

    def plain(self) -> Values:
        return average([plain(subject) for subject in self.subjects.values()])

    def prior(self, rule: str) -> Values:
        """Its figures, or on which data set it has no posterior and why."""
        found = []
        for key, subject in self.subjects.items():
            try:
                found.append(measured(self.config, self.name, rule, subject, self.fits[key]))
            except whence.errors.NotPositiveDefinite as error:
                return {"failed": f"{key}: {error}"}
        return average(found)


def run(config: Config, results: Results, context: Context) -> None:
    for name in config.networks:
        for seed in config.seeds_of(name):
            case = Case(config, name, seed, context)
            results.unit(f"{name}/{seed}/plain", case.plain)
            for rule in config.rules_of(name):
                results.unit(f"{name}/{seed}/{rule}", partial(case.prior, rule))


def average(found: list[Any]) -> Any:
    """The mean over data sets, number by number."""
    first = found[0]
    if len(found) == 1 or isinstance(first, str):
        return first
    if isinstance(first, dict):
        return {key: average([each[key] for each in found]) for key in first}
    if isinstance(first, list):
        return [average(list(each)) for each in zip(*found, strict=True)]
    return fmean(found)
