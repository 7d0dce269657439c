"""Maximising the ELBO: E_q[log p(D | w)] − KL(q ‖ p), estimated on batches.

Every epoch draws from a seed of its own, derived from (seed, epoch), so that a resumed training gives the same bits.
"""

from __future__ import annotations

import math
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from typing import Any

import torch
from torch import Tensor
from tqdm.auto import tqdm

from whence.batches import Batch, Data, is_pair, size_of, take
from whence.checks import Watch
from whence.errors import NotConverged
from whence.functional import arguments, call_with, output_tensor
from whence.likelihoods import Likelihood
from whence.posteriors.variational.checkpoint import Checkpoint, Progress
from whence.posteriors.variational.history import Row
from whence.posteriors.variational.module import VariationalModule
from whence.posteriors.variational.weighting import KlWeight
from whence.randomness import derived_seed

VALIDATION_DRAWS = 8
LOOKED_AT = 256  # steps on a GPU, after which losses are looked at


@dataclass(frozen=True)
class Settings:
    """How to train."""

    epochs: int = 20
    lr: float = 1e-3
    lr_std: float = 1e-3
    schedule: str = "cosine"
    batch_size: int = 128
    num_samples: int = 1
    kl_draws: int = 1
    weight: KlWeight = field(default_factory=KlWeight)
    patience: int | None = None
    seed: int = 0

    def rate(self, epoch: float) -> float:
        """Factor of the learning rates: half a cosine, down to zero at the last step."""
        return 1.0 if self.schedule == "constant" else 0.5 * (1 + math.cos(math.pi * min(1.0, epoch / self.epochs)))


@dataclass(frozen=True)
class Feed:
    """The training data: its size, its steps, and its batches in an order of its own for each epoch."""

    data: Data
    batch_size: int
    size: int  # N
    steps: int  # M

    def epoch(self, seed: int) -> Iterator[Batch]:
        """A pair of tensors is shuffled and cut; a loader gives its own batches."""
        if not is_pair(self.data.source):
            yield from self.data
            return
        inputs, targets = self.data.source
        order = torch.randperm(self.size, generator=torch.Generator().manual_seed(seed))
        for index, rows in enumerate(order.split(self.batch_size)):
            piece = Data((take(inputs, rows), targets[rows]), self.data.device, self.data.dtype, self.data.name)
            for batch in piece:
                yield Batch(batch.inputs, batch.targets, index, index * self.batch_size)


@contextmanager
def seeded(device: torch.device, seed: int) -> Iterator[None]:
    """torch's own generators start at ``seed`` inside, and are as before outside."""
    index = device.index if device.index is not None else 0
    with torch.random.fork_rng([index] if device.type == "cuda" else []):
        torch.default_generator.manual_seed(seed)
        if device.type == "cuda":
            torch.cuda.default_generators[index].manual_seed(seed)
        yield


def optimiser_of(module: VariationalModule, settings: Settings) -> torch.optim.Adam:
    """Adam, with a learning rate for the means and one for what makes the covariance."""
    locs = [loc for block in module.variational_blocks() for loc in block.locs]
    known = {id(p) for p in locs}
    rest = [p for p in module.blocks.parameters() if id(p) not in known]
    return torch.optim.Adam([{"params": locs, "lr": settings.lr}, {"params": rest, "lr": settings.lr_std}], fused=True)


def step_loss(
    module: VariationalModule, likelihood: Likelihood, batch: Batch, size: int, settings: Settings
) -> tuple[Tensor, Tensor]:
    """(N / |batch|) Σ NLL, averaged over the passes of the step; and the KL."""
    total = torch.zeros((), device=next(module.parameters()).device)
    for _ in range(settings.num_samples):
        outputs = module.outputs(batch.inputs)
        targets = likelihood.check(outputs, batch.targets, batch.index)
        total = total + likelihood.nll(outputs, targets).sum()
    nll = total * (size / (size_of(batch.inputs) * settings.num_samples))
    return nll, module.kl(settings.kl_draws)


def train(
    module: VariationalModule,
    feed: Feed,
    likelihood: Likelihood,
    settings: Settings,
    validation: Data | None,
    saved: Checkpoint | None,
    progress: bool,
) -> Progress:
    """Train in place; with ``patience`` the best parameters are put back at the end."""
    optimiser = optimiser_of(module, settings)
    done = Progress() if saved is None else saved.load(module, optimiser)
    started = time.perf_counter() - done.seconds
    bar = tqdm(
        range(len(done.rows), settings.epochs), desc="variational", unit="epoch", leave=False, disable=not progress
    )
    with bar:
        for epoch in bar:
            if done.stale(settings.patience):
                break
            nll, kl, weight = _epoch(module, feed, likelihood, settings, optimiser, epoch)
            checked = None
            if validation is not None:
                seed = derived_seed(settings.seed, "validation", epoch)
                checked = predictive_nll(module, validation, likelihood, VALIDATION_DRAWS, seed)
            rate = settings.lr * settings.rate(epoch + 1)
            row = Row(epoch + 1, -nll - kl, nll, kl, weight, rate, checked, time.perf_counter() - started)
            done = done.after(row, module)
            bar.set_postfix_str(row.summary())
            if saved is not None:
                saved.write(done, module, optimiser)
    if settings.patience is not None and done.best is not None:
        module.blocks.load_state_dict(done.best)
    optimiser.zero_grad(set_to_none=True)
    module.eval()
    return done


def _epoch(
    module: VariationalModule,
    feed: Feed,
    likelihood: Likelihood,
    settings: Settings,
    optimiser: torch.optim.Optimizer,
    epoch: int,
) -> tuple[float, float, float]:
    """One pass with steps; mean NLL (of the data set), mean KL and mean KL weight over its steps."""
    module.train()
    tally, weights = Tally(module, settings, epoch), 0.0
    on_cpu = feed.data.device.type == "cpu"
    with Watch(), seeded(feed.data.device, derived_seed(settings.seed, "epoch", epoch)):
        for step, batch in enumerate(feed.epoch(derived_seed(settings.seed, "order", epoch))):
            factor = settings.rate(epoch + step / feed.steps)
            for group, lr in zip(optimiser.param_groups, (settings.lr, settings.lr_std), strict=True):
                group["lr"] = lr * factor
            weight = settings.weight.at(epoch, step, feed.steps)
            nll, kl = step_loss(module, likelihood, batch, feed.size, settings)
            optimiser.found_inf = tally.add(nll.detach(), kl.detach())  # type: ignore[attr-defined]
            if on_cpu or step % LOOKED_AT == LOOKED_AT - 1:
                tally.settle()
            optimiser.zero_grad(set_to_none=True)
            ((nll + weight * kl) / feed.size).backward()  # type: ignore[no-untyped-call]
            optimiser.step()
            weights += weight
        tally.settle()
    return tally.nll / tally.steps, tally.kl / tally.steps, weights / tally.steps


class Tally:
    """The losses of an epoch, which stay on the device until they are looked at: no step waits for the host.

    From the first that is not finite on, Adam changes nothing (``found_inf``), so that the layer can be named later.
    """

    def __init__(self, module: VariationalModule, settings: Settings, epoch: int) -> None:
        self.module, self.settings, self.epoch = module, settings, epoch
        self.nll, self.kl, self.steps = 0.0, 0.0, 0  # of what was looked at
        self._seen: list[Tensor] = []
        self._failed: Tensor | None = None

    def add(self, nll: Tensor, kl: Tensor) -> Tensor:
        """Whether a step was not finite so far: 1. or 0., on the device."""
        pair = torch.stack([nll, kl])
        self._seen.append(pair)
        failed = (~torch.isfinite(pair).all()).float()
        self._failed = failed if self._failed is None else torch.maximum(self._failed, failed)
        return self._failed

    def settle(self) -> None:
        """Look at what was added."""
        if not self._seen:
            return
        for nll, kl in torch.stack(self._seen).cpu().double().tolist():
            _refuse_nan(self.module, nll, kl, self.epoch, self.steps, self.settings)
            self.nll, self.kl, self.steps = self.nll + nll, self.kl + kl, self.steps + 1
        self._seen = []


def _refuse_nan(module: VariationalModule, nll: float, kl: float, epoch: int, step: int, settings: Settings) -> None:
    """Name the layer and the step."""
    where = f"at step {step + 1} of epoch {epoch + 1}"
    remedy = f"Lower lr={settings.lr:g} or lr_std={settings.lr_std:g}, or look at the data of that batch."
    if not math.isfinite(kl):
        with torch.no_grad():
            parts = module.kl_by_layer(settings.kl_draws)
        layer = next((n for n, v in parts.items() if not bool(torch.isfinite(v))), "?")
        value = float(parts.get(layer, kl))
        raise NotConverged(f"the KL of layer {layer!r} became {value:g} {where}. {remedy}")
    if not math.isfinite(nll):
        raise NotConverged(f"the negative log likelihood became {nll:g} {where}. {remedy}")


@torch.no_grad()
def predictive_nll(module: VariationalModule, data: Data, likelihood: Likelihood, draws: int, seed: int) -> float:
    """Mean over examples of −log (1/S) Σ_s p(y | x, w_s), with weight draws shared by all batches."""
    values = module.sample(draws, torch.Generator().manual_seed(seed))
    total, seen = 0.0, 0
    for batch in data:
        args, kwargs = arguments(batch.inputs)
        each = []
        for s in range(draws):
            weights = {n: v[s] for n, v in values.items()}
            outputs = output_tensor(call_with(module.model, weights, args, kwargs))
            targets = likelihood.check(outputs, batch.targets, batch.index)
            each.append(likelihood.nll(outputs, targets).double())
        total += float((math.log(draws) - torch.logsumexp(-torch.stack(each), dim=0)).sum())
        seen += size_of(batch.inputs)
    return total / seen


def plain_settings(settings: Settings, module: VariationalModule, **more: Any) -> dict[str, Any]:
    """What two trainings must share to be one."""
    return asdict(settings) | {"family": module.family, "estimator": module.estimator, "rank": module.rank} | more
