"""The command: its root, its subcommands, and how it is run."""

from __future__ import annotations

import io
import sys
from typing import Annotated

import typer

import whence
from whence.cli import audit, compare, demo, diff, prune, show, verify
from whence.cli.options import CODES, option
from whence.cli.output import BAD_INPUT, Output, running

app = typer.Typer(
    name="whence",
    help="How uncertain is a trained PyTorch network, and where in it does the uncertainty come from?",
    epilog=f"Start with: [bold]whence demo[/]\n\n{CODES}",
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode="rich",
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
app.command(epilog=demo.EPILOG)(demo.demo)
app.command(epilog=audit.EPILOG)(audit.audit)
app.command(epilog=compare.EPILOG)(compare.compare)
app.command(epilog=show.EPILOG)(show.show)
app.command(epilog=diff.EPILOG)(diff.diff)
app.command("verify", epilog=verify.EPILOG)(verify.verify_file)
app.command(epilog=prune.EPILOG)(prune.prune)


def _version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"whence {whence.__version__}")
        raise typer.Exit


Version = Annotated[bool, option(None, "", "Print the version.", "--version", callback=_version, is_eager=True)]


@app.callback()
def _root(version: Version = False) -> None:
    """Options of the command itself."""


def run(args: list[str]) -> int:
    """Run the command on these arguments; usage errors are one line too. Returns the exit code."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")  # for terminals without block characters
    command = typer.main.get_command(app)
    try:
        with running(args):
            return int(command.main(args, prog_name="whence", standalone_mode=False) or 0)
    except Exception as error:
        if not hasattr(error, "format_message"):
            raise
        if type(error).__name__ == "NoArgsIsHelpError":
            print(error.format_message(), file=sys.stderr)
            return BAD_INPUT
        names = [name for name in args[:1] if name in getattr(command, "commands", ())]
        Output().line("error", f"{error.format_message()} Try: {' '.join(['whence', *names, '--help'])}", "bold red")
        return BAD_INPUT
