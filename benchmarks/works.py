"""What is measured, who takes part, and the bars that whence has set itself."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Literal

Quantity = Literal["seconds", "peak_mb"]


@dataclass(frozen=True)
class Bar:
    """A limit on this contender's quantity over that of the work's reference."""

    limit: float
    at_least: bool
    quantity: Quantity = "seconds"

    def text(self) -> str:
        what = "time" if self.quantity == "seconds" else "memory"
        return f"{what} {'≥' if self.at_least else '≤'} {self.limit:g}×"

    def met(self, ratio: float) -> bool:
        return ratio >= self.limit if self.at_least else ratio <= self.limit


@dataclass(frozen=True)
class Contender:
    """One row of the table."""

    name: str
    job: str
    options: dict[str, Any] = field(default_factory=dict)
    bars: tuple[Bar, ...] = ()
    part: str | None = None  # the part of the job whose seconds count, if not all
    scale: float = 1.0  # what seconds are multiplied by, where only a part of the work was done
    note: str = ""
    compare: bool = True
    variables: dict[str, str] = field(default_factory=dict)  # of its environment


@dataclass(frozen=True)
class Work:
    """Contenders on the same work. Ratios are over the first one; differences are from ``ours``."""

    name: str
    title: str
    contenders: tuple[Contender, ...]
    ours: int = 0
    difference: str = ""


@dataclass(frozen=True)
class Sizes:
    """How much work."""

    diag: int = 64
    kron: int = 2048
    predict: int = 1024
    more: tuple[int, ...] = (4096, 16384)
    fitted: int = 512
    epoch: int = 10240
    mlp_share: int = 64


QUICK = Sizes(diag=16, kron=512, predict=64, more=(256,), fitted=64, epoch=1024, mlp_share=8)


def works(sizes: Sizes) -> list[Work]:
    return [
        lenet_diag(sizes),
        lenet_kron(sizes),
        lenet_predict(sizes),
        lenet_memory(sizes),
        mlp_kron(sizes),
        mlp_predict(sizes),
        imports(),
    ]


def lenet_diag(sizes: Sizes) -> Work:
    options = {"net": "lenet", "structure": "diag", "size": sizes.diag}
    return Work(
        "lenet-diag",
        f"LeNet-5: fit of the exact diagonal, {sizes.diag:,} examples",
        (
            Contender("whence", "whence_fit", options),
            Contender("laplace-torch", "laplace_fit", options, (Bar(20, True),), note="default backend"),
        ),
        difference="the diagonal",
    )


PRODUCT = "G ⊗ A of the smallest layer's weight"


def lenet_kron(sizes: Sizes) -> Work:
    options = {"net": "lenet", "structure": "kron", "size": sizes.kron}
    return Work(
        "lenet-kron",
        f"LeNet-5: fit of exact Kronecker factors, {sizes.kron:,} examples",
        (
            Contender("whence", "whence_fit", options),
            Contender("laplace-torch", "laplace_fit", options, (Bar(2, True),), note="default backend"),
        ),
        difference=PRODUCT,
    )


COVARIANCE = (
    "covariance of the outputs on a small problem without biases (laplace-torch gives biases a block of their own)"
)
THEIR_LINK = "default link, probit"
OUR_LINK = "the same link, probit"
GROWTH = (Bar(1.25, False, "peak_mb"),)


def lenet_predict(sizes: Sizes) -> Work:
    options = {"net": "lenet", "fit_size": sizes.fitted, "size": sizes.predict}
    bars = (Bar(150, True), Bar(10, True, "peak_mb"))
    ours = [
        Contender("whence", "whence_predict", options | {"link": "probit"}, note=OUR_LINK),
        Contender("whence, Monte Carlo link", "whence_predict", options, note="its default, 256 points", compare=False),
    ]
    ours += [
        Contender(
            f"whence, {size:,} inputs",
            "whence_predict",
            options | {"size": size, "link": "probit"},
            GROWTH,
            compare=False,
        )
        for size in sizes.more
    ]
    theirs = [
        Contender(
            f"laplace-torch, batches of {batch:,}",
            "laplace_predict",
            options | {"batch": batch},
            bars,
            note=THEIR_LINK,
            compare=batch == 16,
        )
        for batch in (sizes.predict, 64, 16)
        if batch < sizes.predict or batch > 64
    ]
    title = f"LeNet-5: linearised prediction of {sizes.predict:,} inputs"
    return Work("lenet-predict", title, (*ours, *theirs), difference=COVARIANCE)


def lenet_memory(sizes: Sizes) -> Work:
    """The same predictions where the C library hands freed memory back at once, so that tensors alone count."""
    variables = {"MALLOC_MMAP_THRESHOLD_": "65536"}
    rows = tuple(
        Contender(
            f"whence, {size:,} inputs",
            "whence_predict",
            {"net": "lenet", "fit_size": sizes.fitted, "size": size},
            GROWTH if size > sizes.predict else (),
            compare=False,
            variables=variables,
        )
        for size in (sizes.predict, *sizes.more)
    )
    title = "LeNet-5: memory of the linearised prediction, with freed memory handed back at once (slower)"
    return Work("lenet-memory", title, rows)


def mlp_kron(sizes: Sizes) -> Work:
    options = {"net": "mlp", "structure": "kron", "size": sizes.epoch}
    return Work(
        "mlp-kron",
        f"784-1024-1024-10: Kronecker factors beside a training epoch, {sizes.epoch:,} examples",
        (
            Contender("one training epoch", "training_epoch", {"net": "mlp", "size": sizes.epoch}, compare=False),
            Contender("whence, exact factors", "whence_fit", options, (Bar(7.5, False),), part="curvature"),
            Contender(
                "whence, sampled factors",
                "whence_fit",
                options | {"curvature": "mc"},
                (Bar(2, False),),
                part="curvature",
                note="its difference is that of one draw for each example",
            ),
            Contender("laplace-torch, exact", "laplace_fit", options, note="default backend, with decompositions"),
        ),
        ours=1,
        difference=PRODUCT,
    )


def mlp_predict(sizes: Sizes) -> Work:
    options = {"net": "mlp", "fit_size": sizes.fitted, "size": sizes.predict}
    share = sizes.predict / sizes.mlp_share
    bars = (Bar(500, True),)
    batch = min(16, sizes.mlp_share)
    whole = Contender(
        f"laplace-torch, batches of {sizes.predict:,}",
        "laplace_predict",
        options | {"batch": sizes.predict},
        bars,
        note=THEIR_LINK,
        compare=False,
    )
    part = Contender(
        f"laplace-torch, batches of {batch}",
        "laplace_predict",
        options | {"size": sizes.mlp_share, "batch": batch},
        bars,
        scale=share,
        note=f"{THEIR_LINK}; {sizes.mlp_share} inputs measured, seconds times {share:g}",
    )
    theirs = (whole, part) if sizes.predict > 64 else (part,)
    ours = Contender("whence", "whence_predict", options | {"link": "probit"}, note=OUR_LINK)
    title = f"784-1024-1024-10: linearised prediction of {sizes.predict:,} inputs"
    return Work("mlp-predict", title, (ours, *theirs), difference=COVARIANCE)


def imports() -> Work:
    return Work(
        "import",
        "Import in a fresh interpreter, median of 5",
        (
            Contender("import torch", "import", {"module": "torch"}, compare=False),
            Contender("import whence", "import", {"module": "whence"}, (Bar(1.5, False),), compare=False),
        ),
    )
