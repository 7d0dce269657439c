"""Does the evidence choose depth, width and activation as test data do?"""

from reproductions.experiment import Experiment
from reproductions.linearised.depth.claims import claims
from reproductions.linearised.depth.config import config, units
from reproductions.linearised.depth.figures import figures
from reproductions.linearised.depth.run import run
from reproductions.linearised.depth.tables import tables

EXPERIMENT = Experiment("depth", "Model selection by the evidence", config, units, run, figures, tables, claims)
