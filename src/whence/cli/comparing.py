"""``whence compare``: several posteriors and data by reference → a comparison in a folder."""

from __future__ import annotations

import webbrowser
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn

import whence
from whence.cli import datasets, outputs, references, words
from whence.cli.auditing import check_names, write_page
from whence.cli.voice import Voice
from whence.cli.weights import load_weights
from whence.errors import BadData, BadFile, BadOption, WhenceError
from whence.posteriors.base import Posterior
from whence.report import terminal

ENDING = ".safetensors"
FORM = "expected NAME=FILE.safetensors@MODULE:MODEL or NAME=MODULE:POSTERIOR"


@dataclass(frozen=True)
class Order:
    """What the user asked for."""

    posteriors: list[str]
    out: Path
    test: str | None = None
    ood: str | None = None
    plain: str | None = None
    reference: str | None = None
    classes: str | None = None
    title: str | None = None
    examples: int = 10_000
    batch_size: int = 256
    seed: int = 0
    device: str | None = None
    open: bool = False


def run(order: Order, voice: Voice) -> int:
    """Check everything, compare, write, say; returns the exit code."""
    named = parsed(order.posteriors)
    if order.test is None:
        raise BadOption("--test is missing: it is what the posteriors are measured on.")
    if order.reference is not None and order.reference not in named:
        raise BadOption(f"--reference: expected one of {', '.join(named)}, but got {order.reference!r}.")
    device, classes = words.device(order.device), words.classes(order.classes)
    with outputs.folder(order.out, "comparison") as folder:
        torch.manual_seed(order.seed)
        posteriors = {name: _on(posterior(name, ref), device) for name, ref in named.items()}
        sets = {name: ref for name in ("test", "ood") if (ref := getattr(order, name)) is not None}
        read = [datasets.read(ref, f"--{name}", order.batch_size, name == "ood") for name, ref in sets.items()]
        settings = {"title": order.title, "classes": classes, "reference": order.reference, "plain": _plain(order)}
        chosen = {key: value for key, value in settings.items() if value is not None}
        _check(posteriors, chosen.get("plain"), read, device, classes)
        data = {name: found.source for name, found in zip(sets, read, strict=True)}
        found = _compared(posteriors, data, chosen, order, voice)
        record = found.json(folder / "comparison.json")
        paths = {"html": write_page(found, record, voice), "json": str(record)}
    _say(found.record, paths, voice)
    if order.open and paths["html"] is not None:
        webbrowser.open(Path(paths["html"]).absolute().as_uri())
    return 0


def _compared(
    posteriors: Mapping[str, Any], data: dict[str, Any], chosen: dict[str, Any], order: Order, voice: Voice
) -> Any:
    torch.manual_seed(order.seed)
    test = data.pop("test")
    with voice.progress() as steps:
        found = whence.compare(
            posteriors, test, **data, **chosen, examples=order.examples, seed=order.seed, progress=False, on_step=steps
        )
    for notice in found.record["run"].get("notices") or []:
        voice.note(notice)
    return found


def parsed(arguments: list[str]) -> dict[str, str]:
    """Names and what they stand for."""
    found: dict[str, str] = {}
    for argument in arguments:
        name, equals, ref = (part.strip() for part in argument.partition("="))
        if not name or not equals or ":" not in ref:
            raise BadOption(f"{FORM}, but got {argument!r}.")
        if name in found:
            raise BadOption(f"the name {name!r} is given twice; each posterior has a name of its own.")
        found[name] = ref
    return found


def posterior(name: str, ref: str) -> Any:
    """The posterior that a reference names."""
    file, at, rest = ref.partition("@")
    if at:
        return _saved(name, Path(file), rest)
    if file.endswith(ENDING) or Path(file).is_file():
        raise BadOption(f"{name}: {file} needs the network that it belongs to: {name}={file}@MODULE:MODEL.")
    return references.made(ref, name, lambda value: isinstance(value, Posterior), "a posterior")


def _saved(name: str, file: Path, rest: str) -> Any:
    """From a file, for the network (or the networks of an ensemble) that a reference names."""
    model, at, weights = rest.partition("@")
    if not file.is_file():
        raise BadFile(f"{name}: there is no file {file}.")
    network = references.made(model, name, _networks, "a torch.nn.Module, or a list of them")
    if at and isinstance(network, nn.Module):
        load_weights(network, Path(weights))
    elif at:
        raise BadOption(f"{name}: weights go with one network, but {model} is {references.kind(network)}.")
    try:
        return whence.load(file, network)
    except WhenceError as error:
        raise type(error)(f"{name}: {error}") from error


def _networks(value: Any) -> bool:
    several = isinstance(value, list | tuple) and bool(value) and all(isinstance(v, nn.Module) for v in value)
    return isinstance(value, nn.Module) or several


def _on(found: Any, device: str | None) -> Any:
    return found if device is None else found.to(device)


def _plain(order: Order) -> nn.Module | bool | None:
    """The plain network: named, left out, or left to the comparison."""
    if order.plain is None:
        return None
    return False if order.plain == "none" else references.model(order.plain, "--plain")


def _check(
    posteriors: Mapping[str, Any], plain: Any, read: list[datasets.Named], device: str | None, classes: Any
) -> None:
    """Run the first batches through a network of each posterior before the long work starts."""
    for name, found in posteriors.items():
        network = next(iter(found.networks()), None) if hasattr(found, "networks") else found.network.module
        if network is not None:
            try:
                number = datasets.check(network, read, found.likelihood, device)
            except BadData as error:
                raise BadData(f"{name}: {error}") from error
            check_names(classes, number, found.likelihood)
    if isinstance(plain, nn.Module):
        datasets.check(plain, read, next(iter(posteriors.values())).likelihood, device)


def _say(record: dict[str, Any], paths: dict[str, str | None], voice: Voice) -> None:
    voice.result(terminal.comparison, record, {**paths, **summary(record)})
    if paths["html"]:
        voice.say(f"\npage    {paths['html']}")
    voice.say(f"record  {paths['json']}   (whence show {paths['json']})")


def summary(record: dict[str, Any]) -> dict[str, Any]:
    """The key numbers of a comparison, for machines."""
    names = [method["name"] for method in record.get("methods") or []]
    run, metrics = record.get("run") or {}, record.get("metrics") or []

    def by_method(values: list[Any] | None) -> dict[str, Any]:
        return dict(zip(names, values or [], strict=False))

    return {
        "schema": record.get("schema"),
        "title": record.get("title"),
        "task": record.get("task"),
        "methods": names,
        "metrics": {
            row["name"]: by_method([None if value is None else value["value"] for value in row["values"]])
            for row in metrics
        },
        "best": {row["name"]: [name for name, good in by_method(row.get("best")).items() if good] for row in metrics},
        "words": record.get("words"),
        "left_out": run.get("left_out"),
        "notices": run.get("notices"),
        "seconds": run.get("seconds"),
    }
