"""Section 5.3 and appendix C: adversarial inputs, made through each method's own averaged prediction."""

from reproductions.experiment import Experiment
from reproductions.ritter2018.adversarial.claims import claims
from reproductions.ritter2018.adversarial.config import config, units
from reproductions.ritter2018.adversarial.figures import figures
from reproductions.ritter2018.adversarial.run import run
from reproductions.ritter2018.adversarial.tables import tables

EXPERIMENT = Experiment("adversarial", "Adversarial examples", config, units, run, figures, tables, claims)
