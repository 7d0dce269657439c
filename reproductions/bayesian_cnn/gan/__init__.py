"""Does a GAN gain by Bayesian networks?"""

from reproductions.bayesian_cnn.gan.config import config, units
from reproductions.bayesian_cnn.gan.figures import figures
from reproductions.bayesian_cnn.gan.run import run
from reproductions.bayesian_cnn.gan.tables import claims, tables
from reproductions.experiment import Experiment

EXPERIMENT = Experiment("gan", "Generative adversarial networks", config, units, run, figures, tables, claims)
