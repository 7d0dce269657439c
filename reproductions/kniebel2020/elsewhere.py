"""``python -m reproductions.kniebel2020.elsewhere FOLDER``: the grid's questions for EMNIST and CIFAR-100.

Their files are downloaded, or found as docs/data.md says; no copy was at hand for the committed results.
"""

from __future__ import annotations

import sys
from dataclasses import asdict
from pathlib import Path

import torch

from reproductions.experiment import Context
from reproductions.kniebel2020.grid import EXPERIMENT
from reproductions.kniebel2020.grid.config import downloadable
from reproductions.readme import claim_table
from reproductions.store import Results, values


def main(arguments: list[str]) -> None:
    folder = Path(arguments[0] if arguments else "build/kniebel2020-elsewhere")
    device = "cuda" if torch.cuda.is_available() else "cpu"
    config = downloadable()
    results = Results(folder / "results.json", "grid", asdict(config), device)
    EXPERIMENT.run(config, results, Context(device, folder / "cache"))
    found = values(results.content)
    print(claim_table(EXPERIMENT.claims(found)), EXPERIMENT.tables(found), sep="\n\n")


if __name__ == "__main__":
    main(sys.argv[1:])
