"""Many weak ensemble members against one strong network."""

from reproductions.experiment import Experiment
from reproductions.kniebel2020.members.claims import claims
from reproductions.kniebel2020.members.config import config, units
from reproductions.kniebel2020.members.figures import figures
from reproductions.kniebel2020.members.run import run
from reproductions.kniebel2020.members.tables import tables
from reproductions.kniebel2020.wording import passages

EXPERIMENT = Experiment(
    "members", "Many weak or one strong?", config, units, run, figures, tables, claims,
    passages=passages(
        tables, members="Many weak members or one strong?",
    ),
)  # fmt: skip
