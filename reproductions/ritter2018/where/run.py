"""Each network through ``whence.audit`` and ``posterior.where``."""

from __future__ import annotations

import csv
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

import whence
from reproductions.experiment import Context
from reproductions.ritter2018 import mnist
from reproductions.ritter2018.where.config import Config
from reproductions.ritter2018.wrn.subject import Subject as Wrn
from reproductions.store import Results, Values

UNKNOWN = 0.01  # a unit that is identified less than this has learnt nothing
QUANTILES = (0.05, 0.25, 0.5, 0.75, 0.95)
SECTIONS = ("quality", "layers", "profile", "novelty", "answers")


def run(config: Config, results: Results, context: Context) -> None:
    folder = results.path.parent
    for seed in config.mnist.seeds:
        results.unit(f"mnist/{seed}", partial(_mnist, config, seed, context, folder))
    for seed in config.wrn.seeds:
        for dropout in config.wrn.dropouts:
            name = "wrn-dropout" if dropout else "wrn"
            file = folder / f"{name}-units.csv"
            results.unit(f"{name}/{seed}", partial(_wrn, config, seed, dropout, context, file))


def _mnist(config: Config, seed: int, context: Context, folder: Path) -> Values:
    subject = mnist.Subject(config.mnist, seed, context)
    posterior = subject.laplace("kron", tuned=None)
    data = subject.data
    novel = subject.outside(config.mnist.outside[0])
    units = folder / "mnist-units.csv" if seed == config.mnist.seeds[0] else None
    sets = (subject.train, data.validation, data.test, novel)
    return located(posterior, sets, config.examples, config.profiled, config, units)


def _wrn(config: Config, seed: int, dropout: float, context: Context, units: Path) -> Values:
    subject = Wrn(config.wrn, seed, dropout, context)
    posterior = subject.laplace("kron")
    file = units if seed == config.wrn.seeds[0] else None
    sets = (subject.train, subject.tuning, subject.test, subject.outside)
    return located(posterior, sets, config.wrn_examples, config.wrn_profiled, config, file)


def located(
    fitted: whence.Laplace, sets: tuple[Any, Any, Any, Any], examples: int, profiled: int, config: Config,
    units_file: Path | None,
) -> Values:  # fmt: skip
    """Tables and answers of one network, in plain values."""
    train, validation, test, novel = sets
    posterior = fitted.with_prior(whence.Relative(config.tau))
    audit = whence.audit(
        posterior, train, validation=validation, test=test, ood=novel, examples=examples, profiled=profiled,
        sections=SECTIONS, tune=False, progress=False,
    )  # fmt: skip
    profile = audit.profile_posterior
    where = profile.where(test.take(profiled).inputs)
    names = [row["name"] for row in audit.record["layers"]]
    tables = {name: where.units(name) for name in names}
    if units_file is not None:
        write_units(units_file, tables)
    return {
        "posterior": audit.record["run"]["posterior"],
        "prior_of_the_profile": profile.prior.describe(),
        "sweep": {f"{tau:g}": _under(fitted, tau, test, novel, profiled) for tau in config.taus},
        "layers": audit.record["layers"],
        "answers": audit.record["answers"],
        "quality": audit.record["quality"],
        "detectors": {row["name"]: row["auroc"]["value"] for row in audit.record["novelty"]["detectors"]},
        "differences": {
            "between_layers": where.differences.overall,
            "inside": {row["name"]: row["epsilon_squared"] for row in where.differences.inside.rows()},
        },
        "magnitude": {row["name"]: row["rho_identified"] for row in where.magnitude.rows()},
        "units": {name: _spread(table) for name, table in tables.items()},
        "weights": {name: _weights(where.weights(name)) for name in names},
    }


def _under(fitted: whence.Laplace, tau: float, test: Any, novel: Any, profiled: int) -> Values:
    """Shares and explained by layer under another τ."""
    posterior = fitted.with_prior(whence.Relative(tau))
    found = {}
    for name, part in (("test", test), ("ood", novel)):
        rows = posterior.where(part.take(profiled).inputs).layers
        found[name] = [{c: getattr(row, c) for c in ("variance_share", "prior_share", "explained")} for row in rows]
    return found


def _spread(table: Any) -> Values:
    """What the units of a layer have in common, and how many have learnt nothing."""
    identified = torch.as_tensor(table["identified"]).double().cpu()
    return {
        "units": len(table),
        "unidentified": int((identified < UNKNOWN).sum()),
        "identified": _quantiles(identified),
        "std": _quantiles(torch.as_tensor(table["std"]).double().cpu()),
        "largest": [
            {key: row[key] for key in ("unit", "variance_share", "explained")}
            for row in table.top("variance_share", 5).rows()
        ],
    }


def _weights(table: Any) -> Values:
    columns = {name: torch.as_tensor(table[name]).double().cpu() for name in ("std", "identified", "signal_to_noise")}
    found: Values = {name: _quantiles(column) for name, column in columns.items()}
    return found | {"weaker_than_noise": float((columns["signal_to_noise"] < 1).double().mean())}


def _quantiles(values: Tensor) -> list[float]:
    at = torch.tensor(QUANTILES, dtype=torch.float64)
    ordered = values.sort().values  # torch.quantile stops at 16 million values
    return ordered[(at * (len(ordered) - 1)).round().long()].tolist()


def write_units(path: Path, tables: dict[str, Any]) -> None:
    """The unit tables of all layers as one file."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w", newline="") as file:
        out = csv.writer(file)
        header = False
        for layer, table in tables.items():
            for row in table.rows():
                if not header:
                    out.writerow(["layer", *row])
                    header = True
                out.writerow([layer, *(f"{v:.5g}" if isinstance(v, float) else v for v in row.values())])
