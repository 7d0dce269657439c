"""The commands and their options. What they do stands in demo, auditing, showing and pruning."""

from __future__ import annotations

import io
import sys
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

import whence
from whence.cli.voice import BAD_INPUT, Voice

DATA, FIT, OUTPUT, COMMON = "Data", "Posterior", "Output", "Common"
CODES = "Exit codes: 0 done; 2 bad input or option; 1 unexpected error; 130 stopped by Ctrl-C."
REFERENCES = (
    "A reference is [bold]package.module:name[/] or [bold]path/to/file.py:name[/]; the current folder is searched. The "
    "network is a torch.nn.Module, or a class or function without required arguments that gives one. Data are a "
    "DataLoader, a Dataset, a pair of tensors, a list of (inputs, targets) batches, or a function that gives one."
)

app = typer.Typer(
    name="whence",
    help="How uncertain is a trained PyTorch network, and where in it does the uncertainty sit?",
    epilog=f"Start with: [bold]whence demo[/]\n\n{CODES}",
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode="rich",
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
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


def _version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"whence {whence.__version__}")
        raise typer.Exit


@app.callback()
def _root(
    version: Annotated[
        bool, typer.Option("--version", metavar="", callback=_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    """Options that stand before a command."""


@app.command(epilog=f"Example: [bold]whence demo --out first-look --open[/]\n\n{CODES}")
def demo(
    out: Annotated[
        Path, typer.Option(metavar="DIR", help="Folder for audit.html and audit.json.", rich_help_panel=OUTPUT)
    ] = Path("whence-demo"),
    open_page: Open = False,
    seed: Seed = 0,
    device: Device = None,
    quiet: Quiet = False,
    as_json: Json = False,
    debug: Debug = False,
) -> None:
    """Train a small network on embedded data and audit it: the quickest way to see what whence says.

    It learns the digits 0 to 7 under noise; 8 and 9, which it never saw, are the novel inputs. About a minute.
    """
    with Voice(quiet, as_json, debug).speaking() as voice:
        from whence.cli import demo as work
        from whence.cli import words

        code = work.run(out, seed, words.device(device), open_page, voice)
    raise typer.Exit(code)


@app.command(
    epilog=(
        "[bold]whence audit net.py:model --train data.py:train --test data.py:test --likelihood classification[/]\n\n"
        "[bold]whence audit pkg.models:Net --weights net.pt --train pkg.data:train --validation pkg.data:held "
        "--test pkg.data:test --ood pkg.data:strange --likelihood classification --classes cat,dog --out report[/]\n\n"
        f"{REFERENCES}\n\n{CODES}"
    )
)
def audit(
    model: Annotated[str, typer.Argument(metavar="MODULE:MODEL", help="The trained network.", show_default=False)],
    train: Annotated[
        str | None, typer.Option(metavar=REF, help="The data it was trained on.", rich_help_panel=DATA)
    ] = None,
    validation: Annotated[
        str | None,
        typer.Option(metavar=REF, help="Held-out data to tune the posterior and rules on.", rich_help_panel=DATA),
    ] = None,
    test: Annotated[
        str | None, typer.Option(metavar=REF, help="Data that everything is measured on.", rich_help_panel=DATA)
    ] = None,
    ood: Annotated[
        str | None,
        typer.Option(metavar=REF, help="Inputs of another kind than the training data.", rich_help_panel=DATA),
    ] = None,
    weights: Weights = None,
    classes: Annotated[
        str | None, typer.Option(metavar="A,B,C", help="Names of the classes, in order.", rich_help_panel=DATA)
    ] = None,
    batch_size: BatchSize = 256,
    likelihood: Annotated[
        str | None,
        typer.Option(
            "--likelihood",
            "-l",
            metavar="KIND",
            help="classification, binary, regression (noise from the training data), gaussian:0.3 (noise given), "
            "heteroscedastic or poisson.",
            rich_help_panel=FIT,
        ),
    ] = None,
    structure: Annotated[
        Structure | None,
        typer.Option(
            metavar="NAME",
            help="How the curvature is kept: kron, ekfac, diag, block, full or lowrank.",
            show_default="kron",
            rich_help_panel=FIT,
        ),
    ] = None,
    curvature: Annotated[
        Curvature | None,
        typer.Option(
            metavar="NAME",
            help="Which curvature: auto, ggn, mc, empirical, kfra or hessian.",
            show_default="auto",
            rich_help_panel=FIT,
        ),
    ] = None,
    layers: Layers = None,
    posterior: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Take this saved posterior instead of fitting one.", rich_help_panel=FIT),
    ] = None,
    save: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Save the fitted posterior here (.safetensors).", rich_help_panel=FIT),
    ] = None,
    out: Annotated[
        Path, typer.Option(metavar="DIR", help="Folder for audit.html and audit.json.", rich_help_panel=OUTPUT)
    ] = Path("whence-audit"),
    title: Annotated[
        str | None, typer.Option(metavar="WORDS", help="Title of the page.", rich_help_panel=OUTPUT)
    ] = None,
    examples: Annotated[
        int,
        typer.Option(
            min=2, metavar="N", help="Read at most so many of each of the sets but train.", rich_help_panel=OUTPUT
        ),
    ] = 10_000,
    inputs: Annotated[
        int, typer.Option(min=0, metavar="N", help="Show so many of the most uncertain inputs.", rich_help_panel=OUTPUT)
    ] = 12,
    open_page: Open = False,
    seed: Seed = 0,
    device: Device = None,
    quiet: Quiet = False,
    as_json: Json = False,
    debug: Debug = False,
) -> None:
    """Audit a trained network: how good its uncertainty is, when to hand over, where it sits.

    Writes DIR/audit.html (one page, opens anywhere) and DIR/audit.json (the same numbers). The network is not changed.
    """
    with Voice(quiet, as_json, debug).speaking() as voice:
        from whence.cli import auditing

        order = auditing.Order(
            model=model, out=out, train=train, validation=validation, test=test, ood=ood, weights=weights,
            posterior=posterior, save=save, likelihood=likelihood, structure=structure and structure.value,
            curvature=curvature and curvature.value, layers=layers, title=title, classes=classes, examples=examples,
            inputs=inputs, batch_size=batch_size, seed=seed, device=device, open=open_page,
        )  # fmt: skip
        code = auditing.run(order, voice)
    raise typer.Exit(code)


@app.command(
    epilog=f"Examples: [bold]whence show whence-demo/audit.json[/], [bold]whence show net.safetensors[/]\n\n{CODES}"
)
def show(
    file: Annotated[
        Path,
        typer.Argument(
            metavar="FILE",
            help="A saved posterior (.safetensors), an audit's .json, or its folder.",
            show_default=False,
        ),
    ],
    as_json: Json = False,
    debug: Debug = False,
) -> None:
    """Print a saved posterior or audit in the terminal. The network is not needed."""
    with Voice(False, as_json, debug).speaking() as voice:
        from whence.cli import showing

        code = showing.run(file, voice)
    raise typer.Exit(code)


@app.command(
    epilog=(
        "[bold]whence prune net.safetensors net.py:model --fraction 0.9 --out small.safetensors[/]\n\n"
        "[bold]whence prune net.safetensors net.py:model --curve --test data.py:test[/]\n\n"
        f"{REFERENCES}\n\n{CODES}"
    )
)
def prune(
    posterior: Annotated[
        Path, typer.Argument(metavar="POSTERIOR", help="A saved posterior (.safetensors).", show_default=False)
    ],
    model: Annotated[
        str, typer.Argument(metavar="MODULE:MODEL", help="The network it was fitted to.", show_default=False)
    ],
    fraction: Annotated[
        float | None, typer.Option(metavar="PART", help="Part of the weights (or units) that goes: 0.9 is nine in ten.")
    ] = None,
    by: Annotated[
        Criterion,
        typer.Option(
            metavar="NAME", help="What goes first, the least of: snr, identified, saliency, magnitude or random."
        ),
    ] = Criterion.snr,
    units: Annotated[bool, typer.Option("--units", metavar="", help="Prune whole rows and filters.")] = False,
    per_layer: Annotated[bool, typer.Option("--per-layer", metavar="", help="The same part of every layer.")] = False,
    layers: Layers = None,
    compact: Annotated[
        bool,
        typer.Option(
            "--compact", metavar="", help="With --units: make the layers smaller, so that it computes faster."
        ),
    ] = False,
    curve: Annotated[
        bool, typer.Option("--curve", metavar="", help="With --test: a table for every criterion and many fractions.")
    ] = False,
    out: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="The pruned network's weights (.safetensors).", rich_help_panel=OUTPUT),
    ] = None,
    test: Annotated[
        str | None, typer.Option(metavar=REF, help="Data to score it on, before and after.", rich_help_panel=DATA)
    ] = None,
    weights: Weights = None,
    batch_size: BatchSize = 256,
    seed: Seed = 0,
    device: Device = None,
    quiet: Quiet = False,
    as_json: Json = False,
    debug: Debug = False,
) -> None:
    """Take out the weights that the data say least about, and write a plain network's weights."""
    with Voice(quiet, as_json, debug).speaking() as voice:
        from whence.cli import pruning

        order = pruning.Order(
            posterior=posterior, model=model, fraction=fraction, by=by.value, units=units, per_layer=per_layer,
            layers=layers, compact=compact, curve=curve, out=out, test=test, weights=weights, batch_size=batch_size,
            seed=seed, device=device,
        )  # fmt: skip
        code = pruning.run(order, voice)
    raise typer.Exit(code)


def run(args: list[str]) -> int:
    """Run the command on these arguments; a usage error is one line, too. Returns the exit code."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")  # a terminal without block characters
    command = typer.main.get_command(app)
    try:
        return int(command.main(args, prog_name="whence", standalone_mode=False) or 0)
    except Exception as error:
        if not hasattr(error, "format_message"):
            raise
        if type(error).__name__ == "NoArgsIsHelpError":
            print(error.format_message(), file=sys.stderr)
            return BAD_INPUT
        names = [name for name in ("audit", "demo", "show", "prune") if name in args[:1]]
        Voice().line("error", f"{error.format_message()} Try: {' '.join(['whence', *names, '--help'])}", "bold red")
        return BAD_INPUT
