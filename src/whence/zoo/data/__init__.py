"""Data sets by name: found, checked, split and given out in batches."""

from whence.zoo.data import augment
from whence.zoo.data.description import DataSet, Description
from whence.zoo.data.examples import Augmented, Examples
from whence.zoo.data.known import datasets, describe
from whence.zoo.data.load import folds, load

__all__ = ["Augmented", "DataSet", "Description", "Examples", "augment", "datasets", "describe", "folds", "load"]
