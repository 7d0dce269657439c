"""Ritter, Botev and Barber (2018), *A scalable Laplace approximation for neural networks*."""

from reproductions.experiment import Collection

COLLECTION = Collection("reproductions.ritter2018", ("toy", "ood", "adversarial", "wrn", "where"))
