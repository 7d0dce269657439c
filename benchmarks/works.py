"""What is measured, and who takes part."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import Any

from benchmarks.networks import NETWORKS
from benchmarks.sizes import Size, Sizes

OURS = "whence"
DRAWN = "its own draw of labels"
FROZEN = "without normalisation and attention weights"
CURVATURE = "curvature only"
GIVEN_ALL = ("whence:predict", "whence:sampled")  # which choose the size of their pieces themselves
BACKENDS = {"curvlinops": "curvlinops (default)", "backpack": "BackPACK", "asdl": "ASDL"}


@dataclass(frozen=True)
class Contender:
    """One row of the table."""

    name: str
    job: str
    options: dict[str, Any] = field(default_factory=dict)
    note: str = ""
    task: dict[str, Any] = field(default_factory=dict)  # where it departs from the work's own
    scale: float = 1.0  # what seconds are multiplied by, where only a part of the work is done
    compare: bool = True
    hand_back: bool = False


@dataclass(frozen=True)
class Work:
    """Contenders on the same work. Ratios are to the plain network: an epoch, or a forward pass."""

    name: str  # network:kind
    title: str
    base: str
    task: dict[str, Any]
    contenders: tuple[Contender, ...]
    limit: float = 120.0

    @property
    def network(self) -> str:
        return self.name.partition(":")[0]

    @property
    def kind(self) -> str:
        return self.name.partition(":")[2]

    def batch(self, contender: Contender) -> int:
        """Examples that a contender is given at a time."""
        task = self.task | contender.task
        if contender.job in GIVEN_ALL:
            return task["size"]
        return min(contender.options.get("piece", task["batch"]), task["size"])


KINDS = {
    "mlp": "kron-ggn kron-mc kron-empirical diag-ggn diag-mc diag-empirical last-kron-ggn predict sampled tune",
    "lenet": "kron-ggn kron-mc kron-empirical diag-ggn diag-mc diag-empirical last-kron-ggn last-diag-ggn "
    "last-full-ggn predict sampled tune",
    "vgg": "kron-ggn kron-mc kron-empirical diag-ggn diag-empirical last-kron-ggn predict sampled decomposition",
    "wrn": "kron-ggn kron-mc kron-empirical diag-empirical last-kron-ggn predict sampled",
    "transformer": "kron-ggn kron-mc kron-empirical diag-empirical last-kron-ggn predict sampled",
    "head": "last-kron-ggn last-kron-mc last-diag-ggn last-predict",
}


def works(sizes: Sizes, device: str) -> list[Work]:
    """Everything, network by network."""
    found: list[Work] = []
    for name, kinds in KINDS.items():
        found += [_work(name, kind, sizes, device) for kind in kinds.split()]
    return [*found, *_variational(sizes, device), *_growth(sizes, device)]


def _work(net: str, kind: str, sizes: Sizes, device: str) -> Work:
    size = sizes.networks[net]
    task = {"net": net, "device": device, "batch": size.batch, "fit_size": size.fitted, "width": size.width}
    if size.placeholder and kind != "decomposition":
        task["placeholder"] = True
    title = NETWORKS[net].title
    if kind in ("predict", "last-predict"):
        rows = tuple(_predictions(net, size, last=kind == "last-predict"))
        title += f": linearised prediction of {size.predict:,} inputs{', last layer' if kind != 'predict' else ''}"
        return Work(f"{net}:{kind}", title, "forward", task | {"size": size.predict}, rows, sizes.limit)
    if kind == "sampled":
        rows = tuple(_sampled(net, sizes.draws, min(size.draws, sizes.draws)))
        count = size.sampled or size.predict
        title += f": {sizes.draws} sampled predictions of {count:,} inputs"
        return Work(f"{net}:{kind}", title, "forward", task | {"size": count}, rows, sizes.limit)
    if kind == "tune":
        title += f": {sizes.values} prior precisions on {size.tune:,} validation inputs, linearised"
        rows = tuple(_tunings(size, sizes.values))
        return Work(f"{net}:{kind}", title, "forward", task | {"size": size.tune}, rows, sizes.limit)
    if kind == "decomposition":
        title += ": a sampled Kronecker fit with its eigendecompositions, which the other fits here leave out"
        options = {"structure": "kron", "curvature": "mc"}
        own = (Contender(OURS, "whence:fit", options), _laplace_fit(net, "kron", "mc", "backpack", "all"))
        return Work(f"{net}:{kind}", title, "epoch", task | {"size": size.fit}, own, sizes.decomposition_limit)
    return _fit(net, kind, size, task, title, sizes.limit)


WORDS = {"ggn": "exact", "mc": "sampled", "empirical": "empirical", "kron": "Kronecker", "diag": "diagonal"}


def _fit(net: str, kind: str, size: Size, task: dict[str, Any], title: str, limit: float) -> Work:
    last = kind.startswith("last-")
    structure, curvature = kind.removeprefix("last-").split("-")
    count = size.fit
    if size.exact is not None and curvature == "ggn" and not last:
        count = size.exact
        task = task | {"batch": min(size.batch, count)}
    what = f"{WORDS[curvature]} {WORDS.get(structure, structure)} fit{' of the last layer' if last else ''}"
    options: dict[str, Any] = {"structure": structure, "curvature": curvature} | ({"layers": "last"} if last else {})
    peers = list(_peers(net, structure, curvature, last, size, count))
    part = next((p for p in peers if "share" in p.options), None)
    if part is not None:
        options["share"] = [part.task["size"], part.task["batch"]]
    rows = [Contender(OURS, "whence:fit", options), *peers]
    full = f"{title}: {what}, {count:,} examples"
    return Work(f"{net}:{kind}", full, "epoch", task | {"size": count}, tuple(rows), limit)


def _peers(net: str, structure: str, curvature: str, last: bool, size: Size, count: int) -> Iterator[Contender]:
    subset = "last_layer" if last else "all"
    for backend in BACKENDS:
        if backend == "backpack" and (structure, curvature) == ("kron", "empirical"):
            continue  # it has none
        if structure == "full" and backend != "curvlinops":
            continue  # all of them multiply the same Jacobians
        row = _laplace_fit(net, structure, curvature, backend, subset)
        if size.dear is not None and (structure, curvature) == ("kron", "ggn"):
            row = _shared(row, size.dear, count)
        elif _keeps_jacobian(structure, curvature, backend, last, net):
            row = _shared(row, size.slow, count)
        yield row
    if last or structure == "full":
        return
    draw = DRAWN if curvature == "mc" else ""
    if (structure, curvature) != ("kron", "empirical"):
        note = "; ".join(filter(None, [CURVATURE, _frozen(net), draw]))
        yield Contender("BackPACK", "backpack:backpack", {"structure": structure, "curvature": curvature}, note)
    if structure == "kron":
        note = "; ".join(filter(None, [CURVATURE, _frozen(net), draw]))
        yield Contender("curvlinops", "curvlinops:curvlinops", {"curvature": curvature}, note)
    if structure == "diag" and curvature != "mc":
        yield _shared(Contender("posteriors", "posteriors:posteriors", {"curvature": curvature}), size.slow, count)


def _keeps_jacobian(structure: str, curvature: str, backend: str, last: bool, net: str) -> bool:
    """Whether a backend keeps every output's gradient for every example of a batch."""
    if structure == "full":
        return False
    if last:
        return structure == "diag" and net == "head"
    return structure == "diag" and backend == "curvlinops" and curvature != "empirical"


def _shared(row: Contender, part: tuple[int, int], count: int) -> Contender:
    """The same on a part of the examples, in batches of another size, with its seconds scaled."""
    examples, batch = min(part[0], count), part[1]
    said = f"{examples} of the examples measured, in batches of {batch}"
    return replace(
        row,
        options=row.options | {"share": True},
        note="; ".join(filter(None, [said, row.note])),
        task={"size": examples, "batch": batch},
        scale=count / examples,
    )


def _frozen(net: str) -> str:
    return "" if NETWORKS[net].known else FROZEN


def _laplace_fit(net: str, structure: str, curvature: str, backend: str, subset: str) -> Contender:
    options = {"structure": structure, "curvature": curvature, "backend": backend, "subset": subset}
    left_out = _frozen(net) if subset == "all" else ""
    note = "; ".join(filter(None, [left_out, DRAWN if curvature == "mc" else ""]))
    return Contender(f"laplace-torch, {BACKENDS[backend]}", "laplace:fit", options, note)


def _predictions(net: str, size: Size, last: bool) -> Iterator[Contender]:
    layers = {"curvature": "mc"} | ({"layers": "last"} if last else {})  # how it was fitted changes no time here
    agree = NETWORKS[net].known and not size.placeholder and size.share > 1  # one more input would be too dear
    yield Contender(OURS, "whence:predict", layers, "probit link, as laplace-torch's", compare=agree)
    yield Contender("whence, Monte Carlo link", "whence:predict", layers | {"link": "mc"}, "its default", compare=False)
    subset = {"curvature": "mc"} | ({"subset": "last_layer"} if last else {})
    for backend, label in BACKENDS.items():
        for piece in size.pieces if backend == "curvlinops" else size.pieces[-1:]:
            share = min(size.predict, max(size.share, piece))
            part = f"{share} of the inputs measured" if share < size.predict else ""
            yield Contender(
                f"laplace-torch, {label}, batches of {piece}",
                "laplace:predict",
                {"backend": backend, "piece": piece} | subset,
                "; ".join(filter(None, [part, _frozen(net)])),
                {"size": share},
                size.predict / share,
                compare=agree and piece == size.pieces[-1],
            )


def _sampled(net: str, draws: int, measured: int) -> Iterator[Contender]:
    part = f"{measured} of the draws measured" if measured < draws else ""
    rows = [
        (OURS, "whence:sampled", {}, ""),
        ("laplace-torch", "laplace:sampled", {}, _frozen(net)),
        ("whence, diagonal", "whence:sampled", {"structure": "diag"}, "beside posteriors"),
        ("posteriors", "posteriors:posteriors_sampled", {}, "diagonal posterior"),
    ]
    for name, job, options, note in rows:
        said = "; ".join(filter(None, [part, note]))
        yield Contender(name, job, options | {"draws": measured}, said, scale=draws / measured, compare=False)


def _tunings(size: Size, values: int) -> Iterator[Contender]:
    yield Contender(OURS, "whence:tune", {"values": values}, compare=False)
    yield Contender("whence, tune()", "whence:tune_default", {}, "its own choice of values", compare=False)
    piece = size.pieces[-1]
    share = min(size.tune, max(size.share, piece))
    for backend in BACKENDS:
        yield Contender(
            f"laplace-torch, {BACKENDS[backend]}",
            "laplace:tune",
            {"values": size.values, "backend": backend, "piece": piece},
            f"{size.values} of the values on {share} of the inputs measured",
            {"size": share},
            values / size.values * size.tune / share,
            compare=False,
        )


VARIATIONAL = [
    ("whence, local", "whence", {"estimator": "local"}, ""),
    ("whence, flipout", "whence", {"estimator": "flipout"}, ""),
    ("bayesian-torch, reparameterisation", "bayesian_torch", {}, ""),
    ("bayesian-torch, flipout", "bayesian_torch", {"kind": "Flipout"}, ""),
    ("BLiTZ", "blitz", {}, ""),
    ("posteriors", "posteriors", {}, "with a step of gradient descent"),
]


def _variational(sizes: Sizes, device: str) -> Iterator[Work]:
    for net in ("mlp", "lenet"):
        size = sizes.networks[net]
        task = {"net": net, "device": device, "batch": min(128, size.batch), "fit_size": size.fitted}
        task["width"] = size.width
        rows = tuple(
            Contender(name, "variational:epoch", {"library": library} | options, note, compare=False)
            for name, library, options, note in VARIATIONAL
        )
        title = f"{NETWORKS[net].title}: an epoch of Bayes by Backprop, {sizes.variational:,} examples, batches of 128"
        yield Work(f"{net}:variational", title, "epoch", task | {"size": sizes.variational}, rows, sizes.limit)
        rows = tuple(
            Contender(name.partition(",")[0], "variational:predict", {"library": library, "draws": sizes.draws})
            for name, library, options, _ in VARIATIONAL
            if library != "posteriors" and options in ({}, {"estimator": "local"})
        )
        task = task | {"size": size.predict, "batch": size.batch}
        title = f"{NETWORKS[net].title}: {sizes.draws} draws of a variational posterior, {size.predict:,} inputs"
        yield Work(f"{net}:variational-predict", title, "forward", task, rows, sizes.limit)


def _growth(sizes: Sizes, device: str) -> Iterator[Work]:
    """How cost grows with the data, with depth, and with the inputs of a prediction; whence alone."""
    task = {"net": "mlp", "device": device, "batch": 256, "size": sizes.growth}
    task["width"] = min(512, sizes.networks["mlp"].width)
    for curvature in ("ggn", "mc"):
        options = {"structure": "kron", "curvature": curvature}
        rows = [
            Contender(f"{n:,} examples", "whence:fit", options, task={"size": n}, compare=False, hand_back=True)
            for n in (sizes.growth, 4 * sizes.growth)
        ]
        title = f"784-512-512-10: {WORDS[curvature]} Kronecker fit against the number of examples"
        yield Work(f"mlp:growth-data-{curvature}", title, "epoch", task, tuple(rows), sizes.limit)
        rows = [
            Contender(f"{depth} hidden layers", "whence:fit", options, task={"hidden": depth}, compare=False)
            for depth in (2, 4, 8)
        ]
        title = f"784-512-…-10: {WORDS[curvature]} Kronecker fit against depth, {sizes.growth:,} examples"
        yield Work(f"mlp:growth-depth-{curvature}", title, "epoch", task, tuple(rows), sizes.limit)
    size = sizes.networks["lenet"]
    task = {"net": "lenet", "device": device, "batch": size.batch, "fit_size": size.fitted}
    rows = [
        Contender(f"{n:,} inputs", "whence:predict", {}, task={"size": n}, compare=False, hand_back=True)
        for n in (size.predict, 4 * size.predict)
    ]
    title = "LeNet-5: linearised prediction against the number of inputs, freed memory handed back at once"
    yield Work("lenet:growth-inputs", title, "forward", task | {"size": size.predict}, tuple(rows), sizes.limit)
