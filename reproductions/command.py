"""``python -m COLLECTION NAME [--quick] [--device …]``: one experiment of a collection, or ``all``.

A run that was cut off goes on where it was: what is done stands in ``results.json``. ``--limit-seconds`` starts no
further unit of work after that time. Data sets are found as docs/data.md says (``WHENCE_DATA``).
"""

from __future__ import annotations

import argparse
import shutil
import sys
import time
from dataclasses import asdict
from pathlib import Path

import torch
from tqdm.auto import tqdm

from reproductions import readme
from reproductions.experiment import Collection, Context
from reproductions.store import OtherConfig, OutOfTime, Results, values

QUICK = Path("build") / "reproductions"


def options(collection: Collection, arguments: list[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog=f"python -m {collection.package}",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("name", choices=[*collection.names, "all"], help="which experiment")
    parser.add_argument("--quick", action="store_true", help="a small version, to see that it runs; needs no data")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--out", type=Path, help=f"folder for results.json and figures (its own; quick: below {QUICK})")
    parser.add_argument("--cache", type=Path, help="folder for weights and posteriors (beside the results)")
    parser.add_argument("--limit-seconds", type=float, default=float("inf"), help="start nothing after this time")
    parser.add_argument(
        "--units", nargs="+", default=["*"], metavar="PATTERN", help="only units of such names, e.g. '*/0*'"
    )
    parser.add_argument(
        "--merge", nargs="+", type=Path, metavar="FOLDER", help="take over units that are there, and end"
    )
    parser.add_argument("--figures", action="store_true", help="only draw the figures and fill the README again")
    parser.add_argument("--no-progress", action="store_true")
    return parser.parse_args(arguments)


def run(collection: Collection, arguments: list[str] | None = None) -> int:
    """The command's exit status."""
    chosen = options(collection, arguments)
    end = time.monotonic() + chosen.limit_seconds
    names = collection.names if chosen.name == "all" else [chosen.name]
    return max(one(collection, name, chosen, end - time.monotonic()) for name in names)


def merge(results: Results, folder: Path, order: list[str]) -> None:
    """Units of another folder, and the tables beside them."""
    count = results.merge(folder / "results.json", order)
    for table in folder.glob("*.csv"):
        shutil.copy(table, results.path.parent)
    print(f"{count} units from {folder}")


def one(collection: Collection, name: str, chosen: argparse.Namespace, limit: float) -> int:
    found = collection.experiment(name)
    full = collection.home / name
    home = QUICK / collection.home.name / name if chosen.quick else full
    folder = home if chosen.out is None else chosen.out / name if chosen.name == "all" else chosen.out
    config = found.config(chosen.quick)
    units = found.units(config)
    cache = chosen.cache or (folder / "cache" if chosen.quick else Path("build") / "reproductions" / "cache")
    with tqdm(total=len(units), desc=name, unit="unit", disable=chosen.no_progress) as bar:

        def done(unit: str) -> None:
            bar.update()
            bar.set_postfix_str(unit)

        try:
            results = Results(
                folder / "results.json",
                name,
                asdict(config),
                chosen.device,
                quick=chosen.quick,
                limit=limit,
                only=chosen.units,
                on_unit=done,
            )
            for other in chosen.merge or ():
                merge(results, other, units)
            if not chosen.figures and not chosen.merge:
                found.run(config, results, Context(chosen.device, cache, not chosen.no_progress))
        except OtherConfig as error:
            print(error, file=sys.stderr)
            return 2
        except OutOfTime as stopped:
            print(f"{name}: the time is over before {stopped}; run it again to go on.", file=sys.stderr)
            return 3
    if (chosen.units != ["*"] or chosen.merge) and len(results.content["units"]) < len(units):
        print(f"{len(results.content['units'])} of {len(units)} units are in {folder / 'results.json'}")
        return 0
    made = found.figures(values(results.content), folder)
    if folder == full:
        readme.write(collection, name)
    print(readme.claim_table(found.claims(values(results.content))))
    print(f"\n{folder / 'results.json'}", *made, sep="\n")
    return 0
