"""``whence diff``: what changed between two audits."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import whence
from whence.cli import options
from whence.cli.options import OUTPUT, argument, option
from whence.cli.output import Output, check_file
from whence.cli.show import in_folder
from whence.cli.summaries import diff_summary
from whence.report import terminal

EPILOG = (
    "[bold]whence diff old/audit.json new/audit.json --html changes.html[/]\n\n"
    "Changes are judged by 95% intervals; the output says how. Dates and times are not compared.\n\n" + options.CODES
)
FILE = "The .json of an audit, or its folder."


def diff(
    old: Annotated[Path, argument("OLD", FILE)],
    new: Annotated[Path, argument("NEW", FILE)],
    html: Annotated[Path | None, option(OUTPUT, "FILE", "Write a page.")] = None,
    json_file: Annotated[Path | None, option(OUTPUT, "FILE", "Write the differences as JSON.", "--out")] = None,
    quiet: options.Quiet = False,
    as_json: options.Json = False,
    debug: options.Debug = False,
) -> None:
    """Compare two audits: verdict, metrics with intervals, layers, deferral, novelty, settings, data, versions."""
    with Output(quiet, as_json, debug).guarded() as output:
        for path, name in ((html, "--html"), (json_file, "--out")):
            if path is not None:
                check_file(path, name)
        found = whence.diff(*(in_folder(path) if path.is_dir() else path for path in (old, new)))
        output.result(terminal.difference_view, found.results, diff_summary(found.results))
        if html is not None:
            found.html(html)
        if json_file is not None:
            found.json(json_file)
        written = {"page": html, "record": json_file}
        if not as_json:
            output.written({name: str(path) for name, path in written.items() if path is not None})
