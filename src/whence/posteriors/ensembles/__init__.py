"""Ensembles, whose members are the draws: fitted ensembles, and mixtures of Laplace posteriors."""

from whence.posteriors.ensembles.fit import fit_ensemble
from whence.posteriors.ensembles.laplace import LaplaceEnsemble, laplace_ensemble
from whence.posteriors.ensembles.posterior import Ensemble, ensemble

__all__ = ["Ensemble", "LaplaceEnsemble", "ensemble", "fit_ensemble", "laplace_ensemble"]
