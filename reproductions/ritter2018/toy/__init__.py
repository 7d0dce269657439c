"""Toy regression: section 5.1, figures 1 and 8, appendix E."""

from reproductions.experiment import Experiment
from reproductions.ritter2018.toy.claims import claims
from reproductions.ritter2018.toy.config import config
from reproductions.ritter2018.toy.figures import figures
from reproductions.ritter2018.toy.run import run, units
from reproductions.ritter2018.toy.tables import tables

EXPERIMENT = Experiment("toy", "Toy regression", config, units, run, figures, tables, claims)
