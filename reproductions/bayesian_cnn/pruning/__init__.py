"""How much of a Bayesian CNN can be pruned?"""

from reproductions.bayesian_cnn.pruning.config import config, units
from reproductions.bayesian_cnn.pruning.figures import figures
from reproductions.bayesian_cnn.pruning.run import run
from reproductions.bayesian_cnn.pruning.tables import claims, tables
from reproductions.experiment import Experiment

EXPERIMENT = Experiment("pruning", "Pruning", config, units, run, figures, tables, claims)
