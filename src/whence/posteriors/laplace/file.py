"""Conversion of a Laplace posterior to tensors and plain values for its file, and back."""

from __future__ import annotations

import operator
from dataclasses import asdict, replace
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from whence.curvature.jvp import shifted
from whence.curvature.options import FitOptions
from whence.curvature.result import Curvature, FitRecord
from whence.curvature.signals import Signal, Signals
from whence.functional import Network
from whence.likelihoods import Likelihood
from whence.linalg import spectral as spectra
from whence.linalg.dense import accumulation_dtype
from whence.linalg.gaussian import Damping
from whence.linalg.structures import KINDS, BlockStructure, InBasis
from whence.posteriors.laplace.decompose import native_ratio, spectra_of
from whence.posteriors.laplace.description import Tuning
from whence.posteriors.laplace.posterior import Laplace
from whence.priors import ByParameter, PriorPrecision, Relative, resolve_prior
from whence.priors.precision import positive
from whence.recording.blocks import Block, GradientSource, MatrixForm, Param
from whence.recording.layout import Inspection, Layout, Place
from whence.recording.plan import Plan
from whence.recording.recorder import Ref
from whence.recording.roles import Description, Role

if TYPE_CHECKING:
    from whence.where.novelty import Reference

REFERENCE = {"unexplained": "reference", "entropy": "reference.entropy"}  # fields that are tensors, by name in a file
Tensors = dict[str, Tensor]
Meta = dict[str, Any]


def to_plain(posterior: Laplace) -> tuple[Tensors, Meta]:
    """Its curvature, decomposition, prior, and how it was fitted and tuned."""
    curvature, prior, reference = posterior.curvature, posterior.prior, posterior.reference
    mean = posterior.prior_mean
    tensors: Tensors = {f"prior.{name}": value for name, value in prior.tensors().items()}
    for i, structure in enumerate(curvature.structures):
        tensors |= {f"structure.{i}.{key}": value for key, value in structure.tensors().items()}
    for i, signal in enumerate(curvature.signals.values()):
        tensors |= {f"signal.{i}.squares": signal.squares, f"signal.{i}.count": signal.count}
    if isinstance(mean, dict):
        tensors |= {f"prior_mean.{n}": v for n, v in mean.items()}
    tensors |= {f"shift.{n}": v for n, v in (posterior.network.shift or {}).items()}
    if curvature.keep is not None:
        tensors["keep"] = curvature.keep
    if reference is not None:
        tensors |= {n: value for k, n in REFERENCE.items() if (value := getattr(reference, k)) is not None}
    decompositions = []
    for i, spectral in enumerate(posterior.spectra):
        if not isinstance(spectral, spectra.DiagonalSpectral):  # a diagonal is cheap to decompose again
            fields = {k: v for k, v in vars(spectral).items() if isinstance(v, Tensor)}
            tensors |= {f"spectral.{i}.{k}": v for k, v in fields.items()}
            decompositions.append([i, type(spectral).__name__, sorted(fields)])
    autocast = posterior.network.autocast
    meta = {
        "options": curvature.options.to_dict(),
        "autocast": None if autocast is None else str(autocast).split(".")[1],
        "record": curvature.record.to_dict(),
        "blocks": [asdict(b) for b in posterior.blocks],
        "structures": [s.kind for s in curvature.structures],
        "joint": curvature.joint,
        "signals": {name: asdict(s.description) for name, s in curvature.signals.items()},
        "prior": prior.spec(),
        "prior_mean": mean if isinstance(mean, float) else None,
        "data_scale": posterior.data_scale,
        "damping": posterior.damping,
        "tuning": None if posterior.tuning is None else posterior.tuning.to_dict(),
        "reference": None if reference is None else _plain_reference(reference),
        "decompositions": decompositions,
        "layouts": _plain_layouts(posterior.plan),
    }
    return tensors, meta


def from_plain(tensors: Tensors, meta: Meta, network: Network, likelihood: Likelihood) -> Laplace:
    """The posterior that a file describes, for its network."""
    dtype = accumulation_dtype(network.dtype)
    held = torch.device("cpu") if meta["options"].get("offload") else network.device
    for k, v in tensors.items():
        curved = k.startswith(("structure", "spectral"))
        tensors[k] = v.to(held if curved else network.device, dtype if curved and not k.endswith("count") else None)
    network.autocast = getattr(torch, meta["autocast"]) if meta.get("autocast") else None
    blocks = tuple(_block(b) for b in meta["blocks"])
    network.select([p.name for b in blocks for p in b.params])
    structures = (KINDS[kind](**_below(f"structure.{i}.", tensors)) for i, kind in enumerate(meta["structures"]))
    curvature = Curvature(
        blocks,
        tuple(structures),
        FitRecord(**{**meta["record"], "output_shape": tuple(meta["record"]["output_shape"])}),
        FitOptions.from_dict(meta["options"]),
        meta["joint"],
        tensors.get("keep"),
        signals=_signals(meta.get("signals", {}), tensors),
    )
    prior = resolve_prior(_prior(meta["prior"], tensors, blocks), blocks, network, curvature.signals)
    curvature = _relative_to(prior, curvature)
    network = shifted(network, _below("shift.", tensors) or None)
    return Laplace(
        plan=Plan(network, blocks, _inspection(meta["layouts"])),
        curvature=curvature,
        likelihood=likelihood,
        prior=prior,
        spectra=_spectra(meta["decompositions"], tensors, curvature, prior, network.device),
        prior_mean=_below("prior_mean.", tensors) if meta["prior_mean"] is None else meta["prior_mean"],
        data_scale=positive(meta["data_scale"], "(data scale)"),
        damping=Damping(meta["damping"]),
        tuning=None if meta["tuning"] is None else Tuning.from_dict(meta["tuning"]),
        reference=_reference(meta, tensors, blocks, network),
    )


def _below(prefix: str, tensors: Tensors) -> Tensors:
    return {k.removeprefix(prefix): v for k, v in tensors.items() if k.startswith(prefix)}


def _relative_to(prior: PriorPrecision, curvature: Curvature) -> Curvature:
    """Restore the prior's shape in the structures that were computed relative to it."""
    structures = (
        replace(s, ratio=native_ratio(curvature, prior, i)) if isinstance(s, InBasis) else s
        for i, s in enumerate(curvature.structures)
    )
    return replace(curvature, structures=tuple(structures))


def _spectra(
    listed: list[Any], tensors: Tensors, curvature: Curvature, prior: PriorPrecision, device: torch.device
) -> tuple[spectra.Spectral, ...]:
    found: dict[int, spectra.Spectral] = {}
    for index, kind, fields in listed:
        values = {k: tensors[f"spectral.{index}.{k}"] for k in fields}
        found[index] = getattr(spectra, kind)(**values, ratio=native_ratio(curvature, prior, index))
    return spectra_of(curvature, prior, device, found)


def _prior(spec: dict[str, Any], tensors: Tensors, blocks: tuple[Block, ...]) -> Any:
    """The value that was given as the prior: see ``PriorPrecision.spec``."""
    if isinstance(spec.get("relative"), dict):
        return Relative(spec["relative"], spec["floor"])
    shapes = {p.name: p.shape for b in blocks for p in b.params}
    tensor = {n: tensors[f"prior.{n}"].double().cpu().reshape(shapes[n]) for n, v in spec.items() if v is None}
    return ByParameter({n: tensor[n] if n in tensor else float(v) for n, v in spec.items()})


def _signals(descriptions: Meta, tensors: Tensors) -> Signals:
    found = {}
    for i, (name, plain) in enumerate(descriptions.items()):
        role, external = Role(plain["kind"]), tuple(plain["external"])
        description = Description(role, external, plain["head"], plain.get("offset", 0.0))
        found[name] = Signal(description, tensors[f"signal.{i}.squares"], tensors[f"signal.{i}.count"])
    return found


def _plain_reference(reference: Reference) -> Meta:
    """Its plain fields; the values are saved as a tensor, names and network belong to the posterior."""
    return {k: v for k, v in vars(reference).items() if k not in ("names", "network", *REFERENCE)}


def _reference(meta: Meta, tensors: Tensors, blocks: tuple[Block, ...], network: Network) -> Reference | None:
    from whence.where.novelty import Reference

    if meta.get("reference") is None:
        return None
    plain: Meta = {k: tuple(v) if isinstance(v, list) else v for k, v in meta["reference"].items()}
    names = tuple(b.name for b in blocks)
    kept: Meta = {k: tensors[name].double().cpu() for k, name in REFERENCE.items() if name in tensors}
    return Reference(names=names, network=network.hash, **kept, **plain)


def _block(values: Meta) -> Block:
    form = None if values["form"] is None else MatrixForm(**values["form"])
    params = tuple(Param(p["name"], tuple(p["shape"])) for p in values["params"])
    return Block(
        values["name"],
        values["kind"],
        params,
        GradientSource(values["source"]),
        form,
        BlockStructure(values["structure"]),
        values["reason"],
        values.get("thin_outputs", False),
        values.get("thin_inputs", False),
    )


def _plain_layouts(plan: Plan) -> list[Any]:
    """The example dimension of each call, as plain values."""
    listed = []
    for (rule, weight, bias, nth), layout in plan.layouts.items():
        refs = [None if r is None else [r.name, r.start, r.stop, r.rows, r.offset] for r in (weight, bias)]
        listed.append([rule, *refs, nth, layout.place.value, layout.dim])
    return listed


def _inspection(layouts: list[Any]) -> Inspection:
    found = Inspection()
    for rule, weight, bias, nth, place, dim in layouts:
        key = (rule, None if weight is None else Ref(*weight), None if bias is None else Ref(*bias), nth)
        found.layouts[key] = Layout(Place(place), operator.index(dim))
    return found
