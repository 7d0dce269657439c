"""``whence compare``: several posteriors and data by reference → a comparison in a folder."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import torch
import typer
from torch import nn

import whence
from whence.cli import options, references
from whence.cli.audit import run_summary
from whence.cli.loading import check_data, load_data, load_weights
from whence.cli.options import DATA, FIT, OUTPUT, argument, option
from whence.cli.output import Output, result_folder
from whence.errors import BadData, BadFile, BadOption, WhenceError
from whence.posteriors.base import Posterior, is_posterior
from whence.report import terminal
from whence.report.record.comparison import ComparisonRecord

FORM = "expected NAME=FILE.safetensors@MODULE:MODEL or NAME=MODULE:POSTERIOR"
EPILOG = (
    "[bold]whence compare Laplace=net.safetensors@net.py:model VI=code/fits.py:variational --test data.py:test[/]"
    "\n\nNAME=REF names a posterior. REF is a file with the network that it belongs to, "
    "[bold]FILE.safetensors@MODULE:MODEL[/] (and [bold]@WEIGHTS[/] if that network is not trained yet; for an "
    "ensemble the reference names the list of its networks), or [bold]MODULE:POSTERIOR[/], a posterior or a "
    f"function that returns one.\n\n{options.REFERENCES}\n\n{options.CODES}"
)
PLAIN = "The trained network to compare with; [bold]none[/] omits it."
REFERENCE = "The reference for distances, such as HMC."


def compare(
    posteriors: Annotated[list[str], argument("NAME=REF…", "Posteriors to compare, by name.")],
    test: options.Test = None,
    ood: options.Ood = None,
    plain: Annotated[str | None, option(DATA, "MODULE:MODEL", PLAIN, show_default="the network of a posterior")] = None,
    reference: Annotated[str | None, option(FIT, "NAME", REFERENCE)] = None,
    classes: options.Classes = None,
    batch_size: options.BatchSize = 256,
    out: Annotated[Path, option(OUTPUT, "DIR", "Folder for comparison.html and comparison.json.")] = Path(
        "whence-comparison"
    ),
    title: options.Title = None,
    examples: options.Examples = 10_000,
    open_page: options.Open = False,
    seed: options.Seed = 0,
    device: options.Device = None,
    quiet: options.Quiet = False,
    as_json: options.Json = False,
    debug: options.Debug = False,
) -> None:
    """Compare posteriors on the same data: one table, one set of figures, the same metrics.

    Writes DIR/comparison.html (one page, opens anywhere) and DIR/comparison.json (the same numbers).
    """
    with Output(quiet, as_json, debug).guarded() as output:
        named = _parse_names(posteriors)
        if test is None:
            raise BadOption("--test is missing: the posteriors are evaluated on it.")
        if reference is not None and reference not in named:
            raise BadOption(f"--reference: expected one of {', '.join(named)}, but got {reference!r}.")
        place, labels = options.parse_device(device), options.parse_classes(classes)
        with result_folder(out, "comparison") as folder:
            torch.manual_seed(seed)
            loaded = {name: _posterior(name, ref) for name, ref in named.items()}
            loaded = loaded if place is None else {name: found.to(place) for name, found in loaded.items()}
            sets = load_data({"test": test, "ood": ood}, batch_size)
            network = None if plain in (None, "none") else references.model(str(plain), "--plain")
            _check(loaded, network, sets, place, labels)
            settings: dict[str, Any] = {"title": title, "classes": labels, "reference": reference}
            settings["plain"] = False if plain == "none" else network
            chosen = {key: value for key, value in settings.items() if value is not None}
            data = {one.name: one.source for one in sets}
            torch.manual_seed(seed)
            with output.progress() as on_step:
                found = whence.compare(
                    loaded, **data, **chosen, examples=examples, seed=seed, progress=False, on_step=on_step
                )
            for notice in found.results.run.notices:
                output.note(notice)
            record = found.json(folder / "comparison.json")
            paths = {"html": output.write_page(found, record), "json": str(record)}
        output.result(terminal.comparison_view, found.results, {**paths, **comparison_summary(found.results)})
        output.paths(paths, open_page)
    raise typer.Exit(0)


def _parse_names(arguments: list[str]) -> dict[str, str]:
    """Names and their references."""
    found: dict[str, str] = {}
    for given in arguments:
        name, equals, ref = (part.strip() for part in given.partition("="))
        if not name or not equals or ":" not in ref:
            raise BadOption(f"{FORM}, but got {given!r}.")
        if name in found:
            raise BadOption(f"the name {name!r} is given twice; each posterior needs its own name.")
        found[name] = ref
    return found


def _posterior(name: str, ref: str) -> Posterior:
    """The posterior of a reference."""
    file, at, network = ref.partition("@")
    if at:
        return _saved(name, Path(file), network)
    if file.endswith(".safetensors") or Path(file).is_file():
        raise BadOption(f"{name}: {file} needs its network: {name}={file}@MODULE:MODEL.")
    found: Posterior = references.made(ref, name, is_posterior, "a posterior")
    return found


def _saved(name: str, file: Path, ref: str) -> Posterior:
    """A posterior from a file, for the network (or the networks of an ensemble) of a reference."""
    model, at, weights = ref.partition("@")
    if not file.is_file():
        raise BadFile(f"{name}: there is no file {file}.")
    network = references.made(model, name, _is_network, "a torch.nn.Module, or a list of them")
    if at and isinstance(network, nn.Module):
        load_weights(network, Path(weights))
    elif at:
        raise BadOption(f"{name}: weights can be loaded into one network, but {model} is {references.kind(network)}.")
    try:
        return whence.load(file, network)
    except WhenceError as error:
        raise type(error)(f"{name}: {error}") from error


def _is_network(value: Any) -> bool:
    several = isinstance(value, list | tuple) and bool(value) and all(isinstance(v, nn.Module) for v in value)
    return isinstance(value, nn.Module) or several


def _check(
    posteriors: dict[str, Posterior], plain: nn.Module | None, sets: Any, device: str | None, classes: Any
) -> None:
    """Run the first batches through a network of each posterior before the long work starts."""
    for name, found in posteriors.items():
        try:
            check_data(found.networks()[0], sets, found.likelihood, device, classes)
        except BadData as error:
            raise BadData(f"{name}: {error}") from error
    if plain is not None:
        check_data(plain, sets, next(iter(posteriors.values())).likelihood, device, None)


def comparison_summary(record: ComparisonRecord) -> dict[str, Any]:
    """The key numbers of a comparison, for JSON."""
    names = record.names
    return {
        "schema": record.schema,
        "title": record.title,
        "task": record.task,
        "methods": names,
        "metrics": {
            row.name: {name: value and value.value for name, value in zip(names, row.values, strict=True)}
            for row in record.metrics
        },
        "best": {
            row.name: [name for name, good in zip(names, row.best, strict=True) if good] for row in record.metrics
        },
        "words": list(record.words),
        **run_summary(record.run),
    }
