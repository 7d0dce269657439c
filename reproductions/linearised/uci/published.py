"""Published figures for the standard splits: one hidden layer of 50 ReLU units (protein 100), mean ± standard error.

From Lakshminarayanan, Pritzel and Blundell (2017), "Simple and scalable predictive uncertainty estimation using deep
ensembles", table 1, which also reports probabilistic backpropagation (Hernández-Lobato and Adams 2015) and MC dropout
(Gal and Ghahramani 2016). Their ensembles have five members that also predict the noise of every input.
"""

from __future__ import annotations

SOURCES = ("PBP", "MC dropout", "deep ensembles")
Figure = tuple[float, float]

NLL: dict[str, tuple[Figure, Figure, Figure]] = {
    "boston": ((2.57, 0.09), (2.46, 0.25), (2.41, 0.25)),
    "concrete": ((3.16, 0.02), (3.04, 0.09), (3.06, 0.18)),
    "energy": ((2.04, 0.02), (1.99, 0.09), (1.38, 0.22)),
    "kin8nm": ((-0.90, 0.01), (-0.95, 0.03), (-1.20, 0.02)),
    "naval": ((-3.73, 0.01), (-3.80, 0.05), (-5.63, 0.05)),
    "power": ((2.84, 0.01), (2.80, 0.05), (2.79, 0.04)),
    "protein": ((2.97, 0.00), (2.89, 0.01), (2.83, 0.02)),
    "wine": ((0.97, 0.01), (0.93, 0.06), (0.94, 0.12)),
    "yacht": ((1.63, 0.02), (1.55, 0.12), (1.18, 0.21)),
}
RMSE: dict[str, tuple[Figure, Figure, Figure]] = {
    "boston": ((3.01, 0.18), (2.97, 0.85), (3.28, 1.00)),
    "concrete": ((5.67, 0.09), (5.23, 0.53), (6.03, 0.58)),
    "energy": ((1.80, 0.05), (1.66, 0.19), (2.09, 0.29)),
    "kin8nm": ((0.10, 0.00), (0.10, 0.00), (0.09, 0.00)),
    "naval": ((0.01, 0.00), (0.01, 0.00), (0.00, 0.00)),
    "power": ((4.12, 0.03), (4.02, 0.18), (4.11, 0.17)),
    "protein": ((4.73, 0.01), (4.36, 0.04), (4.71, 0.06)),
    "wine": ((0.64, 0.01), (0.62, 0.04), (0.64, 0.04)),
    "yacht": ((1.02, 0.05), (1.11, 0.38), (1.58, 0.48)),
}
PUBLISHED = {"nll": NLL, "rmse": RMSE}
