"""Tutorials: a Python file with cells (``# %%``) is run, and kept as a notebook with its outputs.

``python -m tools.notebooks docs/tutorials/pruning.py …`` runs the files and writes the notebooks beside them; with
``--text`` nothing is run: changed text is taken over, and outputs are kept if the code is the same.
"""

from __future__ import annotations

import argparse
import ast
import base64
import contextlib
import html
import io
import json
import os
import re
import sys
import tempfile
import time
import traceback
import warnings
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

PARAMETERS = "parameters"  # the tag of the cell whose values tests replace by smaller ones


@dataclass
class Cell:
    """One cell, and what it printed and drew."""

    kind: str
    source: str
    tags: tuple[str, ...] = ()
    outputs: list[dict[str, Any]] = field(default_factory=list)


def cells(path: Path) -> list[Cell]:
    """The cells of a file in the percent format; Markdown is in comments."""
    found: list[Cell] = []
    for part in re.split(r"^# %%", path.read_text(), flags=re.M)[1:]:
        head, _, body = part.partition("\n")
        tags = tuple(re.findall(r'"(\w+)"', head.partition("tags=")[2]))
        kind = "markdown" if "[markdown]" in head else "code"
        if kind == "markdown":
            body = "\n".join(re.sub(r"^# ?", "", line) for line in body.strip("\n").split("\n"))
        found.append(Cell(kind, body.strip("\n"), tags))
    return found


def run(path: Path, **parameters: Any) -> list[Cell]:
    """Run the code of a tutorial from top to bottom; ``parameters`` replace values of its cell of parameters."""
    done = cells(path)
    namespace: dict[str, Any] = {"__name__": "__tutorial__"}
    for number, cell in enumerate(done):
        if cell.kind == "code":
            _run_cell(cell, namespace, f"{path.name}, cell {number}")
            if PARAMETERS in cell.tags:
                unknown = set(parameters) - set(namespace)
                if unknown:
                    raise ValueError(f"{path.name} has no parameters {sorted(unknown)}")
                namespace.update(parameters)
    return done


def _run_cell(cell: Cell, namespace: dict[str, Any], name: str) -> None:
    tree = ast.parse(cell.source)
    last = tree.body.pop() if tree.body and isinstance(tree.body[-1], ast.Expr) else None
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed), warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        exec(compile(tree, name, "exec"), namespace)
        value = eval(compile(ast.Expression(last.value), name, "eval"), namespace) if last else None
    notices = [f"{w.category.__name__}: {w.message}\n" for w in caught if w.category.__name__ == "Notice"]
    if printed.getvalue():
        cell.outputs.append({"output_type": "stream", "name": "stdout", "text": _lines(printed.getvalue())})
    if notices:
        cell.outputs.append({"output_type": "stream", "name": "stderr", "text": notices})
    if value is not None:
        shown = {"output_type": "execute_result", "execution_count": None, "metadata": {}, "data": _data(value)}
        cell.outputs.append(shown)


def _data(value: Any) -> dict[str, Any]:
    figure = getattr(value, "figure", value)
    if hasattr(figure, "savefig"):
        image = io.BytesIO()
        figure.savefig(image, dpi=90, bbox_inches="tight", metadata={"Software": None})
        return {"image/png": base64.b64encode(image.getvalue()).decode(), "text/plain": ["a figure"]}
    data: dict[str, Any] = {"text/plain": _lines(repr(value))}
    if hasattr(value, "_repr_html_"):
        data["text/html"] = _lines(value._repr_html_())
    return data


def _lines(text: str) -> list[str]:
    return text.splitlines(keepends=True)


def as_json(done: list[Cell]) -> str:
    """The notebook, format 4.5."""
    listed: list[dict[str, Any]] = []
    for number, cell in enumerate(done):
        entry: dict[str, Any] = {
            "cell_type": cell.kind, "id": f"cell-{number}", "metadata": {"tags": [*cell.tags]} if cell.tags else {},
            "source": _lines(cell.source),
        }  # fmt: skip
        if cell.kind == "code":
            entry |= {"execution_count": None, "outputs": cell.outputs}
        listed.append(entry)
    kernel = {"display_name": "Python 3", "language": "python", "name": "python3"}
    metadata = {"kernelspec": kernel, "language_info": {"name": "python"}}
    notebook = {"cells": listed, "metadata": metadata, "nbformat": 4, "nbformat_minor": 5}
    return json.dumps(notebook, indent=1, ensure_ascii=False) + "\n"


def with_text(path: Path) -> list[Cell]:
    """The cells of a file with the outputs of its notebook, if its code is that of the notebook but for formatting."""
    kept = [cell for cell in json.loads(path.with_suffix(".ipynb").read_text())["cells"] if cell["cell_type"] == "code"]
    done = cells(path)
    code = [cell for cell in done if cell.kind == "code"]
    before, now = ([ast.dump(ast.parse(source)) for source in sources] for sources in (
        ["".join(cell["source"]) for cell in kept], [cell.source for cell in code]
    ))  # fmt: skip
    if before != now:
        raise ValueError(f"the code of {path.name} has changed: run it again")
    for cell, old in zip(code, kept, strict=True):
        cell.outputs = old["outputs"]
    return done


def as_markdown(path: Path) -> tuple[str, dict[str, bytes]]:
    """A notebook as a page, and its images by name."""
    parts: list[str] = []
    images: dict[str, bytes] = {}
    for cell in json.loads(path.read_text())["cells"]:
        source = "".join(cell["source"])
        if cell["cell_type"] == "markdown":
            parts.append(source)
            continue
        parts.append(f"```python\n{source}\n```")
        for output in cell["outputs"]:
            data = output.get("data", {})
            if "image/png" in data:
                name = f"{path.stem}-{len(images)}.png"
                images[name] = base64.b64decode(data["image/png"])
                parts.append(f"![Output of the cell above]({name})")
            elif "text/html" in data:
                table = re.sub(r"\n\s*\n", "\n", "".join(data["text/html"]))
                parts.append(f'<div class="output">\n{table}\n</div>')
            else:
                text = html.escape("".join(data.get("text/plain", output.get("text", []))).rstrip("\n"))
                parts.append(f'<div class="output"><pre><code>{text}</code></pre></div>')
    return "\n\n".join(parts) + "\n", images


def main() -> int:
    """Run tutorials, and write their notebooks."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("paths", nargs="+", type=lambda path: Path(path).resolve())
    parser.add_argument("--text", action="store_true", help="take over text, keep outputs")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)
        for path in options.paths:
            start = time.perf_counter()
            try:
                done = with_text(path) if options.text else run(path)
            except Exception:
                traceback.print_exc()
                return 1
            path.with_suffix(".ipynb").write_text(as_json(done))
            print(f"{path.name}: {time.perf_counter() - start:.0f} s")
    return 0


if __name__ == "__main__":
    sys.exit(main())
