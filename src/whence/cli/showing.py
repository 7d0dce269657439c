"""``whence show``: a saved posterior, audit or comparison in the terminal."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from safetensors import SafetensorError, safe_open

import whence
from whence.cli import auditing, comparing
from whence.cli.voice import Voice
from whence.errors import BadFile
from whence.io import FORMAT, KINDS_OF_DRAWS
from whence.likelihoods import from_spec
from whence.report import terminal

SHORT = 6  # values of a list that are written out


def run(path: Path, voice: Voice) -> int:
    """Find out what the file is, and print it."""
    if path.is_dir():
        path = _inside(path)
    if not path.is_file():
        raise BadFile(f"there is no file {path}.")
    with path.open("rb") as file:
        start = file.read(4096)
    if path.suffix.lower() in (".html", ".htm") or start.lstrip()[:9].lower() in (b"<!doctype", b"<html"):
        beside = path.with_suffix(".json")
        other = f", or run: whence show {beside}" if beside.is_file() else ", or show the .json beside it"
        raise BadFile(f"{path} is a page: open it in a browser{other}.")
    if start.lstrip().startswith(b"{"):
        _record(path, b'"whence.comparison/' in start, voice)
    else:
        about = describe(path)
        voice.result(terminal.posterior if "structure" in about else terminal.drawn_posterior, about, about)
    return 0


def _record(path: Path, compared: bool, voice: Voice) -> None:
    """An audit or a comparison; the schema is the first thing in the file."""
    kind = "comparison" if compared else "audit"
    record = (whence.Comparison if compared else whence.Audit).read(path).record
    plain = comparing.summary(record) if compared else auditing.summary(record)
    voice.result(terminal.view_of(record), record, {"kind": kind, "json": str(path), **plain})


def _inside(folder: Path) -> Path:
    for name in ("audit.json", "comparison.json"):
        if (folder / name).is_file():
            return folder / name
    raise BadFile(
        f"{folder} is a folder without an audit.json or comparison.json; expected a posterior (.safetensors), an audit "
        "or a comparison."
    )


def describe(path: Path) -> dict[str, Any]:
    """What a posterior's file says of itself, without the network and without reading its tensors."""
    meta = _header(path)
    try:
        return _about(path, meta) if meta["kind"] == "laplace" else _about_drawn(path, meta)
    except (KeyError, TypeError, AttributeError) as error:
        raise BadFile(f"{path} is damaged: {type(error).__name__} {error} in its metadata.") from error


def _header(path: Path) -> dict[str, Any]:
    try:
        with safe_open(str(path), framework="pt") as file:
            header = file.metadata() or {}
    except (SafetensorError, OSError, ValueError) as error:
        raise BadFile(
            f"{path}: expected a posterior (.safetensors) or the .json of an audit or a comparison, but it is neither, "
            "or is truncated."
        ) from error
    try:
        meta = json.loads(header.get("whence", "null"))
    except ValueError as error:
        raise BadFile(f"{path} is damaged: its metadata is no JSON ({error}).") from error
    if not isinstance(meta, dict) or meta.get("kind") not in ("laplace", *KINDS_OF_DRAWS):
        raise BadFile(f"{path} is a safetensors file, but not a posterior that whence wrote.")
    if meta["format"] > FORMAT:
        raise BadFile(f"{path} was written by whence {meta['whence']}, whose format is newer than {FORMAT}.")
    return meta


def _about(path: Path, meta: dict[str, Any]) -> dict[str, Any]:
    record, tuning, reference = meta["record"], meta["tuning"], meta.get("reference")
    layers = [_layer(block, meta["prior"]) for block in meta["blocks"]]
    priors, taus = ({layer[key] for layer in layers} for key in ("prior_precision", "tau"))
    likelihood = from_spec(meta["likelihood"])
    return {
        "kind": "posterior",
        "path": str(path),
        "structure": meta["options"]["structure"],
        "curvature": meta["options"]["curvature"],
        "likelihood": meta["likelihood"]["name"] if likelihood is None else repr(likelihood),
        "parameters": sum(layer["parameters"] for layer in layers),
        "network_parameters": sum(_size(shape) for shape in meta["names"].values()),
        "data_size": record["data_size"],
        "training_loss": record["loss"] / record["data_size"] if record["data_size"] else None,
        "training_accuracy": record["correct"] / record["targets"] if record["confidence"] else None,
        "prior_precision": priors.pop() if len(priors) == 1 else None,
        "tau": taus.pop() if len(taus) == 1 else None,
        "data_scale": meta["data_scale"],
        "tuning": tuning
        and {**{k: tuning[k] for k in ("criterion", "method", "score")}, "trials": len(tuning["trials"])},
        "reference": None if reference is None else _reference_size(path),
        "layers": layers,
        "versions": {"whence": meta["whence"], "torch": meta["torch"]},
        "bytes": path.stat().st_size,
    }


def _about_drawn(path: Path, meta: dict[str, Any]) -> dict[str, Any]:
    """Of a posterior that is known by its draws."""
    likelihood = from_spec(meta["likelihood"])
    return {
        "kind": "posterior",
        "method": meta["kind"].replace("_", " "),
        "path": str(path),
        "likelihood": meta["likelihood"]["name"] if likelihood is None else repr(likelihood),
        "networks": [sum(_size(shape) for shape in names.values()) for names in meta["names"]],
        "state": plain_values(meta["state"]),
        "versions": {"whence": meta["whence"], "torch": meta["torch"]},
        "bytes": path.stat().st_size,
    }


def plain_values(state: Mapping[str, Any], before: str = "") -> dict[str, Any]:
    """The plain values of a posterior's state, one level; long lists by their length, what is not set left out."""
    found: dict[str, Any] = {}
    for key, value in state.items():
        name = f"{before}{key}".replace("_", " ")
        if isinstance(value, Mapping):
            values = list(value.values())
            alike = len(values) > 1 and all(v == values[0] for v in values)
            found |= {f"{name} (each)": values[0]} if alike else plain_values(value, f"{name}, ")
        elif isinstance(value, list) and (len(value) > SHORT or any(isinstance(v, list | Mapping) for v in value)):
            found[name] = f"{len(value)} {'entry' if len(value) == 1 else 'entries'}"
        elif value is not None and value != []:
            found[name] = ", ".join(map(str, value)) if isinstance(value, list) else value
    return found


def _layer(block: dict[str, Any], prior: dict[str, Any]) -> dict[str, Any]:
    """Of one layer; ``prior`` is what ``PriorPrecision.spec`` gave, ``tau`` that of a relative one."""
    relative = prior.get("relative")
    taus = relative if isinstance(relative, dict) else {}
    values = {prior.get(p["name"]) for p in block["params"]} if not taus else {None}
    return {
        "name": block["name"],
        "kind": block["kind"],
        "parameters": sum(_size(p["shape"]) for p in block["params"]),
        "structure": block["structure"],
        "reason": block["reason"],
        "prior_precision": values.pop() if len(values) == 1 else None,
        "tau": taus.get(block["name"]),
    }


def _size(shape: list[int]) -> int:
    total = 1
    for length in shape:
        total *= length
    return total


def _reference_size(path: Path) -> int:
    with safe_open(str(path), framework="pt") as file:
        return int(file.get_slice("reference").get_shape()[0])
