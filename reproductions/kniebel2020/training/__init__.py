"""During training: do layers settle, in an order, and is that a reason to stop?"""

from reproductions.experiment import Experiment
from reproductions.kniebel2020.training.claims import claims
from reproductions.kniebel2020.training.config import config, units
from reproductions.kniebel2020.training.figures import figures
from reproductions.kniebel2020.training.run import run
from reproductions.kniebel2020.training.tables import tables
from reproductions.kniebel2020.wording import passages

EXPERIMENT = Experiment(
    "training", "During training", config, units, run, figures, tables, claims,
    passages=passages(
        tables, training="(d) During training: do layers settle, and in an order?",
        stopping="Is that a reason to stop?", unidentified="What stays unidentified to the end?",
    ),
)  # fmt: skip
