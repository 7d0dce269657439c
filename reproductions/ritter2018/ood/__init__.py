"""Section 5.2: uncertainty on what is no digit (figure 2, table 1)."""

from reproductions.experiment import Experiment
from reproductions.ritter2018.ood.claims import claims
from reproductions.ritter2018.ood.config import config, units
from reproductions.ritter2018.ood.figures import figures
from reproductions.ritter2018.ood.run import run
from reproductions.ritter2018.ood.tables import tables

EXPERIMENT = Experiment("ood", "Out-of-distribution uncertainty (5.2)", config, units, run, figures, tables, claims)
