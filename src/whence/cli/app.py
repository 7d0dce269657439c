"""The commands and their options. What they do stands in demo, auditing, comparing, showing and pruning."""

from __future__ import annotations

import io
import sys
from pathlib import Path
from typing import Annotated

import typer

import whence
from whence.cli.options import (
    CODES,
    DATA,
    FIT,
    OUTPUT,
    REF,
    REFERENCES,
    BatchSize,
    Classes,
    Criterion,
    Curvature,
    Debug,
    Device,
    Examples,
    Json,
    Layers,
    Open,
    Quiet,
    Seed,
    Structure,
    Title,
    Weights,
)
from whence.cli.voice import BAD_INPUT, Voice

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

    It learns digits under noise; pieces of photographs, which it never saw, are the novel inputs. About a minute.
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
    classes: Classes = None,
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
    prior: Annotated[
        str | None,
        typer.Option(
            metavar="PRECISION",
            help="Prior before tuning: relative, relative:10 (τ = 10), or a number for an isotropic one.",
            show_default="relative",
            rich_help_panel=FIT,
        ),
    ] = None,
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
    title: Title = None,
    examples: Examples = 10_000,
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
            curvature=curvature and curvature.value, layers=layers, prior=prior, title=title, classes=classes,
            examples=examples, inputs=inputs, batch_size=batch_size, seed=seed, device=device, open=open_page,
        )  # fmt: skip
        code = auditing.run(order, voice)
    raise typer.Exit(code)


@app.command(
    epilog=(
        "[bold]whence compare Laplace=net.safetensors@net.py:model VI=code/fits.py:variational --test data.py:test[/]"
        "\n\nNAME=REF names a posterior. REF is a file with the network that it belongs to, "
        "[bold]FILE.safetensors@MODULE:MODEL[/] (and [bold]@WEIGHTS[/] where that network is not trained yet; for an "
        "ensemble the reference names the list of its networks), or [bold]MODULE:POSTERIOR[/], a posterior or a "
        f"function that returns one.\n\n{REFERENCES}\n\n{CODES}"
    )
)
def compare(
    posteriors: Annotated[
        list[str], typer.Argument(metavar="NAME=REF…", help="What is compared, by name.", show_default=False)
    ],
    test: Annotated[
        str | None, typer.Option(metavar=REF, help="Data that everything is measured on.", rich_help_panel=DATA)
    ] = None,
    ood: Annotated[
        str | None,
        typer.Option(metavar=REF, help="Inputs of another kind than the training data.", rich_help_panel=DATA),
    ] = None,
    plain: Annotated[
        str | None,
        typer.Option(
            metavar="MODULE:MODEL",
            help="The plain network to stand beside them; [bold]none[/] leaves it out.",
            show_default="the one that a posterior was made of",
            rich_help_panel=DATA,
        ),
    ] = None,
    reference: Annotated[
        str | None,
        typer.Option(
            metavar="NAME", help="The one that distances are measured from, such as HMC.", rich_help_panel=FIT
        ),
    ] = None,
    classes: Classes = None,
    batch_size: BatchSize = 256,
    out: Annotated[
        Path,
        typer.Option(metavar="DIR", help="Folder for comparison.html and comparison.json.", rich_help_panel=OUTPUT),
    ] = Path("whence-comparison"),
    title: Title = None,
    examples: Examples = 10_000,
    open_page: Open = False,
    seed: Seed = 0,
    device: Device = None,
    quiet: Quiet = False,
    as_json: Json = False,
    debug: Debug = False,
) -> None:
    """Compare posteriors on the same data: one table, one set of figures, the same metrics.

    Writes DIR/comparison.html (one page, opens anywhere) and DIR/comparison.json (the same numbers).
    """
    with Voice(quiet, as_json, debug).speaking() as voice:
        from whence.cli import comparing

        order = comparing.Order(
            posteriors=posteriors, out=out, test=test, ood=ood, plain=plain, reference=reference, classes=classes,
            title=title, examples=examples, batch_size=batch_size, seed=seed, device=device, open=open_page,
        )  # fmt: skip
        code = comparing.run(order, voice)
    raise typer.Exit(code)


@app.command(
    epilog=f"Examples: [bold]whence show whence-demo/audit.json[/], [bold]whence show net.safetensors[/]\n\n{CODES}"
)
def show(
    file: Annotated[
        Path,
        typer.Argument(
            metavar="FILE",
            help="A saved posterior (.safetensors), the .json of an audit or a comparison, or its folder.",
            show_default=False,
        ),
    ],
    as_json: Json = False,
    debug: Debug = False,
) -> None:
    """Print a saved posterior, audit or comparison in the terminal. The network is not needed."""
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
        names = [name for name in ("audit", "compare", "demo", "show", "prune") if name in args[:1]]
        Voice().line("error", f"{error.format_message()} Try: {' '.join(['whence', *names, '--help'])}", "bold red")
        return BAD_INPUT
