"""``whence.swag``: train on at a constant learning rate, and collect weights (Maddox et al. 2019, algorithm 1)."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from whence.copies import copy_module, unwrap
from whence.engine.randomness import preserved_random_state, resolve_seed
from whence.errors import BadData, BadOption, explains_keywords, whole_numbers
from whence.functional import Network
from whence.likelihoods import Gaussian, Likelihood, LikelihoodName, resolve
from whence.posteriors.swag.batch_norm import batch_norm_layers, random_inputs, set_batch_norm_statistics
from whence.posteriors.swag.posterior import Swag, at_mean, check_scale
from whence.training.checkpoint import part_of, prefixed
from whence.training.examples import training_parts
from whence.training.loop import Tensors, run
from whence.training.losses import MeanNegativeLogLikelihood, residual_noise
from whence.training.settings import Settings
from whence.training.supervised import SupervisedEpoch, SupervisedTraining


@explains_keywords
@torch.inference_mode(False)
def swag(
    model: nn.Module,
    data: Any,
    *,
    likelihood: Likelihood | LikelihoodName,
    epochs: int = 20,
    lr: float = 0.01,
    rank: int = 20,
    every: int = 1,
    momentum: float = 0.9,
    weight_decay: float = 0.0,
    batch_size: int | None = None,
    scale: float = 1.0,
    seed: int | None = None,
    generator: torch.Generator | None = None,
    device: torch.device | str | None = None,
    checkpoint: str | Path | None = None,
    progress: bool = True,
    **settings: Any,
) -> Swag:
    """Continue training a copy of a trained network, and fit a Gaussian to its weights along the way.

    Args:
        model: a trained network; it is copied, and never changed.
        data: the training data, as for :func:`whence.zoo.train`.
        likelihood: the mean negative log likelihood is minimised; with ``"regression"`` the noise is the root mean
            square of the training residuals at the mean weights.
        epochs: number of further epochs.
        lr: constant learning rate, high enough to explore (the paper uses a tenth to a half of the initial rate).
        rank: number K of last deviations from the mean to keep; 0 for a diagonal covariance.
        every: number of epochs between collections.
        momentum, weight_decay, batch_size, **settings: as in :class:`whence.zoo.Settings`.
        scale: scale of the covariance; 1 as in the paper.
        seed: seed of shuffles, augmentations and dropout (0); or a ``generator`` to draw it from.
        device: where to train; by default where the model is.
        checkpoint: a file; an interrupted training resumes from it and gives the same posterior.
        progress: whether to show a progress bar.
    """
    seed = resolve_seed(seed, generator)
    whole_numbers(epochs=epochs, every=every)
    if epochs // every < 2:
        raise BadOption(f"epochs={epochs} with every={every} gives {epochs // every} collections; 2 are needed.")
    resolved, estimate = resolve(likelihood)
    data, _ = training_parts(data)
    explicit = {} if batch_size is None else {"batch_size": batch_size}
    loss = MeanNegativeLogLikelihood(Gaussian(1.0) if estimate else resolved)
    chosen = {"epochs": epochs, "lr": lr, "momentum": momentum, "weight_decay": weight_decay, **explicit, **settings}
    start = Network.snapshot(model)
    start = start if device is None else start.to(device)
    network = copy_module(start.module)
    collector = SwagCollector(network, rank)
    plan = Settings().with_(loss=loss, **chosen)
    training = SwagTraining.of(
        network, data, None, plan, seed, explicit, collector=collector, every=every, start=start.hash
    )
    saved = None if checkpoint is None else training.checkpoint(checkpoint)
    done = run(training, training.plan(), checkpoint=saved, progress=progress)
    history = [record.to_dict() for record in done.records]
    return replace(collector.posterior(likelihood, data, scale=scale, seed=seed, history=history), start=start)


class SwagCollector:
    """Collects weights of a network in your own loop: ``collect()`` after each epoch, ``posterior(…)`` at the end.

    With the n-th weights θₙ: θ̄ₙ = θ̄ₙ₋₁ + (θₙ − θ̄ₙ₋₁) / n; the second moment by Welford's update, in float64; and the
    last ``rank`` deviations θₙ − θ̄ₙ.
    """

    def __init__(self, model: nn.Module, rank: int = 20) -> None:
        if isinstance(rank, bool) or not isinstance(rank, int) or rank < 0 or rank == 1:
            raise BadOption(f"rank={rank} must be 0 (a diagonal covariance) or a whole number, at least 2.")
        if not isinstance(model, nn.Module):
            raise BadData(f"the model must be a torch.nn.Module, not a {type(model).__name__}.")
        self.model, self.rank, self.count = unwrap(model), rank, 0
        free = {n: p for n, p in self.model.named_parameters() if p.requires_grad and p.is_floating_point()}
        if not free:
            raise BadOption("all parameters are frozen, so there is nothing to collect; call requires_grad_(True).")
        self.mean: Tensors = {n: torch.zeros_like(p, dtype=torch.float64) for n, p in free.items()}
        self.squares: Tensors = {n: torch.zeros_like(m) for n, m in self.mean.items()}  # Σ (θ − θ̄)²
        self.deviations: dict[str, list[Tensor]] = {n: [] for n in free}

    @torch.no_grad()
    def collect(self) -> None:
        """Add the current weights."""
        params = dict(self.model.named_parameters())
        self.count += 1
        for name, mean in self.mean.items():
            theta = params[name].detach()
            if not bool(torch.isfinite(theta).all()):
                raise BadData(f"the parameter {name!r} contains NaN or infinite values at collection {self.count}.")
            before = theta.double() - mean
            mean += before / self.count
            after = theta.double() - mean
            self.squares[name] += before * after
            if self.rank:
                self.deviations[name] = [*self.deviations[name], after.to(theta.dtype)][-self.rank :]

    def posterior(
        self,
        likelihood: Likelihood | str,
        data: Any = None,
        *,
        scale: float = 1.0,
        seed: int = 0,
        history: list[Any] | None = None,
    ) -> Swag:
        """The posterior so far. ``data`` is needed for batch normalisation, and for ``"regression"``."""
        if self.count < 2:
            raise BadOption(f"a covariance needs at least 2 collections, but there is {self.count}.")
        scale = check_scale(scale)
        resolved, estimate = resolve(likelihood)
        layers = batch_norm_layers(self.model)
        if data is None and layers:
            raise BadOption(
                f"the batch normalisation {layers[0]!r} needs new statistics for the averaged weights; pass data=…."
            )
        if data is None and estimate:
            raise BadOption("likelihood='regression' estimates the noise from training residuals; pass data=….")
        start = Network.snapshot(self.model)
        network = at_mean(start, {n: m.to(start.params[n].dtype) for n, m in self.mean.items()})
        inputs, shape = None, None
        with preserved_random_state():  # a shuffling loader uses torch's default generator
            if layers:
                inputs = random_inputs(data, network, seed)
                set_batch_norm_statistics(network, inputs)
            if data is not None:
                with torch.no_grad():
                    shape = tuple(network(random_inputs(data, network, seed, 1)).shape[1:])
            found = residual_noise([network], data) if estimate else resolved
        return Swag(
            network=network,
            start=start,
            likelihood=found,
            diagonal={n: (s / self.count).to(start.params[n].dtype) for n, s in self.squares.items()},
            deviations={n: torch.stack(d) for n, d in self.deviations.items()} if self.rank else {},
            scale=scale,
            collections=self.count,
            inputs=inputs,
            output_shape=shape,
            history=tuple(history or ()),
        )

    def state(self) -> Tensors:
        """Everything collected so far."""
        deviations = {n: torch.stack(d) for n, d in self.deviations.items() if d}
        found = prefixed(mean=self.mean, squares=self.squares, deviations=deviations)
        return found | {"count": torch.tensor(self.count)}

    def load_state(self, tensors: Tensors) -> None:
        """The inverse of :meth:`state`."""
        self.count = int(tensors["count"])
        deviations = part_of(tensors, "deviations")
        for name, mean in self.mean.items():
            mean.copy_(tensors[f"mean.{name}"])
            self.squares[name].copy_(tensors[f"squares.{name}"])
            self.deviations[name] = list(deviations[name].to(mean.device)) if name in deviations else []


class SwagTraining(SupervisedTraining):
    """Continued training of a network, with collection of its weights."""

    def __init__(self, *args: Any, collector: SwagCollector, every: int, start: str) -> None:
        super().__init__(*args)
        self.collector = collector
        self.every = every  # epochs between two collections
        self.start = start  # hash of the weights that it starts from

    def end(self, epoch: int, lr: float) -> SupervisedEpoch:
        record = super().end(epoch, lr)
        if record.epoch % self.every == 0:
            self.collector.collect()
        return record

    def state(self) -> Tensors:
        return prefixed(network=super().state(), collected=self.collector.state())

    def load_state(self, tensors: Tensors) -> None:
        super().load_state(part_of(tensors, "network"))
        self.collector.load_state(part_of(tensors, "collected"))

    def identity(self) -> dict[str, Any]:
        own = {
            "shapes": {n: list(t.shape) for n, t in super().state().items()},
            "start": self.start,
            "rank": self.collector.rank,
            "every": self.every,
        }
        return own | super().identity()
