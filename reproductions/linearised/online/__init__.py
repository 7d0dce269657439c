"""Training with the evidence online, beside early stopping and a grid of decays on validation data."""

from reproductions.experiment import Experiment
from reproductions.linearised.online.claims import claims
from reproductions.linearised.online.config import config, units
from reproductions.linearised.online.figures import figures
from reproductions.linearised.online.run import run
from reproductions.linearised.online.tables import tables

EXPERIMENT = Experiment("online", "Training with the evidence", config, units, run, figures, tables, claims)
