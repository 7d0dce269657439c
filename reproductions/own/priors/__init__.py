"""Which prior should be the default? Priors compared on six networks."""

from pathlib import Path

from reproductions.experiment import Experiment
from reproductions.own.priors.claims import claims
from reproductions.own.priors.config import config, units
from reproductions.own.priors.figures import figures
from reproductions.own.priors.run import run
from reproductions.own.priors.tables import summary, tables

DOCS = Path(__file__).parents[3] / "docs" / "priors.md"
EXPERIMENT = Experiment(
    "priors", "Which prior?", config, units, run, figures, tables, claims, elsewhere=((DOCS, summary),)
)
