"""Architectures and data sets: where is the uncertainty, and what decides it?"""

from reproductions.experiment import Experiment
from reproductions.kniebel2020.grid.claims import claims
from reproductions.kniebel2020.grid.config import config, units
from reproductions.kniebel2020.grid.coverage import what_was_done
from reproductions.kniebel2020.grid.figures import figures
from reproductions.kniebel2020.grid.run import run
from reproductions.kniebel2020.grid.tables import tables
from reproductions.kniebel2020.wording import ARTICLE, passages

EXPERIMENT = Experiment(
    "grid", "Where is it?", config, units, run, figures, tables, claims,
    passages=((ARTICLE, "networks", what_was_done), *passages(
        tables, layers="(a) Do layers differ?", inside="(b) Do units inside a layer differ, and which?",
        size="(c) Is a weight's size related to its uncertainty?", last="(e) Is the last layer enough?",
        place="What explains the place?",
    )),
)  # fmt: skip
