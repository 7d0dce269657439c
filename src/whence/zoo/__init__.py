"""Networks, data sets and recipes for examples, comparisons and reproductions.

``whence.zoo.load("mnist")`` is a data set, ``whence.zoo.lenet5()`` a network, ``whence.zoo.train(network, data)``
trains it, and ``whence.zoo.trained("mnist-lenet5")`` does all of this in one call, cached.
"""

from whence.training import augment
from whence.training.examples import Examples
from whence.training.schedules import Constant, Cosine, Linear, Milestones, Schedule, Step
from whence.training.settings import Settings
from whence.training.supervised import Training, evaluate, train
from whence.zoo.data import DataSet, Description, datasets, describe, folds, load
from whence.zoo.networks import alexnet, lenet5, mlp, network, perceptron, transformer, vgg, wide_resnet
from whence.zoo.pretrained import trained
from whence.zoo.recipes import Recipe, recipe, recipes

__all__ = [
    "Constant", "Cosine", "DataSet", "Description", "Examples", "Linear", "Milestones", "Recipe", "Schedule",
    "Settings", "Step", "Training", "alexnet", "augment", "datasets", "describe", "evaluate", "folds", "lenet5",
    "load", "mlp", "network", "perceptron", "recipe", "recipes", "train", "trained", "transformer", "vgg",
    "wide_resnet",
]  # fmt: skip
