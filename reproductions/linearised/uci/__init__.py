"""Small networks on the UCI regression sets: linearised Laplace beside other posteriors and published tables."""

from reproductions.experiment import Experiment
from reproductions.linearised.uci.claims import claims
from reproductions.linearised.uci.config import config, units
from reproductions.linearised.uci.figures import figures
from reproductions.linearised.uci.run import run
from reproductions.linearised.uci.tables import tables

EXPERIMENT = Experiment("uci", "UCI regression", config, units, run, figures, tables, claims)
