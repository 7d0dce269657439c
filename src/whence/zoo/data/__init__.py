"""Data sets by name: finding, checking, splitting and batching."""

from whence.zoo.data.catalogue import describe
from whence.zoo.data.description import DataSet, Description
from whence.zoo.data.load import datasets, folds, load

__all__ = ["DataSet", "Description", "datasets", "describe", "folds", "load"]
