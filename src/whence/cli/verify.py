"""``whence verify``: whether a record or a page is unchanged, and belongs to a network and to data."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Group, RenderableType
from rich.text import Text

import whence
from whence.auditing.verification import NO_SIGNATURE, Verification, unchanged, verify
from whence.cli import options, references
from whence.cli.loading import load_data, load_network, read_state
from whence.cli.options import DATA, REF, argument, option
from whence.cli.output import Output
from whence.cli.show import in_folder, is_page
from whence.errors import BadFile, BadOption
from whence.report.page.seal import read_page

EPILOG = (
    "[bold]whence verify report/audit.json net.pt[/]\n\n"
    "[bold]whence verify report/audit.html net.py:Net --weights net.pt --test net.py:test[/]\n\n"
    "Exit codes: 0 every check passed; 1 a check failed or could not be made; 2 bad input or option."
)
FILE = "The .json or .html of an audit, or its folder."
MODEL = "The network: a state dict (.pt, .pth, .safetensors) or MODULE:MODEL. Several for an ensemble."
DIGEST = "The SHA-256 that the record should have, as you know it from elsewhere; 12 digits are enough."
STYLES = {True: ("ok", "green"), False: ("FAILED", "bold red"), None: ("not checked", "yellow")}
FAILED = 1


def verify_file(
    file: Annotated[Path, argument("FILE", FILE)],
    models: Annotated[list[str] | None, argument("MODEL…", MODEL)] = None,
    weights: options.Weights = None,
    train: Annotated[str | None, option(DATA, REF, "The training data.")] = None,
    validation: Annotated[str | None, option(DATA, REF, "The validation data.")] = None,
    test: Annotated[str | None, option(DATA, REF, "The test data.")] = None,
    ood: Annotated[str | None, option(DATA, REF, "The out-of-distribution inputs.")] = None,
    batch_size: options.BatchSize = 256,
    digest: Annotated[str | None, option(DATA, "SHA256", DIGEST)] = None,
    quiet: options.Quiet = False,
    as_json: options.Json = False,
    debug: options.Debug = False,
) -> None:
    """Check an audit's record or page: that it is unchanged, and that a network and data are those it is about."""
    with Output(quiet, as_json, debug).guarded() as output:
        path = in_folder(file) if file.is_dir() else file
        if not path.is_file():
            raise BadFile(f"there is no file {path}.")
        model = _models(models or [], weights, output)
        given = {"train": train, "validation": validation, "test": test, "ood": ood}
        data = {one.name: one.source for one in load_data(given, batch_size)}
        if is_page(path):
            page = read_page(path)
            same = unchanged("page", page.found, page.stated)
            found = verify(page.trace, same, model, data, digest)
        else:
            found = whence.Audit.read(path).verify(model, digest=digest, **data)
        checks = [{"what": one.what, "passed": one.passed, "words": one.words} for one in found.checks]
        output.result(_view, found, {"file": str(path), "passed": found.passed, "checks": checks})
    raise typer.Exit(0 if found.passed else FAILED)


def _models(given: list[str], weights: Path | None, output: Output) -> Any:
    """The network, its state dict, or a list of them."""
    if weights is not None and (len(given) != 1 or Path(given[0]).is_file()):
        raise BadOption("--weights belongs to one MODULE:MODEL; a file of weights is given as it is.")
    found = [_model(one, weights, output) for one in given]
    return None if not found else found[0] if len(found) == 1 else found


def _model(given: str, weights: Path | None, output: Output) -> Any:
    if Path(given).is_file():
        try:
            return read_state(Path(given))
        except BadFile as error:
            raise BadFile(str(error).removeprefix("--weights: ")) from error
    if ":" not in given:
        raise BadFile(f"there is no file {given}, and it is not a reference {references.EXAMPLE}.")
    return load_network(given, weights, output)


def _view(found: Verification, width: int) -> RenderableType:
    lines = []
    for one in found.checks:
        word, style = STYLES[one.passed]
        lines.append(Text.assemble((f"{word:<12}", style), (f"{one.what}: ", "bold"), one.words))
    failed = sum(not one.passed for one in found.checks)
    count = len(found.checks)
    end = f"All {count} checks passed." if found.passed else f"{failed} of {count} checks did not pass."
    return Group(*lines, Text(end if count > 1 or failed else "The check passed."), Text(NO_SIGNATURE, style="dim"))
