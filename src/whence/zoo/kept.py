"""Networks by recipe: trained once, then read from the cache."""

from __future__ import annotations

from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import torch
from torch import nn

from whence._version import __version__
from whence.engine.checkpoint import TRAINED, CheckpointFile
from whence.errors import BadData, BadFile, BadOption
from whence.functional import load_tensors, tensors_of
from whence.randomness import derived_seed
from whence.zoo.cookbook import recipe as find_recipe
from whence.zoo.data import DataSet, load
from whence.zoo.data.files import cache as cache_folder
from whence.zoo.loop import Callback, train, usable
from whence.zoo.plan import Recipe
from whence.zoo.training import Row, Training


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
    """The network of a recipe, with its data: read from the cache, or trained and put there.

    ``seed`` decides the first weights, the shuffling and the split of the data. ``cache`` may be a folder; ``False``
    trains anew. A training that is cut off goes on where it was at the next call. ``device=None`` takes a GPU if there
    is one. ``changes`` are those of :meth:`Recipe.with_`. ``data`` replaces the recipe's own (a fold of it, say).
    """
    if not isinstance(cache, (bool, str, Path)):
        raise BadOption(f"cache={cache!r} is neither True, False nor a folder.")
    chosen = find_recipe(recipe) if isinstance(recipe, str) else recipe
    chosen = chosen.with_(**changes) if changes else chosen
    if data is not None and chosen.data_options:
        raise BadOption(
            f"{', '.join(chosen.data_options)} choose the recipe's own data; with data= they have no meaning."
        )
    place = usable(device or ("cuda" if torch.cuda.is_available() else "cpu"))
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
    _keep(path, result, chosen)
    unfinished.unlink(missing_ok=True)
    return replace(result, recipe=chosen, data=loaded)


def initial(recipe: Recipe, data: DataSet, seed: int) -> nn.Module:
    """The untrained network of a seed, the same on every device."""
    with torch.random.fork_rng([]):
        torch.default_generator.manual_seed(derived_seed(seed, "weights"))
        return recipe.build(data)


def fingerprint(data: DataSet) -> str:
    """Of the numbers that a network is trained on, and of those that may stop it early."""
    return "/".join(part.fingerprint() for part in (data.train, data.validation) if part is not None)


def _folder(cache: bool | str | Path) -> Path:
    folder = cache_folder() / "weights" if isinstance(cache, bool) else Path(cache)
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise BadOption(f"cache={str(folder)!r} is not a folder that can be written ({error.strerror}).") from error
    return folder


def _keep(path: Path, result: Training, recipe: Recipe) -> None:
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
        raise BadFile(f"{path} does not hold the weights of {recipe.name}. Remove it and train again.") from error
    rows = tuple(Row(**row) for row in meta["rows"])
    return Training(
        network.eval(), rows, recipe.settings, seed, meta["best_epoch"], meta["seconds"], meta["device"], recipe,
        from_cache=True,
    )  # fmt: skip
