"""How long every unit takes, and how to share the work out among processes.

``python -m reproductions.kniebel2020.plan grid 6 --cells 'cifar-*'``: as in ``reproductions/plan.py``. Seconds on
a CPU core are measured with one thread where they are below 300, else estimated; those on an H200 are estimated from
runs of similar networks.
"""

from __future__ import annotations

from reproductions.kniebel2020 import COLLECTION
from reproductions.plan import Plan, Row

# Experiment: pattern of units → seconds on an H200, on one CPU core, and the sets whose files are needed.
GREY = ("mnist", "fashion-mnist", "kmnist-test", "notmnist")
COLOUR = ("cifar10-subset", "svhn-test")
SECONDS: dict[str, list[Row]] = {
    "grid": [
        ("iris-*", 3, 1, ()),
        ("mnist-perceptron/*", 10, 8, GREY),
        ("fashion-mlp-2, width 1024/*", 20, 60, GREY),
        ("fashion-mlp-2, data 30000/*", 20, 35, GREY),
        ("fashion-mlp-2, epochs 80/*", 15, 25, GREY),
        ("*-mlp-*", 12, 12, GREY),
        ("*-lenet5/*", 15, 63, GREY),
        ("fashion-cnn, width 4 times/*", 25, 500, GREY),
        ("fashion-cnn, data 1000/*", 12, 26, GREY),
        ("fashion-cnn, data 30000/*", 25, 250, GREY),
        ("fashion-cnn, epochs 80/*", 25, 220, GREY),
        ("fashion-cnn*", 16, 90, GREY),
        ("mnist-transformer/*", 30, 250, GREY),
        ("svhn-*", 20, 200, COLOUR),
        ("cifar-cnn*", 25, 470, COLOUR),
        ("cifar-transformer/*", 45, 900, COLOUR),
        ("cifar-vgg11/*", 90, 6000, COLOUR),
        ("cifar-wrn16-4/*", 110, 9000, COLOUR),
    ],
    "training": [
        ("iris-*", 60, 7, ()),
        ("*-mlp-2/*", 60, 28, ("mnist", "fashion-mnist")),
        ("*-lenet5/*", 70, 120, ("mnist", "kmnist-test")),
        ("fashion-cnn*", 70, 150, ("fashion-mnist",)),
        ("cifar-cnn-bn/*", 90, 900, ("cifar10-subset",)),
    ],
    "pruning": [
        ("iris-*", 10, 4, ()),
        ("*-mlp-2/*", 20, 35, ("mnist", "fashion-mnist")),
        ("*-lenet5/*", 35, 150, ("mnist", "kmnist-test")),
        ("fashion-cnn-bn/*", 40, 250, ("fashion-mnist",)),
        ("mnist-transformer/*", 60, 400, ("mnist",)),
        ("cifar-cnn-bn/*", 60, 900, ("cifar10-subset",)),
        ("cifar-wrn16-4/*", 230, 9000, ("cifar10-subset",)),
    ],
    "methods": [
        ("iris-mlp-2/*", 40, 8, ()),
        ("iris-*", 300, 45, ()),
        ("*-mlp-2/*", 45, 75, ("mnist", "kmnist-test")),
        ("*-lenet5/*", 60, 260, ("mnist", "fashion-mnist")),
    ],
    "separation": [("*", 5, 1, ())],
    "members": [("*/small", 30, 14, GREY), ("*", 60, 35, GREY)],
}
PLAN = Plan(COLLECTION, SECONDS)

if __name__ == "__main__":
    PLAN.main()
