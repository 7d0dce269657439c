"""What an experiment is: a configuration, a run, figures, tables and claims."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from reproductions.ritter2018.claims import Claim
from reproductions.ritter2018.store import Results, Values

HOME = Path(__file__).parent
NAMES = ("toy", "ood", "adversarial", "wrn", "where")


@dataclass(frozen=True)
class Experiment:
    """One of the paper's experiments.

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


@dataclass(frozen=True)
class Context:
    """Where an experiment runs: the device, and a folder for weights and posteriors that may be used again."""

    device: str
    cache: Path
    progress: bool = True


def experiment(name: str) -> Experiment:
    found: Experiment = importlib.import_module(f"reproductions.ritter2018.{name}").EXPERIMENT
    return found
