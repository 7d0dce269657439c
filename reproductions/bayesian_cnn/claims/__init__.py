"""What happens to uncertainty with more data, and during training?"""

from reproductions.bayesian_cnn.claims.config import config, units
from reproductions.bayesian_cnn.claims.figures import figures
from reproductions.bayesian_cnn.claims.run import run
from reproductions.bayesian_cnn.claims.tables import claims, tables
from reproductions.experiment import Experiment

EXPERIMENT = Experiment("claims", "What is claimed about uncertainty", config, units, run, figures, tables, claims)
