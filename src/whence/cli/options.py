"""Options that several commands share, and parsing of their values."""

from __future__ import annotations

import json
from dataclasses import fields
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any

import torch
import typer

import whence
from whence.errors import BadOption, one_of
from whence.likelihoods import BY_NAME, Likelihood, resolve
from whence.report.record.verdict import VerdictRules

DATA, FIT, OUTPUT, COMMON = "Data", "Posterior", "Output", "Common"
REF = "MODULE:NAME"
CODES = "Exit codes: 0 done; 2 bad input or option; 1 unexpected error; 130 stopped by Ctrl-C."
REFERENCES = (
    "A reference is [bold]package.module:name[/] or [bold]path/to/file.py:name[/]; the current folder is searched. The "
    "network is a torch.nn.Module, or a class or function without required arguments that returns one. Data are a "
    "DataLoader, a Dataset, a pair of tensors, a list of (inputs, targets) batches, or a function that returns one."
)
LIKELIHOODS = (*BY_NAME, "gaussian:NOISE")


def argument(metavar: str, words: str) -> Any:
    return typer.Argument(metavar=metavar, help=words, show_default=False)


def option(panel: str | None, metavar: str, words: str, *names: str, **more: Any) -> Any:
    return typer.Option(*names, metavar=metavar, help=words, rich_help_panel=panel, **more)


def flag(panel: str | None, name: str, words: str, *names: str) -> Any:
    return option(panel, "", words, name, *names)


Test = Annotated[str | None, option(DATA, REF, "Data for evaluation.")]
Ood = Annotated[str | None, option(DATA, REF, "Out-of-distribution inputs.")]
Weights = Annotated[
    Path | None, option(DATA, "FILE", "Trained weights for the network: a state dict as .safetensors, .pt or .pth.")
]
Classes = Annotated[str | None, option(DATA, "A,B,C", "Names of the classes, in order.")]
Features = Annotated[str | None, option(DATA, "A,B,C", "Names of the columns of tabular inputs, in order.")]
Groups = Annotated[
    list[str] | None,
    option(
        DATA,
        f"{REF}|COLUMN",
        "Groups of test inputs to compare: an array with one value for each test input, a mapping of names to arrays, "
        "or a column of tabular inputs by its index or its name in --features. May be repeated.",
    ),
]
BatchSize = Annotated[int, option(DATA, "N", "Batch size for a Dataset.", min=1)]
Layers = Annotated[
    list[str] | None,
    option(
        FIT,
        "PATTERN",
        "Only layers whose name matches this pattern, such as 'block.*'; 'last' is the last layer. May be repeated.",
        show_default="all",
    ),
]
Title = Annotated[str | None, option(OUTPUT, "WORDS", "Title of the page.")]
Examples = Annotated[int, option(OUTPUT, "N", "Read at most this many examples of each set except train.", min=2)]
Open = Annotated[bool, flag(OUTPUT, "--open", "Open the page in the browser.")]
Seed = Annotated[int, option(COMMON, "N", "Random seed.")]
Device = Annotated[
    str | None, option(COMMON, "DEVICE", "Where to compute: cpu, cuda, cuda:1, mps.", show_default="as the network")
]
Quiet = Annotated[bool, flag(COMMON, "--quiet", "Print only errors.", "-q")]
Json = Annotated[bool, flag(COMMON, "--json", "Print one JSON object on stdout, and nothing else.")]
Debug = Annotated[bool, flag(COMMON, "--debug", "Show the traceback of an error.")]


class Structure(StrEnum):
    """Structure of the curvature."""

    kron, ekfac, diag, block, full, lowrank = "kron", "ekfac", "diag", "block", "full", "lowrank"


class Curvature(StrEnum):
    """Kind of curvature."""

    auto, ggn, mc, empirical, kfra, hessian = "auto", "ggn", "mc", "empirical", "kfra", "hessian"


class ConformalScore(StrEnum):
    """Score of conformal sets and intervals."""

    probability, cumulative = "probability", "cumulative"
    normalised, absolute = "normalised", "absolute"


class PictureFormat(StrEnum):
    """Format of figures."""

    png, svg = "png", "svg"


class Criterion(StrEnum):
    """Pruning criterion."""

    snr, identified, saliency = "snr", "identified", "saliency"
    relative_curvature, magnitude, random = "relative_curvature", "magnitude", "random"


# Values


def parse_likelihood(word: str | None) -> Likelihood | str | None:
    """A likelihood by its name, as in Python; ``gaussian:0.3`` has a noise of standard deviation 0.3."""
    if word is None:
        return None
    try:
        found, estimated = resolve(word)
    except BadOption as error:
        raise BadOption(f"--likelihood: {error}") from error
    return word.strip() if estimated or found.task_kind.has_labels else found


def parse_prior(word: str | None) -> float | whence.Relative | None:
    """``relative``, ``relative:10`` with τ = 10, or a number: an isotropic precision."""
    if word is None:
        return None
    name, colon, value = word.strip().partition(":")
    number = _positive(word if name != "relative" else value if colon else "1")
    if number is None:
        raise BadOption(f"--prior: expected relative, relative:TAU or a number above 0, but got {word!r}.")
    return whence.Relative(number) if name == "relative" else number


def _positive(word: str) -> float | None:
    try:
        number = float(word)
    except ValueError:
        return None
    return number if 0 < number < float("inf") else None


def parse_device(word: str | None) -> str | None:
    """Check that this machine has the device."""
    if word is None:
        return None
    try:
        wanted = torch.device(word)
    except RuntimeError as error:
        raise BadOption(f"--device: expected cpu, cuda, cuda:0 or mps, but got {word!r}.") from error
    if wanted.type == "cuda":
        count = torch.cuda.device_count() if torch.cuda.is_available() else 0
        if not count:
            raise BadOption(f"--device: {word} was requested, but torch {torch.__version__} finds no CUDA device.")
        if (wanted.index or 0) >= count:
            raise BadOption(f"--device: {word} was requested, but there are only cuda:0 to cuda:{count - 1}.")
    elif wanted.type == "mps" and not torch.backends.mps.is_available():
        raise BadOption("--device: mps was requested, but torch finds no such device.")
    elif wanted.type not in ("cpu", "mps"):
        raise BadOption(f"--device: expected cpu, cuda, cuda:0 or mps, but got {word!r}.")
    return word


def parse_layers(patterns: list[str] | None) -> list[str] | str | None:
    """Patterns on module names; ``last`` alone is the last layer."""
    return "last" if patterns == ["last"] else patterns or None


def parse_classes(word: str | None) -> list[str] | None:
    """Comma-separated names."""
    names = parse_features(word, "--classes", "cat,dog")
    if names is not None and len(names) < 2:
        raise BadOption(f"--classes: expected comma-separated names, such as cat,dog, but got {word!r}.")
    return names


def parse_features(word: str | None, option: str = "--features", such: str = "age,weight") -> list[str] | None:
    """Comma-separated names."""
    if word is None:
        return None
    names = [name.strip() for name in word.split(",")]
    if not all(names):
        raise BadOption(f"{option}: expected comma-separated names, such as {such}, but got {word!r}.")
    return names


def parse_rules(path: Path | None) -> VerdictRules | None:
    """The rules in a JSON file."""
    if path is None:
        return None
    try:
        given = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, json.JSONDecodeError) as error:
        raise BadOption(f"--rules {path}: it is not a JSON file ({error}).") from error
    if not isinstance(given, dict):
        raise BadOption(f'--rules {path}: it must hold an object such as {{"ece": 0.02}}.')
    for name in given:
        one_of(name, [one.name for one in fields(VerdictRules)], f"rule in {path}")
    return VerdictRules(**given)


def parse_unit(word: str | None) -> str | list[str] | None:
    """A unit, or comma-separated ones."""
    if word is None or "," not in word:
        return word
    return [part.strip() for part in word.split(",")]


def parse_positive(word: str | None) -> str | int | None:
    """The name of a class, or its index."""
    return int(word) if word in ("0", "1") else word


def parse_levels(word: str) -> list[float]:
    """Comma-separated numbers between 0 and 1."""
    found = [_positive(part) for part in word.split(",")]
    if any(number is None or number >= 1 for number in found):
        raise BadOption(f"--levels: expected numbers between 0 and 1, such as 0.9,0.95, but got {word!r}.")
    return [number for number in found if number is not None]
