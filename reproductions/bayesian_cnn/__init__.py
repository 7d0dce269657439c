"""A Bayesian CNN by variational inference: Shridhar et al. (2019) and the slides on it, again."""

from reproductions.experiment import Collection

COLLECTION = Collection("reproductions.bayesian_cnn", ("classification", "claims", "pruning", "superresolution", "gan"))
