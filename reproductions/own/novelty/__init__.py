"""How well does novelty find inputs of another kind, under the prior of its own?"""

from pathlib import Path

from reproductions.experiment import Experiment
from reproductions.own.novelty.claims import claims
from reproductions.own.novelty.config import config, units
from reproductions.own.novelty.figures import figures
from reproductions.own.novelty.run import run
from reproductions.own.novelty.tables import summary, tables

DOCS = Path(__file__).parents[3] / "docs" / "novelty.md"
EXPERIMENT = Experiment(
    "novelty", "How well does it notice?", config, units, run, figures, tables, claims, elsewhere=((DOCS, summary),)
)
