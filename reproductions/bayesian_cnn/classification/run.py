"""One network by one method: scores on test data, uncertainties of novel inputs, and what it cost."""

from __future__ import annotations

import warnings
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

import whence
from reproductions.bayesian_cnn import subjects
from reproductions.bayesian_cnn.classification.config import Config
from reproductions.bayesian_cnn.data import Data
from reproductions.bayesian_cnn.subjects import Cell, Chosen
from reproductions.experiment import Context
from reproductions.kniebel2020.scores import of_probabilities
from reproductions.store import Results, Values
from whence.posteriors.variational import ScaleMixture, VariationalModule


def run(config: Config, results: Results, context: Context) -> None:
    for cell in config.cells:
        for method in config.methods_of(cell):
            for seed in cell.seeds:
                results.unit(f"{cell.name}/{method}/{seed}", partial(one, config, cell, method, seed, context))


def one(config: Config, cell: Cell, method: str, seed: int, context: Context) -> Values:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", whence.errors.Notice)
        data = cell.load(seed, context)
        found, counts = FITS[method](config, cell, data, seed, context)
        inputs = {"": data.test.tensors()[0], **data.novel}
        probs, epistemic = predicted(found.model, inputs, config.draws, seed)
    scores = of_probabilities(probs, data.test.targets.cpu(), epistemic)
    cost = {"seconds": found.seconds, "memory": found.memory}
    cost["novel sets"] = list(data.novel)
    return scores | counts | cost | {"choice": found.choice, "losses": found.losses, "train": data.train.size}


def predicted(
    model: Any, inputs: dict[str, Tensor], draws: int, seed: int
) -> tuple[dict[str, Tensor], dict[str, Tensor] | None]:
    """Class probabilities by set, and epistemic uncertainties where there are draws."""
    if isinstance(model, nn.Module):
        return {name: subjects.logits(model, x).softmax(-1) for name, x in inputs.items()}, None
    found = {}
    for name, x in inputs.items():
        generator = torch.Generator().manual_seed(seed)
        found[name] = model.predict(x, num_samples=draws, generator=generator)
    probs = {name: p.probs.double().cpu() for name, p in found.items()}
    return probs, {name: p.epistemic.double().cpu() for name, p in found.items()}


def numbers(network: nn.Module, variational: VariationalModule | None = None) -> Values:
    """Parameters of the network; numbers to train and to store."""
    size = sum(p.numel() for p in network.parameters())
    if variational is None:
        stored = size + sum(b.numel() for b in network.buffers())
        return {"parameters": size, "trainable": size, "stored": stored}
    counts = variational.counts()
    return {"parameters": size, "trainable": counts["trainable"][-1], "stored": counts["stored"][-1]}


Fit = tuple[Chosen, Values]


def plain(config: Config, cell: Cell, data: Data, seed: int, context: Context) -> Fit:
    found = subjects.plain(cell, data, seed, context)
    return found, numbers(found.model)


def dropout(config: Config, cell: Cell, data: Data, seed: int, context: Context) -> Fit:
    found = subjects.dropout(cell, data, seed, context, config.dropout)
    return found, numbers(cell.build(data, seed, context))


def bayesian(config: Config, cell: Cell, data: Data, seed: int, context: Context) -> Fit:
    """Ours: from the trained network, independent weights, local reparameterisation, the KL in closed form."""
    network = subjects.plain(cell, data, seed, context).model
    found = subjects.variational(lambda: network, cell, data, seed, context, config.ours)
    return found, numbers(network, VariationalModule(network))


def described(config: Config, cell: Cell, data: Data, seed: int, context: Context) -> Fit:
    """σ² = α μ², softplus activations, from scratch, the KL by one draw (a mixture of two equal Gaussians is one)."""
    prior = ScaleMixture(0.5, config.prior_std, config.prior_std)
    network = cell.build(data, seed, context, activation="softplus")
    found = subjects.variational(
        lambda: network, cell, data, seed, context, config.theirs, family="alpha", prior_precision=prior,
        initial_std=0.1, start="trained",
    )  # fmt: skip
    return found, numbers(network, VariationalModule(network, family="alpha"))


def zero(config: Config, cell: Cell, data: Data, seed: int, context: Context) -> Fit:
    """The same with the described start, means at 0, where σ² = α μ² would leave no variance: σ = softplus(ρ)."""
    prior = ScaleMixture(0.5, config.prior_std, config.prior_std)
    network = cell.build(data, seed, context, activation="softplus")
    with torch.no_grad():
        for p in network.parameters():
            p.zero_()
    found = subjects.variational(
        lambda: network, cell, data, seed, context, config.theirs, prior_precision=prior, initial_std=0.1,
        start="trained",
    )  # fmt: skip
    return found, numbers(network, VariationalModule(network))


FITS = {"plain": plain, "dropout": dropout, "bayesian": bayesian, "described": described, "zero": zero}
