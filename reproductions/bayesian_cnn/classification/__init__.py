"""Is a Bayesian CNN as accurate as a plain one, and what does it cost?"""

from reproductions.bayesian_cnn.classification.config import config, units
from reproductions.bayesian_cnn.classification.figures import figures
from reproductions.bayesian_cnn.classification.run import run
from reproductions.bayesian_cnn.classification.tables import claims, tables
from reproductions.experiment import Experiment

EXPERIMENT = Experiment("classification", "Classification", config, units, run, figures, tables, claims)
