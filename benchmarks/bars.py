"""The bars that whence has set itself, held against the rows of one run."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

Rows = list[dict[str, Any]]
SAME = 1e-3  # a peer with a smaller difference returns the same numbers
LINEAR = 1.25  # by how much cost may outgrow its measure and still be called linear


DECIDING = [  # the works that bars are read from
    "mlp:kron-ggn", "mlp:kron-mc", "mlp:diag-ggn", "mlp:predict", "mlp:sampled", "mlp:tune", "lenet:kron-ggn",
    "lenet:kron-mc", "lenet:diag-ggn", "lenet:predict", "lenet:tune", "vgg:kron-ggn", "vgg:diag-ggn", "wrn:kron-mc",
    "head:last-kron-ggn", "head:last-predict", "mlp:growth-data-ggn", "mlp:growth-data-mc", "mlp:growth-depth-ggn",
    "mlp:growth-depth-mc", "lenet:growth-inputs",
]  # fmt: skip


@dataclass(frozen=True)
class Bar:
    """A bar and what became of it; ``figure`` is None where it could not be measured."""

    what: str
    limit: float
    at_least: bool
    figure: float | None
    against: str = ""

    @property
    def met(self) -> bool | None:
        if self.figure is None:
            return None
        return self.figure >= self.limit if self.at_least else self.figure <= self.limit

    @property
    def asked(self) -> str:
        return f"{'≥' if self.at_least else '≤'} {self.limit:,g}"

    @property
    def verdict(self) -> str:
        return {None: "–", True: "met", False: "MISSED"}[self.met]

    def to_dict(self) -> dict[str, Any]:
        return {"bar": self.what, "asked": self.asked, "figure": self.figure, "against": self.against, "met": self.met}


class Table:
    """The rows of a results file, by work."""

    def __init__(self, results: dict[str, Any]) -> None:
        self.works: dict[str, Any] = results["works"]
        self.cuda = results["device"] == "cuda"

    def rows(self, work: str) -> Rows:
        return [row for row in self.works.get(work, {}).get("rows", []) if "error" not in row]

    def ours(self, work: str) -> dict[str, Any] | None:
        return next((row for row in self.rows(work) if row["contender"] == "whence"), None)

    def peers(self, work: str, wanted: Callable[[dict[str, Any]], bool]) -> Rows:
        found = [row for row in self.rows(work) if not row["contender"].startswith("whence") and wanted(row)]
        return sorted(found, key=lambda row: row["seconds"])

    def pick(self, cpu: float, cuda: float) -> float:
        return cuda if self.cuda else cpu

    def faster(self, what: str, work: str, limit: float, wanted: Callable[[dict[str, Any]], bool]) -> Bar:
        """Seconds of the fastest peer that is wanted, over ours."""
        ours, peers = self.ours(work), self.peers(work, wanted)
        if ours is None or not peers:
            return Bar(what, limit, True, None, "no peer gave a result" if ours is not None else "")
        return Bar(what, limit, True, peers[0]["seconds"] / ours["seconds"], peers[0]["contender"])

    def ratio(self, what: str, work: str, limit: float) -> Bar:
        """Our seconds in those of the plain network."""
        ours = self.ours(work)
        return Bar(what, limit, False, ours and ours.get("ratio"), "plain " + self.base(work))

    def base(self, work: str) -> str:
        return {"epoch": "training epoch", "forward": "forward pass"}.get(self.works.get(work, {}).get("base"), "")


def same(row: dict[str, Any]) -> bool:
    return (row.get("difference") or 0.0) < SAME if row.get("difference") is not None else False


def default(row: dict[str, Any]) -> bool:
    return row["contender"].startswith("laplace-torch, curvlinops")


def laplace(row: dict[str, Any]) -> bool:
    return row["contender"].startswith("laplace-torch")


def bars(results: dict[str, Any]) -> list[Bar]:
    """Every bar, measured or not."""
    table = Table(results)
    return [*_fits(table), *_predictions(table), *_growth(table)]


TITLES = {"mlp": "MLP", "lenet": "LeNet-5", "vgg": "VGG-11", "wrn": "WRN-16-4"}


def _fits(t: Table) -> Iterator[Bar]:
    for net in ("mlp", "lenet", "vgg"):
        what = f"{TITLES[net]}, exact Kronecker fit, times faster than the fastest peer with the same numbers"
        yield t.faster(what, f"{net}:kron-ggn", t.pick(1.8, 8), same)
    yield t.ratio("MLP, exact Kronecker fit, epochs", "mlp:kron-ggn", t.pick(7, 1.6))
    yield t.ratio("MLP, sampled Kronecker fit, epochs", "mlp:kron-mc", t.pick(1.8, 1.6))
    for net in ("lenet", "wrn"):
        yield t.ratio(f"{TITLES[net]}, sampled Kronecker fit, epochs", f"{net}:kron-mc", 3)
    for net in ("mlp", "lenet", "vgg"):
        work = f"{net}:diag-ggn"
        what = f"{TITLES[net]}, exact diagonal fit, times faster than "
        yield t.faster(what + "BackPACK", work, t.pick(1.3, 8), lambda row: row["contender"] == "BackPACK")
        yield t.faster(what + "laplace-torch's default", work, 100, default)
    what = "1,000 classes, exact last-layer fit, times faster than laplace-torch"
    yield t.faster(what, "head:last-kron-ggn", 100, laplace)


def _predictions(t: Table) -> Iterator[Bar]:
    for net, cpu, cuda in (("mlp", 1000, 400), ("lenet", 200, 10)):
        work, what = f"{net}:predict", f"{TITLES[net]}, linearised prediction, "
        yield t.faster(what + "times faster than laplace-torch's default", work, t.pick(cpu, cuda), default)
        if not t.cuda:
            yield t.faster(what + "times faster than its fastest backend", work, 50, laplace)
        ours, theirs = t.ours(work), t.peers(work, default)
        memory = theirs[0]["peak_mb"] / max(ours["peak_mb"], 1.0) if ours and theirs and "peak_mb" in ours else None
        name = theirs[0]["contender"] if theirs else ""
        yield Bar(what + "times less memory than laplace-torch's default", 20, True, memory, name)
    what = "1,000 classes, linearised last-layer prediction, times faster than laplace-torch"
    yield t.faster(what, "head:last-predict", 100, laplace)
    for net, limit in (("mlp", 5), ("lenet", 15)):
        ours = t.ours(f"{net}:tune")
        figure = ours["seconds"] / ours["beside"] if ours and ours.get("beside") else None
        yield Bar(f"{TITLES[net]}, tuning over 100 priors, predictions", limit, False, figure, "one prediction")
    yield t.ratio("MLP, 100 sampled predictions, forward passes", "mlp:sampled", t.pick(110, 60))


def _growth(t: Table) -> Iterator[Bar]:
    for curvature, word in (("ggn", "exact"), ("mc", "sampled")):
        rows = t.rows(f"mlp:growth-data-{curvature}")
        what = f"{word} Kronecker fit of four times the examples, "
        yield Bar(what + "seconds in four times those of one", LINEAR, False, _grown(rows, "seconds", 4), "itself")
        yield Bar(what + "memory in that of one", LINEAR, False, _grown(rows, "peak_mb", 1), "itself")
        rows = t.rows(f"mlp:growth-depth-{curvature}")
        what = f"{word} Kronecker fit of 8 hidden layers, epochs in those of 2"
        yield Bar(what, LINEAR, False, _grown(rows, "ratio", 1), "itself")
    rows = t.rows("lenet:growth-inputs")
    what = "linearised prediction of four times the inputs, "
    yield Bar(what + "seconds in four times those of one", LINEAR, False, _grown(rows, "seconds", 4), "itself")
    yield Bar(what + "memory in that of one", LINEAR, False, _grown(rows, "peak_mb", 1), "itself")


def _grown(rows: Rows, key: str, expected: float) -> float | None:
    """Last over first, beside what was expected."""
    if len(rows) < 2 or not rows[0].get(key):
        return None
    return rows[-1].get(key, 0.0) / rows[0][key] / expected
