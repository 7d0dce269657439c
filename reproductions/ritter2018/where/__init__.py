"""Where is the uncertainty? Layer, unit and weight tables of every network of the other experiments."""

from reproductions.experiment import Experiment
from reproductions.ritter2018.where.claims import claims
from reproductions.ritter2018.where.config import config, units
from reproductions.ritter2018.where.figures import figures
from reproductions.ritter2018.where.run import run
from reproductions.ritter2018.where.tables import tables

EXPERIMENT = Experiment("where", "Where is it?", config, units, run, figures, tables, claims)
