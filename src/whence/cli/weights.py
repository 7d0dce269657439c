"""Trained weights from a file into a network. Nothing but tensors is unpickled."""

from __future__ import annotations

import pickle
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor, nn

from whence.errors import BadFile

NESTS = ("state_dict", "model_state_dict", "model", "network")
PREFIXES = ("module.", "_orig_mod.", "model.", "network.")  # of DataParallel, torch.compile, Lightning and such


def load_weights(model: nn.Module, path: Path) -> None:
    """Copy a state dict into the network, if it fits exactly."""
    if not path.is_file():
        raise BadFile(f"--weights: there is no file {path}.")
    state = _state(path, _from_safetensors(path) if path.suffix == ".safetensors" else _from_torch(path))
    own = model.state_dict()
    state = _without_prefix(state, own)
    _fits(path, state, own)
    model.load_state_dict(state)


def _from_safetensors(path: Path) -> Any:
    try:
        with safe_open(str(path), framework="pt") as file:
            header = (file.metadata() or {}).get("whence", "")
            if header and '"kind": "pruned"' not in header:
                raise BadFile(f"--weights: {path} is a posterior, not a network's weights; pass it with --posterior.")
            return {key: file.get_tensor(key) for key in file.keys()}  # noqa: SIM118
    except (SafetensorError, OSError) as error:
        raise BadFile(f"--weights: {path} is no readable safetensors file, or is truncated ({error}).") from error


def _from_torch(path: Path) -> Any:
    try:
        return torch.load(path, map_location="cpu", weights_only=True)
    except pickle.UnpicklingError as error:
        raise BadFile(
            f"--weights: {path} holds more than tensors, or is no file of torch.save; "
            "expected the file of torch.save(model.state_dict(), …)."
        ) from error
    except (RuntimeError, OSError, EOFError, ValueError, KeyError) as error:
        first = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise BadFile(f"--weights: {path} is no readable file of torch.save ({first}).") from error


def _state(path: Path, loaded: Any) -> dict[str, Tensor]:
    """The state dict, also where it lies in a checkpoint."""
    for key in NESTS:
        if isinstance(loaded, Mapping) and isinstance(loaded.get(key), Mapping):
            loaded = loaded[key]
            break
    if not isinstance(loaded, Mapping) or not any(isinstance(v, Tensor) for v in loaded.values()):
        came = f"a mapping with {', '.join(map(str, list(loaded)[:4]))}" if isinstance(loaded, Mapping) else ""
        raise BadFile(
            f"--weights: expected a state dict (names of parameters to tensors) in {path}, "
            f"but it holds {came or f'a {type(loaded).__name__}'}."
        )
    return {str(k): v for k, v in loaded.items() if isinstance(v, Tensor)}


def _without_prefix(state: dict[str, Tensor], own: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Without the prefix that a wrapper gave every name."""
    for prefix in PREFIXES:
        if not state.keys() & own.keys() and all(k.startswith(prefix) for k in state):
            return {k.removeprefix(prefix): v for k, v in state.items()}
    return state


def _fits(path: Path, state: dict[str, Tensor], own: Mapping[str, Tensor]) -> None:
    missing = [k for k in own if k not in state]
    extra = [k for k in state if k not in own]
    shapes = [
        f"{k} is {list(state[k].shape)} in the file and {list(own[k].shape)} in the network"
        for k in own
        if k in state and state[k].shape != own[k].shape
    ]
    parts = [
        f"missing from the file: {_few(missing)}" if missing else "",
        f"not in the network: {_few(extra)}" if extra else "",
        f"other shapes: {_few(shapes, '; ')}" if shapes else "",
    ]
    if any(parts):
        raise BadFile(f"--weights: {path} does not fit the network: {'; '.join(p for p in parts if p)}.")


def _few(names: list[str], between: str = ", ") -> str:
    return between.join(names[:3]) + (f" and {len(names) - 3} more" if len(names) > 3 else "")
