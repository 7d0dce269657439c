"""Questions of our own: choices in whence that were made by measuring."""

from reproductions.experiment import Collection

COLLECTION = Collection("reproductions.own", ("priors", "novelty", "detectors"))
