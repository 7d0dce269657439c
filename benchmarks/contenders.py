"""What each library is asked to do. A job loads its model and data when made, works when called."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from benchmarks.networks import inputs, loader, network

AGREE_DATA, AGREE_INPUTS = 64, 8  # the small problem on which linearised covariances are compared
CORNER = 32  # rows of an input factor that enter the compared product


@dataclass
class Job:
    """``work`` is timed; ``result`` gives what is compared with the other library's."""

    work: Callable[[], Any]
    result: Callable[[Any], Tensor] | None = None
    details: Callable[[Any], dict[str, float]] = field(default=lambda _: {})


def whence_fit(net: str, structure: str, size: int, curvature: str = "ggn") -> Job:
    import whence

    model, data = network(net), loader(net, size)
    torch.manual_seed(3)

    def work() -> Any:
        return whence.laplace(
            model, data, likelihood="classification", structure=structure, curvature=curvature, progress=False
        )

    return Job(work, _whence_values, lambda posterior: dict(posterior.curvature.seconds))


def _whence_values(posterior: Any) -> Tensor:
    """The diagonal of H in the network's order, or a product of Kronecker factors of the smallest layer."""
    pairs = list(zip(posterior.blocks, posterior.curvature.structures, strict=True))
    if posterior.curvature.options.structure == "diag":
        values = {n: v for block, s in pairs for n, v in block.scatter(s.values).items()}
        return torch.cat([values[name].flatten() for name in posterior.names()])
    block, factors = min(pairs, key=lambda pair: pair[0].size)
    a = factors.mean_input[0]
    return _product(factors.grads[0], a[:-1, :-1] if block.form.bias else a)


def _product(g: Tensor, a: Tensor) -> Tensor:
    corner = a[:CORNER, :CORNER].double().contiguous()
    return torch.kron(g.double().contiguous(), corner).flatten()


def whence_predict(net: str, fit_size: int, size: int, link: Any = "mc") -> Job:
    import whence

    def fitted(bias: bool, data_size: int) -> Any:
        model, data = network(net, bias), loader(net, data_size)
        return whence.laplace(model, data, likelihood="classification", structure="kron", curvature="ggn")

    posterior, x = fitted(True, fit_size), inputs(net, size)

    def small(_: Any) -> Tensor:
        return fitted(False, AGREE_DATA).predict(inputs(net, AGREE_INPUTS)).logit_cov.flatten()

    return Job(lambda: posterior.predict(x, link=link), small)


def laplace_fit(net: str, structure: str, size: int) -> Job:
    from laplace import Laplace

    model, data = network(net), loader(net, size)

    def work() -> Any:
        la = Laplace(model, "classification", subset_of_weights="all", hessian_structure=structure)
        la.fit(data)
        return la

    return Job(work, _laplace_diagonal if structure == "diag" else _laplace_product)


def _laplace_diagonal(la: Any) -> Tensor:
    return la.H.flatten()


def _laplace_product(la: Any) -> Tensor:
    pairs = [factors for factors in la.H_facs.kfacs if len(factors) == 2]
    g, a = min(pairs, key=lambda pair: len(pair[0]) * len(pair[1]))
    return _product(g, a)


def laplace_predict(net: str, fit_size: int, size: int, batch: int) -> Job:
    from laplace import Laplace

    def fitted(bias: bool, data_size: int) -> Any:
        la = Laplace(network(net, bias), "classification", subset_of_weights="all", hessian_structure="kron")
        la.fit(loader(net, data_size))
        return la

    la, x = fitted(True, fit_size), inputs(net, size)

    def work() -> Tensor:
        return torch.cat([la(piece) for piece in x.split(batch)])

    def small(_: Any) -> Tensor:
        _, cov = fitted(False, AGREE_DATA)._glm_predictive_distribution(inputs(net, AGREE_INPUTS))
        return cov.flatten()

    return Job(work, small)


def training_epoch(net: str, size: int) -> Job:
    """Forward and backward of every batch; no optimiser's step."""
    model, data = network(net), loader(net, size)

    def work() -> None:
        _epoch(model, data)

    return Job(work)


def _epoch(model: nn.Module, data: Iterable[tuple[Tensor, Tensor]]) -> None:
    for x, y in data:
        model.zero_grad()
        nn.functional.cross_entropy(model(x), y).backward()


JOBS: dict[str, Callable[..., Job]] = {
    "whence_fit": whence_fit,
    "whence_predict": whence_predict,
    "laplace_fit": laplace_fit,
    "laplace_predict": laplace_predict,
    "training_epoch": training_epoch,
}
