"""What can be pruned, and by what order?"""

from reproductions.experiment import Experiment
from reproductions.kniebel2020.pruning.claims import claims
from reproductions.kniebel2020.pruning.config import config, units
from reproductions.kniebel2020.pruning.figures import figures
from reproductions.kniebel2020.pruning.run import run
from reproductions.kniebel2020.pruning.tables import tables
from reproductions.kniebel2020.wording import passages

EXPERIMENT = Experiment(
    "pruning", "What can be pruned?", config, units, run, figures, tables, claims,
    passages=passages(
        tables, weights="(f) Single weights", units="(f) Units", whole="(f) Whole layers",
    ),
)  # fmt: skip
