"""``whence prune``: a posterior and its network → a plain pruned network's weights."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from rich.console import Group, RenderableType
from rich.text import Text
from safetensors.torch import save_file
from torch import nn
from torch.nn.utils import prune as torch_prune

import whence
from whence.cli import datasets, outputs, words
from whence.cli.auditing import load_model
from whence.cli.voice import Voice
from whence.errors import BadFile, BadOption
from whence.posteriors.laplace import Laplace
from whence.report import terminal
from whence.where.prune import check_fraction
from whence.where.prune_curve import masked, score


@dataclass(frozen=True)
class Order:
    """What the user asked for."""

    posterior: Path
    model: str
    fraction: float | None = None
    by: str = "snr"
    units: bool = False
    per_layer: bool = False
    layers: list[str] | None = None
    compact: bool = False
    curve: bool = False
    out: Path | None = None
    test: str | None = None
    weights: Path | None = None
    batch_size: int = 256
    seed: int = 0
    device: str | None = None


def run(order: Order, voice: Voice) -> int:
    """Load, prune, write, say; returns the exit code."""
    _consistent(order)
    device = words.device(order.device)
    if order.out is not None:
        outputs.file(order.out, "--out")
    if not order.posterior.is_file():
        raise BadFile(f"there is no file {order.posterior}.")
    torch.manual_seed(order.seed)
    model = load_model(order.model, order.weights, voice, trained=True)
    posterior = whence.load(order.posterior, model)
    posterior = posterior if device is None else posterior.to(device)
    test = None if order.test is None else datasets.read(order.test, "--test", order.batch_size)
    if test is not None:
        datasets.check(model, [test], posterior.likelihood, device)
    result: dict[str, Any] = {}
    views: list[RenderableType] = []
    if order.fraction is not None:
        result = _pruned(order, posterior, test, voice)
        views.append(_table(result))
    if order.curve and test is not None:
        curve = _curve(order, posterior, test, voice)
        result["curve"] = [asdict(row) for row in curve.rows]
        views.append(Text(f"{curve}"))
    voice.result(lambda parts, _: Group(*parts), views, result)
    return 0


def _consistent(order: Order) -> None:
    if order.fraction is None and not order.curve:
        raise BadOption("--fraction is missing: 0.9 prunes nine weights in ten (or pass --curve to see them all).")
    if order.fraction is not None:
        check_fraction(order.fraction)
        if order.out is None:
            raise BadOption("--out is missing: a .safetensors file for the pruned network's weights.")
    if order.fraction is None and order.out is not None:
        raise BadOption("--out needs --fraction: which pruned network is to be written?")
    if order.compact and not order.units:
        raise BadOption("--compact needs --units: single weights that are zero make no layer smaller.")
    if order.curve and order.test is None:
        raise BadOption("--curve needs --test MODULE:LOADER, to score the pruned networks on.")


def _pruned(order: Order, posterior: Laplace, test: datasets.Named | None, voice: Voice) -> dict[str, Any]:
    """Prune and write; what came of it."""
    assert order.fraction is not None and order.out is not None
    with voice.progress() as steps:
        steps(f"pruning by {order.by}", 0, 0)
        masks = whence.prune(posterior, order.fraction, **_options(order))
        total = sum(p.numel() for p in posterior.network.params.values())
        gone = masked(masks)
        network = whence.compact(masks) if order.compact else permanent(masks)
        left = sum(p.numel() for p in network.parameters()) if order.compact else total - gone
        result: dict[str, Any] = {
            "by": order.by,
            "fraction": order.fraction,
            "units": order.units,
            "sparsity": 1 - left / total,
            "parameters_before": total,
            "parameters": left,
            "shapes": {n: list(p.shape) for n, p in network.named_parameters()} if order.compact else None,
        }
        if test is not None:
            steps("scoring on the test data", 0, 0)
            data = posterior.network.read(test.source, str(test))
            with torch.no_grad():
                result["before"] = score(posterior.network.module, data, posterior.likelihood)
                result["after"] = score(network, data, posterior.likelihood)
    result["out"] = str(_write(network, order.out, result))
    return result


def _options(order: Order) -> dict[str, Any]:
    chosen: dict[str, Any] = {"by": order.by, "units": order.units, "per_layer": order.per_layer}
    return {**chosen, "layers": words.layers(order.layers), "seed": order.seed}


def permanent(module: nn.Module) -> nn.Module:
    """The masks of ``torch.nn.utils.prune`` made permanent: the parameters have their usual names again."""
    for part in module.modules():
        for hook in list(part._forward_pre_hooks.values()):
            if isinstance(hook, torch_prune.BasePruningMethod):
                torch_prune.remove(part, hook._tensor_name)
    return module


def _write(network: nn.Module, path: Path, result: dict[str, Any]) -> Path:
    """A plain state dict, with how it came about in the metadata."""
    state = {k: v.detach().cpu().contiguous().clone() for k, v in network.state_dict().items()}
    made = {k: result[k] for k in ("by", "fraction", "units", "sparsity", "shapes")}
    about = {"whence": json.dumps({"kind": "pruned", "whence": whence.__version__, **made})}
    return outputs.aside(path, lambda place: save_file(state, str(place), metadata=about))


def _curve(order: Order, posterior: Laplace, test: datasets.Named, voice: Voice) -> Any:
    with voice.progress() as steps:
        steps("pruning by every criterion to every fraction", 0, 0)
        options = {k: v for k, v in _options(order).items() if k != "by"}
        return whence.prune_curve(posterior, test.source, **options, progress=False)


def _table(result: dict[str, Any]) -> RenderableType:
    before, after = result["parameters_before"], result["parameters"]
    rows = [
        ("pruned", f"{terminal.percent(result['sparsity'])} of all parameters, by {result['by']}"),
        ("parameters", f"{terminal.whole(before)} → {terminal.whole(after)}"),
    ]
    for key, label in (("accuracy", "accuracy"), ("rmse", "root mean squared error"), ("nll", "log loss")):
        if "before" in result and result["before"][key] is not None:
            rows.append((label, f"{terminal.number(result['before'][key])} → {terminal.number(result['after'][key])}"))
    rows += [(name, str(shape)) for name, shape in (result["shapes"] or {}).items()]
    rows.append(("written", result["out"]))
    return terminal.facts(rows)
