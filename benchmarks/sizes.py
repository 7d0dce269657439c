"""How much work: for each device and network, and small ones to see that everything runs."""

from __future__ import annotations

from dataclasses import dataclass, replace


@dataclass(frozen=True)
class Size:
    """Numbers of one network on one device. ``slow`` is for contenders that keep a Jacobian: (examples, batch)."""

    fit: int
    batch: int
    predict: int
    tune: int = 0
    slow: tuple[int, int] = (64, 16)  # diagonals: examples, and how many at once
    dear: tuple[int, int] | None = None  # the same for the peers' exact Kronecker fits, where they need it
    exact: int | None = None  # examples of an exact fit, where 100 outputs make it dear
    pieces: tuple[int, ...] = (16,)  # of linearised predictions by laplace-torch
    share: int = 64  # inputs of those that are measured
    values: int = 3  # prior precisions of its grid search that are measured
    draws: int = 100  # of 100 that are measured
    sampled: int | None = None  # inputs of sampled predictions, if not those of linearised ones
    fitted: int = 512  # examples behind a prediction
    placeholder: bool = False  # whether decompositions are left out of everything but their own row
    width: int = 1024  # of the multi-layer perceptron


@dataclass(frozen=True)
class Sizes:
    """All networks on one device."""

    networks: dict[str, Size]
    growth: int = 2048
    limit: float = 120.0  # seconds for one contender
    decomposition_limit: float = 300.0
    draws: int = 100
    values: int = 100
    variational: int = 5120


CPU = Sizes(
    {
        "mlp": Size(5120, 512, 1024, 512, (32, 16), pieces=(16, 4), share=16, values=1, sampled=10240),
        "lenet": Size(2048, 512, 1024, 512, (128, 64), pieces=(64, 16), share=128, values=2),
        "vgg": Size(256, 64, 8, slow=(4, 2), pieces=(2,), share=2, fitted=32, draws=10, sampled=32, placeholder=True),
        "wrn": Size(
            128, 64, 4, slow=(2, 1), exact=8, pieces=(1,), share=1, fitted=16, draws=20, sampled=32, placeholder=True
        ),
        "transformer": Size(256, 128, 64, slow=(16, 8), pieces=(8,), share=16, fitted=128),
        "head": Size(512, 128, 64, slow=(4, 1), dear=(64, 64), pieces=(1,), share=1, fitted=128),
    }
)
CUDA = Sizes(
    {
        "mlp": Size(61440, 512, 4096, 2048, (1024, 64), pieces=(16, 4), share=64, values=2, sampled=10240),
        "lenet": Size(61440, 512, 4096, 2048, (4096, 64), pieces=(64, 16), share=1024, values=3),
        "vgg": Size(2048, 256, 512, slow=(64, 16), pieces=(8,), share=32, fitted=256, placeholder=True),
        "wrn": Size(
            8192, 512, 32, slow=(16, 4), exact=256, pieces=(1,), share=4, fitted=128, sampled=256, placeholder=True
        ),
        "transformer": Size(4096, 256, 512, slow=(128, 64), pieces=(16,), share=128),
        "head": Size(4096, 512, 256, slow=(64, 16), dear=(512, 512), pieces=(2,), share=16),
    },
    growth=10240,
    limit=60.0,
    decomposition_limit=90.0,
    variational=20480,
)


def quick(sizes: Sizes) -> Sizes:
    """Enough to see that it runs."""

    def small(size: Size) -> Size:
        least = size.pieces[-1]
        return replace(
            size,
            fit=2 * min(size.fit // 32, 64),
            batch=min(size.fit // 32, 64),
            predict=min(size.predict, 16),
            tune=min(size.tune, 16),
            slow=(min(4, size.slow[0]), min(2, size.slow[1])),
            dear=size.dear and (8, 8),
            exact=size.exact and 4,
            pieces=(least,),
            share=min(size.share, 2 * least),
            values=1,
            sampled=size.sampled and 4,
            fitted=16,
            width=128,
        )

    networks = {name: small(size) for name, size in sizes.networks.items()}
    return replace(sizes, networks=networks, growth=256, limit=40.0, draws=10, values=10, variational=512)
