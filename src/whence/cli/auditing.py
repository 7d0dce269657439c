"""``whence audit``: a network and data by reference → an audit in a folder."""

from __future__ import annotations

import webbrowser
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn

import whence
from whence.cli import datasets, outputs, references, words
from whence.cli.voice import INTERRUPTED, Voice
from whence.cli.weights import load_weights
from whence.errors import BadData, BadOption, MissingExtra
from whence.likelihoods import Categorical, Likelihood
from whence.likelihoods import resolve as resolve_likelihood
from whence.report import terminal

SETS = ("train", "validation", "test", "ood")


@dataclass(frozen=True)
class Order:
    """What the user asked for."""

    model: str
    out: Path
    train: str | None = None
    validation: str | None = None
    test: str | None = None
    ood: str | None = None
    weights: Path | None = None
    posterior: Path | None = None
    save: Path | None = None
    likelihood: str | None = None
    structure: str | None = None
    curvature: str | None = None
    layers: list[str] | None = None
    prior: str | None = None
    title: str | None = None
    classes: str | None = None
    examples: int = 10_000
    inputs: int = 12
    batch_size: int = 256
    seed: int = 0
    device: str | None = None
    open: bool = False


def run(order: Order, voice: Voice) -> int:
    """Check everything, audit, write; returns the exit code."""
    _consistent(order)
    device, classes = words.device(order.device), words.classes(order.classes)
    likelihood = None if order.likelihood is None else words.likelihood(order.likelihood)
    if order.save is not None:
        outputs.file(order.save, "--save")
    with outputs.folder(order.out) as folder:
        torch.manual_seed(order.seed)
        model = load_model(order.model, order.weights, voice, trained=order.posterior is not None)
        sets = {name: ref for name in SETS if (ref := getattr(order, name)) is not None}
        read = [datasets.read(ref, f"--{name}", order.batch_size, name == "ood") for name, ref in sets.items()]
        subject: Any = model
        if order.posterior is not None:
            subject = whence.load(order.posterior, model)
            subject = subject if device is None else subject.to(device)
        known = likelihood if likelihood is not None else subject.likelihood
        outputs_number = datasets.check(model, read, resolve_likelihood(known)[0], device)
        check_names(classes, outputs_number, known)
        data = {"train": None, **{name: found.source for name, found in zip(sets, read, strict=True)}}
        settings = {
            "likelihood": likelihood,
            "structure": order.structure,
            "curvature": order.curvature,
            "layers": words.layers(order.layers),
            "prior_precision": None if order.prior is None else words.prior(order.prior),
            "title": order.title,
            "classes": classes,
        }
        chosen = {key: value for key, value in settings.items() if value is not None}
        limits = {"examples": order.examples, "inputs": order.inputs}
        return carry_out(subject, data, {**chosen, **limits}, order, voice, folder, device)


def carry_out(
    subject: Any, data: dict[str, Any], settings: dict[str, Any], order: Order, voice: Voice, folder: Path, device: Any
) -> int:
    """Audit, write, say; returns the exit code."""
    torch.manual_seed(order.seed)
    train = data.pop("train")
    with voice.progress() as steps:
        try:
            found = whence.audit(
                subject, train, **data, **settings, seed=order.seed, device=device, progress=False, on_step=steps
            )
        except KeyboardInterrupt as error:
            raise KeyboardInterrupt("the posterior was not ready yet; nothing was written.") from error
    for notice in found.record["run"].get("notices") or []:
        voice.note(notice)
    try:
        paths = write(found, folder, order.save, voice)
    except KeyboardInterrupt as error:
        raise KeyboardInterrupt(f"while writing; the files in {folder} are complete ones.") from error
    _say(found, paths, voice)
    if order.open and paths["html"] is not None:
        webbrowser.open(Path(paths["html"]).absolute().as_uri())
    return INTERRUPTED if found.interrupted else 0


def write(found: Any, folder: Path, save: Path | None, voice: Voice) -> dict[str, str | None]:
    """The files of an audit; the JSON comes first, so that a page that cannot be drawn loses nothing."""
    record = found.json(folder / "audit.json")
    kept = None if save is None or found.posterior is None else str(outputs.aside(save, found.posterior.save))
    return {"html": write_page(found, record, voice), "json": str(record), "posterior": kept}


def write_page(found: Any, record: Path, voice: Voice) -> str | None:
    """The page beside the record; without what draws it, a note."""
    try:
        return str(found.html(record.with_suffix(".html")))
    except MissingExtra as error:
        voice.note(f"the page was not written: {error}")
        return None
    except Exception:
        voice.note(f"the page could not be drawn, but the record is complete: {record}")
        raise


def _say(found: Any, paths: dict[str, str | None], voice: Voice) -> None:
    """The verdict, and where everything lies."""
    record = found.record
    voice.result(terminal.verdict, record, {**paths, **summary(record)})
    page, posterior = paths["html"], paths["posterior"]
    if page:
        voice.say(f"\npage       {page}")
    voice.say(f"record     {paths['json']}   (whence show {paths['json']})")
    if posterior:
        voice.say(f"posterior  {posterior}")
    if found.interrupted:
        step = record["run"]["interrupted"]
        voice.line("interrupted", f"during {step}; what was finished is in {page or paths['json']}.", "bold red")


def summary(record: dict[str, Any]) -> dict[str, Any]:
    """The key numbers of a record, for machines."""
    quality, run = record.get("quality") or {}, record.get("run") or {}
    deferral = record.get("deferral") or {}
    return {
        "schema": record.get("schema"),
        "title": record.get("title"),
        "task": record.get("task"),
        "verdict": record.get("verdict"),
        "metrics": {
            row["name"]: {key: (row.get(key) or {}).get("value") for key in ("plain", "bayesian", "difference")}
            for row in quality.get("metrics") or []
        },
        "deferral": deferral.get("rows"),
        "layers": record.get("layers"),
        "left_out": run.get("left_out"),
        "notices": run.get("notices"),
        "seconds": run.get("seconds"),
        "interrupted": run.get("interrupted"),
    }


def load_model(reference: str, weights: Path | None, voice: Voice, trained: bool = False) -> nn.Module:
    """The network, with its weights; a class that is called gives an untrained one, which is said."""
    model = references.model(reference)
    if weights is not None:
        load_weights(model, weights)
    elif not trained and references.is_class(reference):
        voice.note(f"{reference} is a class, so its network is new; pass trained weights with --weights FILE.")
    return model


def _consistent(order: Order) -> None:
    """Options that go together."""
    if order.posterior is None:
        for name in ("train", "likelihood"):
            if getattr(order, name) is None:
                raise BadOption(f"--{name} is missing: it is needed to fit the posterior (or pass --posterior FILE).")
        return
    for name in ("likelihood", "structure", "curvature", "layers", "prior", "save"):
        if getattr(order, name):
            raise BadOption(f"--{name} does not go with --posterior: that posterior is fitted already.")


def check_names(classes: list[str] | None, number: int | None, likelihood: Likelihood | str) -> None:
    """As many names as outputs."""
    many = likelihood == "classification" or isinstance(likelihood, Categorical)
    if classes is not None and many and number is not None and len(classes) != number:
        raise BadData(
            f"--classes: expected {number} names, one for each output of the network, but got {len(classes)}."
        )
