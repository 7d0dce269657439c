"""Few labels: small networks for images of 14 × 14 pixels, each trained in a plain loop."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import avg_pool2d, cross_entropy

import whence
from reproductions.linearised.depth.networks import CLASSES, image_network, mlp
from reproductions.linearised.online.config import Config
from reproductions.store import Values
from whence import metrics, zoo
from whence.engine.randomness import derived_seed

Pair = tuple[Tensor, Tensor]
HELD = 0.2  # of the labels
WIDTH = 50


@dataclass(frozen=True)
class Images:
    train: Pair
    test: Pair

    def parts(self) -> tuple[Pair, Pair]:
        """Training and validation examples; the order is random already."""
        count = round(HELD * len(self.train[1]))
        return (self.train[0][count:], self.train[1][count:]), (self.train[0][:count], self.train[1][:count])


def images_of(config: Config, name: str, labels: int, seed: int) -> Images:
    """As many random examples of each class as possible; the seed draws them."""
    data = zoo.load(name, seed=0, validation=0, progress=False)
    assert data.train is not None and data.test is not None
    generator = torch.Generator().manual_seed(derived_seed(seed, "labels", name))
    order = torch.randperm(data.train.size, generator=generator)
    targets = data.train.take(order).tensors()[1] if data.train.size < 5000 else None
    if targets is None:  # enough of each class are among the first
        order = order[: 20 * labels]
        targets = data.train.take(order).tensors()[1]
    rank = torch.stack([(targets[:i] == targets[i]).sum() for i in range(len(targets))])
    chosen = order[rank.argsort(stable=True)[:labels]]
    chosen = chosen[torch.randperm(len(chosen), generator=generator)]

    def small(images: Tensor) -> Tensor:
        return avg_pool2d(images, 2) if images.shape[-1] == 28 else images

    train, test = data.train.take(chosen).tensors(), data.test.take(config.test).tensors()
    return Images((small(train[0]), train[1]), (small(test[0]), test[1]))


def network_of(kind: str, shape: tuple[int, ...], seed: int) -> nn.Sequential:
    torch.manual_seed(seed)
    if kind == "fully connected":
        return mlp(math.prod(shape), CLASSES, 2, WIDTH, "relu").float()
    return image_network(kind, shape, WIDTH).float()


def measured(config: Config, name: str, labels: int, seed: int) -> Values:
    """Scores of every method for every network."""
    data = images_of(config, name, labels, seed)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return {kind: by_network(config, data, partial(network_of, kind, tuple(data.train[0].shape[1:]), seed), seed)
                for kind in config.networks}  # fmt: skip


def trained(
    config: Config, network: nn.Module, data: Pair, seed: int, loss: Callable[[Tensor, Tensor], Tensor],
    after: Callable[[int], None] | None = None,
) -> nn.Module:  # fmt: skip
    """Adam with a cosine schedule; ``after`` is called after every step."""
    x, y = data
    generator, steps, size = torch.Generator().manual_seed(seed), config.image_steps, min(config.image_batch, len(y))
    optimiser = torch.optim.Adam(network.parameters(), lr=config.image_rate)
    queue = torch.zeros(0, dtype=torch.long)
    for step in range(steps):
        if len(queue) < size:
            queue = torch.cat([queue, torch.randperm(len(y), generator=generator)])
        rows, queue = queue[:size], queue[size:]
        optimiser.param_groups[0]["lr"] = config.image_rate * 0.5 * (1 + math.cos(math.pi * step / steps))
        optimiser.zero_grad()
        network.train()
        loss(network(x[rows]), y[rows]).backward()
        optimiser.step()
        if after is not None:
            after(step + 1)
    return network.eval()


Loss = Callable[[Tensor, Tensor], Tensor]


def with_precision(network: nn.Module, precision: float, count: int) -> Loss:
    def loss(outputs: Tensor, targets: Tensor) -> Tensor:
        penalty = torch.stack([p.square().sum() for p in network.parameters()]).sum()
        return cross_entropy(outputs, targets) + 0.5 * precision / count * penalty

    return loss


def held_out(network: nn.Module, data: Pair) -> float:
    with torch.no_grad():
        return float(cross_entropy(network.eval()(data[0]), data[1]))


def by_network(config: Config, data: Images, make: Callable[[], nn.Module], seed: int) -> Values:
    """The baselines choose on a fifth of the labels and train again on all; the evidence has all from the start."""
    train, held = data.parts()
    count, final = len(train[1]), data.train
    grid = []
    for precision in config.precisions:
        network = make()
        trained(config, network, train, seed, with_precision(network, precision, count))
        grid.append((held_out(network, held), precision, network))
    _, precision, network = min(grid, key=lambda tried: tried[0])
    stop, stopped = _stopped(config, make(), train, held, seed)
    chosen = {"grid": _tuned(network, train, held), "early": _tuned(stopped, train, held)}
    again = {"grid": make(), "early": make()}
    trained(config, again["grid"], final, seed, with_precision(again["grid"], precision, len(final[1])))
    _until(config, again["early"], final, seed, stop)
    found: Values = {"chosen": {"precision": precision, "stop": stop}, "methods": {}, "trace": {}}
    for method, own in again.items():
        posterior = _laplace(own, final).with_prior(chosen[method])
        found["methods"] |= {method: _alone(own, data.test), f"{method}, laplace": scores(posterior.predict, data.test)}
    usual = make()
    trained(config, usual, final, seed, with_precision(usual, config.usual_precision, len(final[1])))
    posterior = _laplace(usual, final).tune(per_layer=True, progress=False)
    found["methods"]["afterwards, laplace"] = scores(posterior.predict, data.test)
    for method, prior in (("online", 1.0), ("online, relative", whence.Relative(1.0))):
        own = make()
        evidence = _online(config, own, final, seed, prior)
        found["methods"] |= {method: _alone(own, data.test)}
        found["methods"] |= {f"{method}, laplace": scores(evidence.posterior.predict, data.test)}
        if method == "online" and len(final[1]) <= config.exact:
            process = evidence.posterior.function_space(final, progress=False)
            found["methods"] |= {"online, exact": scores(process.predict, data.test)}
        found["trace"][method] = [
            {"step": r.step, "evidence": r.log_evidence, "precision": list(r.precision.values()),
             "gamma": r.effective_parameters, "seconds": r.seconds} for r in evidence.records
        ]  # fmt: skip
    return found


def _laplace(network: nn.Module, data: Pair) -> Any:
    return whence.laplace(
        network, data, likelihood="classification", structure="kron", prior_precision=1.0, progress=False
    )


def _tuned(network: nn.Module, train: Pair, held: Pair) -> float:
    """The prior precision with the lowest NLL on the validation examples."""
    return float(_laplace(network, train).tune(held, data_scale=False, progress=False).prior_precision)


def _stopped(config: Config, network: nn.Module, train: Pair, held: Pair, seed: int) -> tuple[int, nn.Module]:
    """Without decay: the step with the lowest validation loss, and the network there."""
    every = max(config.image_steps // config.looks, 1)
    best: list[Any] = [math.inf, 0, {}]

    def look(step: int) -> None:
        if step % every == 0:
            loss = held_out(network, held)
            if loss < best[0]:
                best[:] = [loss, step, {n: v.clone() for n, v in network.state_dict().items()}]

    trained(config, network, train, seed, cross_entropy, look)
    network.load_state_dict(best[2])
    return best[1], network


def _until(config: Config, network: nn.Module, data: Pair, seed: int, stop: int) -> None:
    """The same training without decay, up to a step."""
    kept: dict[str, Tensor] = {}

    def keep(step: int) -> None:
        if step == stop:
            kept.update({n: v.clone() for n, v in network.state_dict().items()})

    trained(config, network, data, seed, cross_entropy, keep)
    network.load_state_dict(kept)


def _online(config: Config, network: nn.Module, data: Pair, seed: int, prior: Any) -> Any:
    evidence = whence.online_evidence(
        network, data, likelihood="classification", prior_precision=prior, keep_best=False, seed=0
    )
    moments = config.moments(config.image_steps)

    def after(step: int) -> None:
        if step in moments:
            evidence.steps = step
            evidence.update()

    trained(config, network, data, seed, evidence.loss, after)
    return evidence


def _alone(network: nn.Module, test: Pair) -> Values:
    posterior = whence.ensemble([network], likelihood="classification")
    return scores(posterior.predict, test)


def scores(predict: Callable[[Tensor], Any], test: Pair) -> Values:
    with torch.no_grad():
        prediction = predict(test[0])
    of: dict[str, Callable[..., Any]] = {"nll": metrics.nll, "accuracy": metrics.accuracy, "ece": metrics.ece}
    return {key: float(metric(prediction, test[1], resamples=0)) for key, metric in of.items()}
