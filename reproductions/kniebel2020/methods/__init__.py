"""Do methods agree on where the uncertainty is?"""

from reproductions.experiment import Experiment
from reproductions.kniebel2020.methods.claims import claims
from reproductions.kniebel2020.methods.config import config, units
from reproductions.kniebel2020.methods.figures import figures
from reproductions.kniebel2020.methods.run import run
from reproductions.kniebel2020.methods.tables import tables
from reproductions.kniebel2020.wording import passages

EXPERIMENT = Experiment(
    "methods", "Do methods agree?", config, units, run, figures, tables, claims,
    passages=passages(
        tables, methods="(g) Do methods agree on where?", hmc="Which agrees with HMC?",
    ),
)  # fmt: skip
