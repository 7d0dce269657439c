"""One process for each member, some at a time; results come back through files, never by pickle."""

from __future__ import annotations

import time
import traceback
from pathlib import Path
from typing import Any

import torch
from tqdm.auto import tqdm

from whence.errors import BadOption, WhenceError
from whence.posteriors.ensembles.build import Job
from whence.posteriors.ensembles.folder import Folder


def train_one(job: Job, index: int, folder: str, threads: int) -> None:
    """What a process does."""
    place = Folder(Path(folder))
    try:
        torch.set_num_threads(threads)
        network, history = job.train(index, place.training(index), progress=False)
        place.put(index, network, history)
    except BaseException as error:
        place.error(index).write_text(f"{type(error).__name__}: {error}\n{traceback.format_exc()}")
        raise SystemExit(1) from None


def run_processes(job: Job, members: list[int], folder: Folder, processes: int, progress: bool) -> None:
    """Train the members, at most ``processes`` of them at a time; they are in the folder afterwards."""
    import torch.multiprocessing as multiprocessing

    context = multiprocessing.get_context("spawn")
    threads = max(1, torch.get_num_threads() // processes)
    waiting, running = list(members), dict[int, Any]()
    bar = tqdm(total=len(members), desc="members", disable=not progress, leave=False)
    try:
        while waiting or running:
            while waiting and len(running) < processes:
                index = waiting.pop(0)
                folder.error(index).unlink(missing_ok=True)
                running[index] = _started(context, job, index, folder, threads)
            for index in [i for i, p in running.items() if not p.is_alive()]:
                _collect(index, running.pop(index), folder)
                bar.update()
            time.sleep(0.02)
    finally:
        bar.close()
        for process in running.values():
            process.terminate()
            process.join()


def _started(context: Any, job: Job, index: int, folder: Folder, threads: int) -> Any:
    process = context.Process(target=train_one, args=(job, index, str(folder.path), threads), daemon=True)
    try:
        process.start()
    except (AttributeError, TypeError, ValueError) as error:
        raise BadOption(
            f"data or settings cannot be sent to another process ({error}); pass tensors, or processes=0."
        ) from error
    return process


def _collect(index: int, process: Any, folder: Folder) -> None:
    process.join()
    if folder.done(index):
        return
    note = folder.error(index)
    if note.exists():
        why = note.read_text().splitlines()[0]
        note.unlink()
        raise WhenceError(f"member {index} could not be trained: {why}")
    raise WhenceError(
        f"member {index} could not be trained: its process ended with code {process.exitcode}. A script that trains in "
        "processes must stand under if __name__ == '__main__'."
    )
