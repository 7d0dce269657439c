"""``whence audit``: a network and data by reference → an audit in a folder."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

import torch
import typer

import whence
from whence.auditing.tracing import by_command
from whence.cli import options
from whence.cli.loading import check_data, load_data, load_groups, load_network, load_tokens
from whence.cli.options import DATA, FIT, OUTPUT, REF, argument, option
from whence.cli.output import INTERRUPTED, Output, check_file, command_line, replace_file, result_folder
from whence.errors import BadOption
from whence.likelihoods import resolve as resolve_likelihood
from whence.report import terminal
from whence.report.record.audit import AuditRecord
from whence.report.record.common import Run
from whence.report.record.convert import to_json

EPILOG = (
    "[bold]whence audit net.py:model --train data.py:train --test data.py:test --likelihood classification[/]\n\n"
    "[bold]whence audit pkg.models:Net --weights net.pt --train pkg.data:train --validation pkg.data:held "
    "--test pkg.data:test --ood pkg.data:strange --likelihood classification --classes cat,dog --out report[/]\n\n"
    f"{options.REFERENCES}\n\n{options.CODES}"
)
LIKELIHOODS = (
    "classification, binary, regression (noise from the training data), gaussian:0.3 (fixed noise), heteroscedastic or "
    "poisson."
)
STRUCTURES = "Structure of the curvature: kron, ekfac, diag, block, full or lowrank."
CURVATURES = "Kind of curvature: auto, ggn, mc, empirical, kfra or hessian."
RULES = 'Thresholds of the verdict: JSON of some fields of whence.VerdictRules, such as {"ece": 0.02}.'
QUICK = "A first look in a fraction of the time: sampled curvature, fewer examples, no pruning curve."
UNITS = "Unit of predicted numbers; several, with commas, if outputs have different ones."
SCORES = "Score of conformal sets (probability, cumulative) or intervals (normalised, absolute)."
POSITIVE = "Of two classes the one that a binary decision looks for: its name in --classes, or 0 or 1."
TOKENS = (
    "How ids of tokens are shown: a tokenizer, a list of strings, or a function from a list of ids to strings; or a "
    "vocabulary file, one token in each line or JSON."
)
PRIORS = "Prior before tuning: relative, relative:10 (τ = 10), or a number for an isotropic prior."


def audit(
    model: Annotated[str, argument("MODULE:MODEL", "The trained network.")],
    train: Annotated[str | None, option(DATA, REF, "The data it was trained on.")] = None,
    validation: Annotated[str | None, option(DATA, REF, "Held-out data for tuning and for deferral rules.")] = None,
    test: options.Test = None,
    ood: options.Ood = None,
    weights: options.Weights = None,
    classes: options.Classes = None,
    features: options.Features = None,
    groups: options.Groups = None,
    batch_size: options.BatchSize = 256,
    likelihood: Annotated[str | None, option(FIT, "KIND", LIKELIHOODS, "--likelihood", "-l")] = None,
    structure: Annotated[options.Structure | None, option(FIT, "NAME", STRUCTURES, show_default="kron")] = None,
    curvature: Annotated[options.Curvature | None, option(FIT, "NAME", CURVATURES, show_default="auto")] = None,
    layers: options.Layers = None,
    prior: Annotated[str | None, option(FIT, "PRECISION", PRIORS, show_default="relative")] = None,
    posterior: Annotated[Path | None, option(FIT, "FILE", "Use this saved posterior instead of fitting one.")] = None,
    save: Annotated[Path | None, option(FIT, "FILE", "Save the fitted posterior here (.safetensors).")] = None,
    out: Annotated[Path, option(OUTPUT, "DIR", "Folder for audit.html and audit.json.")] = Path("whence-audit"),
    title: options.Title = None,
    unit: Annotated[str | None, option(OUTPUT, "UNIT", UNITS)] = None,
    levels: Annotated[str, option(OUTPUT, "A,B", "Levels of conformal prediction sets and intervals.")] = "0.9,0.95",
    conformal_score: Annotated[options.ConformalScore | None, option(OUTPUT, "NAME", SCORES)] = None,
    positive: Annotated[str | None, option(OUTPUT, "NAME", POSITIVE, show_default="the second")] = None,
    tokens: Annotated[str | None, option(DATA, f"{REF}|FILE", TOKENS)] = None,
    examples: options.Examples = 10_000,
    inputs: Annotated[int, option(OUTPUT, "N", "Number of most uncertain inputs to show.", min=0)] = 12,
    open_page: options.Open = False,
    quick: Annotated[bool, options.flag(OUTPUT, "--quick", QUICK)] = False,
    rules: Annotated[Path | None, option(OUTPUT, "FILE", RULES)] = None,
    seed: options.Seed = 0,
    device: options.Device = None,
    quiet: options.Quiet = False,
    as_json: options.Json = False,
    debug: options.Debug = False,
) -> None:
    """Audit a trained network: how good its uncertainty is, when to defer, and where it comes from.

    Writes DIR/audit.html (one page, opens anywhere) and DIR/audit.json (the same numbers). The network is not changed.
    """
    with Output(quiet, as_json, debug).guarded() as output:
        fit = {
            "likelihood": likelihood,
            "structure": structure,
            "curvature": curvature,
            "layers": layers,
            "prior": prior,
        }
        _check_together(posterior, {"train": train, **fit, "save": save})
        place = options.parse_device(device)
        settings: dict[str, Any] = {
            "likelihood": options.parse_likelihood(likelihood),
            "structure": structure and structure.value,
            "curvature": curvature and curvature.value,
            "layers": options.parse_layers(layers),
            "prior_precision": options.parse_prior(prior),
            "classes": options.parse_classes(classes),
            "features": options.parse_features(features),
            "title": title,
            "rules": options.parse_rules(rules),
            "unit": options.parse_unit(unit),
            "levels": options.parse_levels(levels),
            "conformal_score": conformal_score and conformal_score.value,
            "positive": options.parse_positive(positive),
        }
        if save is not None:
            check_file(save, "--save")
        with result_folder(out) as folder:
            torch.manual_seed(seed)
            network = load_network(model, weights, output, trained=posterior is not None)
            sets = load_data({"train": train, "validation": validation, "test": test, "ood": ood}, batch_size)
            subject: Any = network
            if posterior is not None:
                subject = whence.load(posterior, network)
                subject = subject if place is None else subject.to(place)
            known = resolve_likelihood(settings["likelihood"])[0] if posterior is None else subject.likelihood
            check_data(network, sets, known, place, settings["classes"])
            settings["groups"] = load_groups(groups)
            settings["tokens"] = load_tokens(tokens)
            data = {"train": None, **{one.name: one.source for one in sets}}
            chosen = {key: value for key, value in settings.items() if value is not None}
            limits = {"examples": examples, "inputs": inputs, "quick": quick, "seed": seed, "device": place}
            code = audit_and_write(subject, data, {**chosen, **limits}, folder, save, open_page, output)
    raise typer.Exit(code)


def _check_together(posterior: Path | None, given: dict[str, Any]) -> None:
    """Check options that depend on each other."""
    for name, value in given.items():
        if posterior is None and name in ("train", "likelihood") and value is None:
            raise BadOption(f"--{name} is missing: it is needed to fit the posterior (or pass --posterior FILE).")
        if posterior is not None and name != "train" and value:
            raise BadOption(f"--{name} cannot be combined with --posterior: that posterior is already fitted.")


def audit_and_write(
    subject: Any,
    data: dict[str, Any],
    settings: dict[str, Any],
    folder: Path,
    save: Path | None,
    open_page: bool,
    output: Output,
) -> int:
    """Returns the exit code. The JSON is written first, in case the page cannot be drawn."""
    torch.manual_seed(settings["seed"])
    train = data.pop("train")
    with output.progress() as steps:
        listening: dict[str, Any] = {"progress": False, "on_step": steps, "on_left": steps.left}
        try:
            found = whence.audit(subject, train, **data, **settings, **listening)
        except KeyboardInterrupt as error:
            raise KeyboardInterrupt("the posterior was not finished; nothing was written.") from error
    if (line := command_line()) is not None and found.results.trace is not None:
        found = replace(found, results=by_command(found.results, line))
    record = found.results
    for notice in record.run.notices:
        output.note(notice)
    try:
        path = found.json(folder / "audit.json")
        saved = None if save is None or found.posterior is None else str(replace_file(save, found.posterior.save))
        paths = {"html": output.write_page(found, path), "json": str(path), "posterior": saved}
    except KeyboardInterrupt as error:
        raise KeyboardInterrupt(f"while writing; the files in {folder} are complete.") from error
    output.result(terminal.verdict_view, record, {**paths, **audit_summary(record)})
    output.paths(paths, open_page)
    if not found.interrupted:
        return 0
    where = paths["html"] or paths["json"]
    output.line("interrupted", f"during {record.run.interrupted}; finished sections are in {where}.", "bold red")
    return INTERRUPTED


def audit_summary(record: AuditRecord) -> dict[str, Any]:
    """The key numbers of a record, for JSON."""
    metrics = record.quality.metrics if record.quality else ()
    kinds = ("plain", "bayesian", "difference")
    return {
        "schema": record.schema,
        "title": record.title,
        "task": record.task,
        "verdict": to_json(record.verdict),
        "metrics": {row.name: {kind: getattr(getattr(row, kind), "value", None) for kind in kinds} for row in metrics},
        "deferral": to_json(record.deferral.rows) if record.deferral else None,
        "groups": to_json(record.groups),
        "layers": to_json(record.layers),
        **run_summary(record.run),
        "interrupted": record.run.interrupted,
    }


def run_summary(run: Run) -> dict[str, Any]:
    return {"left_out": to_json(run.left_out), "notices": list(run.notices), "seconds": run.seconds}
