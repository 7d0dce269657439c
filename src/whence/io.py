"""Saving and loading posteriors as safetensors files with JSON metadata. Nothing is unpickled."""

from __future__ import annotations

import importlib
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from whence._version import __version__
from whence.engine.files import read_tensors, require_folder, write_tensors
from whence.errors import BadFile, WhenceError
from whence.functional import Network, weights_hash
from whence.likelihoods import Likelihood, from_spec
from whence.posteriors.base import Posterior
from whence.posteriors.drawn import DrawnPosterior, State
from whence.posteriors.laplace.file import from_plain, to_plain
from whence.posteriors.laplace.posterior import Laplace

FORMAT = 2  # format 1 has no input statistics, so no relative priors
KINDS_OF_DRAWS = {
    "variational": "whence.posteriors.variational.posterior:Variational",
    "dropout": "whence.posteriors.dropout:Dropout",
    "ensemble": "whence.posteriors.ensembles:Ensemble",
    "laplace_ensemble": "whence.posteriors.ensembles:LaplaceEnsemble",
    "swag": "whence.posteriors.swag:Swag",
    "unstructured": "whence.posteriors.unstructured:Unstructured",
    "hmc": "whence.posteriors.hmc.posterior:Hmc",
    "function_space": "whence.posteriors.function_space:FunctionSpace",
}


def save(posterior: Laplace, path: str | Path) -> None:
    """Write a Laplace posterior: its curvature, decomposition, prior, and the identity of its network."""
    require_folder(path)
    tensors, meta = to_plain(posterior)
    write_tensors(path, tensors, {**_head(posterior), **_belongs_to(posterior.network), **meta})


def save_drawn(posterior: DrawnPosterior, path: str | Path) -> None:
    """Write a posterior that is represented by draws."""
    require_folder(path)
    state = posterior.state()
    networks = [Network(module) for module in posterior.networks()]
    belongs = [_belongs_to(network) for network in networks]
    meta = {
        **_head(posterior),
        "weights": [weights_hash(n.module) for n in networks],
        "names": [each["names"] for each in belongs],
        "objects": any(n.returns_object for n in networks),
        "state": state.meta,
    }
    write_tensors(path, state.tensors, meta)


def _head(posterior: Posterior) -> dict[str, Any]:
    return {
        "format": FORMAT,
        "whence": __version__,
        "torch": torch.__version__,
        "kind": posterior.kind,
        "likelihood": posterior.likelihood.spec(),
    }


def _belongs_to(network: Network) -> dict[str, Any]:
    return {"weights": network.hash, "names": {n: list(p.shape) for n, p in network.params.items()}}


def _load_drawn(
    path: str | Path, meta: dict[str, Any], tensors: dict[str, Tensor], models: list[nn.Module], given: Any
) -> DrawnPosterior:
    kind = meta["kind"]
    if kind not in KINDS_OF_DRAWS:
        raise BadFile(f"{path} contains a posterior of kind {kind!r}, which this version of whence does not support.")
    if len(models) != len(meta["names"]):
        raise BadFile(f"{path} belongs to {len(meta['names'])} networks, but {len(models)} were given.")
    networks = [Network.snapshot(model) for model in models]
    for network, names, weights in zip(networks, meta["names"], meta["weights"], strict=True):
        _check_network(path, {"names": names, "weights": weights}, network)
        network.returns_object = bool(meta.get("objects", False))
    module, _, name = KINDS_OF_DRAWS[kind].partition(":")
    cls: type[DrawnPosterior] = getattr(importlib.import_module(module), name)
    likelihood = _likelihood(path, meta, given)
    return cls.restored(State(meta["state"], tensors), [n.module for n in networks], likelihood)


def _likelihood(path: str | Path, meta: dict[str, Any], given: Likelihood | None) -> Likelihood:
    """The likelihood in the file, or the user's own, passed again."""
    known = from_spec(meta["likelihood"])
    if known is not None and given is not None and known != given:
        raise BadFile(f"{path} was fitted with {known!r}, not with {given!r}; omit likelihood.")
    found = known or given
    if found is None:
        raise BadFile(f"{path} was fitted with your own likelihood ({meta['likelihood']['name']}); pass likelihood=….")
    return found


def load(path: str | Path, model: nn.Module | Sequence[nn.Module], *, likelihood: Likelihood | None = None) -> Any:
    """Read a posterior back for the network it was made from, or for the list of networks of an ensemble.

    ``likelihood`` passes your own likelihood again if the posterior was fitted with one.
    """
    if isinstance(path, nn.Module):
        raise BadFile("the file comes first, then the network: load(path, model).")
    meta, tensors = _read(path)
    if not isinstance(model, nn.Module) and not (
        isinstance(model, Sequence) and all(isinstance(m, nn.Module) for m in model)
    ):
        raise BadFile(f"{path} needs a network or a list of networks, not a {type(model).__name__}.")
    try:
        if meta["kind"] != "laplace":
            models = [model] if isinstance(model, nn.Module) else list(model)
            return _load_drawn(path, meta, tensors, models, likelihood)
        if not isinstance(model, nn.Module):
            raise BadFile(f"{path} belongs to one network, but a {type(model).__name__} was given.")
        network = Network.snapshot(model)
        _check_network(path, meta, network)
        return from_plain(tensors, meta, network, _likelihood(path, meta, likelihood))
    except WhenceError:
        raise
    except (LookupError, TypeError, AttributeError, ValueError, RuntimeError, ArithmeticError, AssertionError) as error:
        raise BadFile(f"{path} is damaged: {type(error).__name__} {error} in its metadata.") from error


def to_bytes(posterior: Posterior) -> bytes:
    """The file of a posterior, for pickles."""
    with tempfile.TemporaryDirectory(prefix="whence-") as folder:
        path = Path(folder) / "posterior.safetensors"
        posterior.save(path)
        return path.read_bytes()


def from_bytes(content: bytes, models: list[nn.Module], likelihood: Likelihood) -> Any:
    """The inverse of :func:`to_bytes`; ``likelihood`` is used if the file cannot contain it."""
    with tempfile.TemporaryDirectory(prefix="whence-") as folder:
        path = Path(folder) / "posterior.safetensors"
        path.write_bytes(content)
        meta, _ = _read(path)
        users = None if from_spec(meta["likelihood"]) is not None else likelihood
        return load(path, models[0] if meta["kind"] == "laplace" else models, likelihood=users)


def _read(path: str | Path) -> tuple[dict[str, Any], dict[str, Tensor]]:
    tensors, meta = read_tensors(path)
    if not isinstance(meta.get("format"), int) or not isinstance(meta.get("kind"), str):
        raise BadFile(f"{path} is damaged, or no posterior: its metadata names no format and kind.")
    if meta["format"] > FORMAT:
        raise BadFile(
            f"{path} was written by whence {meta.get('whence')}, whose format {meta['format']} is newer than {FORMAT}."
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
