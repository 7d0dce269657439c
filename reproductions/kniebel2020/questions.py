"""The questions, by the words of the proposal (P) and of the thesis (T), which ask them and have no results yet."""

from __future__ import annotations

LAYERS = "P: differences in the weight distributions (i.e. the uncertainties) of the layers in a trained network"
INSIDE = "P: differences in the weight distribution of a single layer"
SIZE = "P: the influence of the size of the weights"
TRAINING = "P: differences in the weight distributions of the layers during training"
CONVERGENCE = "P: insights into convergence criteria"
LAST = "P: much in the last layer"
PRUNED = "P: unidentified during training, … pruned at this location"
METHODS = "P: Laplace approximation and Variational Inference; a third method"
CURVATURE = "T, 4.1: the curvature as a measure of uncertainty"
SEPARATION = "T, 2.1.1: what one, two and three layers can classify"
MEMBERS = "T, 3.3: numerous networks with a mediocre validation accuracy"
BEYOND = "beyond both"
