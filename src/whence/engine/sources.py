"""What users pass as data: tensors, arrays, data frames, data sets and lists of examples.

Everything becomes bare inputs, one (inputs, targets) pair of tensors, or a loader of batches.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from numbers import Number
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset, IterableDataset, TensorDataset

from whence.errors import BadData

OF_A_DATASET = 128  # batch size for a data set without a loader
LABELS = ("labels", "label", "label_ids", "targets", "target")  # names of the targets in a mapping


def as_source(value: Any, pairs: bool = True, takes: Sequence[str] | None = None, role: str = "data") -> Any:
    """Data as tensors or a loader; what is neither, nor can be turned into either, is returned unchanged.

    ``pairs``: data of inputs and targets that are in memory become a pair; otherwise their inputs alone, since a pair
    would be a tuple of inputs. ``takes`` names the arguments of the network, to choose columns of a data set by.
    ``role``: what they are for, to choose a loader of a data module by.
    """
    value = opened(value, role)
    if isinstance(value, TensorDataset) and len(value.tensors) == 2:
        return tuple(value.tensors) if pairs else value.tensors[0]
    if is_columns(value):
        return OfDataset(Columns(value, takes), batch_size=OF_A_DATASET, collate_fn=_whole)
    if isinstance(value, Dataset) and not isinstance(value, IterableDataset):
        return OfDataset(value, batch_size=OF_A_DATASET)
    value = from_numpy(value)
    if pairs and isinstance(value, (tuple, list)) and len(value) == 2 and _is_input(value[0]):
        inputs, targets = value
        if isinstance(targets, Number):
            raise BadData(f"the data are one example with the target {targets}; pass a batch: (x[None], y[None]).")
        return (inputs, torch.as_tensor(targets)) if _are_numbers(targets) else value
    if is_examples(value):
        inputs, targets = stacked(value)
        return (inputs, targets) if pairs else inputs
    return value


class OfDataset(DataLoader[Any]):
    """The batches of a data set that came without a loader; trainings shuffle it."""


# Arrays and data frames


def from_numpy(value: Any) -> Any:
    """NumPy arrays and data frames as tensors, in a nest of tuples, lists and mappings."""
    if _is_array(value):
        return _tensor(value)
    if isinstance(value, (tuple, list)) and any(_is_array(item) for item in value):
        return type(value)(from_numpy(item) for item in value)
    if isinstance(value, Mapping) and any(_is_array(item) for item in value.values()):
        return {key: from_numpy(item) for key, item in value.items()}
    return value


def _is_array(value: Any) -> bool:
    return isinstance(value, (np.ndarray, np.generic)) or hasattr(value, "to_numpy")


def _tensor(value: Any) -> Tensor:
    kind = type(value).__name__
    array = np.asarray(value if isinstance(value, (np.ndarray, np.generic)) else value.to_numpy())
    if array.dtype.kind not in "biufc":
        columns = ", ".join(map(str, getattr(value, "columns", ()))) and f" with the columns {list(value.columns)}"
        raise BadData(
            f"a {kind}{columns} holds values of type {array.dtype}, which are not numbers. Encode them first."
        )
    locked = not array.flags.writeable and not isinstance(array, np.memmap)  # of pandas, for one
    return torch.as_tensor(array.copy() if locked or any(step < 0 for step in array.strides) else array)


# Pairs and examples


def is_pair(data: Any) -> bool:
    """Whether ``data`` is one (inputs, targets) pair rather than an iterable of batches."""
    return isinstance(data, (tuple, list)) and len(data) == 2 and isinstance(data[1], Tensor) and _is_input(data[0])


def is_inputs(x: Any) -> bool:
    """Whether ``x`` is a network's input, not a loader."""
    if not isinstance(x, tuple):
        return isinstance(x, (Tensor, Mapping))
    return all(_is_input(t) for t in x) and (not x or any(isinstance(t, Tensor) for t in x))


def bare(data: Any, takes: Sequence[str] | None = None) -> Any:
    """Inputs or a loader: of a pair, or of examples with targets, the inputs."""
    data = as_source(data, takes=takes)
    return data[0] if is_pair(data) else data


def _is_input(value: Any) -> bool:
    return isinstance(value, (Tensor, Mapping)) or (
        isinstance(value, (tuple, list)) and len(value) > 0 and all(_is_input(t) for t in value)
    )


def _are_numbers(value: Any) -> bool:
    return isinstance(value, (tuple, list)) and len(value) > 0 and all(isinstance(v, Number) for v in value)


def is_examples(value: Any) -> bool:
    """Whether a list holds single examples (x, y) rather than batches, as far as its first item tells.

    They are examples if the target is a number, or if input and target are vectors that cannot be a batch (of
    different lengths, or one real number each); so are mappings whose label is a number, or whose tokens are a vector.
    """
    if not isinstance(value, Sequence) or isinstance(value, (str, bytes)) or not len(value) or is_pair(value):
        return False
    first = value[0]
    if isinstance(first, Mapping):
        key = next((key for key in LABELS if key in first), None)
        return key is not None and (_dims(first[key]) == 0 or _dims(first.get("input_ids")) == 1)
    if not isinstance(first, (tuple, list)) or len(first) != 2:
        return False
    inputs, target = first
    if _dims(target) == 0:
        return isinstance(inputs, (Tensor, np.ndarray, Mapping, tuple, list, Number))
    if _dims(inputs) != 1 or _dims(target) != 1:
        return False
    return len(inputs) != len(target) or (len(inputs) == 1 and torch.as_tensor(inputs).is_floating_point())


def _dims(value: Any) -> int | None:
    """Number of dimensions; None for what is no array of numbers."""
    if isinstance(value, Number):
        return 0
    if isinstance(value, (Tensor, np.ndarray, np.generic)):
        return int(value.ndim)
    return 1 if _are_numbers(value) else None


def stacked(examples: Sequence[Any]) -> tuple[Any, Tensor]:
    """The inputs and targets of single examples, as tensors."""
    if isinstance(examples[0], Mapping):
        key = next(key for key in LABELS if key in examples[0])
        inputs: list[Any] = [{name: v for name, v in one.items() if name != key} for one in examples]
        targets = [one[key] for one in examples]
    else:
        inputs, targets = [one[0] for one in examples], [one[1] for one in examples]
    return _stack(inputs, "inputs"), _stack(targets, "targets")


def _stack(values: list[Any], what: str) -> Any:
    """One tensor (or tuple, or mapping of them) with the examples along the first dimension."""
    first = values[0]
    if isinstance(first, Mapping):
        return {key: _stack([one[key] for one in values], f"{what} {key!r}") for key in first}
    if isinstance(first, (tuple, list)) and not _are_numbers(first):
        return type(first)(_stack([one[i] for one in values], what) for i in range(len(first)))
    try:
        if isinstance(first, Tensor):
            return torch.stack([torch.as_tensor(one) for one in values])
        return torch.as_tensor(np.stack([np.asarray(one) for one in values]))
    except (ValueError, TypeError, RuntimeError) as error:
        shapes = sorted({str(list(np.shape(one))) for one in values})
        came = f"have different shapes ({', '.join(shapes[:3])})" if len(shapes) > 1 else f"cannot be stacked ({error})"
        raise BadData(
            f"the {what} of the {len(values):,} examples {came}. Pad them to one shape, or pass a DataLoader with a "
            "collate_fn."
        ) from error


# Data modules, as those of Lightning


SPLITS = {"validation": ("val", "fit"), "test": ("test", "test"), "ood": ("test", "test"), "predict": ("predict",) * 2}


def is_data_module(value: Any) -> bool:
    """Whether ``value`` has a loader for each purpose, as a ``LightningDataModule`` does."""
    return all(callable(getattr(value, name, None)) for name in ("train_dataloader", "setup", "prepare_data"))


def opened(value: Any, role: str) -> Any:
    """The loader of a data module for ``role``; anything else is returned unchanged."""
    return _loader_of(value, role) if is_data_module(value) else value


def _loader_of(module: Any, role: str) -> Any:
    """The module is set up only if it has not been: doing it again might mix its training and validation data."""
    split, stage = SPLITS.get(role, ("train", "fit"))
    name, kind = f"{split}_dataloader", type(module).__name__
    if not defines_loader(module, role):
        raise BadData(f"{role}: {kind} defines no {name}; pass a loader or tensors instead.")
    make = getattr(module, name)
    try:
        found = make()
    except Exception:
        try:
            module.prepare_data()
            module.setup(stage)
            found = make()
        except Exception as error:
            raise BadData(
                f"{role}: {name}() of {kind} failed after prepare_data() and setup({stage!r}): "
                f"{type(error).__name__}: {error}"
            ) from error
    several = isinstance(found, (list, tuple, Mapping))
    loaders = list(found.values() if isinstance(found, Mapping) else found) if several else [found]
    if len(loaders) != 1:
        raise BadData(f"{role}: {name}() of {kind} gives {len(loaders)} loaders; pass one of them.")
    return loaders[0]


def defines_loader(module: Any, role: str) -> bool:
    """Whether a data module has a loader for ``role`` that is not Lightning's own, which only raises."""
    found = getattr(type(module), f"{SPLITS.get(role, ('train',))[0]}_dataloader", None)
    return found is not None and str(found.__module__).split(".")[0] not in ("lightning", "pytorch_lightning")


# Data sets of columns, as those of Hugging Face


def is_columns(value: Any) -> bool:
    """Whether ``value`` is a data set of named columns, such as ``datasets.Dataset``; a data frame is not."""
    named = isinstance(getattr(value, "column_names", None), (list, tuple))
    return named and hasattr(value, "__getitem__") and hasattr(value, "__len__") and not hasattr(value, "to_numpy")


class Columns(Dataset[Any]):
    """Batches of a data set of columns: a mapping of those that the network takes and ``labels``, or a pair."""

    def __init__(self, rows: Any, takes: Sequence[str] | None = None) -> None:
        self.rows, names = rows, list(rows.column_names)
        self.label = next((name for name in LABELS if name in names), None)
        others = [name for name in names if name != self.label]
        self.inputs = [name for name in others if takes is None or name in takes]
        self.alone = not self.inputs and len(others) == 1  # whatever it is called
        if self.alone:
            self.inputs = others
        if not self.inputs:
            wanted = "" if takes is None else f" The network takes {', '.join(takes)}."
            raise BadData(
                f"no column of the data set is an input of the network: it has {names}.{wanted} Rename a column, or "
                "pass (inputs, targets), or a DataLoader of such batches."
            )

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, index: int) -> Any:
        return self.__getitems__([index])

    def __getitems__(self, indices: list[int]) -> Any:
        """A whole batch; the data set reads several rows at once."""
        found = self.rows[indices]
        inputs = {name: self._column(found[name], name) for name in self.inputs}
        value = next(iter(inputs.values())) if self.alone else inputs
        if self.label is None:
            return value
        labels = self._column(found[self.label], self.label)
        return (value, labels) if self.alone else {**inputs, "labels": labels}

    def _column(self, values: Any, name: str) -> Tensor:
        try:
            if isinstance(values, Tensor):
                return values
            if isinstance(values, (list, tuple)) and values and isinstance(values[0], Tensor):
                return torch.stack(list(values))
            return _tensor(np.asarray(values))
        except (ValueError, TypeError, RuntimeError) as error:
            first = values[0] if len(values) else values
            raise BadData(
                f"the column {name!r} of the data set (columns {list(self.rows.column_names)}) cannot be read as one "
                f"tensor: its values are {type(first).__name__}s{_lengths(values)}. Tokenise, pad or convert it (such "
                f"as by with_transform), remove it, or pass (inputs, targets)."
            ) from error


def _lengths(values: Any) -> str:
    found = sorted({len(v) for v in values if isinstance(v, (list, tuple, np.ndarray, Tensor))})
    return f" of {found[0]} to {found[-1]} elements" if len(found) > 1 else ""


def _whole(batch: Any) -> Any:
    """The batch as :class:`Columns` gives it."""
    return batch
