"""The linearised view of neural networks: evidence, depth, functions, and the UCI tables."""

from reproductions.experiment import Collection

COLLECTION = Collection("reproductions.linearised", ("uci", "classes", "depth", "online"))
