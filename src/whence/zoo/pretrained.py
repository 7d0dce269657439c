"""Networks by recipe: trained once, then loaded from the cache."""

from __future__ import annotations

from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import torch
from torch import nn

from whence._version import __version__
from whence.engine.checkpoint import TRAINED, CheckpointFile
from whence.engine.randomness import derived_seed, seeded
from whence.errors import BadData, BadFile, BadOption
from whence.functional import load_tensors, tensors_of
from whence.training.supervised import Callback, SupervisedEpoch, Training, available, train
from whence.zoo.data import DataSet, load
from whence.zoo.data.files import cache as cache_folder
from whence.zoo.recipes import Recipe
from whence.zoo.recipes import recipe as find_recipe


def trained(
    recipe: str | Recipe,
    *,
    seed: int = 0,
    device: str | torch.device | None = None,
    data: DataSet | None = None,
    cache: bool | str | Path = True,
    callback: Callback | None = None,
    progress: bool = True,
    **changes: Any,
) -> Training:
    """The network of a recipe, with its data: loaded from the cache, or trained and saved there.

    ``seed`` determines initial weights, shuffling and the split of the data. ``cache`` may be a folder; ``False``
    always trains. An interrupted training resumes at the next call. ``device=None`` uses a GPU if there is one.
    ``changes`` are those of :meth:`Recipe.with_`. ``data`` replaces the recipe's own (for example with a fold).
    """
    if not isinstance(cache, (bool, str, Path)):
        raise BadOption(f"cache={cache!r} is neither True, False nor a folder.")
    chosen = find_recipe(recipe) if isinstance(recipe, str) else recipe
    chosen = chosen.with_(**changes) if changes else chosen
    if data is not None and chosen.data_options:
        raise BadOption(
            f"{', '.join(chosen.data_options)} select the recipe's own data and cannot be combined with data=."
        )
    place = available(device or ("cuda" if torch.cuda.is_available() else "cpu"))
    loaded = (
        load(chosen.data, seed=seed, device=place, progress=progress, **chosen.data_options) if data is None else data
    )
    if loaded.train is None:
        raise BadData(f"{chosen.data} has no training part here, so {chosen.name} cannot be trained.")
    network = initial(chosen, loaded, seed).to(place)
    if cache is False:
        result = train(network, loaded, chosen.settings, seed=seed, device=place, callback=callback, progress=progress)
        return replace(result, recipe=chosen, data=loaded)
    folder = _folder(cache)
    path = folder / f"{chosen.name}-{chosen.hash(seed, fingerprint(loaded))}.safetensors"
    if path.exists():
        return replace(_restored(path, chosen, network, seed), data=loaded)
    unfinished = path.with_suffix(".checkpoint")
    result = train(
        network, loaded, chosen.settings, seed=seed, device=place, checkpoint=unfinished, callback=callback,
        progress=progress,
    )  # fmt: skip
    _save(path, result, chosen)
    unfinished.unlink(missing_ok=True)
    return replace(result, recipe=chosen, data=loaded)


def initial(recipe: Recipe, data: DataSet, seed: int) -> nn.Module:
    """The untrained network of a seed, the same on every device."""
    with seeded(derived_seed(seed, "weights")):
        return recipe.build(data)


def fingerprint(data: DataSet) -> str:
    """A hash of the training data, and of the validation data for early stopping."""
    return "/".join(part.fingerprint() for part in (data.train, data.validation) if part is not None)


def _folder(cache: bool | str | Path) -> Path:
    folder = cache_folder() / "weights" if isinstance(cache, bool) else Path(cache)
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise BadOption(f"cache={str(folder)!r} is not a folder that can be written ({error.strerror}).") from error
    return folder


def _save(path: Path, result: Training, recipe: Recipe) -> None:
    meta = {
        "whence": __version__,
        "torch": torch.__version__,
        "recipe": str(recipe),
        "seed": result.seed,
        "rows": [asdict(row) for row in result.history],
        "best_epoch": result.best_epoch,
        "seconds": result.seconds,
        "device": result.device,
    }
    CheckpointFile(path, TRAINED).write(tensors_of(result.network), meta)


def _restored(path: Path, recipe: Recipe, network: nn.Module, seed: int) -> Training:
    tensors, meta = CheckpointFile(path, TRAINED).existing()
    try:
        load_tensors(network, tensors)
    except RuntimeError as error:
        raise BadFile(f"{path} does not contain the weights of {recipe.name}. Delete it and train again.") from error
    rows = tuple(SupervisedEpoch(**row) for row in meta["rows"])
    return Training(
        network.eval(), rows, recipe.settings, seed, meta["best_epoch"], meta["seconds"], meta["device"], recipe,
        from_cache=True,
    )  # fmt: skip
