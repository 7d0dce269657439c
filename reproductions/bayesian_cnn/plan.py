"""How long every unit takes, and how to share the work out among processes.

``python -m reproductions.bayesian_cnn.plan classification 8 --cells 'mnist-*'``: as in ``reproductions/plan.py``.
Seconds on a CPU core are processor time, measured on single units of LeNet-5 and else estimated; those on an H200 are
estimates.
"""

from __future__ import annotations

from reproductions.bayesian_cnn import COLLECTION
from reproductions.plan import Plan, Row

GREY, COLOUR = ("mnist", "fashion-mnist", "kmnist", "notmnist"), ("cifar10-subset", "svhn-recropped")
IMAGES = ("fashion-mnist", "cifar10-subset")
SECONDS: dict[str, list[Row]] = {
    "classification": [
        ("cifar-vgg11/*", 90, 9000, COLOUR), ("cifar-lenet5*", 30, 300, COLOUR), ("cifar-*", 40, 2500, COLOUR),
        ("*-lenet5/plain/*", 15, 60, GREY), ("*-lenet5/dropout/*", 30, 130, GREY), ("*-lenet5/*", 30, 180, GREY),
        ("*-alexnet/*", 60, 1500, GREY),
    ],
    "claims": [("mnist-*", 40, 300, GREY), ("cifar-*", 50, 500, COLOUR)],
    "pruning": [
        ("*-lenet5/half/*", 15, 40, GREY + COLOUR), ("*-lenet5/bayesian, l1/*", 90, 500, GREY + COLOUR),
        ("*-lenet5/*", 40, 180, GREY + COLOUR), ("cifar-alexnet/bayesian, l1/*", 120, 6000, COLOUR),
        ("cifar-alexnet/*", 50, 2000, COLOUR), ("cifar-vgg11/bayesian, l1/*", 240, 20000, COLOUR),
        ("cifar-*", 110, 8000, COLOUR),
    ],
    "superresolution": [("*/bicubic/*", 3, 3, IMAGES), ("*/plain/*", 15, 30, IMAGES), ("*", 40, 120, IMAGES)],
    "gan": [("plain/*", 60, 300, ("fashion-mnist",)), ("*", 120, 700, ("fashion-mnist",))],
}  # fmt: skip
PLAN = Plan(COLLECTION, SECONDS)

if __name__ == "__main__":
    PLAN.main()
