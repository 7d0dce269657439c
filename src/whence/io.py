"""Posteriors in one safetensors file with JSON metadata. Nothing is unpickled."""

from __future__ import annotations

import importlib
from collections.abc import Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from whence._version import __version__
from whence.curvature.accumulate import accumulation_dtype
from whence.curvature.blocks import Block, MatrixForm, Param
from whence.curvature.columns import Draws
from whence.curvature.layout import Inspection, Layout
from whence.curvature.options import Options
from whence.curvature.plan import Plan
from whence.curvature.record import FitRecord
from whence.curvature.result import Curvature
from whence.curvature.signals import Description, Signal, Signals
from whence.engine.files import read_tensors, require_folder, write_tensors
from whence.errors import BadFile
from whence.functional import Network, weights_hash
from whence.likelihoods import Likelihood, from_spec
from whence.linalg import spectral as spectra
from whence.linalg.structures import KINDS, InBasis
from whence.posteriors.decompose import decomposed, native_ratio
from whence.posteriors.drawn import DrawnPosterior, State
from whence.posteriors.laplace import Laplace
from whence.posteriors.trials import Tuning
from whence.priors import ByParameter, Relative, resolve_prior
from whence.where.reference import Reference

FORMAT = 2  # 1: without what the layers saw, so without relative priors


def save(posterior: Laplace, path: str | Path) -> None:
    """Write a Laplace posterior: its curvature, decomposition, prior and what it belongs to."""
    require_folder(path)
    tensors: dict[str, Tensor] = {}
    for i, structure in enumerate(posterior.curvature.structures):
        for key, value in structure.tensors().items():
            tensors[f"structure.{i}.{key}"] = value
    prior = posterior.prior.spec()
    tensors |= {f"prior.{name}": value for name, value in posterior.prior.tensors().items()}
    for i, signal in enumerate(posterior.curvature.signals.values()):
        tensors |= {f"signal.{i}.squares": signal.squares, f"signal.{i}.count": signal.count}
    if isinstance(posterior.prior_mean, dict):
        tensors.update({f"prior_mean.{n}": v for n, v in posterior.prior_mean.items()})
    if posterior.curvature.keep is not None:
        tensors["keep"] = posterior.curvature.keep
    if posterior.reference is not None:
        tensors["reference"] = posterior.reference.unexplained
    decompositions = _decompositions(posterior, tensors)
    meta = {
        "format": FORMAT,
        "whence": __version__,
        "torch": torch.__version__,
        "kind": "laplace",
        "weights": posterior.network.hash,
        "names": {n: list(p.shape) for n, p in posterior.network.params.items()},
        "likelihood": posterior.likelihood.spec(),
        "options": asdict(posterior.curvature.options),
        "autocast": None if posterior.network.autocast is None else str(posterior.network.autocast).split(".")[1],
        "record": posterior.curvature.record.to_dict(),
        "blocks": [asdict(b) for b in posterior.blocks],
        "structures": [s.kind for s in posterior.curvature.structures],
        "joint": posterior.curvature.joint,
        "signals": {name: asdict(s.description) for name, s in posterior.curvature.signals.items()},
        "prior": prior,
        "prior_mean": posterior.prior_mean if isinstance(posterior.prior_mean, float) else None,
        "data_scale": posterior.data_scale,
        "damping": posterior.damping,
        "tuning": None if posterior.tuning is None else posterior.tuning.to_dict(),
        "reference": _reference_meta(posterior.reference),
        "decompositions": decompositions,
        "layouts": _layouts(posterior),
    }
    write_tensors(path, tensors, meta)


KINDS_OF_DRAWS = {
    "variational": "whence.posteriors.variational.posterior:Variational",
    "dropout": "whence.posteriors.dropout:Dropout",
    "ensemble": "whence.posteriors.ensembles:Ensemble",
    "laplace_ensemble": "whence.posteriors.ensembles:LaplaceEnsemble",
    "swag": "whence.posteriors.swag:Swag",
    "unstructured": "whence.posteriors.unstructured:Unstructured",
    "hmc": "whence.posteriors.hmc.posterior:Hmc",
}


def save_drawn(posterior: DrawnPosterior, path: str | Path) -> None:
    """Write a posterior that is known by its draws."""
    require_folder(path)
    state = posterior.state()
    networks = [Network(module) for module in posterior.networks()]
    meta = {
        "format": FORMAT,
        "whence": __version__,
        "torch": torch.__version__,
        "kind": posterior.kind,
        "weights": [weights_hash(n.module) for n in networks],
        "names": [{name: list(p.shape) for name, p in n.params.items()} for n in networks],
        "likelihood": posterior.likelihood.spec(),
        "objects": any(n.returns_object for n in networks),
        "state": state.meta,
    }
    write_tensors(path, state.tensors, meta)


def _load_drawn(
    path: str | Path, meta: dict[str, Any], tensors: dict[str, Tensor], models: list[nn.Module], given: Any
) -> DrawnPosterior:
    kind = meta["kind"]
    if kind not in KINDS_OF_DRAWS:
        raise BadFile(f"{path} holds a posterior of kind {kind!r}, which this version of whence does not know.")
    if len(models) != len(meta["names"]):
        raise BadFile(f"{path} belongs to {len(meta['names'])} networks, and {len(models)} were given.")
    networks = [Network.snapshot(model) for model in models]
    for network, names, weights in zip(networks, meta["names"], meta["weights"], strict=True):
        _check_network(path, {"names": names, "weights": weights}, network)
        network.returns_object = bool(meta.get("objects", False))
    module, _, name = KINDS_OF_DRAWS[kind].partition(":")
    cls: type[DrawnPosterior] = getattr(importlib.import_module(module), name)
    likelihood = _likelihood(path, meta, given)
    return cls.restored(State(meta["state"], tensors), [n.module for n in networks], likelihood)


def _likelihood(path: str | Path, meta: dict[str, Any], given: Likelihood | None) -> Likelihood:
    """The one in the file, or the user's own passed again."""
    known = from_spec(meta["likelihood"])
    if known is not None and given is not None and known != given:
        raise BadFile(f"{path} was fitted with {known!r}, not with {given!r}; leave likelihood out.")
    found = known or given
    if found is None:
        raise BadFile(f"{path} was fitted with your own likelihood ({meta['likelihood']['name']}); pass likelihood=….")
    return found


def _decompositions(posterior: Laplace, tensors: dict[str, Tensor]) -> list[list[Any]]:
    """The eigenvectors under the present prior, so that a loaded posterior need not find them again."""
    listed = []
    for key in decomposed(posterior)[1]:
        index, spectral = key[0], posterior._decompositions[key]
        fields = {k: v for k, v in vars(spectral).items() if isinstance(v, Tensor)}
        if isinstance(spectral, spectra.DiagonalSpectral):
            continue
        tensors.update({f"spectral.{index}.{k}": v for k, v in fields.items()})
        listed.append([index, type(spectral).__name__, sorted(fields)])
    return listed


def _layouts(posterior: Laplace) -> list[Any]:
    """Where each call keeps its examples, as plain values."""
    plain = []
    for (rule, weight, bias, nth), layout in posterior.plan.inspection.layouts.items():
        refs = [None if r is None else [r.name, r.start, r.stop, r.rows, r.offset] for r in (weight, bias)]
        plain.append([rule, *refs, nth, layout.kind, layout.dim])
    return plain


def load(path: str | Path, model: nn.Module | Sequence[nn.Module], *, likelihood: Likelihood | None = None) -> Any:
    """Read a posterior back for the network it was made from, or for the list of networks of an ensemble.

    ``likelihood`` passes your own likelihood again where the posterior was fitted with one.
    """
    meta, tensors = _read(path)
    if not isinstance(model, nn.Module) and not (
        isinstance(model, Sequence) and all(isinstance(m, nn.Module) for m in model)
    ):
        raise BadFile(f"{path} is read for a network, or for a list of networks, not for one {type(model).__name__}.")
    try:
        if meta["kind"] != "laplace":
            models = [model] if isinstance(model, nn.Module) else list(model)
            return _load_drawn(path, meta, tensors, models, likelihood)
        if not isinstance(model, nn.Module):
            raise BadFile(f"{path} belongs to one network, and a {type(model).__name__} was given.")
        network = Network.snapshot(model)
        _check_network(path, meta, network)
        return _rebuilt(path, meta, tensors, network, likelihood)
    except (KeyError, TypeError, AttributeError) as error:
        raise BadFile(f"{path} is damaged: {type(error).__name__} {error} in its metadata.") from error


def _rebuilt(
    path: str | Path,
    meta: dict[str, Any],
    tensors: dict[str, Tensor],
    network: Network,
    likelihood: Likelihood | None,
) -> Laplace:
    """The posterior that the file describes."""
    dtype = accumulation_dtype(network.dtype)
    held = torch.device("cpu") if meta["options"].get("offload") else network.device
    for k, v in tensors.items():
        curved = k.startswith(("structure", "spectral"))
        tensors[k] = v.to(held if curved else network.device, dtype if curved and not k.endswith("count") else None)
    network.autocast = getattr(torch, meta["autocast"]) if meta.get("autocast") else None
    found = _likelihood(path, meta, likelihood)
    blocks = [_block(b) for b in meta["blocks"]]
    network.select([p.name for b in blocks for p in b.params])
    options = {**meta["options"], "draws": Draws(**meta["options"]["draws"])}
    record = FitRecord(**{**meta["record"], "output_shape": tuple(meta["record"]["output_shape"])})
    structures = []
    for i, kind in enumerate(meta["structures"]):
        prefix = f"structure.{i}."
        structures.append(KINDS[kind](**{k[len(prefix) :]: v for k, v in tensors.items() if k.startswith(prefix)}))
    curvature = Curvature(
        blocks,
        structures,
        record,
        Options(**options),
        meta["joint"],
        tensors.get("keep"),
        signals=_signals(meta.get("signals", {}), tensors),
    )
    prior = resolve_prior(_prior(meta["prior"], tensors, blocks), blocks, network, curvature.signals)
    mean = meta["prior_mean"]
    if mean is None:
        mean = {k[len("prior_mean.") :]: v for k, v in tensors.items() if k.startswith("prior_mean.")}
    posterior = Laplace(
        plan=Plan(network, blocks, _inspection(meta["layouts"])),
        curvature=curvature,
        likelihood=found,
        prior=prior,
        prior_mean=mean,
        data_scale=meta["data_scale"],
        damping=meta["damping"],
        tuning=None if meta["tuning"] is None else Tuning.from_dict(meta["tuning"]),
        reference=_reference(meta, tensors, blocks, network),
    )
    for index, structure in enumerate(structures):
        if isinstance(structure, InBasis):
            structures[index] = replace(structure, ratio=native_ratio(posterior, index))
    for index, kind, fields in meta["decompositions"]:
        values = {k: tensors[f"spectral.{index}.{k}"] for k in fields}
        ratio = native_ratio(posterior, index)
        key = (index, None if ratio is None else ratio.key)
        posterior._decompositions[key] = getattr(spectra, kind)(**values, ratio=ratio)
    return posterior


def _prior(spec: dict[str, Any], tensors: dict[str, Tensor], blocks: list[Block]) -> Any:
    """What was given as the prior: see ``PriorPrecision.spec``."""
    if isinstance(spec.get("relative"), dict):
        return Relative(spec["relative"], spec["floor"])
    shapes = {p.name: p.shape for b in blocks for p in b.params}
    tensor = {n: tensors[f"prior.{n}"].double().cpu().reshape(shapes[n]) for n, v in spec.items() if v is None}
    return ByParameter({n: tensor.get(n, v) for n, v in spec.items()})


def _signals(descriptions: dict[str, Any], tensors: dict[str, Tensor]) -> Signals:
    found = {}
    for i, (name, plain) in enumerate(descriptions.items()):
        description = Description(plain["kind"], tuple(plain["external"]), plain["head"], plain.get("offset", 0.0))
        found[name] = Signal(description, tensors[f"signal.{i}.squares"], tensors[f"signal.{i}.count"])
    return found


def _reference(
    meta: dict[str, Any], tensors: dict[str, Tensor], blocks: list[Block], network: Network
) -> Reference | None:
    if meta.get("reference") is None:
        return None
    plain: dict[str, Any] = {k: tuple(v) if isinstance(v, list) else v for k, v in meta["reference"].items()}
    names = tuple(b.name for b in blocks)
    return Reference(names=names, unexplained=tensors["reference"].double().cpu(), network=network.hash, **plain)


def _reference_meta(reference: Reference | None) -> dict[str, Any] | None:
    """Its plain fields; the numbers are a tensor, names and network those of the posterior."""
    if reference is None:
        return None
    return {k: v for k, v in vars(reference).items() if k not in ("names", "unexplained", "network")}


def _read(path: str | Path) -> tuple[dict[str, Any], dict[str, Tensor]]:
    tensors, meta = read_tensors(path)
    if meta["format"] > FORMAT:
        raise BadFile(
            f"{path} was written by whence {meta['whence']}, whose format {meta['format']} is newer than {FORMAT}."
        )
    return meta, tensors


def _check_network(path: str | Path, meta: dict[str, Any], network: Network) -> None:
    names = {n: list(p.shape) for n, p in network.params.items()}
    if names != meta["names"]:
        wrong = [n for n in {**names, **meta["names"]} if names.get(n) != meta["names"].get(n)]
        here, there = names.get(wrong[0], "missing"), meta["names"].get(wrong[0], "missing")
        raise BadFile(f"{path} belongs to another network: {wrong[0]!r} is {here} here and {there} in the file.")
    if network.hash != meta["weights"]:
        raise BadFile(
            f"{path} belongs to a network with the same shapes but other weights. Load the weights it was fitted with "
            "into the model first."
        )


def _block(values: dict[str, Any]) -> Block:
    form = None if values["form"] is None else MatrixForm(**values["form"])
    params = tuple(Param(p["name"], tuple(p["shape"])) for p in values["params"])
    return replace(
        Block(values["name"], values["kind"], params, values["source"], form),
        **{k: values[k] for k in ("structure", "reason")},
        **{k: values.get(k, False) for k in ("thin_outputs", "thin_inputs")},
    )


def _inspection(layouts: list[Any]) -> Inspection:
    from whence.curvature.capture import Ref

    found = Inspection()
    for rule, weight, bias, nth, kind, dim in layouts:
        key = (rule, None if weight is None else Ref(*weight), None if bias is None else Ref(*bias), nth)
        found.layouts[key] = Layout(kind, dim)
    return found
