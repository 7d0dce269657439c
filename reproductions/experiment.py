"""What an experiment is: a configuration, a run, figures, tables and claims."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from reproductions.claims import Claim
from reproductions.store import Results, Values


@dataclass(frozen=True)
class Collection:
    """Experiments that belong together, each a package of its own below ``package`` with an ``EXPERIMENT``."""

    package: str
    names: tuple[str, ...]

    @property
    def home(self) -> Path:
        found = importlib.import_module(self.package).__file__
        assert found is not None
        return Path(found).parent

    def experiment(self, name: str) -> Experiment:
        found: Experiment = importlib.import_module(f"{self.package}.{name}").EXPERIMENT
        return found


@dataclass(frozen=True)
class Experiment:
    """A question, its numbers and its answers.

    ``units`` names every unit of work of a configuration, for the progress bar; ``figures`` and ``tables`` and
    ``claims`` take the values of the units and nothing else.
    """

    name: str
    title: str
    config: Callable[[bool], Any]  # quick → a frozen dataclass
    units: Callable[[Any], list[str]]
    run: Callable[[Any, Results, Context], None]
    figures: Callable[[Values, Path], list[Path]]
    tables: Callable[[Values], str]  # Markdown
    claims: Callable[[Values], list[Claim]]
    elsewhere: tuple[tuple[Path, Callable[[Values], str]], ...] = ()  # other pages with a part from these numbers
    passages: tuple[tuple[Path, str, Callable[[Values], str]], ...] = ()  # pages with several parts, each by its name


@dataclass(frozen=True)
class Context:
    """Where an experiment runs: the device, and a folder for weights and posteriors that may be used again."""

    device: str
    cache: Path
    progress: bool = True
