"""``whence.fit_ensemble``: members from a factory, trained side by side, one after the other, or in processes."""

from __future__ import annotations

import contextlib
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor, nn

from whence.curvature.distributed import Ranks, together
from whence.errors import BadOption, notice
from whence.functional import Network
from whence.likelihoods import Gaussian, Likelihood, resolve
from whence.posteriors.ensembles.build import Factory, Job, check_factory, guarded
from whence.posteriors.ensembles.exchange import History, check_ranks, fingerprint, gathered, in_turn
from whence.posteriors.ensembles.folder import Folder, manifest_of
from whence.posteriors.ensembles.loss import MeanNll, residual_noise
from whence.posteriors.ensembles.posterior import Ensemble, make
from whence.posteriors.ensembles.process import run_processes
from whence.posteriors.ensembles.stack import slow_together
from whence.posteriors.ensembles.together import Together, group_size, obstacle
from whence.randomness import resolve_seed


@torch.inference_mode(False)
@together
def fit_ensemble(
    factory: Factory,
    data: Any,
    *,
    likelihood: Likelihood | Literal["classification", "binary", "regression"],
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
    process_group: Any = None,
    progress: bool = True,
    **settings: Any,
) -> Ensemble:
    """Train networks that differ in their first weights and in the order of the data, and make them an ensemble.

    Args:
        factory: makes a fresh network each time; called without arguments under a seed of its own for each member, or
            with ``seed=`` if it takes one.
        data: the training data, as for :func:`whence.zoo.train`.
        likelihood: each member minimises its mean negative log likelihood; with ``"regression"`` the noise is the root
            mean square of the members' training residuals.
        members: how many networks.
        seed: member k has seeds derived from (seed, k): the same whatever the number of members and the way they are
            trained (0); or a ``generator`` that one is drawn from.
        epochs, lr, batch_size, optimiser, validation, **settings: as in :class:`whence.zoo.Settings`.
        vectorised: train members of one architecture side by side under ``vmap``; ``"auto"`` does so where it can and
            says why where it cannot (and not for convolutions on a processor, where it is slower); ``True`` refuses
            instead.
        processes: train this many members at a time, each in a process of its own.
        checkpoint: a folder; finished members are kept there and not trained again.
        process_group: a torch process group (or True for the default one) whose ranks share out the members; each
            passes the same data, all of them, and gets all members.
        progress: whether to show a progress bar.
    """
    from whence.zoo import DataSet, Settings

    seed = resolve_seed(seed, generator)
    if isinstance(members, bool) or not isinstance(members, int) or members < 1:
        raise BadOption(f"members={members} must be a whole number, at least 1.")
    if isinstance(processes, bool) or not isinstance(processes, int) or processes < 0:
        raise BadOption(f"processes={processes} must be a whole number, 0 or more.")
    if vectorised not in (True, False, "auto"):
        raise BadOption(f"vectorised={vectorised!r} is not True, False or 'auto'.")
    if processes and vectorised is True:
        raise BadOption("vectorised=True trains all members in one process; it does not go with processes.")
    check_factory(factory, processes)
    resolved, estimate = resolve(likelihood)
    loss = Gaussian(1.0) if estimate else resolved
    chosen = {"epochs": epochs, "lr": lr, "optimiser": optimiser, **settings}
    chosen |= {} if batch_size is None else {"batch_size": batch_size}
    plan = Settings().with_(loss=MeanNll(loss), **chosen)
    if isinstance(data, DataSet):
        validation = data.validation if validation is None else validation
        data = data.train
    place = None if device is None else str(device)
    job = Job(factory, data, validation, plan, tuple(k for k in chosen if k == "batch_size"), seed, place)
    if members > 1 or not processes:  # a process of its own has a copy of its own
        job.check(members)
    ranks: Ranks = process_group
    check_ranks(ranks, job, members, loss)
    with contextlib.ExitStack() as stack:
        with in_turn(ranks, checkpoint is not None):
            folder = _folder(job, loss, checkpoint, processes, stack)
        mine = range(ranks.rank, members, ranks.size)
        own = _train(job, mine, folder, loss, vectorised, processes, progress and ranks.rank == 0)
    trained = gathered(ranks, job, members, own)
    networks = [Network.snapshot(model) for model, _ in trained]
    with guarded():
        found = residual_noise(networks, data) if estimate else resolved
    return make(networks, found, None, [history for _, history in trained])


def _folder(
    job: Job, likelihood: Likelihood, checkpoint: str | Path | None, processes: int, stack: contextlib.ExitStack
) -> Folder | None:
    """Where members are kept; a temporary place for those of other processes."""
    if checkpoint is not None:
        first = job.build(0)
        job.fresh.waiting[0] = first  # as it was: the manifest only reads
        return Folder.opened(checkpoint, manifest_of(job, likelihood, first, fingerprint(job.data)))
    if not processes:
        return None
    return Folder(Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="whence-"))))


def _train(
    job: Job,
    members: Sequence[int],
    folder: Folder | None,
    likelihood: Likelihood,
    vectorised: bool | str,
    processes: int,
    progress: bool,
) -> dict[int, tuple[nn.Module, History]]:
    """These members with their histories."""
    found: dict[int, tuple[nn.Module, History]] = {}
    todo = [i for i in members if folder is None or not folder.done(i)]
    if processes:
        assert folder is not None
        run_processes(job, todo, folder, processes, progress)
    else:
        left = _side_by_side(job, todo, folder, likelihood, vectorised, progress, found)
        for index in left:
            found[index] = job.train(index, None if folder is None else folder.training(index), progress)
            if folder is not None:
                folder.put(index, *found[index])
    for index in members:
        if index not in found:
            assert folder is not None
            model = job.build(index)
            found[index] = (model.eval(), folder.get(index, model))
    return found


def _side_by_side(
    job: Job,
    todo: Sequence[int],
    folder: Folder | None,
    likelihood: Likelihood,
    vectorised: bool | str,
    progress: bool,
    found: dict[int, tuple[nn.Module, History]],
) -> list[int]:
    """Train what can be trained together; the members that are left."""
    from whence.zoo.feed import device_of, feed_for

    if vectorised is False or not todo or (len(todo) < 2 and vectorised == "auto"):
        return list(todo)
    models = [job.build(i) for i in todo[:2]]
    place = device_of(models[0])
    if vectorised == "auto" and slow_together(models[0], place):
        return list(todo)
    with guarded():
        feed = feed_for(job.data, job.validation, job.settings, models[0], place, explicit=job.explicit)
    why = obstacle(job, feed, models)
    if why is not None:
        if vectorised is True:
            raise BadOption(f"vectorised=True, but {why}. Pass vectorised=False.")
        notice(f"the members are trained one after the other: {why}.")
        return list(todo)
    size = group_size(models[0], feed)
    for start in range(0, len(todo), size):
        group = list(todo[start : start + size])
        fresh = [job.build(i) for i in group]
        path = None if folder is None else folder.training(f"{group[0]}-{group[-1]}")
        together = Together.of(job, group, fresh, feed, likelihood)
        for index, model, (state, history) in zip(group, fresh, together.run(path, progress), strict=True):
            _load(model, state)
            found[index] = (model.eval(), history)
            if folder is not None:
                folder.put(index, model, history)
        if path is not None:
            path.unlink(missing_ok=True)
    return []


def _load(model: nn.Module, state: dict[str, Tensor]) -> None:
    """Set parameters and buffers by name."""
    own = dict(model.named_parameters()) | dict(model.named_buffers())
    with torch.no_grad():
        for name, value in state.items():
            own[name].copy_(value)
