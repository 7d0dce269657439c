"""Jobs of BackPACK and curvlinops by themselves, which give curvature only, and of posteriors."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from benchmarks import compared
from benchmarks.compared import Summary
from benchmarks.contenders import Job, Task
from benchmarks.networks import NETWORKS, freeze_unknown

Pairs = dict[str, list[Tensor]]


def backpack(task: Task, structure: str, curvature: str) -> Job:
    """Its extensions KFLR, KFAC, DiagGGNExact, DiagGGNMC and SumGradSquared."""
    from backpack import extend, extensions

    named = {
        ("kron", "ggn"): (extensions.KFLR, "kflr"),
        ("kron", "mc"): (extensions.KFAC, "kfac"),
        ("diag", "ggn"): (extensions.DiagGGNExact, "diag_ggn_exact"),
        ("diag", "mc"): (extensions.DiagGGNMC, "diag_ggn_mc"),
        ("diag", "empirical"): (extensions.SumGradSquared, "sum_grad_squared"),
    }
    extension, field = named[structure, curvature]
    spec, model, data = NETWORKS[task.net], task.network(), task.loader()
    model = extend(model if spec.known else freeze_unknown(model), use_converter=not spec.known)
    loss = extend(nn.CrossEntropyLoss(reduction="sum"))

    def work() -> Any:
        return _backpack_pass(model, loss, data, extension, field, task.size)

    return Job(work, _of_pairs if structure == "kron" else _of_values)


def _backpack_pass(model: nn.Module, loss: Any, data: Any, extension: Any, field: str, size: int) -> Any:
    """Factors: gradients' summed, inputs' averaged over the data; diagonals summed."""
    from backpack import backpack as context

    total: dict[str, Any] = {}
    for x, y in data:
        model.zero_grad(set_to_none=True)
        with context(extension()):
            loss(model(x), y).backward()
        for name, parameter in model.named_parameters():
            if not parameter.requires_grad:
                continue
            value = getattr(parameter, field)
            delattr(parameter, field)
            if not isinstance(value, Tensor):
                value = [value[0], *(a * (len(y) / size) for a in value[1:])]
            _add(total, name, value)
    return total


def _add(total: dict[str, Any], name: str, value: Any) -> None:
    if name not in total:
        total[name] = value
    elif isinstance(value, Tensor):
        total[name] += value
    else:
        for sum_, new in zip(total[name], value, strict=True):
            sum_ += new


def _of_pairs(pairs: Pairs) -> Summary:
    return {name: compared.of_factors(*pair) for name, pair in pairs.items() if len(pair) == 2}


def _of_values(values: dict[str, Tensor]) -> Summary:
    return {name: compared.of_vector(value) for name, value in values.items()}


def curvlinops(task: Task, curvature: str) -> Job:
    """The Kronecker factors of its KFACLinearOperator, over the whole loader."""
    from curvlinops import KFACLinearOperator

    kind = {"ggn": "type-2", "mc": "mc", "empirical": "empirical"}[curvature]
    model, data = task.network(), task.loader()
    if not NETWORKS[task.net].known:
        freeze_unknown(model)

    def work() -> Pairs:
        operator = KFACLinearOperator(
            model,
            nn.CrossEntropyLoss(reduction="sum"),
            [p for p in model.parameters() if p.requires_grad],
            data,
            fisher_type=kind,
            check_deterministic=False,
            num_data=task.size,
            num_per_example_loss_terms=1,
        )
        operator.compute_kronecker_factors()
        a, g = operator._input_covariances, operator._gradient_covariances
        return {f"{name}.weight": [g[name], a[name]] for name in a}

    return Job(work, _of_pairs)


def posteriors(task: Task, curvature: str, share: bool = False) -> Job:
    """Its diagonal Laplace transforms, exact and empirical."""
    model, data = task.network(), task.loader()
    params = {n: p.detach() for n, p in model.named_parameters()}
    transform = _transform(model, curvature)

    def work() -> Any:
        state = transform.init(params)
        for batch in data:
            state, _ = transform.update(state, batch)
        return state

    def result(state: Any) -> Summary:
        found = _of_values({n: state.prec_diag[n] for n in params})
        return compared.of_share(found) if share else found

    return Job(work, result)


def _transform(model: nn.Module, curvature: str) -> Any:
    from posteriors import laplace
    from torch.func import functional_call

    nothing = torch.tensor([])

    def forward(params: Any, batch: Any) -> tuple[Tensor, Tensor]:
        return functional_call(model, params, (batch[0],)), nothing

    def log_likelihood(outputs: Tensor, batch: Any) -> Tensor:
        return -nn.functional.cross_entropy(outputs, batch[1], reduction="sum")

    def each(params: Any, batch: Any) -> tuple[Tensor, Tensor]:
        outputs, _ = forward(params, batch)
        return -nn.functional.cross_entropy(outputs, batch[1], reduction="none"), nothing

    if curvature == "ggn":
        return laplace.diag_ggn.build(forward, log_likelihood)
    return laplace.diag_fisher.build(each, per_sample=True)


def posteriors_sampled(task: Task, draws: int = 100) -> Job:
    """Draws of a diagonal posterior, run together under vmap."""
    from posteriors import laplace
    from torch.func import functional_call, vmap

    model, x = task.network(), task.inputs()
    params = {n: p.detach() for n, p in model.named_parameters()}
    state = laplace.diag_fisher.init(params, 1.0)
    transform = _transform(model, "empirical")
    for batch in task.loader(task.fit_size):
        state, _ = transform.update(state, batch)
    together = 10  # draws at a time; all at once is slower and takes ten times the memory

    @torch.no_grad()
    def work() -> Tensor:
        total = torch.zeros(1, device=x.device)
        for _ in range(draws // together):
            weights = laplace.diag_fisher.sample(state, torch.Size([together]))
            weights = {name: weights[name] for name in params}
            run = vmap(lambda p, piece: functional_call(model, p, (piece,)), in_dims=(0, None))
            outputs = torch.cat([run(weights, piece) for piece in x.split(task.batch)], 1)
            total = total + outputs.softmax(-1).sum(0)
        return total / draws

    return Job(work)
