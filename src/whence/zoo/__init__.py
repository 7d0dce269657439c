"""Networks, data sets and recipes: what the examples, comparisons and reproductions stand on.

``whence.zoo.load("mnist")`` is a data set, ``whence.zoo.lenet5()`` a network, ``whence.zoo.train(network, data)``
trains it, and ``whence.zoo.trained("mnist-lenet5")`` is all of it in one call, cached.
"""

from whence.zoo.cookbook import recipe, recipes
from whence.zoo.data import (
    DataSet,
    Description,
    Examples,
    augment,
    datasets,
    describe,
    folds,
    load,
)
from whence.zoo.evaluation import evaluate
from whence.zoo.kept import trained
from whence.zoo.loop import train
from whence.zoo.networks import alexnet, lenet5, mlp, network, perceptron, transformer, vgg, wide_resnet
from whence.zoo.plan import Recipe
from whence.zoo.schedules import Constant, Cosine, Linear, Milestones, Schedule, Step
from whence.zoo.settings import Settings
from whence.zoo.training import Training

__all__ = [
    "Constant",
    "Cosine",
    "DataSet",
    "Description",
    "Examples",
    "Linear",
    "Milestones",
    "Recipe",
    "Schedule",
    "Settings",
    "Step",
    "Training",
    "alexnet",
    "augment",
    "datasets",
    "describe",
    "evaluate",
    "folds",
    "lenet5",
    "load",
    "mlp",
    "network",
    "perceptron",
    "recipe",
    "recipes",
    "train",
    "trained",
    "transformer",
    "vgg",
    "wide_resnet",
]
