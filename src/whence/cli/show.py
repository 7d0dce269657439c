"""``whence show``: a saved posterior, audit or comparison in the terminal."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated, Any

from rich.console import Group, RenderableType
from rich.text import Text
from safetensors import safe_open

import whence
from whence.cli import options
from whence.cli.audit import audit_summary
from whence.cli.compare import comparison_summary
from whence.cli.options import OUTPUT, PictureFormat, option
from whence.cli.output import Output
from whence.cli.summaries import diff_summary
from whence.engine.files import read_meta
from whence.errors import BadFile, BadOption
from whence.io import FORMAT, KINDS_OF_DRAWS
from whence.likelihoods import from_spec
from whence.numerals import number, percent
from whence.report import terminal
from whence.report.terminal.tables import add_row, facts, heading, new_table, whole

EPILOG = (
    "Examples: [bold]whence show whence-demo/audit.json[/], [bold]whence show net.safetensors[/], [bold]whence show "
    "audit.json --pdf audit.pdf --tables numbers[/]\n\n" + options.CODES
)
FILE = "A saved posterior (.safetensors), the .json of an audit, a comparison or a diff, or its folder."
SHORT = 6  # longest list that is printed


def show(
    file: Annotated[Path, options.argument("FILE", FILE)],
    html: Annotated[Path | None, option(OUTPUT, "FILE", "Write the page.")] = None,
    pdf: Annotated[Path | None, option(OUTPUT, "FILE", "Print the page as PDF (by Chromium, Chrome or Edge).")] = None,
    card: Annotated[Path | None, option(OUTPUT, "FILE", "Write a model card of an audit in Markdown.")] = None,
    tables: Annotated[Path | None, option(OUTPUT, "DIR", "Write every table as CSV to this folder.")] = None,
    figures: Annotated[
        Path | None, option(OUTPUT, "DIR", "Write every figure to this folder (by the browser).")
    ] = None,
    picture: Annotated[
        PictureFormat | None, option(OUTPUT, "NAME", "Format of --figures: png or svg.", "--format", show_default="png")
    ] = None,
    as_json: options.Json = False,
    debug: options.Debug = False,
) -> None:
    """Print a saved posterior, audit or comparison in the terminal, or write it in another form.

    The network is not needed.
    """
    wanted = {"html": html, "pdf": pdf, "card": card, "tables": tables, "figures": figures}
    chosen = {name: path for name, path in wanted.items() if path is not None}
    with Output(False, as_json, debug).guarded() as output:
        if picture is not None and figures is None:
            raise BadOption("--format is the format of --figures DIR, which is missing.")
        path = in_folder(file) if file.is_dir() else file
        if not path.is_file():
            raise BadFile(f"there is no file {path}.")
        start = _start(path)
        if is_page(path):
            beside = path.with_suffix(".json")
            other = f"run: whence show {beside}" if beside.is_file() else "show the .json next to it"
            raise BadFile(f"{path} is a page: open it in a browser, or {other}.")
        if not start.startswith(b"{"):
            if chosen:
                raise BadOption(f"--{next(iter(chosen))} needs an audit or a comparison, but {path} is a posterior.")
            _show_posterior(path, output)
        elif chosen:
            _write(path, start, chosen, picture or PictureFormat.png, output)
        elif b'"whence.diff/' in start:
            changes = whence.Diff.read(path).results
            output.result(
                terminal.difference_view, changes, {"kind": "diff", "json": str(path), **diff_summary(changes)}
            )
        elif b'"whence.comparison/' in start:  # the schema is the first thing in the file
            found = whence.Comparison.read(path).results
            plain = {"kind": "comparison", "json": str(path), **comparison_summary(found)}
            output.result(terminal.comparison_view, found, plain)
        else:
            record = whence.Audit.read(path).results
            plain = {"kind": "audit", "json": str(path), **audit_summary(record)}
            output.result(terminal.audit_view, record, plain)


def _write(path: Path, start: bytes, wanted: dict[str, Path], picture: PictureFormat, output: Output) -> None:
    """Write the record in other forms, and print where."""
    kinds = {b"comparison": whence.Comparison, b"diff": whence.Diff}
    kind: Any = next((one for name, one in kinds.items() if b'"whence.' + name + b"/" in start), whence.Audit)
    if "card" in wanted and kind is not whence.Audit:
        raise BadOption(f"--card needs an audit, but {path} is a {kind.__name__.lower()}.")
    found = kind.read(path)
    for name, place in wanted.items():
        given = (place, picture.value) if name == "figures" else (place,)
        getattr(found, name)(*given)
    output.written({name: str(place) for name, place in wanted.items()})


def _start(path: Path) -> bytes:
    with path.open("rb") as opened:
        return opened.read(4096).lstrip()


def is_page(path: Path) -> bool:
    """Whether a file is a page, by its name or its first letters."""
    return path.suffix.lower() in (".html", ".htm") or _start(path)[:9].lower() in (b"<!doctype", b"<html")


def in_folder(folder: Path) -> Path:
    for name in ("audit.json", "comparison.json"):
        if (folder / name).is_file():
            return folder / name
    raise BadFile(
        f"{folder} is a folder without an audit.json or comparison.json; expected a posterior (.safetensors), an audit "
        "or a comparison."
    )


# Posteriors


@dataclass(frozen=True)
class SavedLayer:
    """One layer of a saved Laplace posterior; ``tau`` of a relative prior."""

    name: str
    kind: str
    parameters: int
    structure: str
    reason: str
    prior_precision: float | None
    tau: float | None


@dataclass(frozen=True)
class SavedPosterior:
    """The metadata of a posterior's file."""

    kind: str
    path: str
    likelihood: str
    versions: dict[str, str]
    bytes: int

    def facts(self) -> list[tuple[str, str]]:
        """Labels and values."""
        versions = self.versions
        return [("written by", f"whence {versions['whence']}, torch {versions['torch']}; {whole(self.bytes)} bytes")]

    def view(self, width: int) -> RenderableType:
        return Group(heading("Posterior", self.path), facts(self.facts()))


@dataclass(frozen=True)
class SavedLaplace(SavedPosterior):
    """A Laplace posterior. The prior is None if it differs between layers."""

    structure: str
    curvature: str
    parameters: int
    network_parameters: int
    data_size: float
    training_loss: float | None
    training_accuracy: float | None
    prior_precision: float | None
    tau: float | None
    data_scale: float
    tuning: dict[str, Any] | None
    reference: int | None
    layers: list[SavedLayer]

    def facts(self) -> list[tuple[str, str]]:
        tuned = "not tuned: call .tune(validation_data)"
        if self.tuning is not None:
            score = number(self.tuning["score"])
            tuned = f"by {self.tuning['criterion']} ({self.tuning['trials']} trials), score {score}"
        accuracy = [] if self.training_accuracy is None else [("training accuracy", percent(self.training_accuracy))]
        return [
            ("method", f"Laplace, structure {self.structure}, curvature {self.curvature}"),
            ("likelihood", self.likelihood),
            ("weights", f"{whole(self.parameters)} Bayesian of {whole(self.network_parameters)}"),
            ("training data", f"{whole(self.data_size)} examples, loss {number(self.training_loss)} each"),
            *accuracy,
            ("prior precision", _prior(self, "differs between layers, see below")),
            ("data scale", number(self.data_scale)),
            ("tuned", tuned),
            ("novelty reference", f"{whole(self.reference)} inputs" if self.reference else "none kept"),
            *super().facts(),
        ]

    def view(self, width: int) -> RenderableType:
        table = new_table("layer", "kind", "weights>", "structure", "prior precision>")
        for row in self.layers:
            structure = Text.assemble(row.structure, (f"  {row.reason}" if row.reason else "", "dim"))
            add_row(table, row.name, row.kind, whole(row.parameters), structure, _prior(row, "per weight"))
        return Group(super().view(width), Text(), table)


def _prior(about: SavedLaplace | SavedLayer, otherwise: str) -> str:
    if about.tau is not None:
        return f"Relative(τ = {number(about.tau)})"
    return otherwise if about.prior_precision is None else number(about.prior_precision)


@dataclass(frozen=True)
class SavedDraws(SavedPosterior):
    """A posterior of draws: its networks, and the plain values of its state."""

    method: str
    networks: list[int]  # numbers of weights
    state: dict[str, Any]

    def facts(self) -> list[tuple[str, str]]:
        sizes = ", ".join(map(whole, self.networks[:4])) + ", …" * (len(self.networks) > 4)
        words = f"{len(self.networks)} networks of {sizes} weights" if len(self.networks) > 1 else f"{sizes} weights"
        state = [(name, str(value)) for name, value in self.state.items()]
        own = [("method", self.method), ("likelihood", self.likelihood), ("network", words)]
        return [*own, *state, *super().facts()]


def _show_posterior(path: Path, output: Output) -> None:
    meta = _header(path)
    likelihood = from_spec(meta["likelihood"])
    try:
        common = {
            "kind": "posterior",
            "path": str(path),
            "likelihood": meta["likelihood"]["name"] if likelihood is None else repr(likelihood),
            "versions": {"whence": meta["whence"], "torch": meta["torch"]},
            "bytes": path.stat().st_size,
        }
        about = _laplace(path, meta, common) if meta["kind"] == "laplace" else _draws(meta, common)
    except (KeyError, TypeError, AttributeError) as error:
        raise BadFile(f"{path} is damaged: {type(error).__name__} {error} in its metadata.") from error
    output.result(lambda found, width: found.view(width), about, asdict(about))


def _header(path: Path) -> dict[str, Any]:
    try:
        meta = read_meta(path)
    except BadFile as error:
        raise BadFile(
            f"expected a posterior (.safetensors) or the .json of an audit or a comparison, but {error}"
        ) from error
    if meta.get("kind") not in ("laplace", *KINDS_OF_DRAWS):
        raise BadFile(f"{path} is a safetensors file, but not a posterior written by whence.")
    if meta["format"] > FORMAT:
        raise BadFile(f"{path} was written by whence {meta['whence']}, whose format is newer than {FORMAT}.")
    return meta


def _laplace(path: Path, meta: dict[str, Any], common: dict[str, Any]) -> SavedLaplace:
    record, tuning, reference = meta["record"], meta["tuning"], None
    layers = [_layer(block, meta["prior"]) for block in meta["blocks"]]
    if meta.get("reference") is not None:
        with safe_open(str(path), framework="pt") as file:
            reference = int(file.get_slice("reference").get_shape()[0])
    return SavedLaplace(
        **common,
        structure=meta["options"]["structure"],
        curvature=meta["options"]["curvature"],
        parameters=sum(layer.parameters for layer in layers),
        network_parameters=sum(map(math.prod, meta["names"].values())),
        data_size=record["data_size"],
        training_loss=record["loss"] / record["data_size"] if record["data_size"] else None,
        training_accuracy=record["correct"] / record["targets"] if record["confidence"] else None,
        prior_precision=_common({layer.prior_precision for layer in layers}),
        tau=_common({layer.tau for layer in layers}),
        data_scale=meta["data_scale"],
        tuning=tuning and {**{k: tuning[k] for k in ("criterion", "method", "score")}, "trials": len(tuning["trials"])},
        reference=reference,
        layers=layers,
    )


def _layer(block: dict[str, Any], prior: dict[str, Any]) -> SavedLayer:
    """``prior`` is from ``PriorPrecision.spec``."""
    relative = prior.get("relative")
    taus = relative if isinstance(relative, dict) else {}
    return SavedLayer(
        block["name"],
        block["kind"],
        sum(math.prod(param["shape"]) for param in block["params"]),
        block["structure"],
        block["reason"],
        None if taus else _common({prior.get(param["name"]) for param in block["params"]}),
        taus.get(block["name"]),
    )


def _common(values: set[float | None]) -> float | None:
    """The single value, or None if there are several."""
    return next(iter(values)) if len(values) == 1 else None


def _draws(meta: dict[str, Any], common: dict[str, Any]) -> SavedDraws:
    networks = [sum(map(math.prod, names.values())) for names in meta["names"]]
    return SavedDraws(
        **common, method=meta["kind"].replace("_", " "), networks=networks, state=_plain_values(meta["state"])
    )


def _plain_values(state: Mapping[str, Any], before: str = "") -> dict[str, Any]:
    """The plain values of a posterior's state, one level; long lists as their length, without unset values."""
    found: dict[str, Any] = {}
    for key, value in state.items():
        name = f"{before}{key}".replace("_", " ")
        if isinstance(value, Mapping):
            values = list(value.values())
            alike = len(values) > 1 and all(v == values[0] for v in values)
            found |= {f"{name} (each)": values[0]} if alike else _plain_values(value, f"{name}, ")
        elif isinstance(value, list) and (len(value) > SHORT or any(isinstance(v, list | Mapping) for v in value)):
            found[name] = f"{len(value)} {'entry' if len(value) == 1 else 'entries'}"
        elif value is not None and value != []:
            found[name] = ", ".join(map(str, value)) if isinstance(value, list) else value
    return found
