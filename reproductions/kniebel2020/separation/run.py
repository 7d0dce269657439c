"""Points in the plane, classified by networks of one, two and three layers; uncertainty over the plane."""

from __future__ import annotations

import math
import warnings
from functools import partial

import torch
from torch import Tensor

import whence
from reproductions.experiment import Context
from reproductions.kniebel2020.scores import area
from reproductions.kniebel2020.separation.config import NETWORKS, Config
from reproductions.store import Results, Values
from whence import zoo

REACH = 2.0  # training points lie in a square of this half side
VIEW = 3.0  # what pictures show
NEAR = 0.15  # of the border of a set


def run(config: Config, results: Results, context: Context) -> None:
    for name in config.sets:
        for network in config.networks:
            for seed in config.seeds:
                results.unit(f"{name}/{network}/{seed}", partial(measured, config, name, network, seed))


# Sets: how far inside a point [N, 2] is; positive inside


def half_plane(x: Tensor) -> Tensor:
    return (x @ torch.tensor([0.8, 0.6])) - 0.2


def convex(x: Tensor) -> Tensor:
    """A hexagon."""
    angles = torch.arange(6) * torch.pi / 3 + 0.3
    normals = torch.stack([angles.cos(), angles.sin()], 1)
    return 1.2 - (x @ normals.T).amax(1)


def arbitrary(x: Tensor) -> Tensor:
    """A crescent and a disc beside it."""
    left = x + torch.tensor([0.5, 0.0])
    crescent = torch.minimum(1.2 - left.norm(dim=1), (left - torch.tensor([0.55, 0.0])).norm(dim=1) - 0.85)
    disc = 0.4 - (x - torch.tensor([1.2, 0.2])).norm(dim=1)
    return torch.maximum(crescent, disc)


INSIDE = {"half-plane": half_plane, "convex set": convex, "arbitrary set": arbitrary}


def measured(config: Config, name: str, network: str, seed: int) -> Values:
    generator = torch.Generator().manual_seed(seed)
    parts = [REACH * (2 * torch.rand(size, 2, generator=generator) - 1) for size in (config.train, config.test)]
    (train, test), inside = parts, INSIDE[name]
    labels = [(inside(part) > 0).long() for part in parts]
    torch.manual_seed(seed)
    model = zoo.mlp(2, 2, hidden=NETWORKS[network]) if NETWORKS[network] else zoo.perceptron(2, 2)
    zoo.train(
        model, (train, labels[0]), epochs=config.epochs, batch_size=128, optimiser="adam", lr=1e-2, weight_decay=1e-5,
        schedule="cosine", seed=seed, progress=False,
    )  # fmt: skip
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        posterior = whence.laplace(model, (train, labels[0]), likelihood="classification", progress=False)
        prediction = posterior.predict(test)
        where = posterior.where(test[:500])
        shown = posterior.predict(grid(config.side))
    wrong = prediction.labels != labels[1]
    far = inside(test).abs() > NEAR
    outside = grid(config.side).abs().amax(1) > REACH
    plain = model(test).argmax(1) != labels[1]
    found: Values = {
        "error": float(wrong.double().mean()),
        "plain error": float(plain.double().mean()),
        "errors by entropy": area(prediction.entropy[~wrong], prediction.entropy[wrong]),
        "errors by epistemic": area(prediction.epistemic[~wrong], prediction.epistemic[wrong]),
        "near": float(prediction.epistemic[~far].mean()),
        "far": float(prediction.epistemic[far].mean()),
        "inside": float(shown.epistemic[~outside].mean()),
        "outside": float(shown.epistemic[outside].mean()),
        "explained": [row.explained for row in where.layers],
        "share": [row.variance_share for row in where.layers],
    }
    if seed == config.seeds[0]:
        found["map"] = packed(shown.probs[:, 1], config.side)
        found["epistemic"] = packed(shown.epistemic / math.log(2), config.side)
    return found


def packed(values: Tensor, side: int) -> list[str]:
    """Numbers in [0, 1] of a square, row by row, each as two hexadecimal digits."""
    levels = (255 * values).round().clamp(0, 255).int().tolist()
    return ["".join(f"{v:02x}" for v in levels[i * side : (i + 1) * side]) for i in range(side)]


def unpacked(rows: list[str]) -> list[list[float]]:
    return [[int(row[i : i + 2], 16) / 255 for i in range(0, len(row), 2)] for row in rows]


def grid(side: int) -> Tensor:
    """Points of a square, row by row from the top, [side², 2]."""
    line = torch.linspace(-VIEW, VIEW, side)
    y, x = torch.meshgrid(line.flip(0), line, indexing="ij")
    return torch.stack([x.flatten(), y.flatten()], 1)
