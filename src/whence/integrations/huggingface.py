"""Hugging Face: loaders of data sets, tokens as words, posteriors in model folders, and a callback of ``Trainer``."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from torch import nn
from torch.utils.data import DataLoader

from whence.auditing.words import is_tokenizer
from whence.auditing.words import words as words
from whence.engine.sources import LABELS, is_columns
from whence.errors import BadData, BadFile, BadOption, need
from whence.integrations.watch import Watch, whole
from whence.io import load
from whence.labels import argument_names
from whence.likelihoods import Likelihood
from whence.posteriors.base import Posterior

transformers: Any = need("transformers", "huggingface")

FILE = "whence_posterior.safetensors"
ADAPTER = "adapter_config.json"
TrainerCallback: Any = transformers.TrainerCallback


def loader(
    dataset: Any,
    collator: Any = None,
    *,
    tokenizer: Any = None,
    model: nn.Module | None = None,
    batch_size: int = 32,
) -> DataLoader[Any]:
    """A loader of a ``datasets.Dataset``, in order, whose batches a model of transformers takes.

    Args:
        dataset: tokenised; columns that the model does not take are left out.
        collator: such as ``DataCollatorForTokenClassification(tokenizer)``; by default each batch is padded to its
            longest text by the tokenizer, or stacked if there is none.
        tokenizer: for the default collator.
        model: whose arguments are the columns to keep; by default all but those of texts.
        batch_size: examples in a batch.
    """
    if not is_columns(dataset):
        raise BadData(f"the data set is a {type(dataset).__name__}; pass a datasets.Dataset, or a loader to whence.")
    if collator is None:
        collator = transformers.DataCollatorWithPadding(tokenizer) if tokenizer else transformers.default_data_collator
    return DataLoader(_without_others(dataset, model), batch_size, collate_fn=collator)


def _without_others(dataset: Any, model: nn.Module | None) -> Any:
    """The data set without the columns that are no input of the model, and no labels."""
    names = None if model is None else argument_names(model)
    first = dataset[0] if len(dataset) else {}
    others = [
        name
        for name in dataset.column_names
        if name not in LABELS and (isinstance(first.get(name), str) if names is None else name not in names)
    ]
    return dataset.remove_columns(others)


# Posteriors in the folder of a model


def save_pretrained(posterior: Posterior, folder: str | Path, tokenizer: Any = None) -> Path:
    """Write the model of a posterior, as ``model.save_pretrained`` does, and the posterior beside it.

    Returns the posterior's file. ``huggingface_hub.upload_folder`` puts both on the Hub.
    """
    networks = posterior.networks()
    save = getattr(networks[0], "save_pretrained", None)
    if len(networks) != 1 or not callable(save):
        kind = type(networks[0]).__name__ if len(networks) == 1 else f"{len(networks)} networks"
        raise BadOption(f"the posterior is of {kind}, not of one model with save_pretrained; use posterior.save(path).")
    save(folder)
    if tokenizer is not None:
        tokenizer.save_pretrained(folder)
    path = Path(folder) / FILE
    posterior.save(path)
    return path


def from_pretrained(
    folder: str | Path, model: nn.Module | None = None, *, likelihood: Likelihood | None = None
) -> Posterior:
    """Read the posterior that :func:`save_pretrained` wrote, and its model.

    Args:
        folder: of the model; of a repository on the Hub what ``huggingface_hub.snapshot_download`` returns.
        model: the model, if it is loaded already; needed for adapters and for classes outside transformers.
        likelihood: your own, if the posterior was fitted with one.
    """
    path = Path(folder) / FILE
    if not path.is_file():
        raise BadFile(
            f"{folder} has no {FILE}. Write it with save_pretrained(posterior, folder); a repository of the Hub is "
            "downloaded first, by huggingface_hub.snapshot_download(name)."
        )
    model = _model_in(Path(folder)) if model is None else model
    return load(path, model, likelihood=likelihood)  # type: ignore[no-any-return]


def _model_in(folder: Path) -> nn.Module:
    """The model of a folder, in the class that its configuration names."""
    if (folder / ADAPTER).is_file():
        raise BadOption(
            f"{folder} holds adapters; pass the model: from_pretrained(folder, PeftModel.from_pretrained(base, folder))"
        )
    names = transformers.AutoConfig.from_pretrained(folder).architectures or ["none"]
    kind = getattr(transformers, names[0], None)
    if kind is None:
        raise BadOption(f"transformers has no class {names[0]!r}; load the model and pass it: model=….")
    return kind.from_pretrained(folder)  # type: ignore[no-any-return]


# The callback


class WhenceCallback(Watch, TrainerCallback):  # type: ignore[misc]
    """Tracks a training by ``Trainer``, and at its end fits a posterior, tunes it, and audits it.

    Training and validation data are those of the trainer; a ``datasets.Dataset`` for ``validation``, ``test`` or
    ``ood`` is collated as its training data are. The page shows the words of the trainer's tokenizer.

    Args:
        options: of :class:`whence.integrations.watch.Watch`.
    """

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self._train: Any = None

    def on_train_begin(self, args: Any, state: Any, control: Any, **given: Any) -> None:
        """Start the track."""
        if state.is_world_process_zero:
            self._train = whole(given["train_dataloader"], args.per_device_train_batch_size)
            self._start(given["model"], self._train)

    def on_step_end(self, args: Any, state: Any, control: Any, **given: Any) -> None:
        """Count a step."""
        if state.is_world_process_zero:
            self._step(state.global_step)

    def on_train_end(self, args: Any, state: Any, control: Any, **given: Any) -> None:
        """Fit the posterior and audit it."""
        if not state.is_world_process_zero:
            return
        model, tokenizer, size = given["model"], given.get("processing_class"), args.per_device_eval_batch_size
        collator = self._train.collate_fn
        self._sets = {
            name: loader(data, collator, model=model, batch_size=size) if is_columns(data) else data
            for name, data in self._sets.items()
        }
        sets: dict[str, Any] = {"validation": whole(given.get("eval_dataloader"), size)}
        if is_tokenizer(tokenizer):
            sets["tokens"] = tokenizer
        self._end(model, self._train, state.global_step, **sets)
