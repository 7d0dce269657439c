"""Where is the uncertainty? The study that Kniebel's thesis and proposal (2020) ask for."""

from reproductions.experiment import Collection

COLLECTION = Collection(
    "reproductions.kniebel2020", ("grid", "training", "pruning", "methods", "separation", "members")
)
