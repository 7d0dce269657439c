"""Every method under both attacks."""

from __future__ import annotations

import math
from functools import partial
from typing import Any

import torch
from torch import Tensor

import whence
from reproductions.experiment import Context
from reproductions.ritter2018 import mnist
from reproductions.ritter2018.adversarial.check import BINARISED, GREY, check
from reproductions.ritter2018.adversarial.config import CHECKED, PLAIN, TARGETED, UNTARGETED, Config
from reproductions.store import Results, Values


def run(config: Config, results: Results, context: Context) -> None:
    for seed in config.setup.seeds:
        subject = mnist.Subject(config.setup, seed, context)
        for name in (*mnist.METHODS, *config.variants):
            label = f"{mnist.KRONECKER} ({name})" if name in config.variants else name
            for attack in (UNTARGETED, TARGETED):
                results.unit(f"{seed}/{attack}/{label}", partial(attacked, config, subject, name, attack))
        for name in CHECKED:
            results.unit(f"{seed}/{PLAIN}/{name}", partial(plain_gradient, config, subject, name))
    for seed in config.setup.seeds:
        subject = mnist.Subject(config.setup, seed, context)
        results.unit(f"{seed}/check", partial(_check, config, subject, results))


TUNED = {GREY: f"{mnist.KRONECKER} (not augmented, exact)", BINARISED: mnist.KRONECKER}


def _check(config: Config, subject: mnist.Subject, results: Results) -> Values:
    return check(config, subject, {kind: _tuned(results, subject.seed, name) for kind, name in TUNED.items()})


def _tuned(results: Results, seed: int, name: str) -> tuple[float, float]:
    """Prior precision and data scale of a posterior that was attacked."""
    found = results.content["units"][f"{seed}/{TARGETED}/{name}"]["value"]
    return found["prior_precision"], found["data_scale"]


def _method(config: Config, subject: mnist.Subject, name: str) -> mnist.Method:
    return _variant(config, subject, name) if name in config.variants else subject.method(name)


def _variant(config: Config, subject: mnist.Subject, name: str) -> mnist.Method:
    how = config.variants[name]
    posterior = subject.laplace("kron", damping="factored", curvature=how.curvature, copies=how.copies, batch=how.batch)
    return mnist.Method(name, posterior, {"method": "sampled"}, subject.context.device)


def attacked(config: Config, subject: mnist.Subject, name: str, attack: str) -> Values:
    """Accuracy and uncertainty along the attack; the same draws for gradients and predictions."""
    test, method = subject.data.test, _method(config, subject, name)
    assert test is not None
    some = test.take(config.inputs)
    # A pixel's range in the inputs that the network sees; one that never changes is moved all the same in the
    # targeted attack, whose step the paper does not rescale.
    span = whence.robustness.span(subject.train)
    pixel = 1.0 / (torch.ones_like(span) if test.std is None else test.std.to(span))
    how = method.arguments(config.setup.draws, subject.seed)
    if attack == UNTARGETED:
        found = whence.robustness.untargeted(
            method.posterior, some, steps=config.steps, scale=span, batch_size=config.batch, progress=False, **how,
        )  # fmt: skip
    else:
        found = whence.robustness.targeted(
            method.posterior, some, target=config.target, step=config.step, steps=config.updates,
            scale=pixel.expand_as(span), batch_size=config.batch, progress=False, **how,
        )  # fmt: skip
    values: Values = {"curves": found.to_dict(), "half": found.half(), "inputs": found.count}
    if isinstance(method.posterior, whence.Laplace):
        values |= {"prior_precision": method.posterior.prior_precision, "data_scale": method.posterior.data_scale}
    return values


def plain_gradient(config: Config, subject: mnist.Subject, name: str) -> Values:
    """The untargeted attack with the gradient of the averaged log-softmax as single precision gives it.

    Where a probability rounds to 1 the attacked class's own term is lost and the sign is wrong: the attack is weaker
    than it seems, which looks like robustness.
    """
    assert subject.data.test is not None
    some = subject.data.test.take(config.inputs).with_(batch_size=config.batch)
    span, draws = whence.robustness.span(subject.train), _draws(config, subject.method(name), subject.seed)
    columns = {key: [0.0] * len(config.steps) for key in ("accuracy", "entropy")}
    sure = 0.0
    for x, y in some:
        logs = _averaged(draws, x.requires_grad_())
        (gradient,) = torch.autograd.grad(logs.amax(-1).sum(), x)
        sure += float((logs.detach().exp().amax(-1) == 1).sum())
        with torch.no_grad():
            for i, step in enumerate(config.steps):
                logs = _averaged(draws, x - step * span * gradient.sign()).double()
                columns["accuracy"][i] += float((logs.argmax(-1) == y).sum())
                columns["entropy"][i] -= float(torch.special.xlogy(logs.exp(), logs.exp()).sum())
    curves = {key: [value / some.size for value in values] for key, values in columns.items()}
    return {"curves": {"step": list(config.steps)} | curves, "probability_rounds_to_1": sure / some.size}


def _draws(config: Config, method: mnist.Method, seed: int) -> Any:
    """The functions that a method averages."""
    if isinstance(method.posterior, whence.Ensemble):
        return method.posterior.draw()
    return method.posterior.draw(config.setup.draws, generator=torch.Generator(method.device).manual_seed(seed))


def _averaged(draws: Any, x: Tensor) -> Tensor:
    """log 1/S Σ softmax, [N, C]."""
    return draws.outputs(x).log_softmax(-1).logsumexp(0) - math.log(len(draws))
