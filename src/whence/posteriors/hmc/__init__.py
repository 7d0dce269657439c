"""Hamiltonian Monte Carlo and NUTS for small networks: many chains at once, as a reference for other posteriors."""

from whence.posteriors.hmc.fit import hmc
from whence.posteriors.hmc.posterior import Hmc

__all__ = ["Hmc", "hmc"]
