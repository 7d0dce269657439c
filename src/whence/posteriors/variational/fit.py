"""``whence.variational``: checks the options and trains."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor, nn

from whence.engine.batches import Data, Inputs, concatenate, map_tensors, size_of, take
from whence.engine.checkpoint import CheckpointFile
from whence.engine.randomness import derived_seed, resolve_seed, seed_from, seeded
from whence.errors import BadData, BadOption, explains_keywords, one_of, whole_numbers
from whence.functional import Network, refuse_batch_statistics
from whence.likelihoods import Gaussian, Likelihood, LikelihoodName, resolve
from whence.posteriors.variational.elbo import ElboTraining, KlSchedule, KlWeight
from whence.posteriors.variational.estimators import EstimatorName
from whence.posteriors.variational.history import ElboEpoch, History
from whence.posteriors.variational.module import FamilyName, VariationalModule, check_options
from whence.posteriors.variational.parameters import selected_parameters
from whence.posteriors.variational.posterior import Variational
from whence.recording.independence import failures_explained
from whence.recording.selection import Layers
from whence.training.checkpoint import TrainingCheckpoint
from whence.training.feed import fingerprint, loader_feed
from whence.training.loop import Plan, run
from whence.training.schedules import Constant, Cosine

Callback = Callable[[VariationalModule, ElboEpoch], Any]


@explains_keywords
@torch.inference_mode(False)
@torch.enable_grad()
def variational(
    model: nn.Module,
    data: Any,
    *,
    likelihood: Likelihood | LikelihoodName,
    family: FamilyName = "mean_field",
    estimator: EstimatorName = "local",
    prior_precision: Any = 1.0,
    initial_std: float = 0.01,
    start: Literal["trained", "scratch"] = "trained",
    kl_weight: float = 1.0,
    kl_schedule: KlSchedule = "plain",
    kl_draws: int = 1,
    l1: float = 0.0,
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
    probe: Any = None,
    callback: Callback | None = None,
    capture: bool = True,
    checkpoint: str | Path | None = None,
    seed: int | None = None,
    generator: torch.Generator | None = None,
    device: torch.device | str | None = None,
    progress: bool = True,
) -> Variational:
    """Fit a Gaussian over the weights of a network by Bayes by Backprop: Adam on the evidence lower bound.

    The loss of a step is (N / |batch|) Σ NLL + kl_weight · KL(q ‖ p), with the KL summed over weights and N examples in
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
        initial_std: initial standard deviations; relative to the weight for ``"alpha"``.
        start: the weights of ``model``, or reinitialised by the layers' own ``reset_parameters``.
        kl_weight: temperature: the weight of the KL. 1 is the plain ELBO.
        kl_schedule: ``"plain"``, ``"blundell"`` (minibatch weights that halve at each step), or a number
            of epochs over which the weight rises from 0.
        kl_draws: draws per step for a prior without a closed form.
        l1: factor of Σ|μ| over matrices and filters, added to the loss of a mean example (the loss of a step / N), as
            ``l1`` of ``whence.zoo.train`` is; for ``whence.prune(…, threshold=…)``.
        epochs: passes over the data.
        lr: Adam's learning rate for the means.
        lr_std: learning rate for the covariance; by default ``lr``.
        lr_schedule: half a cosine down to zero, or constant.
        batch_size: for a pair of tensors, which is shuffled in every epoch; loaders have their own.
        num_samples: forward passes per step.
        rank: the rank of ``"low_rank"``.
        layers: which weights are random: ``None`` all, ``"last"``, patterns on module names, or a predicate. The
            others keep their values.
        validation: data on which the negative log likelihood of the averaged prediction is measured after each epoch.
        patience: stop after this many epochs without a better validation loss, and return to the best.
        probe: inputs on which the history records the aleatoric and epistemic uncertainty after each epoch.
        callback: called after each epoch with the module in training and the epoch's record.
        capture: on a GPU, replay steps as a CUDA graph, which is compared with an eager step first. Networks that
            cannot be captured run eagerly, with a notice.
        checkpoint: a file that is saved after every epoch; training resumes from it if it exists.
        seed: seed of everything random; or a ``generator`` to draw it from (``None``: torch's default generator).
        device: where to compute; by default where the model is.
        progress: whether to show a progress bar.
    """
    weight = KlWeight(kl_weight, kl_schedule)
    check_options(family, estimator, initial_std, rank, prior_precision)
    whole_numbers(kl_draws=kl_draws, epochs=epochs, batch_size=batch_size, num_samples=num_samples)
    one_of(start, ("trained", "scratch"), "start")
    schedule = Cosine() if one_of(lr_schedule, ("cosine", "constant"), "lr_schedule") == "cosine" else Constant()
    lr_std = lr if lr_std is None else lr_std
    _check_rates(lr=lr, lr_std=lr_std)
    if isinstance(l1, bool) or not (isinstance(l1, (int, float)) and 0 <= l1 < math.inf):
        raise BadOption(f"l1={l1!r} must be a number of at least 0.")
    _check_patience(patience, validation)
    resolved, estimate = resolve(likelihood)
    if estimate and start == "scratch":
        raise BadOption("likelihood='regression' estimates its noise from a trained network; pass Gaussian(noise=σ).")
    network = Network.snapshot(model)
    network = network if device is None else network.to(device)
    refuse_batch_statistics(network)
    seed = seed_from(None) if seed is None and generator is None else resolve_seed(seed, generator)
    source = network.read(data)
    checks = None if validation is None else network.read(validation, "validation")
    with seeded(derived_seed(seed, "survey")):  # for loaders that shuffle
        source.require_passes(epochs + 1, "training")
        if checks is not None:
            checks.require_passes(epochs, "validation after each epoch")
        found = survey(network, source, resolved, estimate)
    network.find_caches(found.first)
    module = VariationalModule(
        network.module,
        family=family,
        estimator=estimator,
        prior_precision=prior_precision,
        initial_std=initial_std,
        start=start,
        rank=rank,
        generator=torch.Generator().manual_seed(derived_seed(seed, "start")),
        _names=selected_parameters(network, layers, found.first),
    )
    module.generator = None  # from here on each epoch seeds torch's default generator
    module.check(found.first)
    feed = loader_feed(source, batch_size)
    rates: dict[str, Any] = {"lr": lr, "lr_std": lr_std, "num_samples": num_samples, "kl_draws": kl_draws, "l1": l1}
    training = ElboTraining(
        module,
        feed,
        found.likelihood,
        size=found.size,
        steps=found.batches if feed.steps is None else feed.steps,
        validation=checks,
        kl_weight=weight,
        probe=None if probe is None else probe_inputs(network, probe),
        seed=seed,
        **rates,
    )
    saved = None
    if checkpoint is not None:
        options = rates | {
            "start": start, "initial_std": initial_std, "rank": rank, "batch_size": batch_size, "patience": patience,
            "lr_schedule": lr_schedule, "epochs": epochs if schedule.depends_on_length else None,
        }  # fmt: skip
        saved = _checkpoint(checkpoint, training, source, options)
    plan = Plan(epochs, schedule, patience, rate_at=0.0, capture=capture, or_eager=True)
    after = None if callback is None else partial(callback, module)
    done = run(training, plan, checkpoint=saved, callback=after, progress=progress)
    return Variational.of(
        module,
        found.likelihood,
        kl_weight=weight,
        history=History(done.records),
        best_epoch=done.best_epoch,
        data_size=found.size,
        output_shape=found.output_shape,
        l1=l1,
        probe=(map_tensors(torch.clone, found.first), found.labels),
    )


def _check_rates(**rates: Any) -> None:
    for name, value in rates.items():
        if not (isinstance(value, (int, float)) and math.isfinite(value) and value > 0):
            raise BadOption(f"{name}={value!r} must be a positive, finite number; 1e-3 is a common choice.")


def _check_patience(patience: int | None, validation: Any) -> None:
    if patience is not None:
        whole_numbers(patience=patience)
        if validation is None:
            raise BadOption(f"patience={patience} needs validation data: pass validation=.")


@torch.no_grad()
def probe_inputs(network: Network, probe: Any) -> Inputs:
    """The probe's inputs on the device, in memory of their own; refused here if the network does not take them."""
    inputs = map_tensors(torch.clone, concatenate(list(network.pieces(probe, 2**31))))
    with failures_explained(network, probe):
        network(take(inputs, slice(0, 2)))
    return inputs


DESCRIBED = {
    "names": "another network",
    "network": "another network: the parameters have the same shapes but other values",
    "data": "other training data",
    "validation": "other validation data",
}


def _checkpoint(path: str | Path, training: ElboTraining, data: Data, options: dict[str, Any]) -> TrainingCheckpoint:
    module = training.module
    identity = {
        "names": {n: list(v.shape) for n, v in module.mean().items()},
        "network": module.origin_hash,
        "data": fingerprint(data.source),
        "validation": None if training.validation is None else fingerprint(training.validation.source),
        "data_size": training.size,
        "likelihood": training.likelihood.spec(),
        "family": module.family,
        "estimator": module.estimator,
        "prior_precision": repr(module.prior),
        "kl_weight": asdict(training.kl_weight),
        "seed": training.seed,
        **options,
    }
    return TrainingCheckpoint(CheckpointFile.at(path, "variational training"), identity, DESCRIBED)


@dataclass(frozen=True)
class Survey:
    """Results of a first pass over the data."""

    size: int  # N
    batches: int
    first: Inputs  # two examples
    labels: Tensor  # their targets
    output_shape: tuple[int, ...]  # of one example
    likelihood: Likelihood  # with its noise


@torch.no_grad()
def survey(network: Network, data: Data, likelihood: Likelihood, estimate: bool) -> Survey:
    """Count examples and batches, check the first targets, and measure residuals if the noise is estimated."""
    size, batches, squares, values = 0, 0, 0.0, 0
    first: Inputs = None
    labels = torch.zeros(0)
    shape: tuple[int, ...] = ()
    for batch in data:
        size, batches = size + size_of(batch.inputs), batches + 1
        if first is not None and not estimate:
            continue
        outputs = network(batch.inputs)
        targets = likelihood.check(outputs, batch.targets, batch.index)
        if first is None:
            first, shape = take(batch.inputs, slice(0, 2)), tuple(outputs.shape[1:])
            labels = targets[: size_of(first)].clone()
        if estimate:
            away = (likelihood.flatten(outputs) - likelihood.flatten(targets)).double()
            squares, values = squares + float(away.square().sum()), values + away.numel()
    if estimate:
        noise = math.sqrt(squares / values)
        if not noise > 1e-12:
            raise BadData(
                f"the training residuals are {noise:g}, so the noise cannot be estimated from them: the network fits "
                "its data exactly. Pass likelihood=whence.Gaussian(noise=…)."
            )
        likelihood = Gaussian(noise)
    return Survey(size, batches, first, labels, shape, likelihood)
