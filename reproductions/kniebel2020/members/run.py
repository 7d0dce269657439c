"""An ensemble of weak members, one after another, beside the strong network.

Index legend: M members, N inputs, C classes.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial

import torch
from torch import Tensor

from reproductions.experiment import Context
from reproductions.kniebel2020 import scores
from reproductions.kniebel2020.cells import Cell
from reproductions.kniebel2020.members.config import KINDS, Config
from reproductions.kniebel2020.subject import outputs, subject, untrained
from reproductions.store import Results, Values
from whence import zoo
from whence.engine.randomness import derived_seed


def run(config: Config, results: Results, context: Context) -> None:
    for cell in config.cells:
        for seed in cell.seeds:
            for kind in KINDS:
                results.unit(f"{cell.name}/{seed}/{kind}", partial(measured, config, cell, seed, kind, context))


def measured(config: Config, cell: Cell, seed: int, kind: str, context: Context) -> Values:
    strong = subject(cell, seed, context)
    parts, labels = scores.inputs_of(strong), strong.test[1].cpu()

    def probabilities(network: torch.nn.Module) -> dict[str, Tensor]:
        return {name: outputs(network, x).softmax(-1) for name, x in parts.items()}

    members = [probabilities(_weak(config, strong.cell, seed, kind, m, context)) for m in range(max(config.members))]
    mean = {n: {name: sum(member[name] for member in members[:n]) / n for name in parts} for n in config.members}
    right = torch.stack([member[""].argmax(-1) == labels for member in members]).double()  # [M, N]
    return {
        "strong": scores.of_probabilities(probabilities(strong.network), labels),
        "strong, scaled": scores.plain(strong)["scaled"],
        "ensembles": {str(n): scores.of_probabilities(mean[n], labels) for n in config.members},  # type: ignore[arg-type]
        "member": float(right.mean()),
        "correlation": correlation(1 - right),
        "independent": independent(right.mean(1), max(config.members)),
    }


def _weak(config: Config, cell: Cell, seed: int, kind: str, member: int, context: Context) -> torch.nn.Module:
    data = subject(cell, seed, context).data
    own = derived_seed(seed, kind, member) % 2**31
    small = replace(cell, options={"hidden": (config.hidden,)})
    network = untrained(small if kind == "small" else cell, own, data, context.device)
    train = data.train
    if kind == "few examples":
        generator = torch.Generator().manual_seed(own)
        train = train.take(torch.randperm(train.size, generator=generator)[: config.examples])
    settings = {"schedule": "cosine", **cell.settings} | ({"epochs": 5} if kind == "small" else {"batch_size": 32})
    zoo.train(network, train, seed=own, device=context.device, progress=False, **settings)
    return network


def correlation(wrong: Tensor) -> float:
    """Mean correlation of two members' errors; wrong [M, N]. Members that make none are left out."""
    varied = wrong[wrong.std(1) > 0]
    if len(varied) < 2:
        return 0.0
    found = torch.corrcoef(varied)
    return float((found.sum() - len(varied)) / (len(varied) * (len(varied) - 1)))


def independent(accuracy: Tensor, members: int) -> float:
    """The majority's accuracy if errors were independent (Condorcet): P(more than half are right)."""
    p = float(accuracy.mean())
    draws = torch.distributions.Binomial(members, torch.tensor(p, dtype=torch.float64))
    counts = torch.arange(members // 2 + 1, members + 1, dtype=torch.float64)
    return float(draws.log_prob(counts).exp().sum())
