"""What can one, two and three layers separate?"""

from reproductions.experiment import Experiment
from reproductions.kniebel2020.separation.claims import claims
from reproductions.kniebel2020.separation.config import config, units
from reproductions.kniebel2020.separation.figures import figures
from reproductions.kniebel2020.separation.run import run
from reproductions.kniebel2020.separation.tables import tables
from reproductions.kniebel2020.wording import passages

EXPERIMENT = Experiment(
    "separation", "What can layers separate?", config, units, run, figures, tables, claims,
    passages=passages(
        tables, separation="What can one, two and three layers separate?",
    ),
)  # fmt: skip
