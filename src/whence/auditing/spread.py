"""Methods of a comparison shared out over the ranks of a process group."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import fields, replace
from typing import Any

from torch import Tensor

from whence.auditing.ran import Log
from whence.auditing.sets import Held
from whence.batches import tensors_in
from whence.curvature.distributed import Ranks
from whence.engine.files import digest, digest_of_values
from whence.functional import weights_hash
from whence.posteriors.across import refuse_part
from whence.posteriors.drawn import DrawnPosterior
from whence.posteriors.ensembles import LaplaceEnsemble
from whence.posteriors.laplace import Laplace


def dealt(ranks: Ranks, names: Sequence[str]) -> list[str]:
    """The methods of this rank."""
    return list(names[ranks.rank :: ranks.size])


def check_ranks(
    ranks: Ranks, posteriors: Mapping[str, Any], given: tuple[Any, Any], held: tuple[Held, Held | None], options: Any
) -> None:
    """Every rank must have the same methods, data and options."""
    if ranks.alone:
        return
    for name, data in zip(("test", "ood"), given, strict=True):
        refuse_part(data, ranks, name)
    inside, outside = held
    data = [t for one in (inside, outside) if one is not None for t in tensors_in([one.inputs, one.targets])]
    signature = {
        "the set of methods": {name: " ".join(repr(p).split()) for name, p in posteriors.items()},
        "the digest of the methods": {name: fingerprint(p) for name, p in posteriors.items()},
        "the digest of the data": digest(data),
        "the options": options,
    }
    ranks.agree(signature, "comparing methods and data")


def fingerprint(posterior: Any) -> str:
    """Tells posteriors apart that read the same: of networks and tensors; of Laplace the prior and data scale."""
    return digest_of_values(list(_features(posterior)))[:12]


def _features(posterior: Any) -> Iterator[str]:
    if isinstance(posterior, LaplaceEnsemble):
        for member in posterior.members:
            yield from _features(member)
    elif isinstance(posterior, Laplace):
        yield weights_hash(posterior.network.module)
        yield f"{posterior.data_scale:.6g}"  # ranks that tuned by themselves may differ in the last digits
        spec = posterior.prior.spec()
        for name, value in sorted((spec.get("relative") or spec).items()):
            yield f"{name} {value if value is None else format(value, '.6g')}"
        for name, value in sorted(posterior.prior.tensors().items()):
            yield f"{name} {digest([value])}"
    elif isinstance(posterior, DrawnPosterior):
        yield from map(weights_hash, posterior.networks())
        for name, tensor in sorted(posterior.state().tensors.items()):
            yield f"{name} {digest([tensor])}"


def gathered(ranks: Ranks, methods: list[Any], posteriors: Mapping[str, Any], first: str) -> list[Any]:
    """Every rank's methods on all ranks: ``first``, if it is there, then in the order of the posteriors."""
    if ranks.alone:
        return methods
    sent = [replace(m, posterior=None, inside=_plain(m.inside), outside=_plain(m.outside)) for m in methods]
    found = {m.name: m for some in ranks.meet("gathering predictions", sent) for m in some}
    return [replace(found[n], posterior=posteriors.get(n)) for n in (first, *posteriors) if n in found]


def gather_log(ranks: Ranks, log: Log) -> None:
    """What happened on all ranks."""
    if ranks.alone:
        return
    found = ranks.meet("gathering notices", (log.notices, log.seconds))
    log.notices = [notice for notices, _ in found for notice in notices]
    log.seconds = {name: seconds for _, times in reversed(found) for name, seconds in times.items()}


def _plain(prediction: Any) -> Any:
    """A prediction that can be sent: on the CPU, and without what would be computed when asked for."""
    if prediction is None:
        return None
    values = {f.name: getattr(prediction, f.name) for f in fields(prediction)}
    moved = {name: value.detach().cpu() for name, value in values.items() if isinstance(value, Tensor)}
    if "_lazy" in values:
        moved["_lazy"] = type(values["_lazy"])()
    return replace(prediction, **moved)
