"""Options that several commands share."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

DATA, FIT, OUTPUT, COMMON = "Data", "Posterior", "Output", "Common"
CODES = "Exit codes: 0 done; 2 bad input or option; 1 unexpected error; 130 stopped by Ctrl-C."
REFERENCES = (
    "A reference is [bold]package.module:name[/] or [bold]path/to/file.py:name[/]; the current folder is searched. The "
    "network is a torch.nn.Module, or a class or function without required arguments that gives one. Data are a "
    "DataLoader, a Dataset, a pair of tensors, a list of (inputs, targets) batches, or a function that gives one."
)

Seed = Annotated[int, typer.Option(metavar="N", help="Seed of everything random.", rich_help_panel=COMMON)]
Device = Annotated[
    str | None,
    typer.Option(
        metavar="DEVICE",
        help="Where to compute: cpu, cuda, cuda:1, mps.",
        show_default="as the network",
        rich_help_panel=COMMON,
    ),
]
Quiet = Annotated[
    bool, typer.Option("--quiet", "-q", metavar="", help="Say nothing but errors.", rich_help_panel=COMMON)
]
Json = Annotated[
    bool,
    typer.Option(
        "--json", metavar="", help="Print one JSON object on stdout, and nothing else there.", rich_help_panel=COMMON
    ),
]
Debug = Annotated[
    bool, typer.Option("--debug", metavar="", help="Show the traceback of an error.", rich_help_panel=COMMON)
]
Open = Annotated[bool, typer.Option("--open", metavar="", help="Open the page in the browser.", rich_help_panel=OUTPUT)]
Weights = Annotated[
    Path | None,
    typer.Option(
        help="Trained weights for the network: a state dict as .safetensors, .pt or .pth.",
        metavar="FILE",
        rich_help_panel=DATA,
    ),
]
BatchSize = Annotated[
    int, typer.Option(min=1, metavar="N", help="Batch size, where a Dataset is given.", rich_help_panel=DATA)
]
Layers = Annotated[
    list[str] | None,
    typer.Option(
        help="Only layers whose name fits this pattern, such as 'block.*'; 'last' is the last layer. May be repeated.",
        metavar="PATTERN",
        show_default="all",
        rich_help_panel=FIT,
    ),
]
Classes = Annotated[
    str | None, typer.Option(metavar="A,B,C", help="Names of the classes, in order.", rich_help_panel=DATA)
]
Title = Annotated[str | None, typer.Option(metavar="WORDS", help="Title of the page.", rich_help_panel=OUTPUT)]
Examples = Annotated[
    int,
    typer.Option(
        min=2, metavar="N", help="Read at most so many of each of the sets but train.", rich_help_panel=OUTPUT
    ),
]
REF = "MODULE:NAME"


class Structure(StrEnum):
    """How the curvature is kept."""

    kron, ekfac, diag, block, full, lowrank = "kron", "ekfac", "diag", "block", "full", "lowrank"


class Curvature(StrEnum):
    """Which curvature."""

    auto, ggn, mc, empirical, kfra, hessian = "auto", "ggn", "mc", "empirical", "kfra", "hessian"


class Criterion(StrEnum):
    """What goes first."""

    snr, identified, saliency, magnitude, random = "snr", "identified", "saliency", "magnitude", "random"
