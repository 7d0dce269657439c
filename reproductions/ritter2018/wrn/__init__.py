"""Section 5.4: uncertainty on misclassifications of a wide residual network, and on images of another kind."""

from reproductions.experiment import Experiment
from reproductions.ritter2018.wrn.claims import claims
from reproductions.ritter2018.wrn.config import config, units
from reproductions.ritter2018.wrn.figures import figures
from reproductions.ritter2018.wrn.run import run
from reproductions.ritter2018.wrn.tables import tables

EXPERIMENT = Experiment("wrn", "Uncertainty on misclassifications", config, units, run, figures, tables, claims)
