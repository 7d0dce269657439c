"""What a posterior's file says of it, in the terminal."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rich.console import Group, RenderableType
from rich.text import Text

from whence.report.terminal.cells import add_row, facts, heading, new_table, number, percent, whole


def posterior(about: Mapping[str, Any], width: int = 80) -> RenderableType:
    """What the file of a posterior says of it."""
    table = new_table("layer", "kind", "weights>", "structure", "prior precision>")
    for row in about["layers"]:
        structure = Text(row["structure"])
        if row["reason"]:
            structure.append(f"  {row['reason']}", style="dim")
        add_row(table, row["name"], row["kind"], whole(row["parameters"]), structure, _prior(row))
    return Group(heading("Posterior", str(about["path"])), facts(_facts(about)), Text(), table)


def _facts(about: Mapping[str, Any]) -> list[tuple[str, str]]:
    tuned, accuracy, versions = about["tuning"], about["training_accuracy"], about["versions"]
    words = "not tuned: call .tune(validation_data)"
    if tuned is not None:
        words = f"by {tuned['criterion']} ({tuned['trials']} trials), score {number(tuned['score'])}"
    found = [
        ("method", f"Laplace, structure {about['structure']}, curvature {about['curvature']}"),
        ("likelihood", about["likelihood"]),
        ("weights", f"{whole(about['parameters'])} Bayesian of {whole(about['network_parameters'])}"),
        ("training data", f"{whole(about['data_size'])} examples, loss {number(about['training_loss'])} for each"),
        ("training accuracy", "–" if accuracy is None else percent(accuracy)),
        ("prior precision", _prior(about, "differs between layers, see below")),
        ("data scale", number(about["data_scale"])),
        ("tuned", words),
        ("novelty reference", f"{whole(about['reference'])} inputs" if about["reference"] else "none kept"),
        ("written by", f"whence {versions['whence']}, torch {versions['torch']}; {whole(about['bytes'])} bytes"),
    ]
    return [fact for fact in found if fact[1] != "–"]


def _prior(about: Mapping[str, Any], otherwise: str = "per weight") -> str:
    if about.get("tau") is not None:
        return f"Relative(τ = {number(about['tau'])})"
    return otherwise if about["prior_precision"] is None else number(about["prior_precision"])


def drawn_posterior(about: Mapping[str, Any], width: int = 80) -> RenderableType:
    """The same for a posterior that is known by its draws: its networks, and the plain values of its state."""
    versions, networks = about["versions"], about["networks"]
    sizes = ", ".join(whole(size) for size in networks[:4]) + (", …" if len(networks) > 4 else "")
    words = f"{sizes} weights" if len(networks) == 1 else f"{len(networks)} networks of {sizes} weights"
    rows = [
        ("method", about["method"]),
        ("likelihood", about["likelihood"]),
        ("network", words),
        *((name, str(value)) for name, value in about["state"].items()),
        ("written by", f"whence {versions['whence']}, torch {versions['torch']}; {whole(about['bytes'])} bytes"),
    ]
    return Group(heading("Posterior", str(about["path"])), facts(rows))
