"""Which detector of novel inputs, and which combination of them, when nobody knows what will be novel?"""

from pathlib import Path

from reproductions.experiment import Experiment
from reproductions.own.detectors.claims import claims
from reproductions.own.detectors.config import config, units
from reproductions.own.detectors.figures import figures
from reproductions.own.detectors.run import run
from reproductions.own.detectors.tables import summary, tables

DOCS = Path(__file__).parents[3] / "docs" / "detectors.md"
EXPERIMENT = Experiment(
    "detectors", "Which detector?", config, units, run, figures, tables, claims, elsewhere=((DOCS, summary),)
)
