"""Jobs of laplace-torch, with each of its backends."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from benchmarks import compared
from benchmarks.compared import Summary
from benchmarks.contenders import Job, Task
from benchmarks.networks import NETWORKS, freeze_unknown

Options = dict[str, Any]


def backend_of(name: str, curvature: str) -> Options:
    """Arguments that choose a backend: ``curvlinops`` (its default), ``backpack`` or ``asdl``."""
    if name == "curvlinops":
        from laplace.curvature.curvlinops import CurvlinopsEF as Ef
        from laplace.curvature.curvlinops import CurvlinopsGGN as Ggn
    elif name == "backpack":
        from laplace.curvature.backpack import BackPackEF as Ef
        from laplace.curvature.backpack import BackPackGGN as Ggn
    else:
        from laplace.curvature.asdl import AsdlEF as Ef
        from laplace.curvature.asdl import AsdlGGN as Ggn
    if curvature == "empirical":
        return {"backend": Ef}
    return {"backend": Ggn, "backend_kwargs": {"stochastic": curvature == "mc"}}


def fit(task: Task, structure: str, curvature: str, backend: str, subset: str = "all", share: bool = False) -> Job:
    model, data = known(task, task.network(), subset), task.loader()
    chosen = backend_of(backend, curvature)  # imported here, not while the clock runs

    def work() -> Any:
        return fitted(model, data, structure, subset, chosen)

    def result(la: Any) -> Summary:
        found = summary(la, model, structure)
        return compared.of_share(found) if share else found

    return Job(work, result)


def known(task: Task, model: nn.Module, subset: str) -> nn.Module:
    """The network with what the backends have no rule for held fixed."""
    return model if subset == "last_layer" or NETWORKS[task.net].known else freeze_unknown(model)


def fitted(model: nn.Module, data: Any, structure: str, subset: str, backend: Options) -> Any:
    from laplace import Laplace

    la = Laplace(model, "classification", subset_of_weights=subset, hessian_structure=structure, **backend)
    la.fit(data)
    return la


def summary(la: Any, model: nn.Module, structure: str) -> Summary:
    """By the names of the user's network; a last layer's weights are its last."""
    names = [(n, p) for n, p in model.named_parameters() if p.requires_grad]
    if structure == "full":
        return {"all": compared.of_vector(la.H)}
    if structure == "diag":
        names = _fitting(names, lambda chosen: sum(p.numel() for _, p in chosen) == len(la.H))
        pieces = la.H.split([p.numel() for _, p in names])
        return {n: compared.of_vector(v) for (n, _), v in zip(names, pieces, strict=True)}
    facs = la.H_facs.kfacs
    names = _fitting(names, lambda chosen: len(chosen) == len(facs))
    return {n: compared.of_factors(*f) for (n, _), f in zip(names, facs, strict=True) if len(f) == 2}


def _fitting(names: list[Any], fits: Any) -> list[Any]:
    while names and not fits(names):
        names = names[1:]
    return names


def predict(task: Task, backend: str, piece: int, subset: str = "all", curvature: str = "ggn") -> Job:
    """In pieces of a size that suits it: its memory and time grow with the square of it."""
    model = known(task, task.network(), subset)
    la = fitted(model, task.loader(task.fit_size), "kron", subset, backend_of(backend, curvature))
    x = task.inputs()

    def small(_: Any) -> Summary:
        part = task.small()
        plain = known(task, part.network(bias=False), subset)
        agree = fitted(plain, part.loader(part.fit_size), "kron", subset, backend_of(backend, "ggn"))
        return compared.of_matrices(agree._glm_predictive_distribution(part.inputs())[1])

    return Job(lambda: torch.cat([la(part) for part in x.split(piece)]), small)


def sampled(task: Task, draws: int = 100) -> Job:
    model = known(task, task.network(), "all")
    la = fitted(model, task.loader(task.fit_size), "kron", "all", backend_of("curvlinops", "mc"))
    x = task.inputs()

    def work() -> Tensor:
        pieces = x.split(task.batch)
        return torch.cat([la(p, pred_type="nn", link_approx="mc", n_samples=draws) for p in pieces])

    return Job(work)


def tune(task: Task, values: int, backend: str, piece: int) -> Job:
    """Its grid search over fewer values than a hundred, with pieces of a size that suits it."""
    la = fitted(task.network(), task.loader(task.fit_size), "kron", "all", backend_of(backend, "ggn"))
    data = replace(task, batch=piece).loader(seed=7)
    x = torch.cat([batch for batch, _ in data])

    def work() -> Any:
        la.optimize_prior_precision("glm", method="gridsearch", val_loader=data, grid_size=values)
        return la.prior_precision

    return Job(work, beside=lambda: torch.cat([la(part) for part in x.split(piece)]))
