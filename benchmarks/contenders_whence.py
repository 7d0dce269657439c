"""whence's own jobs."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

import whence
from benchmarks import compared
from benchmarks.compared import Summary
from benchmarks.contenders import Job, Task
from benchmarks.networks import loader

DECADES = 8.0  # of the prior precisions that are tried, as wide as laplace-torch's


def fit(task: Task, structure: str, curvature: str, layers: Any = None, share: list[int] | None = None) -> Job:
    """``share``: examples and batch of a smaller fit, whose result is compared as well."""
    model, data = task.network(), task.loader()
    torch.manual_seed(3)

    def result(posterior: Any) -> Summary:
        if share is None:
            return summary(posterior)
        less = loader(task.net, *share, task.device)
        return summary(posterior) | compared.of_share(summary(fitted(model, less, structure, curvature, layers)))

    return Job(lambda: fitted(model, data, structure, curvature, layers), result)


def fitted(
    model: Any, data: Any, structure: Any = "kron", curvature: Any = "ggn", layers: Any = None, **options: Any
) -> Any:
    return whence.laplace(
        model,
        data,
        likelihood="classification",
        structure=structure,
        curvature=curvature,
        layers=layers,
        prior_precision=1.0,  # as the others have it
        progress=False,
        **options,
    )


def summary(posterior: Any) -> Summary:
    """By weight: G ⊗ A without the row of the bias, or its diagonal; a dense block by its diagonal."""
    found: Summary = {}
    for block, structure in zip(posterior.blocks, posterior.curvature.structures, strict=True):
        tensors = structure.tensors()
        if hasattr(structure, "mean_input") and block.form is not None:
            a, g = structure.mean_input, structure.grads
            if len(a) == 1 and a.dim() == g.dim() == 3:
                found[block.params[0].name] = compared.of_factors(g[0], a[0, :-1, :-1] if block.form.bias else a[0])
        elif "values" in tensors:
            found |= {name: compared.of_vector(v) for name, v in block.scatter(tensors["values"]).items()}
        elif "matrix" in tensors:
            found["all"] = compared.of_vector(tensors["matrix"])
    return found


def predict(task: Task, link: Any = "probit", layers: Any = None, curvature: str = "ggn") -> Job:
    posterior, x = fitted(task.network(), task.loader(task.fit_size), "kron", curvature, layers), task.inputs()

    def small(_: Any) -> Summary:
        part = task.small()
        agree = fitted(part.network(bias=False), part.loader(part.fit_size), "kron", "ggn", layers)
        return compared.of_matrices(agree.predict(part.inputs()).logit_cov)

    return Job(lambda: read(posterior.predict(x, link=link)), small)


def sampled(task: Task, draws: int = 100, structure: str = "kron") -> Job:
    """Drawing the weights is part of the work."""
    model = task.network()
    posterior, x = fitted(model, task.loader(task.fit_size), structure, "mc"), task.inputs()
    return Job(lambda: read(posterior.predict(x, method="sampled", num_samples=draws)))


def read(prediction: Any) -> Tensor:
    """What the peers return; the rest of a prediction is computed when asked for."""
    return prediction.probs


def tune(task: Task, values: int = 100) -> Job:
    """The validation loss at that many prior precisions, and the best of them; beside one prediction."""
    from whence.engine.batches import Data
    from whence.posteriors.laplace.search import ScaleSearch, Search
    from whence.predictive.dispatch import Method

    posterior, data = fitted(task.network(), task.loader(task.fit_size)), task.loader(seed=7)
    step = DECADES * math.log(10) / max(values - 1, 1)
    grid = [DECADES / 2 * math.log(10) - step * i for i in range(values)]
    x = torch.cat([batch for batch, _ in data])

    def work() -> float:
        # tune() chooses its values itself, fewer than a hundred; this is its search on a fixed grid.
        network = posterior.network
        batches = Data(data, network.device, network.dtype)
        search = Search(posterior, batches, Method.LINEARISED, ScaleSearch.FIXED, None, None, None, False)
        search._score(posterior, {r: [0.0] for r in grid})
        return min(search.scores, key=lambda point: search.scores[point])[0]

    return Job(work, beside=lambda: read(posterior.predict(x)))


def tune_default(task: Task) -> Job:
    """``posterior.tune(data)`` as it is: prior precision and data scale, on values of its own choice."""
    posterior, data = fitted(task.network(), task.loader(task.fit_size)), task.loader(seed=7)
    x = torch.cat([batch for batch, _ in data])
    return Job(lambda: posterior.tune(data, progress=False), beside=lambda: read(posterior.predict(x)))
