"""Small networks on UCI classification sets: linearised Laplace beside other posteriors."""

from reproductions.experiment import Experiment
from reproductions.linearised.classes.claims import claims
from reproductions.linearised.classes.config import config, units
from reproductions.linearised.classes.figures import figures
from reproductions.linearised.classes.run import run
from reproductions.linearised.classes.tables import tables

EXPERIMENT = Experiment("classes", "UCI classification", config, units, run, figures, tables, claims)
