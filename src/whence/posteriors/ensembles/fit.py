"""``whence.fit_ensemble``: members from a factory, trained under ``vmap``, one by one, or in processes."""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Literal

import torch
from torch import nn

from whence.copies import copy_module
from whence.engine.checkpoint import TOGETHER, CheckpointFile
from whence.engine.files import read_meta
from whence.engine.options import check_interval
from whence.engine.randomness import preserved_random_state, resolve_seed
from whence.engine.ranks import Ranks, on_all_ranks
from whence.errors import BadOption, explains_keywords, notice, whole_numbers
from whence.functional import Network
from whence.likelihoods import Gaussian, Likelihood, LikelihoodName, resolve
from whence.posteriors.ensembles.factory import Factory, History, MemberTrainer, check_factory
from whence.posteriors.ensembles.parallel import (
    MemberFolder,
    check_ranks,
    first_rank_first,
    gather_members,
    manifest_of,
    train_in_processes,
)
from whence.posteriors.ensembles.posterior import Ensemble, make
from whence.posteriors.ensembles.vectorised import (
    VectorisedTraining,
    group_size,
    histories,
    obstacle,
    slower_vectorised,
)
from whence.training.checkpoint import TrainingCheckpoint
from whence.training.examples import training_parts
from whence.training.feed import ExamplesFeed, device_of
from whence.training.loop import Plan, run
from whence.training.losses import MeanNegativeLogLikelihood, residual_noise
from whence.training.settings import Settings
from whence.training.supervised import training_feed

Trained = dict[int, tuple[nn.Module, History]]  # by member


@explains_keywords
@torch.inference_mode(False)
@on_all_ranks
def fit_ensemble(
    factory: Factory,
    data: Any,
    *,
    likelihood: Likelihood | LikelihoodName,
    members: int = 5,
    seed: int | None = None,
    generator: torch.Generator | None = None,
    epochs: int = 20,
    lr: float = 0.05,
    batch_size: int | None = None,
    optimiser: Literal["sgd", "adam", "adamw"] = "sgd",
    validation: Any = None,
    device: torch.device | str | None = None,
    vectorised: bool | Literal["auto"] = "auto",
    processes: int = 0,
    checkpoint: str | Path | None = None,
    checkpoint_every: float = 30.0,
    process_group: Any = None,
    progress: bool = True,
    **settings: Any,
) -> Ensemble:
    """Train an ensemble of networks that differ in their initial weights and in the order of the data.

    Args:
        factory: makes a new network each time; called without arguments under a separate seed for each member, or
            with ``seed=`` if it takes one.
        data: the training data, as for :func:`whence.zoo.train`.
        likelihood: each member minimises its mean negative log likelihood; with ``"regression"`` the noise is the root
            mean square of the members' training residuals.
        members: how many networks.
        seed: member k has seeds derived from (seed, k): independent of the number of members and of how they are
            trained (0); or a ``generator`` to draw it from.
        epochs, lr, batch_size, optimiser, validation, **settings: as in :class:`whence.zoo.Settings`.
        vectorised: train members of one architecture together under ``vmap``; ``"auto"`` does so if possible and
            says why not otherwise (and not for convolutions on a CPU, where it is slower); ``True`` raises an
            error instead.
        processes: train this many members at a time, each in its own process.
        checkpoint: a folder; finished members are saved there and not trained again, and those in training every
            ``checkpoint_every`` seconds (0: after every epoch).
        process_group: a torch process group (or True for the default one) whose ranks divide the members; each
            passes all of the data, and gets all members.
        progress: whether to show a progress bar.
    """
    seed = resolve_seed(seed, generator)
    whole_numbers(members=members)
    whole_numbers(0, processes=processes)
    check_interval(checkpoint_every, "epoch")
    if vectorised not in (True, False, "auto"):
        raise BadOption(f"vectorised={vectorised!r} is not True, False or 'auto'.")
    together = None if vectorised == "auto" else bool(vectorised)
    if processes and together:
        raise BadOption("vectorised=True trains all members in one process; it cannot be combined with processes.")
    check_factory(factory, processes)
    resolved, estimate = resolve(likelihood)
    minimised = Gaussian(1.0) if estimate else resolved
    explicit = {} if batch_size is None else {"batch_size": batch_size}
    chosen = {"epochs": epochs, "lr": lr, "optimiser": optimiser, **explicit, **settings}
    plan = Settings().with_(loss=MeanNegativeLogLikelihood(minimised), **chosen)
    data, validation = training_parts(data, validation)
    place = None if device is None else str(device)
    trainer = MemberTrainer(factory, data, validation, plan, explicit, seed, place, checkpoint_every)
    if members > 1 or not processes:  # each process makes its own copy
        trainer.check(members)
    ranks: Ranks = process_group
    check_ranks(ranks, trainer, members, minimised)
    with ExitStack() as stack:
        folder = None
        if checkpoint is not None:
            with first_rank_first(ranks, True):
                folder = MemberFolder.opened(checkpoint, manifest_of(trainer, minimised))
        elif processes:
            folder = MemberFolder(Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="whence-"))))
        mine = range(ranks.rank, members, ranks.size)
        own = _train(trainer, mine, folder, minimised, together, processes, progress and ranks.rank == 0)
    trained = gather_members(ranks, trainer, members, own)
    networks = [Network.snapshot(model) for model, _ in trained]
    with preserved_random_state():  # a loader may shuffle
        found = residual_noise(networks, data) if estimate else resolved
        probe = next(iter(networks[0].read(data))).inputs
    return make(networks, found, None, [history for _, history in trained], probe)


def _train(
    trainer: MemberTrainer,
    members: Sequence[int],
    folder: MemberFolder | None,
    likelihood: Likelihood,
    vectorised: bool | None,
    processes: int,
    progress: bool,
) -> Trained:
    """Train these members, except those that are already in the folder; ``vectorised`` None: where it is faster."""
    found: Trained = {}
    missing = [i for i in members if folder is None or not folder.done(i)]
    if processes:
        assert folder is not None
        train_in_processes(trainer, missing, folder, processes, progress)
    else:
        groups = _groups(trainer, missing, vectorised)
        if groups is not None:
            found = _side_by_side(trainer, missing, *groups, folder, likelihood, progress)
        for index in missing if groups is None else ():
            found[index] = trainer.train(index, None if folder is None else folder.training(index), progress)
            if folder is not None:
                folder.put(index, *found[index])
    for index in members:
        if index not in found:
            assert folder is not None
            model = trainer.build(index)
            found[index] = (model.eval(), folder.get(index, model))
    return found


def _groups(trainer: MemberTrainer, members: list[int], vectorised: bool | None) -> tuple[ExamplesFeed, int] | None:
    """Batches for members trained together, and how many at a time; None if that is not possible."""
    if vectorised is False or not members or (len(members) < 2 and vectorised is None):
        return None
    models = [copy_module(trainer.peek(i)).to(trainer.device) for i in members[:2]]
    place = device_of(models[0])
    if vectorised is None and slower_vectorised(models[0], place):
        return None
    with preserved_random_state():
        feed = training_feed(trainer.data, trainer.settings, models[0], place, trainer.explicit)
    why = obstacle(trainer, feed, models)
    if why is None:
        assert isinstance(feed, ExamplesFeed)
        return feed, group_size(models[0], feed)
    if vectorised:
        raise BadOption(f"vectorised=True, but {why}. Pass vectorised=False.")
    notice(f"the members are trained one after the other: {why}.")
    return None


def _side_by_side(
    trainer: MemberTrainer,
    members: list[int],
    feed: ExamplesFeed,
    size: int,
    folder: MemberFolder | None,
    likelihood: Likelihood,
    progress: bool,
) -> Trained:
    """Train ``size`` members at a time."""
    found: Trained = {}
    plan = Plan(trainer.settings.epochs, trainer.settings.schedule)
    for start in range(0, len(members), size):
        group = members[start : start + size]
        models = [trainer.build(i) for i in group]
        training = VectorisedTraining(trainer, group, models, feed, likelihood)
        saved = None if folder is None else _checkpoint(folder, group, trainer.checkpoint_every)
        done = run(training, plan, checkpoint=saved, progress=progress)
        for index, model, history in zip(group, models, histories(done.records), strict=True):
            found[index] = (model, history)
            if folder is not None:
                folder.put(index, model, history)
        if saved is not None:
            saved.file.remove()
    return found


def _checkpoint(folder: MemberFolder, group: list[int], every: float) -> TrainingCheckpoint:
    """The checkpoint of these members; one of other members is deleted."""
    file = CheckpointFile(folder.training(f"{group[0]}-{group[-1]}"), TOGETHER)
    if file.path.exists() and read_meta(file.path).get("identity") != {"members": group}:
        file.remove()
    return TrainingCheckpoint(file, {"members": group}, {}, every)
