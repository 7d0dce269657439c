"""Is it ours? The targeted attack on Kronecker posteriors once more, in plain torch: factors, draws and gradients.

Index legend: N images, C classes, S draws.
"""

from __future__ import annotations

import itertools
import math

import torch
from torch import Tensor

import whence
from reproductions.ritter2018 import mnist
from reproductions.ritter2018.adversarial.config import Config
from reproductions.ritter2018.ood.check import by_hand, covariance_roots, draw_weights, forward, linear_layers
from reproductions.store import Values

GREY, BINARISED = "grey images", "binarised images"
COPIES = {GREY: 0, BINARISED: 1}
Tuned = dict[str, tuple[float, float]]  # prior precision and data scale, by kind


def check(config: Config, subject: mnist.Subject, tuned: Tuned) -> Values:
    """Updates after which half of the images are lost: by the library, and by hand. Draws differ."""
    test = subject.data.test
    assert test is not None
    some = test.take(config.check_inputs)
    pixel = 1.0 if test.std is None else 1.0 / test.std.to(some.inputs)
    return {kind: _both(config, subject, some, pixel, kind, *tuned[kind]) for kind in COPIES}


def _both(
    config: Config, subject: mnist.Subject, some: whence.zoo.Examples, pixel: Tensor | float, kind: str, tau: float,
    scale: float,
) -> Values:  # fmt: skip
    x, y = some.tensors()
    copies, device = COPIES[kind], subject.context.device
    layers = linear_layers(subject.network)
    roots = [covariance_roots(q, h, tau, scale * subject.train.size) for q, h in by_hand(subject, copies)]
    generator = torch.Generator(device).manual_seed(2_000_000 + subject.seed)
    draws = [draw_weights(layers, roots, generator) for _ in range(config.check_draws)]
    mine = attack(draws, x, y, config, pixel)

    fitted = subject.laplace("kron", tuned=None, copies=copies)
    posterior = fitted.with_damping("factored").with_prior(tau).with_data_scale(scale)
    found = whence.robustness.targeted(
        posterior, some, target=config.target, step=config.step, steps=config.check_updates,
        scale=torch.ones_like(x[0]) * pixel, batch_size=config.batch, progress=False, method="sampled",
        num_samples=config.check_draws, generator=torch.Generator(device).manual_seed(subject.seed),
    )  # fmt: skip
    theirs = found.to_dict()["accuracy"]
    return {"by_hand": mine, "library": theirs, "half_by_hand": half(mine), "half_library": half(theirs)}


def attack(
    draws: list[list[tuple[Tensor, Tensor]]], x: Tensor, y: Tensor, config: Config, pixel: Tensor | float
) -> list[float]:
    """Share that keeps its label after each update x + η sgn ∇ₓ log 1/S Σ p(target | x, θₛ), in double precision.

    Images that are taken for the target to begin with are left out.
    """
    double = [[(w.double(), b.double()) for w, b in weights] for weights in draws]
    x = x.double().detach()
    kept = averaged(double, x).argmax(1) != config.target
    x, y, shares = x[kept], y[kept], []
    for _ in range(config.check_updates + 1):
        x = x.requires_grad_()
        logs = averaged(double, x)
        shares.append(float((logs.argmax(1) == y).double().mean()))
        (gradient,) = torch.autograd.grad(logs[:, config.target].sum(), x)
        x = (x + config.step * pixel * gradient.sign()).detach()
    return shares


def averaged(draws: list[list[tuple[Tensor, Tensor]]], x: Tensor) -> Tensor:
    """log 1/S Σ softmax, [N, C]."""
    logs = torch.stack([forward(weights, x).log_softmax(1) for weights in draws])
    return logs.logsumexp(0) - math.log(len(draws))


def half(shares: list[float]) -> float | None:
    """The update, with a straight line between two, after which less than half keep their label; None: never."""
    for i, (before, after) in enumerate(itertools.pairwise(shares)):
        if after < 0.5 <= before:
            return i + (before - 0.5) / (before - after)
    return None
