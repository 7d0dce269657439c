"""``WHENCE_DATA=… python -m benchmarks.variational_mnist [--seed 0]``: a Bayesian LeNet-5 on MNIST, scored and pruned.

Trains LeNet-5 for five epochs, then variationally (Flipout, plain ELBO), and prints accuracy and calibration of the
averaged prediction, and the accuracy with 90 % of the weights pruned by signal to noise. ``--out FILE`` writes JSON.
"""

from __future__ import annotations

import argparse
import json
import time
from pathlib import Path

import torch

import whence
from whence import metrics, zoo

DRAWS = 30


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--epochs", type=int, default=18)
    parser.add_argument("--estimator", default="flipout")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--out", type=Path)
    chosen = parser.parse_args()
    data = zoo.load("mnist", seed=chosen.seed, device=chosen.device)
    torch.manual_seed(chosen.seed)
    net = zoo.lenet5()
    train, test = data.train.tensors(), data.test.tensors()
    zoo.train(net, train, epochs=5, schedule="cosine", weight_decay=5e-4, seed=chosen.seed, device=chosen.device)
    start = time.perf_counter()
    posterior = whence.variational(
        net, train, likelihood="classification", estimator=chosen.estimator, epochs=chosen.epochs, lr=4e-3,
        lr_std=1e-2, prior_precision=10.0, seed=chosen.seed,
    )  # fmt: skip
    seconds = time.perf_counter() - start
    generator = torch.Generator().manual_seed(chosen.seed)
    scores = metrics.evaluate(posterior.predict(test[0], num_samples=DRAWS, generator=generator), test[1])
    pruned = whence.prune_curve(posterior, test, fractions=(0.0, 0.9), by=("snr", "magnitude", "random"))
    print(scores)
    print(pruned)
    found = {
        "seed": chosen.seed, "epochs": chosen.epochs, "estimator": chosen.estimator, "seconds": round(seconds, 1),
        "scores": scores.to_dict(), "pruned": [vars(row) for row in pruned.rows],
    }  # fmt: skip
    if chosen.out is not None:
        chosen.out.write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main()
