"""``whence prune``: a posterior and its network → the weights of a pruned network."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import torch
from rich.console import Group, RenderableType
from rich.text import Text
from safetensors.torch import save_file
from torch import nn
from torch.nn.utils import prune as torch_prune

import whence
from whence.cli import options
from whence.cli.loading import NamedData, check_data, load_data, load_network
from whence.cli.options import DATA, OUTPUT, REF, argument, flag, option
from whence.cli.output import Output, check_file, replace_file
from whence.errors import BadFile, BadOption
from whence.extras.pruning.curve import masked, score
from whence.extras.pruning.masks import check_fraction
from whence.numerals import number, percent
from whence.posteriors.base import WeightPosterior
from whence.report.terminal.tables import facts, whole

EPILOG = (
    "[bold]whence prune net.safetensors net.py:model --fraction 0.9 --out small.safetensors[/]\n\n"
    "[bold]whence prune net.safetensors net.py:model --curve --test data.py:test[/]\n\n"
    f"{options.REFERENCES}\n\n{options.CODES}"
)
FRACTION = "Share of the weights (or units) to prune: 0.9 prunes 90%."
CRITERIA = "Criterion; the lowest are pruned first: snr, identified, saliency, relative_curvature, magnitude or random."
COMPACT = "With --units: make the layers smaller, for faster computation."
CURVE = "With --test: a table for every criterion and many fractions."


def prune(
    posterior: Annotated[Path, argument("POSTERIOR", "A saved posterior (.safetensors).")],
    model: Annotated[str, argument("MODULE:MODEL", "The network it was fitted to.")],
    fraction: Annotated[float | None, option(None, "PART", FRACTION)] = None,
    by: Annotated[options.Criterion, option(None, "NAME", CRITERIA)] = options.Criterion.snr,
    units: Annotated[bool, flag(None, "--units", "Prune whole rows and filters.")] = False,
    per_layer: Annotated[bool, flag(None, "--per-layer", "Prune the same share of every layer.")] = False,
    layers: options.Layers = None,
    compact: Annotated[bool, flag(None, "--compact", COMPACT)] = False,
    curve: Annotated[bool, flag(None, "--curve", CURVE)] = False,
    out: Annotated[Path | None, option(OUTPUT, "FILE", "The pruned network's weights (.safetensors).")] = None,
    test: Annotated[str | None, option(DATA, REF, "Data for scores before and after pruning.")] = None,
    weights: options.Weights = None,
    batch_size: options.BatchSize = 256,
    seed: options.Seed = 0,
    device: options.Device = None,
    quiet: options.Quiet = False,
    as_json: options.Json = False,
    debug: options.Debug = False,
) -> None:
    """Prune the least needed weights of a network, and write the weights of the pruned network."""
    with Output(quiet, as_json, debug).guarded() as output:
        _check_together(fraction, out, units, compact, curve, test)
        place = options.parse_device(device)
        if out is not None:
            check_file(out, "--out")
        if not posterior.is_file():
            raise BadFile(f"there is no file {posterior}.")
        torch.manual_seed(seed)
        network = load_network(model, weights, output, trained=True)
        loaded = whence.load(posterior, network)
        loaded = loaded if place is None else loaded.to(place)
        found = loaded.as_weights("pruning")
        sets = load_data({"test": test}, batch_size)
        check_data(network, sets, found.likelihood, place, None)
        chosen: dict[str, Any] = {"units": units, "per_layer": per_layer, "layers": options.parse_layers(layers)}
        chosen["seed"] = seed
        result: dict[str, Any] = {}
        views: list[RenderableType] = []
        if fraction is not None and out is not None:
            with output.progress() as on_step:
                on_step(f"pruning by {by.value}", 0, 0)
                pruned, result = _pruned(found, fraction, by.value, compact, chosen)
                if sets:
                    on_step("scoring on the test data", 0, 0)
                    result |= _scores(found, pruned, sets[0])
            result["out"] = str(_write(pruned, out, result))
            views.append(_table(result))
        if curve:
            with output.progress() as on_step:
                on_step("pruning by every criterion to every fraction", 0, 0)
                table = whence.prune_curve(found, sets[0].source, **chosen, progress=False)
            result["curve"] = [asdict(row) for row in table.rows]
            views.append(Text(str(table)))
        output.result(lambda parts, _: Group(*parts), views, result)


def _check_together(
    fraction: float | None, out: Path | None, units: bool, compact: bool, curve: bool, test: str | None
) -> None:
    """Check options that depend on each other."""
    if fraction is None and not curve:
        raise BadOption("--fraction is missing: 0.9 prunes nine weights in ten (or pass --curve to see them all).")
    if fraction is not None:
        check_fraction(fraction)
        if out is None:
            raise BadOption("--out is missing: a .safetensors file for the pruned network's weights.")
    if fraction is None and out is not None:
        raise BadOption("--out needs --fraction, the share to prune.")
    if compact and not units:
        raise BadOption("--compact needs --units: single zero weights do not make a layer smaller.")
    if curve and test is None:
        raise BadOption("--curve needs --test MODULE:LOADER, to score the pruned networks.")


def _pruned(
    posterior: WeightPosterior, fraction: float, by: str, small: bool, chosen: dict[str, Any]
) -> tuple[nn.Module, dict[str, Any]]:
    """The pruned network, and its size."""
    masks = whence.prune(posterior, fraction, by=by, **chosen)  # type: ignore[arg-type]
    total, gone = sum(p.numel() for p in posterior.network.params.values()), masked(masks)
    prunable = sum(b.numel() for name, b in masks.named_buffers() if name.endswith("_mask"))
    network = whence.compact(masks) if small else _permanent(masks)
    left = sum(p.numel() for p in network.parameters()) if small else total - gone
    return network, {
        "by": by,
        "fraction": fraction,
        "units": chosen["units"],
        "sparsity": 1 - left / total,
        "prunable": prunable,
        "masked": gone,
        "parameters_before": total,
        "parameters": left,
        "shapes": {name: list(p.shape) for name, p in network.named_parameters()} if small else None,
    }


def _permanent(module: nn.Module) -> nn.Module:
    """The masks of ``torch.nn.utils.prune`` made permanent: the parameters have their usual names again."""
    for part in module.modules():
        for hook in list(part._forward_pre_hooks.values()):
            if isinstance(hook, torch_prune.BasePruningMethod):
                torch_prune.remove(part, hook._tensor_name)
    return module


@torch.no_grad()
def _scores(posterior: WeightPosterior, pruned: nn.Module, test: NamedData) -> dict[str, Any]:
    data = posterior.network.read(test.source, str(test))
    networks = {"before": posterior.network.module, "after": pruned}
    return {name: score(network, data, posterior.likelihood) for name, network in networks.items()}


def _write(network: nn.Module, path: Path, result: dict[str, Any]) -> Path:
    """Write a state dict, with the pruning options in the metadata."""
    state = {name: value.detach().cpu().contiguous().clone() for name, value in network.state_dict().items()}
    made = {key: result[key] for key in ("by", "fraction", "units", "sparsity", "shapes")}
    about = {"whence": json.dumps({"kind": "pruned", "whence": whence.__version__, **made})}
    return replace_file(path, lambda place: save_file(state, str(place), metadata=about))


def _table(result: dict[str, Any]) -> RenderableType:
    rows: list[tuple[str, str]] = [
        (
            "pruned",
            f"{whole(result['masked'])} of the {whole(result['prunable'])} parameters that can be pruned "
            f"({percent(result['masked'] / result['prunable'])}), by {result['by']}",
        ),
        (
            "parameters",
            f"{whole(result['parameters_before'])} → {whole(result['parameters'])}: {percent(result['sparsity'])} "
            f"fewer{'' if result['units'] else ', as biases and others are not pruned'}",
        ),
    ]
    before, after = result.get("before", {}), result.get("after", {})
    for key, label in (("accuracy", "accuracy"), ("rmse", "root mean squared error"), ("nll", "log loss")):
        if before.get(key) is not None:
            rows.append((label, f"{number(before[key])} → {number(after[key])}"))
    rows += [(name, str(shape)) for name, shape in (result["shapes"] or {}).items()]
    return facts([*rows, ("written", result["out"])])
