"""Members trained in separate processes, or divided between the ranks of a process group;
and the folder for finished members.
"""

from __future__ import annotations

import json
import time
import traceback
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from whence.engine.checkpoint import MEMBER, CheckpointFile
from whence.engine.files import require_folder, write_text
from whence.engine.progress import progress_bar
from whence.engine.ranks import Ranks
from whence.errors import BadFile, BadOption, WhenceError
from whence.functional import load_tensors, tensors_of, weights_hash
from whence.likelihoods import Likelihood
from whence.posteriors.ensembles.factory import History, MemberTrainer, is_lazy
from whence.posteriors.laplace.on_ranks import refuse_part
from whence.training.checkpoint import refuse_other
from whence.training.feed import fingerprint

# Processes; results are returned through files, never by pickle


def train_in_processes(
    trainer: MemberTrainer, members: list[int], folder: MemberFolder, processes: int, progress: bool
) -> None:
    """Train the members, at most ``processes`` of them at a time; they are saved in the folder."""
    import torch.multiprocessing as multiprocessing

    context = multiprocessing.get_context("spawn")
    threads = max(1, torch.get_num_threads() // processes)
    waiting, running = list(members), dict[int, Any]()
    bar = progress_bar(total=len(members), label="members", unit="network", shown=progress, delay=0)
    try:
        while waiting or running:
            while waiting and len(running) < processes:
                index = waiting.pop(0)
                folder.error(index).unlink(missing_ok=True)
                running[index] = _started(context, (trainer, index, str(folder.path), threads))
            for index in [i for i, p in running.items() if not p.is_alive()]:
                _finish(index, running.pop(index), folder)
                bar.update()
            time.sleep(0.02)
    finally:
        bar.close()
        for process in running.values():
            process.terminate()
            process.join()


def _train_one(trainer: MemberTrainer, index: int, path: str, threads: int) -> None:
    """The work of one process."""
    folder = MemberFolder(Path(path))
    try:
        torch.set_num_threads(threads)
        folder.put(index, *trainer.train(index, folder.training(index), progress=False))
    except BaseException as error:
        folder.error(index).write_text(f"{type(error).__name__}: {error}\n{traceback.format_exc()}")
        raise SystemExit(1) from None


def _started(context: Any, arguments: tuple[Any, ...]) -> Any:
    process = context.Process(target=_train_one, args=arguments, daemon=True)
    try:
        process.start()
    except (AttributeError, TypeError, ValueError) as error:
        raise BadOption(
            f"data or settings cannot be sent to another process ({error}); pass tensors, or processes=0."
        ) from error
    return process


def _finish(index: int, process: Any, folder: MemberFolder) -> None:
    process.join()
    if folder.done(index):
        return
    note = folder.error(index)
    why = (
        f"its process ended with code {process.exitcode}. A script that trains in processes needs if "
        "__name__ == '__main__'."
    )
    if note.exists():
        why = note.read_text().splitlines()[0]
        note.unlink()
    raise WhenceError(f"member {index} could not be trained: {why}")


# Ranks


def check_ranks(ranks: Ranks, trainer: MemberTrainer, members: int, likelihood: Likelihood) -> None:
    """Every rank must train members of the same ensemble."""
    if ranks.alone:
        return
    refuse_part(trainer.data, ranks, "data")
    first = trainer.peek(0)
    signature = {
        "the network": repr(first),
        "the hash of the first weights": None if is_lazy(first) else weights_hash(first)[:12],
        "the digest of the data": fingerprint(trainer.data)[:12],
        "members": members,
        "seed": trainer.seed,
        "likelihood": repr(likelihood),
        "the choice of settings": trainer.settings.spec(),
    }
    ranks.agree(signature, "comparing networks and settings")


@contextmanager
def first_rank_first(ranks: Ranks, needed: bool) -> Iterator[None]:
    """Run rank 0 before the others, which may use its files."""
    if needed and ranks.rank > 0:
        ranks.synchronise("opening the folder")
    yield
    if needed and ranks.rank == 0:
        ranks.synchronise("opening the folder")


def gather_members(
    ranks: Ranks, trainer: MemberTrainer, members: int, own: Mapping[int, tuple[nn.Module, History]]
) -> list[tuple[nn.Module, History]]:
    """All members in order, on every rank; each is sent by the rank that trained it."""
    sent: dict[int, Any] = {index: (tensors_of(model), history) for index, (model, history) in own.items()}
    ranks.synchronise("gathering members")
    for index in range(members):  # nothing here can fail on one rank only
        sent[index] = ranks.broadcast(sent.get(index), index % ranks.size, "gathering members")
    return [own[index] if index in own else (received(trainer, index, sent[index][0]), sent[index][1])
            for index in range(members)]  # fmt: skip


def received(trainer: MemberTrainer, index: int, weights: dict[str, Tensor]) -> nn.Module:
    """A member that another rank has trained."""
    model = trainer.build(index).eval()
    load_tensors(model, weights)
    return model


MANIFEST = "ensemble.json"
DESCRIBED = {
    "network": "another network",
    "data": "other training data",
    "start": "a factory that starts from other weights",
}


@dataclass(frozen=True)
class MemberFolder:
    """Finished members, and the checkpoints of those in training."""

    path: Path

    @classmethod
    def opened(cls, path: str | Path, manifest: dict[str, Any]) -> MemberFolder:
        """Create the folder, or resume from it if it belongs to the same fit."""
        folder = Path(path)
        require_folder(folder, "the checkpoints ")
        if folder.exists() and not folder.is_dir():
            raise BadFile(f"the checkpoint of an ensemble must be a folder, but {folder} is a file.")
        folder.mkdir(exist_ok=True)
        file = folder / MANIFEST
        if file.exists():
            try:
                its = json.loads(file.read_text())
            except (OSError, ValueError) as error:
                raise BadFile(f"{file} is damaged ({error}); remove the folder and fit again.") from error
            refuse_other(f"the folder {folder}", manifest, its, DESCRIBED)
        elif any(folder.iterdir()):
            raise BadFile(f"the folder {folder} contains other files than an ensemble's; choose an empty or a new one.")
        else:
            write_text(file, json.dumps(manifest, indent=1))
        return cls(folder)

    def file(self, index: int) -> Path:
        return self.path / f"member-{index:03d}.safetensors"

    def training(self, index: int | str) -> Path:
        """The checkpoint of a training: of a member, or of several together."""
        return self.path / f"training-{index}.safetensors"

    def error(self, index: int) -> Path:
        return self.path / f"member-{index:03d}.error"

    def done(self, index: int) -> bool:
        return self.file(index).exists()

    def put(self, index: int, network: nn.Module, history: History) -> None:
        CheckpointFile(self.file(index), MEMBER).write(tensors_of(network), {"member": index, "history": history})
        self.training(index).unlink(missing_ok=True)

    def get(self, index: int, network: nn.Module) -> History:
        """Load a finished member into a new network, and return its history."""
        tensors, meta = CheckpointFile(self.file(index), MEMBER).existing()
        try:
            load_tensors(network, tensors)
        except RuntimeError as error:
            why = str(error).splitlines()[-1].strip()
            raise BadFile(f"{self.file(index)} is a checkpoint of another network: {why}") from error
        history: History = meta["history"]
        return history


def manifest_of(trainer: MemberTrainer, likelihood: Likelihood) -> dict[str, Any]:
    """Identifies a fit: the factory's first network, the data and the settings."""
    first = trainer.peek(0)
    return {
        "network": repr(first),
        "data": fingerprint(trainer.data),
        **trainer.settings.spec(),
        "seed": trainer.seed,
        "likelihood": likelihood.spec(),
        "start": weights_hash(first),
    }
