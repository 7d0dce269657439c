"""One kind of GAN: trained by alternating steps, its samples measured, its discriminator asked."""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor, nn
from torch.nn import functional as F

import whence
from reproductions.bayesian_cnn import subjects
from reproductions.bayesian_cnn.data import Data
from reproductions.bayesian_cnn.gan import networks, scores
from reproductions.bayesian_cnn.gan.config import Config
from reproductions.bayesian_cnn.superresolution.images import correlation
from reproductions.experiment import Context
from reproductions.store import Results, Values
from whence.posteriors.variational import Variational, VariationalModule

GENERATES, DISCRIMINATES = ("generator", "both"), ("discriminator", "both")


def run(config: Config, results: Results, context: Context) -> None:
    for kind in config.kinds:
        for seed in config.seeds:
            results.unit(f"{kind}/{seed}", partial(one, config, kind, seed, context))


@dataclass(frozen=True)
class Made:
    """A trained pair."""

    generator: nn.Module
    discriminator: nn.Module
    config: Config

    def images(self, count: int, seed: int, device: str) -> Tensor:
        """Samples in [−1, 1]; of a Bayesian generator by ten weight draws."""
        gen = torch.Generator().manual_seed(seed)
        z = torch.randn(count, self.config.latent, generator=gen).to(device)
        with torch.no_grad(), torch.random.fork_rng():
            torch.manual_seed(seed)
            if isinstance(self.generator, VariationalModule):
                draws = Variational.of(self.generator, whence.Gaussian(1.0)).draw(10, gen)
                parts = z.chunk(len(draws))
                return torch.cat([draws[i](part) for i, part in enumerate(parts)])
            return torch.cat([self.generator(part) for part in z.split(500)])

    def doubts(self, images: Tensor, seed: int) -> Tensor:
        """Standard deviation of the discriminator's logit over weight draws, [N]."""
        assert isinstance(self.discriminator, VariationalModule)
        posterior = Variational.of(self.discriminator, whence.Bernoulli())
        draws = posterior.draw(self.config.draws, torch.Generator().manual_seed(seed))
        with torch.no_grad():
            return torch.stack([draws[i](images) for i in range(len(draws))]).std(0).flatten().double().cpu()


def built(config: Config, kind: str, seed: int, data: Data, device: str) -> Made:
    """Untrained networks; the control with noise is as large as two Bayesian networks."""
    channels, side, _ = data.shape
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        width, noise = config.width, 0.0
        pair = networks.generator(config.latent, width, side, channels), networks.discriminator(width, side, channels)
        if kind == "noise":
            noise, wanted = config.noise, 2 * networks.size(*pair)
            width = networks.width_of_size(wanted, config.latent, side, channels, width)
            pair = (
                networks.generator(config.latent, width, side, channels, noise),
                networks.discriminator(width, side, channels, noise),
            )
        options = {"initial_std": config.initial_std, "prior_precision": config.prior_precision}
        made = [
            VariationalModule(network, **options) if kind in bayesian else network  # type: ignore[arg-type]
            for network, bayesian in zip(pair, (GENERATES, DISCRIMINATES), strict=True)
        ]
    return Made(*(m.to(device).train() for m in made), config)


def trained(config: Config, kind: str, rate: float, seed: int, data: Data, device: str) -> Made:
    """Alternating steps of the non-saturating loss, plus each Bayesian network's KL / N."""
    made, real = built(config, kind, seed, data, device), signed(data)
    pair = made.generator, made.discriminator
    optimisers = [torch.optim.Adam(n.parameters(), rate, betas=(0.5, 0.999)) for n in pair]
    order = torch.Generator().manual_seed(seed)
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        for _ in range(config.steps):
            rows = torch.randint(len(real), (config.batch,), generator=order).to(device)
            _step(made, optimisers, real[rows], len(real), config.kl_weight)
    return made


def _step(made: Made, optimisers: list[torch.optim.Adam], real: Tensor, size: int, weight: float) -> None:
    """One step of the discriminator, one of the generator."""
    g, d = made.generator, made.discriminator
    fake = g(torch.randn(len(real), made.config.latent, device=real.device))
    loss = F.softplus(-d(real)).mean() + F.softplus(d(fake.detach())).mean() + penalty(d, size, weight)
    _update(optimisers[1], loss)
    loss = F.softplus(-d(fake)).mean() + penalty(g, size, weight)
    _update(optimisers[0], loss)


def _update(optimiser: torch.optim.Adam, loss: Tensor) -> None:
    optimiser.zero_grad(set_to_none=True)
    loss.backward()
    optimiser.step()


def penalty(network: nn.Module, size: int, weight: float) -> Tensor | float:
    """weight · KL / N of a Bayesian network."""
    return weight * network.kl() / size if isinstance(network, VariationalModule) else 0.0


def signed(data: Data, part: str = "train") -> Tensor:
    """Raw images in [−1, 1]."""
    examples = getattr(data, part)
    return examples.raw.float() / examples.scale * 2 - 1


def one(config: Config, kind: str, seed: int, context: Context) -> Values:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", whence.errors.Notice)
        data = config.judge.load(seed, context)
        found = subjects.plain(config.judge, config.judge.load(0, context, novel=0), 0, context).model
        assert isinstance(found, nn.Sequential)
        return measured(config, kind, seed, context, data, found)


def measured(config: Config, kind: str, seed: int, context: Context, data: Data, judge: nn.Sequential) -> Values:
    def normalised(images: Tensor) -> Tensor:
        return ((images + 1) / 2 - data.train.mean) / data.train.std

    validation, test = (
        scores.features(judge, normalised(signed(data, part))[: config.samples]) for part in ("validation", "test")
    )
    tried = []
    start = time.perf_counter()
    for rate in config.rates:
        made = trained(config, kind, rate, seed, data, context.device)
        fake = scores.features(judge, normalised(made.images(config.samples, seed + 1, context.device)))
        tried.append((scores.frechet(fake, validation), rate, made))
    seconds = (time.perf_counter() - start) / (len(config.rates) * config.steps)
    _, rate, made = min(tried, key=lambda row: row[0])
    samples = made.images(config.samples, seed + 2, context.device)
    fake, n = scores.features(judge, normalised(samples)), config.compared
    precision, recall = scores.precision_recall(test[:n], fake[:n])
    found = {
        "fid": scores.frechet(fake, test), "precision": precision, "recall": recall, "rate": rate, "seconds": seconds,
        "trainable": networks.size(made.generator, made.discriminator), **scores.modes(judge, normalised(samples)),
    }  # fmt: skip
    if isinstance(made.discriminator, VariationalModule):
        found |= doubted(made, data, samples[:n], fake[:n], test[:n], seed, normalised)
    if seed == 0:
        found["samples"] = (255 * (samples[: config.shown] + 1) / 2).round().clamp(0, 255).int().tolist()
    return found


def doubted(
    made: Made, data: Data, samples: Tensor, fake: Tensor, real: Tensor, seed: int,
    normalised: Callable[[Tensor], Tensor],
) -> Values:  # fmt: skip
    """What the discriminator's uncertainty says: of samples, of other images, and of how good a sample is."""
    own = made.doubts(signed(data, "test")[: len(samples)], seed)
    mine = made.doubts(samples, seed)
    other = next(iter(data.novel.values())) * data.train.std + data.train.mean  # normalised as these images are
    strange = made.doubts((2 * other - 1).clamp(-1, 1), seed)
    return {
        "doubt, samples": scores.area(own, mine), "doubt, others": scores.area(own, strange),
        "doubt, distance": correlation(mine, scores.nearest(fake, real)),
    }  # fmt: skip
