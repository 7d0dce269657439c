"""What an epoch of Bayes by Backprop costs, in plain training epochs, on LeNet-5.

    OMP_NUM_THREADS=2 python -m benchmarks.variational [--repeats 5] [--processor] [--peers DIR]

All contenders read the same batches (128 images of MNIST's shape). Times are the best of several rounds that take
turns, so that a busy machine harms all alike; ratios within a run are what counts. ``--processor`` measures processor
time (of all threads), which a busy machine changes less. ``--peers`` is a folder that holds
bayesian-torch and blitz-bayesian-pytorch (``pip install --no-deps --target DIR …``); a missing one is left out.
"""

from __future__ import annotations

import argparse
import json
import platform
import sys
import time
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from whence.likelihoods import Categorical
from whence.posteriors.variational import VariationalModule
from whence.posteriors.variational.elbo import make_optimiser, nll_and_kl
from whence.zoo import lenet5

Batches = list[tuple[Tensor, Tensor]]
Step = Callable[[Tensor, Tensor], None]


def batches(count: int, size: int = 128) -> Batches:
    """Images that are mostly black, as digits are."""
    gen = torch.Generator().manual_seed(0)
    shape = (size, 1, 28, 28)
    return [
        (
            torch.rand(shape, generator=gen) * (torch.rand(shape, generator=gen) < 0.2),
            torch.randint(10, (size,), generator=gen),
        )
        for _ in range(count)
    ]


def plain(with_optimiser: bool) -> Step:
    net = lenet5().train()
    optimiser = torch.optim.Adam(net.parameters(), 1e-3)

    def step(x: Tensor, y: Tensor) -> None:
        optimiser.zero_grad(set_to_none=True)
        F.cross_entropy(net(x), y).backward()
        if with_optimiser:
            optimiser.step()

    return step


def whence_step(size: int, with_optimiser: bool, **options: Any) -> Step:
    module = VariationalModule(lenet5(), **options).train()
    likelihood, optimiser = Categorical(), make_optimiser(module, 1e-3, 1e-3)

    def step(x: Tensor, y: Tensor) -> None:
        nll, kl = nll_and_kl(module, likelihood, x, y, size)
        optimiser.zero_grad(set_to_none=True)
        ((nll + kl) / size).backward()
        if with_optimiser:
            optimiser.step()

    return step


def bayesian_torch(size: int, kind: str) -> Step:
    from bayesian_torch.models.dnn_to_bnn import dnn_to_bnn, get_kl_loss

    net = lenet5()
    dnn_to_bnn(
        net,
        {
            "prior_mu": 0.0, "prior_sigma": 1.0, "posterior_mu_init": 0.0, "posterior_rho_init": -4.0, "type": kind,
            "moped_enable": False, "moped_delta": 0.5,
        },
    )  # fmt: skip
    net.train()

    def step(x: Tensor, y: Tensor) -> None:
        net.zero_grad(set_to_none=True)
        (F.cross_entropy(net(x), y) + get_kl_loss(net) / size).backward()

    return step


def blitz(size: int) -> Step:
    from blitz.modules import BayesianConv2d, BayesianLinear
    from blitz.utils import variational_estimator

    @variational_estimator
    class Net(nn.Sequential):
        pass

    net = Net(
        BayesianConv2d(1, 6, (5, 5), padding=2), nn.ReLU(), nn.MaxPool2d(2), BayesianConv2d(6, 16, (5, 5)), nn.ReLU(),
        nn.MaxPool2d(2), nn.Flatten(), BayesianLinear(400, 120), nn.ReLU(), BayesianLinear(120, 84), nn.ReLU(),
        BayesianLinear(84, 10),
    ).train()  # fmt: skip

    def step(x: Tensor, y: Tensor) -> None:
        net.zero_grad(set_to_none=True)
        (F.cross_entropy(net(x), y) + net.nn_kl_divergence() / size).backward()

    return step


def contenders(size: int) -> dict[str, Callable[[], Step]]:
    return {
        "plain": lambda: plain(False),
        "plain, with optimiser": lambda: plain(True),
        "whence local": lambda: whence_step(size, False, estimator="local"),
        "whence local, with optimiser": lambda: whence_step(size, True, estimator="local"),
        "whence flipout": lambda: whence_step(size, False, estimator="flipout"),
        "whence weights": lambda: whence_step(size, False, estimator="weights"),
        "whence local, matrix normal": lambda: whence_step(size, False, family="matrix_normal"),
        "bayesian-torch reparameterization": lambda: bayesian_torch(size, "Reparameterization"),
        "bayesian-torch flipout": lambda: bayesian_torch(size, "Flipout"),
        "blitz": lambda: blitz(size),
    }


def measure(
    steps: dict[str, Step], data: Batches, repeats: int, clock: Callable[[], float] = time.perf_counter
) -> dict[str, float]:
    """Best seconds of each over the data, in rounds."""
    best = dict.fromkeys(steps, float("inf"))
    for _ in range(repeats):
        for name, step in steps.items():
            start = clock()
            for x, y in data:
                step(x, y)
            best[name] = min(best[name], clock() - start)
    return best


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repeats", type=int, default=7)
    parser.add_argument("--batches", type=int, default=60)
    parser.add_argument("--processor", action="store_true", help="processor time instead of elapsed time")
    parser.add_argument("--peers", default=None)
    given = parser.parse_args()
    if given.peers:
        sys.path.append(given.peers)
    data = batches(given.batches)
    steps: dict[str, Step] = {}
    for name, make in contenders(128 * given.batches).items():
        try:
            steps[name] = make()
            steps[name](*data[0])
        except ImportError as error:
            print(f"{name}: left out ({error})")
    best = measure(steps, data, given.repeats, time.process_time if given.processor else time.perf_counter)
    base = best["plain"]
    print(f"{platform.processor() or platform.machine()}, torch {torch.__version__}, {torch.get_num_threads()} threads")
    for name, seconds in best.items():
        print(f"{name:36} {1000 * seconds / len(data):8.2f} ms a step   {seconds / base:5.2f} plain epochs")
    print(json.dumps({name: seconds / base for name, seconds in best.items()}))


if __name__ == "__main__":
    main()
