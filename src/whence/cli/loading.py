"""The user's network, weights and data: loaded by reference, and checked before the long work starts."""

from __future__ import annotations

import json
import pickle
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset

from whence.auditing.data import Examples, check_targets, read_examples, try_out
from whence.cli import references
from whence.cli.output import Output
from whence.engine import batches
from whence.errors import BadData, BadFile, BadOption, WhenceError
from whence.functional import Network
from whence.likelihoods import Categorical, Likelihood

EXPECTED = "a DataLoader, a Dataset, a pair of tensors or a list of (inputs, targets) batches"
FIRST = 256  # examples that are checked
BARE = "a tensor of inputs, a DataLoader, a Dataset, a pair of tensors or a list of batches"
GROUPS = "an array or list with one value for each test input, or a mapping of names to such"
NESTS = ("state_dict", "model_state_dict", "model", "network")
PREFIXES = ("module.", "_orig_mod.", "model.", "network.")  # of DataParallel, torch.compile, Lightning and such


# Networks


def load_network(reference: str, weights: Path | None, output: Output, trained: bool = False) -> nn.Module:
    """The network with its weights; prints a note if it comes from a class and is therefore untrained."""
    model = references.model(reference)
    if weights is not None:
        load_weights(model, weights)
    elif not trained and references.is_class(reference):
        output.note(f"{reference} is a class, so its network is untrained; pass trained weights with --weights FILE.")
    return model


def load_weights(model: nn.Module, path: Path) -> None:
    """Copy a state dict into the network, if it matches exactly. Only tensors are unpickled."""
    state = read_state(path)
    own = model.state_dict()
    for prefix in PREFIXES:
        if not state.keys() & own.keys() and all(key.startswith(prefix) for key in state):
            state = {key.removeprefix(prefix): value for key, value in state.items()}
            break
    _check_fit(path, state, own)
    model.load_state_dict(state)


def read_state(path: Path) -> dict[str, Tensor]:
    """The state dict in a file."""
    if not path.is_file():
        raise BadFile(f"--weights: there is no file {path}.")
    return _state(path, _from_safetensors(path) if path.suffix == ".safetensors" else _from_torch(path))


def _from_safetensors(path: Path) -> Any:
    try:
        with safe_open(str(path), framework="pt") as file:
            header = (file.metadata() or {}).get("whence", "")
            if header and '"kind": "pruned"' not in header:
                raise BadFile(f"--weights: {path} is a posterior, not a network's weights; pass it with --posterior.")
            return {key: file.get_tensor(key) for key in file.keys()}  # noqa: SIM118
    except (SafetensorError, OSError) as error:
        raise BadFile(f"--weights: {path} is not a readable safetensors file, or is truncated ({error}).") from error


def _from_torch(path: Path) -> Any:
    try:
        return torch.load(path, map_location="cpu", weights_only=True)
    except pickle.UnpicklingError as error:
        raise BadFile(
            f"--weights: {path} contains more than tensors, or is not a file of torch.save; "
            "expected the file of torch.save(model.state_dict(), …)."
        ) from error
    except (RuntimeError, OSError, EOFError, ValueError, KeyError) as error:
        first = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise BadFile(f"--weights: {path} is not a readable file of torch.save ({first}).") from error


def _state(path: Path, loaded: Any) -> dict[str, Tensor]:
    """The state dict, also from inside a checkpoint."""
    for key in NESTS:
        if isinstance(loaded, Mapping) and isinstance(loaded.get(key), Mapping):
            loaded = loaded[key]
            break
    if not isinstance(loaded, Mapping) or not any(isinstance(v, Tensor) for v in loaded.values()):
        came = f"a mapping with {', '.join(map(str, list(loaded)[:4]))}" if isinstance(loaded, Mapping) else ""
        raise BadFile(
            f"--weights: expected a state dict (names of parameters to tensors) in {path}, "
            f"but it contains {came or f'a {type(loaded).__name__}'}."
        )
    return {str(k): v for k, v in loaded.items() if isinstance(v, Tensor)}


def _check_fit(path: Path, state: dict[str, Tensor], own: Mapping[str, Tensor]) -> None:
    shapes = [
        f"{k} is {list(state[k].shape)} in the file and {list(own[k].shape)} in the network"
        for k in own
        if k in state and state[k].shape != own[k].shape
    ]
    faults = {
        "missing from the file": ", ".join(_few([k for k in own if k not in state])),
        "not in the network": ", ".join(_few([k for k in state if k not in own])),
        "different shapes": "; ".join(_few(shapes)),
    }
    words = "; ".join(f"{what}: {which}" for what, which in faults.items() if which)
    if words:
        raise BadFile(f"--weights: {path} does not match the network: {words}.")


def _few(names: list[str]) -> list[str]:
    return names if len(names) <= 3 else [*names[:2], f"{names[2]} and {len(names) - 3} more"]


# Data


@dataclass(frozen=True)
class NamedData:
    """Data, with its option and reference for messages."""

    name: str  # "train"
    reference: str
    source: Any

    def first_examples(self) -> Examples:
        """Read a few examples; only out-of-distribution data may lack targets."""
        try:
            found = read_examples(self.source, str(self), FIRST, targets=self.name != "ood")
        except WhenceError as error:
            raise BadData(f"{self}: {str(error).removeprefix(f'{self}: ')}") from error
        except Exception as error:
            raise BadData(f"{self}: reading its first batch failed: {type(error).__name__}: {error}") from error
        if found is None or (found.targets is None and self.name != "ood"):
            raise BadData(f"{self}: expected batches (inputs, targets), but there are no targets.")
        return found

    def __str__(self) -> str:
        return f"--{self.name} {self.reference}"


def load_data(given: Mapping[str, str | None], batch_size: int) -> list[NamedData]:
    """The sets that were given, by the names of their options."""
    return [_load_data(name, reference, batch_size) for name, reference in given.items() if reference is not None]


def _load_data(name: str, reference: str, batch_size: int) -> NamedData:
    bare = name == "ood"

    def wanted(value: Any) -> bool:
        if isinstance(value, Tensor):
            return bare
        loader = isinstance(value, (Dataset, Iterable)) and not isinstance(value, (str, bytes, type))
        return loader and not isinstance(value, nn.Module)

    source = references.made(reference, f"--{name}", wanted, BARE if bare else EXPECTED)
    if isinstance(source, Dataset):
        source = DataLoader(source, batch_size=batch_size)
    data = NamedData(name, reference, batches.from_numpy(source))
    if not isinstance(source, Tensor) and not batches.is_pair(data.source) and iter(source) is source:
        raise BadData(
            f"{data}: expected data that can be read again, but {references.kind(source)} can be read only once; "
            "return a DataLoader, a list of batches or a pair of tensors."
        )
    return data


def load_groups(given: list[str] | None) -> dict[str, Any] | None:
    """Groupings by name: arrays and mappings by reference, columns by index or name."""
    found: dict[str, Any] = {}
    for word in given or ():
        if ":" not in word:
            found[f"column {word}" if word.isdecimal() else word] = int(word) if word.isdecimal() else word
            continue
        value = references.made(word, "--groups", _are_groups, GROUPS)
        mapping = isinstance(value, Mapping) or hasattr(value, "columns")
        found |= dict(value.items()) if mapping else {word.rpartition(":")[2]: value}
    return found or None


def _are_groups(value: Any) -> bool:
    """Whether a value may be an array of groups, or a mapping of them."""
    return isinstance(value, Iterable) and not isinstance(value, (str, bytes, type, nn.Module))


TOKENS = "a tokenizer with convert_ids_to_tokens, a list of strings by id, or a function from a list of ids to strings"


def load_tokens(given: str | None) -> Any:
    """How ids of tokens become strings: a reference, or a vocabulary file."""
    if given is None:
        return None
    if ":" not in given:
        return _vocabulary(Path(given))
    found = references.resolve(given, "--tokens")
    if callable(found) and not _are_tokens(found) and not isinstance(found, type) and references.required(found):
        return found  # a function of ids
    return references.made(given, "--tokens", _are_tokens, TOKENS)


def _are_tokens(value: Any) -> bool:
    known = hasattr(value, "convert_ids_to_tokens") or isinstance(value, (list, tuple, dict))
    return known and not isinstance(value, type)


def _vocabulary(path: Path) -> list[str]:
    """One token in each line, or JSON: a list, or an object from tokens to ids as in vocab.json."""
    try:
        text = path.read_text(encoding="utf-8")
        found = json.loads(text) if path.suffix == ".json" else text.splitlines()
    except (OSError, ValueError) as error:
        raise BadOption(f"--tokens {path}: expected a vocabulary file or {TOKENS} ({error}).") from error
    if isinstance(found, dict):
        by_id = {number: token for token, number in found.items()}
        if not all(isinstance(number, int) for number in by_id):
            raise BadOption(f"--tokens {path}: the object must lead from tokens to whole numbers.")
        return [str(by_id.get(i, f"<{i}>")) for i in range(max(by_id, default=-1) + 1)]
    return [str(token) for token in found]


# Data and network


def check_data(
    model: nn.Module, sets: list[NamedData], likelihood: Likelihood, device: str | None, classes: list[str] | None
) -> None:
    """Run the first examples of each set through the network, and count the names of the classes.

    All sets must have inputs that the network accepts, with outputs of the same shape as the first set's.
    """
    network = Network.snapshot(model)
    network = network if device is None else network.to(device)
    first: tuple[NamedData, str, tuple[int, ...]] | None = None  # with the shapes of an input and of an output
    for data in sets:
        examples = data.first_examples()
        shapes = ", ".join(str(list(t.shape[1:])) for t in batches.tensors_in(examples.inputs))
        of_first = f"of shape {first[1]} each" if first else ""
        outputs = tuple(try_out(network, examples.inputs, str(data), of_first).shape[1:])
        if first is not None and outputs != first[2]:
            raise BadData(
                f"{data}: expected inputs of shape {first[1]} as from --{first[0].name}, but got {shapes}, for which "
                f"the network returns outputs of shape {list(outputs)} instead of {list(first[2])}."
            )
        check_targets(network, likelihood, examples)
        first = first or (data, shapes, outputs)
    number = first[2][0] if first and first[2] else None
    if classes is not None and isinstance(likelihood, Categorical) and number is not None and len(classes) != number:
        raise BadData(
            f"--classes: expected {number} names, one for each output of the network, but got {len(classes)}."
        )
