"""Bayes by Backprop for an existing network: families, estimators, priors, the training loop, the posterior."""

from whence.posteriors.variational.fit import variational
from whence.posteriors.variational.history import History
from whence.posteriors.variational.module import VariationalModule
from whence.posteriors.variational.posterior import Elbo, Variational
from whence.posteriors.variational.priors import ScaleMixture

__all__ = ["Elbo", "History", "ScaleMixture", "Variational", "VariationalModule", "variational"]
