"""What whence needs: packages, licences, megabytes and import time, as a table for docs/dependencies.md.

``python -m tools.dependencies`` prints the table for this environment; ``--write`` puts it into the page. Sizes are of
the files of each package; import times are the median of five fresh processes, without those of torch.
"""

from __future__ import annotations

import argparse
import re
import statistics
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from importlib import metadata
from pathlib import Path

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs" / "dependencies.md"
BEGIN, END = "<!-- dependencies begin -->", "<!-- dependencies end -->"
LICENCE = "License :: OSI Approved :: "
STATED = {"mlflow": "Apache-2.0", "timm": "Apache-2.0"}  # by their projects; not installed in full for the tests
REPEATS = 5
MEASURE = "import sys, time; import torch; t = time.perf_counter(); import whence; print(time.perf_counter() - t)"


def name_of(requirement: str) -> str:
    found = re.match(r"[A-Za-z0-9._-]+", requirement)
    assert found is not None
    return found.group().lower()


def required() -> dict[str, list[str]]:
    """Names by extra; the core has the empty name."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    extras = {
        key: value for key, value in project["optional-dependencies"].items() if key not in ("all", "test", "docs")
    }
    named = {"": project["dependencies"], **extras}
    return {extra: [name_of(one) for one in needed if name_of(one) != "whence"] for extra, needed in named.items()}


def licence(found: metadata.Distribution) -> str:
    """By the expression, else the classifiers, else the first line of the field."""
    about = found.metadata
    if expression := about.get("License-Expression"):
        return expression
    classifiers = [c.removeprefix(LICENCE) for c in about.get_all("Classifier") or [] if c.startswith(LICENCE)]
    return ", ".join(classifiers) or (about.get("License") or "not stated").strip().splitlines()[0]


def megabytes(found: metadata.Distribution) -> float:
    files = [Path(str(found.locate_file(file))) for file in found.files or []]
    return sum(file.stat().st_size for file in files if file.is_file()) / 1e6


def rows() -> Iterator[str]:
    yield "| package | needed for | version here | MB | licence |"
    yield "|---|---|---|---|---|"
    seen: dict[str, list[str]] = {}
    for extra, names in required().items():
        for name in names:
            seen.setdefault(name, []).append(f"`[{extra}]`" if extra else "whence itself")
    for name, uses in seen.items():
        try:
            found = metadata.distribution(name)
        except metadata.PackageNotFoundError:
            yield f"| {name} | {', '.join(uses)} | not installed | – | {STATED.get(name, '–')} |"
            continue
        yield f"| {name} | {', '.join(uses)} | {found.version} | {megabytes(found):,.1f} | {licence(found)} |"


def import_seconds() -> float:
    """Of whence after torch."""
    runs = [
        subprocess.run([sys.executable, "-c", MEASURE], capture_output=True, text=True, check=True)
        for _ in range(REPEATS)
    ]
    return statistics.median(float(run.stdout) for run in runs)


def page() -> str:
    lines = [*rows(), "", f"`import whence` takes {import_seconds():.2f} s after torch has been imported."]
    return "\n".join(lines)


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--write", action="store_true", help=f"put the table into {PAGE.relative_to(ROOT)}")
    made = page()
    if parser.parse_args(arguments).write:
        before, _, rest = PAGE.read_text().partition(BEGIN)
        PAGE.write_text(f"{before}{BEGIN}\n{made}\n{END}{rest.partition(END)[2]}")
    print(made)


if __name__ == "__main__":
    main()
