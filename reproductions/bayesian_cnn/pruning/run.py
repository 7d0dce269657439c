"""A trained network or posterior, pruned to every fraction in several orders."""

from __future__ import annotations

import warnings
from dataclasses import replace
from functools import partial
from typing import Any

import torch
from torch import nn

import whence
from reproductions.bayesian_cnn import subjects
from reproductions.bayesian_cnn.data import Data
from reproductions.bayesian_cnn.pruning.config import Config
from reproductions.bayesian_cnn.subjects import Cell
from reproductions.experiment import Context
from reproductions.store import Results, Values
from whence.extras.pruning.criteria import CRITERIA
from whence.extras.pruning.masks import Pieces, PruningPlan


def run(config: Config, results: Results, context: Context) -> None:
    for cell in config.cells:
        for source in config.sources:
            for seed in cell.seeds:
                results.unit(f"{cell.name}/{source}/{seed}", partial(one, config, cell, source, seed, context))


def one(config: Config, cell: Cell, source: str, seed: int, context: Context) -> Values:
    with warnings.catch_warnings(), torch.no_grad():
        warnings.simplefilter("ignore", whence.errors.Notice)
        data = cell.load(seed, context, novel=0)
        return FITS[source](config, cell, data, seed, context)


def scored(network: nn.Module, data: Data) -> Values:
    """Accuracy on validation and test data, log loss on validation data."""
    found: Values = {}
    for name, part in (("validation", data.validation), ("test", data.test)):
        x, y = part.tensors()
        out, labels = subjects.logits(network, x), y.cpu()
        found[name] = float((out.argmax(-1) == labels).double().mean())
        if name == "validation":
            found["loss"] = float(nn.functional.cross_entropy(out, labels))
    return found


def curve(config: Config, posterior: Any, by: str, data: Data) -> Values:
    """Scores at every fraction, by column."""
    plan = PruningPlan.make(posterior, Pieces.WEIGHTS)
    ranking = plan.rank(CRITERIA[by])
    rows = []
    for fraction in config.fractions:
        keep = ranking.keep(fraction)
        rows.append({"fraction": fraction, "sparsity": plan.sparsity(keep), **scored(plan.apply(keep), data)})
    return {column: [row[column] for row in rows] for column in rows[0]}


def size(network: nn.Module) -> int:
    return sum(p.numel() for p in network.parameters())


def plain(config: Config, cell: Cell, data: Data, seed: int, context: Context) -> Values:
    """By Laplace signal to noise, saliency and magnitude."""
    with torch.enable_grad():
        network = subjects.plain(cell, data, seed, context).model
        posterior = whence.laplace(network, data.train, likelihood="classification", curvature="mc", progress=False,
                                   structure="diag", generator=torch.Generator().manual_seed(seed))  # fmt: skip
    curves = {by: curve(config, posterior, by, data) for by in ("snr", "saliency", "magnitude")}
    return {"whole": scored(network, data), "parameters": size(network), "curves": curves}


def l1(config: Config, cell: Cell, data: Data, seed: int, context: Context) -> Values:
    """With a penalty, by magnitude."""
    found = []
    for factor in config.l1:
        with torch.enable_grad():
            network = subjects.plain(cell, data, seed, context, l1=factor).model
            posterior = whence.laplace(network, data.train.take(500), likelihood="classification", curvature="mc",
                                       structure="diag", progress=False,
                                       generator=torch.Generator().manual_seed(seed))  # fmt: skip
        made = curve(config, posterior, "magnitude", data)
        found.append({"whole": scored(network, data), "parameters": size(network), "curves": {"magnitude": made},
                      "l1": factor})  # fmt: skip
    return chosen(config, found)


def chosen(config: Config, found: list[Values]) -> Values:
    """The least validation loss with the judged fraction pruned, over all orders."""
    place = config.fractions.index(config.judged)
    return min(found, key=lambda v: min(curve["loss"][place] for curve in v["curves"].values()))


def bayesian(
    config: Config, cell: Cell, data: Data, seed: int, context: Context, penalties: tuple[float, ...] = (0.0,)
) -> Values:
    """By the variational signal to noise and by magnitude; the network at the mean is scored."""
    found = []
    with torch.enable_grad():
        network = subjects.plain(cell, data, seed, context).model
    for factor in penalties:
        with torch.enable_grad():
            made = subjects.variational(lambda: network, cell, data, seed, context, config.ours, l1=factor)
        curves = {by: curve(config, made.model, by, data) for by in ("snr", "magnitude")}
        whole = scored(made.model.network.module, data)
        found.append({"whole": whole, "parameters": size(network), "curves": curves, "choice": made.choice,
                      "l1": factor})  # fmt: skip
    return chosen(config, found)


def bayesian_l1(config: Config, cell: Cell, data: Data, seed: int, context: Context) -> Values:
    return bayesian(config, cell, data, seed, context, config.l1)


def half(config: Config, cell: Cell, data: Data, seed: int, context: Context) -> Values:
    """The network of half the width, plain: what a pruned one of its size is compared with."""
    options = cell.options | {"width": 0.5 * cell.options.get("width", 1.0)}
    smaller = replace(cell, name=f"{cell.name}, half", options=options)
    with torch.enable_grad():
        network = subjects.plain(smaller, data, seed, context).model
    return {"whole": scored(network, data), "parameters": size(network), "curves": {}}


FITS = {"plain": plain, "l1": l1, "bayesian": bayesian, "bayesian, l1": bayesian_l1, "half": half}
