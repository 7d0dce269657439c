"""AUROC and FPR95 of every detector and combination, for every novel set and every surrogate."""

from __future__ import annotations

from functools import partial

import torch

from reproductions.experiment import Context
from reproductions.own.detectors.combine import SHOWN, with_combinations
from reproductions.own.detectors.config import Config
from reproductions.own.detectors.scores import Scores, scores
from reproductions.own.detectors.subjects import subject
from reproductions.store import Results, Values
from whence.engine.files import read_tensors, write_tensors
from whence.metrics import Estimate, auroc, fpr95
from whence.where.with_entropy import with_entropy

RESAMPLES = 200
LEVEL = 0.01
SURROGATE = "surrogate: "


def run(config: Config, results: Results, context: Context) -> None:
    for network in config.networks:
        for seed in config.seeds:
            results.unit(f"{network}/{seed}", partial(_measured, config, network, seed, context))


def _measured(config: Config, network: str, seed: int, context: Context) -> Values:
    found = _scores(config, network, seed, context)
    known, accuracy = found["validation"], float(found["test"].pop("right").mean())
    inside = {"test": with_combinations(known, found["test"]), "validation": with_combinations(known, known)}
    sets: Values = {}
    surrogates: Values = {}
    for name, values in found.items():
        if name in ("test", "validation"):
            continue
        outside = with_combinations(known, values)
        if name.startswith(SURROGATE):
            pairs = ((d, inside["validation"][d], outside[d]) for d in outside)
            surrogates[name.removeprefix(SURROGATE)] = {d: float(_auroc(a, b, 0)) for d, a, b in pairs}
        else:
            sets[name] = {d: _detected(inside["test"][d], outside[d], d in SHOWN) for d in outside}
    pair = tuple((some["novelty"], some["plain_entropy"]) for some in (known, found["test"]))
    both = with_entropy(*pair)
    return {
        "accuracy": accuracy, "sets": sets, "surrogates": surrogates,
        "flagged": float(both.flag(max(LEVEL, 1 / (both.size + 1))).double().mean()),
    }  # fmt: skip


def _scores(config: Config, network: str, seed: int, context: Context) -> dict[str, Scores]:
    """From the cache, where they are."""
    kept = context.cache / f"{config.file(network, seed)}-scores.safetensors"
    if not kept.exists():
        made = scores(subject(config, network, seed, context))
        context.cache.mkdir(parents=True, exist_ok=True)
        write_tensors(kept, {f"{s}/{d}": v for s, some in made.items() for d, v in some.items()}, {})
    found: dict[str, Scores] = {}
    for name, values in read_tensors(kept)[0].items():
        place, detector = name.split("/")
        found.setdefault(place, {})[detector] = values
    return found


def _auroc(inside: torch.Tensor, outside: torch.Tensor, resamples: int) -> Estimate:
    both = torch.cat([inside, outside])
    return auroc(both, torch.arange(len(both)) >= len(inside), resamples=resamples)


def _detected(inside: torch.Tensor, outside: torch.Tensor, intervals: bool) -> Values:
    """AUROC and FPR95, with intervals over inputs."""
    if not intervals:
        return {"auroc": float(_auroc(inside, outside, 0))}
    area, both = _auroc(inside, outside, RESAMPLES), torch.cat([inside, outside])
    rate = fpr95(both, torch.arange(len(both)) >= len(inside), resamples=RESAMPLES)
    return {
        "auroc": float(area), "low": area.low, "high": area.high,
        "fpr95": float(rate), "fpr95_low": rate.low, "fpr95_high": rate.high,
    }  # fmt: skip
