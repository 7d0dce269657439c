"""The way through the house: imports go one way, rooms stay small, the front door is quick."""

from __future__ import annotations

import ast
import functools
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

SOURCE = Path(__file__).parent.parent / "src" / "whence"
ORDER = [
    "vocabulary", "errors", "_version", "numerals", "tables", "engine", "closures", "copies", "labels", "outputs",
    "functional",
    "likelihoods", "linalg", "recording", "curvature", "priors", "training", "predictive", "posteriors", "metrics",
    "where", "io", "extras", "robustness", "report", "auditing", "zoo", "integrations", "compat", "cli",
]  # fmt: skip
# ``robustness`` is only the public name of ``extras.robustness``.
# Doors that open towards the reader: what an answer is drawn, saved or printed with, imported when asked for.
DOORS = {
    ("posteriors", "where"): "posterior.where, and the reference that tuning keeps",
    ("posteriors", "io"): "posterior.save, and pickles",
    ("where", "auditing"): "where.report",
    ("where", "report"): "where.plot_…",
    ("extras", "report"): "robustness.plot",
}
FILES = sorted(SOURCE.rglob("*.py"))


def room(path: Path) -> str:
    return path.relative_to(SOURCE).parts[0].removesuffix(".py")


@functools.cache
def tree(path: Path) -> ast.Module:
    return ast.parse(path.read_text())


@functools.cache
def imports(path: Path) -> list[tuple[str, bool]]:
    """Rooms that a file imports from, wherever the import stands, and whether it is inside a function.

    Those for type checkers alone are left out.
    """
    found: list[tuple[str, bool]] = []

    def visit(node: ast.AST, inside: bool) -> None:
        if isinstance(node, ast.If) and isinstance(node.test, ast.Name) and node.test.id == "TYPE_CHECKING":
            return
        if isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] == "whence":
            parts = (node.module or "").split(".")
            found.extend((name, inside) for name in (parts[1:2] or [alias.name for alias in node.names]))
        for child in ast.iter_child_nodes(node):
            visit(child, inside or isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)))

    visit(tree(path), False)
    return found


@pytest.mark.parametrize("path", FILES, ids=lambda p: str(p.relative_to(SOURCE)))
def test_imports_go_one_way_and_files_stay_small(path: Path) -> None:
    assert path.read_text().count("\n") <= 400, "a room this large wants a wall"
    mine = room(path)
    if mine == "__init__":
        return
    for other, inside in imports(path):
        if other != mine and not (inside and (mine, other) in DOORS):
            assert ORDER.index(other) < ORDER.index(mine), f"{mine} must not import {other}"


def test_the_alias_of_robustness_holds_no_code() -> None:
    body = ast.parse((SOURCE / "robustness.py").read_text()).body[1:]
    assert [type(node) for node in body] == [ast.ImportFrom, ast.Assign]


def test_every_door_is_used() -> None:
    used = Counter((room(p), other) for p in FILES if room(p) != "__init__" for other, _ in imports(p))
    assert all(used[door] for door in DOORS)


# What is asked of a posterior


ASKING = {"hasattr", "getattr", "isinstance"}
CLASSES = {
    "Posterior", "WeightPosterior", "DrawnPosterior", "GaussianPosterior", "Laplace", "Variational", "Swag", "Dropout",
    "Ensemble", "LaplaceEnsemble", "Hmc", "Unstructured", "FunctionSpace", "Where",
}  # fmt: skip


@pytest.mark.parametrize(
    "path", [p for p in FILES if room(p) != "posteriors"], ids=lambda p: str(p.relative_to(SOURCE))
)
def test_posteriors_are_asked_by_their_contract(path: Path) -> None:
    """Outside their room nobody asks a posterior for its class or for what it has."""
    for node in ast.walk(tree(path)):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in ASKING and node.args:
            asked = ast.unparse(node.args[0]).split(".")[-1]
            assert asked not in ("posterior", "where_posterior"), f"line {node.lineno}: {ast.unparse(node)}"
            if node.func.id == "isinstance":
                names = {n.id for n in ast.walk(node.args[1]) if isinstance(n, ast.Name)}
                assert not names & CLASSES, f"line {node.lineno}: {ast.unparse(node)}"
        if isinstance(node, (ast.arg, ast.AnnAssign)) and node.annotation is not None:
            name = node.arg if isinstance(node, ast.arg) else ast.unparse(node.target)
            assert (name, ast.unparse(node.annotation)) != ("posterior", "Any"), f"line {node.lineno}"


# Options are types inside


OPTIONS = {
    "method", "link", "probes", "measure", "structure", "curvature", "sharing", "damping", "kernel", "mass", "family",
    "estimator", "weighting", "preconditioner", "combine", "by", "optimiser", "layout",
}  # fmt: skip
# Strings of others: torch and its graphs, numpy, pathlib, dataclasses; and names that users or modules have.
GIVEN = {"name", "op", "target", "type", "suffix", "padding", "padding_mode", "dtype.kind", "block.kind"}
INSIDE = [p for p in FILES if room(p) not in ("report", "cli")]  # what shows a record reads names


def compared_strings(tree: ast.AST) -> list[str]:
    """Comparisons of an attribute or an option with strings."""
    found = []
    for node in ast.walk(tree):
        subjects: list[ast.expr] = []
        if isinstance(node, ast.Compare):
            asks = isinstance(node.ops[0], (ast.In, ast.NotIn))  # whether the left side is in a collection
            subjects, others = [node.left], node.comparators
            subjects += [] if asks else others
            parts = [e for s in (node.left, *others) for e in getattr(s, "elts", [s])]
        elif isinstance(node, ast.Match):
            subjects = [node.subject]
            parts = [p.value for case in node.cases for p in ast.walk(case.pattern) if isinstance(p, ast.MatchValue)]
        if not any(isinstance(e, ast.Constant) and isinstance(e.value, str) for e in subjects and parts):
            continue
        for subject in subjects:
            name = ast.unparse(subject).split(".")
            attribute = isinstance(subject, ast.Attribute) and not {name[-1], ".".join(name[-2:])} & GIVEN
            if attribute or (isinstance(subject, ast.Name) and subject.id in OPTIONS):
                found.append(f"line {node.lineno}: {ast.unparse(node)}")
    return found


@pytest.mark.parametrize("path", INSIDE, ids=lambda p: str(p.relative_to(SOURCE)))
def test_no_option_is_compared_with_a_string(path: Path) -> None:
    """A door turns the string into an enum or an object once (``Option.parse``, ``one_of``)."""
    assert compared_strings(tree(path)) == []


@pytest.mark.parametrize(
    ("line", "found"),
    [
        ("units.kind == 'head'", True),
        ("'head' != self.units.kind", True),
        ("likelihood.task in ('binary', 'count')", True),
        ("posterior.default_method == 'sampled'", True),
        ("method not in {'sampled'}", True),
        ("match self.mode:\n    case 'zeros' | 'reflect': pass", True),
        ("units.kind is UnitKind.HEAD", False),
        ("device.type == 'cuda'", False),
        ("x.dtype.kind not in 'fiu'", False),
        ("'bias' in part._parameters", False),
        ("one_of(away, ('predicted', 'labels'), 'away') == 'labels'", False),
    ],
)
def test_what_counts_as_a_comparison_with_a_string(line: str, found: bool) -> None:
    assert bool(compared_strings(ast.parse(line))) is found


# What tests may replace


TESTS = sorted(Path(__file__).parent.rglob("*.py"))


@pytest.mark.parametrize("path", TESTS, ids=lambda p: str(p.relative_to(Path(__file__).parent)))
def test_no_test_patches_a_constant(path: Path) -> None:
    """Sizes and intervals are arguments, or fields of ``whence.engine.memory.Sizes`` (the fixture ``set_sizes``)."""
    for node in ast.walk(tree(path)):
        names: list[str] = []
        if isinstance(node, ast.Call) and isinstance(node.func, (ast.Attribute, ast.Name)):
            called = node.func.attr if isinstance(node.func, ast.Attribute) else node.func.id
            given = node.args[:2] if called in ("setattr", "delattr", "patch", "object") else []
            names = [a.value.split(".")[-1] for a in given if isinstance(a, ast.Constant) and isinstance(a.value, str)]
        if isinstance(node, (ast.Assign, ast.AugAssign)):
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            names = [target.attr for target in targets if isinstance(target, ast.Attribute)]
        assert not any(name.isupper() for name in names), f"line {node.lineno}: {ast.unparse(node)}"


IMPORTS = """
import io, sys
def loaded(*names): print([name for name in names if name in sys.modules])
import whence
loaded("pandas", "sklearn", "scipy", "matplotlib", "typer", "rich")
import whence.zoo.data
loaded("sklearn", "scipy", "pandas")
import whence.report.page
loaded("plotly", "jinja2", "PIL")
import torch
from whence.report import figures
loaded("matplotlib")
figures.entropies({"a": torch.rand(9)}).figure.savefig(io.BytesIO())
loaded("matplotlib.pyplot")
import matplotlib.pyplot
print(matplotlib.pyplot.get_fignums())
sys.modules["typer"] = None
from whence.cli import main
sys.exit(main(["demo"]))
"""


def test_imports_are_light() -> None:
    """Nothing heavy beside torch is imported before it is used, and pyplot is left alone."""
    done = subprocess.run([sys.executable, "-c", IMPORTS], capture_output=True, text=True, check=False)
    assert done.stdout.split("\n") == ["[]"] * 6 + [""]
    assert done.returncode == 2
    assert done.stderr.strip() == "whence: the command needs typer: pip install 'whence[cli]'"
