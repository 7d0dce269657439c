"""Members shared out over the ranks of a process group."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from torch import Tensor, nn

from whence.batches import from_numpy, is_pair, tensors_in
from whence.curvature.distributed import Ranks
from whence.engine.files import digest
from whence.functional import load_tensors, tensors_of, weights_hash
from whence.likelihoods import Likelihood
from whence.posteriors.across import refuse_part
from whence.posteriors.ensembles.build import Job

History = list[dict[str, float]]


def fingerprint(data: Any) -> str:
    """A hash of the training data, where they are tensors at hand; else what they are."""
    from whence.zoo import Examples

    data = from_numpy(data)
    if isinstance(data, Examples):
        return data.fingerprint()
    if not is_pair(data):
        return type(data).__name__
    return digest(tensors_in(data))


def check_ranks(ranks: Ranks, job: Job, members: int, likelihood: Likelihood) -> None:
    """Every rank must train members of the same ensemble."""
    if ranks.alone:
        return
    refuse_part(job.data, ranks, "data")
    first = job.build(0)
    job.fresh.waiting[0] = first
    lazy = any(nn.parameter.is_lazy(t) for t in [*first.parameters(), *first.buffers()])
    signature = {
        "the network": repr(first),
        "the hash of the first weights": None if lazy else weights_hash(first)[:12],
        "the digest of the data": fingerprint(job.data)[:12],
        "members": members,
        "seed": job.seed,
        "likelihood": repr(likelihood),
        "the choice of settings": job.settings.spec(),
    }
    ranks.agree(signature, "comparing networks and settings")


@contextmanager
def in_turn(ranks: Ranks, needed: bool) -> Iterator[None]:
    """Rank 0 before the others, which may find what it has made."""
    if needed and ranks.rank > 0:
        ranks.meet("opening the folder")
    yield
    if needed and ranks.rank == 0:
        ranks.meet("opening the folder")


def gathered(
    ranks: Ranks, job: Job, members: int, own: Mapping[int, tuple[nn.Module, History]]
) -> list[tuple[nn.Module, History]]:
    """All members in order, on every rank; each is sent by the one that has trained it."""
    sent: dict[int, Any] = {index: (tensors_of(model), history) for index, (model, history) in own.items()}
    ranks.meet("gathering members")
    for index in range(members):  # nothing that could fail on one rank alone
        sent[index] = ranks.broadcast(sent.get(index), index % ranks.size, "gathering members")
    return [own[index] if index in own else _loaded(job, index, *sent[index]) for index in range(members)]


def _loaded(job: Job, index: int, state: dict[str, Tensor], history: History) -> tuple[nn.Module, History]:
    model = job.build(index).eval()
    load_tensors(model, state)
    return model, history
