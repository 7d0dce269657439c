"""Super-resolution: how good, and does uncertainty know where it is wrong?"""

from reproductions.bayesian_cnn.superresolution.config import config, units
from reproductions.bayesian_cnn.superresolution.figures import figures
from reproductions.bayesian_cnn.superresolution.run import run
from reproductions.bayesian_cnn.superresolution.tables import claims, tables
from reproductions.experiment import Experiment

EXPERIMENT = Experiment("superresolution", "Super-resolution", config, units, run, figures, tables, claims)
