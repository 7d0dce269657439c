"""``whence.variational``: options checked once and turned into objects."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any, Literal

import torch
from torch import nn

from whence.batches import Data, is_pair, size_of, take
from whence.curvature.selection import Layers
from whence.errors import BadData, BadOption, one_of
from whence.functional import Network, refuse_batch_statistics
from whence.likelihoods import Gaussian, Likelihood, resolve
from whence.posteriors.variational.checkpoint import Checkpoint
from whence.posteriors.variational.estimators import EstimatorName
from whence.posteriors.variational.history import History
from whence.posteriors.variational.module import FamilyName, VariationalModule, check_options, chosen
from whence.posteriors.variational.posterior import Variational
from whence.posteriors.variational.training import Feed, Settings, plain_settings, train
from whence.posteriors.variational.weighting import KlSchedule, KlWeight
from whence.randomness import derived_seed, resolve_seed, seed_from


@torch.inference_mode(False)
@torch.enable_grad()
def variational(
    model: nn.Module,
    data: Any,
    *,
    likelihood: Likelihood | Literal["classification", "binary", "regression"],
    family: FamilyName = "mean_field",
    estimator: EstimatorName = "local",
    prior_precision: Any = 1.0,
    initial_std: float = 0.01,
    start: Literal["trained", "scratch"] = "trained",
    kl_weight: float = 1.0,
    kl_schedule: KlSchedule = "plain",
    kl_draws: int = 1,
    epochs: int = 20,
    lr: float = 1e-3,
    lr_std: float | None = None,
    lr_schedule: Literal["cosine", "constant"] = "cosine",
    batch_size: int = 128,
    num_samples: int = 1,
    rank: int = 8,
    layers: Layers = None,
    validation: Any = None,
    patience: int | None = None,
    checkpoint: str | Path | None = None,
    seed: int | None = None,
    generator: torch.Generator | None = None,
    device: torch.device | str | None = None,
    progress: bool = True,
) -> Variational:
    """Fit a Gaussian over the weights of a network by Bayes by Backprop: Adam on the evidence lower bound.

    The loss of a step is (N / |batch|) Σ NLL + kl_weight · KL(q ‖ p), with the KL summed over weights and N counted in
    the data. The network runs in evaluation mode throughout: dropout is off and batch normalisation keeps its running
    statistics.

    Args:
        model: any ``nn.Module``. It is copied, and never changed.
        data: the training data: a ``DataLoader``, a re-iterable of batches, or a pair of tensors.
        likelihood: as for :func:`whence.laplace`; ``"regression"`` takes the noise from the residuals of ``model``.
        family: ``"mean_field"``: σ = softplus(ρ); ``"alpha"``: σ² = α μ²; ``"matrix_normal"``: U ⊗ V for each weight
            matrix with its bias; ``"low_rank"``: diag(σ²) + B Bᵀ over all weights.
        estimator: ``"local"`` reparameterisation, ``"flipout"``, or plain ``"weights"``.
        prior_precision: of a Gaussian at zero, as for :func:`whence.laplace`; or ``ScaleMixture(pi, sigma1, sigma2)``.
        initial_std: where standard deviations start; relative to the weight for ``"alpha"``.
        start: at the weights of ``model``, or anew by the layers' own ``reset_parameters``.
        kl_weight: temperature: what the KL counts. 1 is the plain ELBO.
        kl_schedule: ``"plain"``, ``"blundell"`` (minibatch weights that fall by half from step to step), or a number
            of epochs over which the weight rises from 0.
        kl_draws: draws of each step for a prior without a closed form.
        epochs: passes over the data.
        lr: of Adam, for the means.
        lr_std: for what makes the covariance; by default ``lr``.
        lr_schedule: half a cosine down to zero, or constant.
        batch_size: of a pair of tensors, which is shuffled in every epoch; a loader brings its own.
        num_samples: forward passes of each step.
        rank: of ``"low_rank"``.
        layers: which weights are random: ``None`` all, ``"last"``, patterns on module names, or a predicate. The
            others stay as they are.
        validation: data on which the negative log likelihood of the averaged prediction is measured after each epoch.
        patience: stop after so many epochs without a better validation loss, and go back to the best.
        checkpoint: a file that is written after every epoch, and gone on from where it exists.
        seed: of everything random; or a ``generator`` that one is drawn from (``None``: torch's default generator).
        device: where to compute; by default where the model is.
        progress: whether to show a progress bar.
    """
    weight = KlWeight(kl_weight, kl_schedule)
    check_options(family, estimator, initial_std, rank, prior_precision)
    _check(kl_draws=kl_draws, epochs=epochs, batch_size=batch_size, num_samples=num_samples, patience=patience)
    one_of(start, ("trained", "scratch"), "start")
    one_of(lr_schedule, ("cosine", "constant"), "lr_schedule")
    rates = {"lr": lr, "lr_std": lr if lr_std is None else lr_std}
    for name, value in rates.items():
        if not (isinstance(value, (int, float)) and math.isfinite(value) and value > 0):
            raise BadOption(f"{name}={value!r} must be a positive, finite number; 1e-3 is a usual start.")
    resolved, estimate = resolve(likelihood)
    if estimate and start == "scratch":
        raise BadOption("likelihood='regression' takes its noise from a trained network; pass Gaussian(noise=σ).")
    if patience is not None and validation is None:
        raise BadOption(f"patience={patience} needs validation data: pass validation=.")
    network = Network.snapshot(model)
    network = network if device is None else network.to(device)
    refuse_batch_statistics(network)
    root = seed_from(None) if seed is None and generator is None else resolve_seed(seed, generator)
    source = network.read(data)
    checks = None if validation is None else network.read(validation, "validation")
    with torch.random.fork_rng([]):  # a loader that shuffles is looked into
        torch.default_generator.manual_seed(derived_seed(root, "survey"))
        source.require_passes(epochs + 1, "training")
        if checks is not None:
            checks.require_passes(epochs, "validation after each epoch")
        feed, first, resolved, shape = survey(network, source, resolved, estimate, batch_size)
    network.find_caches(first)
    module = VariationalModule(
        network.module,
        family=family,
        estimator=estimator,
        prior_precision=prior_precision,
        initial_std=initial_std,
        start=start,
        rank=rank,
        generator=torch.Generator().manual_seed(derived_seed(root, "start")),
        _names=chosen(network, layers, first),
    )
    module.generator = None  # from here on each epoch seeds torch's own
    module.check(first)
    settings = Settings(
        epochs, lr, rates["lr_std"], lr_schedule, batch_size, num_samples, kl_draws, weight, patience, root
    )
    same = plain_settings(
        settings, module, prior=repr(module.prior), initial_std=initial_std, start=start,
        data_size=feed.size, likelihood=resolved.spec(),
    )  # fmt: skip
    saved = Checkpoint.at(checkpoint, module, same, source, checks)
    done = train(module, feed, resolved, settings, checks, saved, progress)
    return Variational.of(
        module,
        resolved,
        kl_weight=weight,
        history=History(done.rows),
        best_epoch=done.best_epoch,
        data_size=feed.size,
        output_shape=shape,
    )


@torch.no_grad()
def survey(
    network: Network, data: Data, likelihood: Likelihood, estimate: bool, batch_size: int
) -> tuple[Feed, Any, Likelihood, tuple[int, ...]]:
    """One pass that counts examples and steps, checks the first targets, and measures residuals where asked to."""
    size, steps, squares, values = 0, 0, 0.0, 0
    first: Any = None
    shape: tuple[int, ...] = ()
    for batch in data:
        size += size_of(batch.inputs)
        steps += 1
        if first is not None and not estimate:
            continue
        outputs = network(batch.inputs)
        targets = likelihood.check(outputs, batch.targets, batch.index)
        if first is None:
            first, shape = take(batch.inputs, slice(0, 2)), tuple(outputs.shape[1:])
        if estimate:
            away = (likelihood.flatten(outputs) - likelihood.flatten(targets)).double()
            squares, values = squares + float(away.square().sum()), values + away.numel()
    if is_pair(data.source):
        steps = -(-size // batch_size)
    if estimate:
        noise = math.sqrt(squares / values)
        if not noise > 1e-12:
            raise BadData(
                f"the training residuals are {noise:g}, so the noise cannot be estimated from them: the network fits "
                "its data exactly. Pass likelihood=whence.Gaussian(noise=…)."
            )
        likelihood = Gaussian(noise)
    return Feed(data, batch_size, size, steps), first, likelihood, shape


def _check(**counts: int | None) -> None:
    for name, value in counts.items():
        if value is not None and (isinstance(value, bool) or not isinstance(value, int) or value < 1):
            raise BadOption(f"{name}={value!r} must be a whole number, at least 1.")
