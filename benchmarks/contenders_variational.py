"""Variational inference: a training epoch (forward and backward, no optimiser's step), and 100 draws' prediction."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from benchmarks.contenders import Job, Task

Loss = Callable[[Tensor, Tensor], Tensor]


def epoch(task: Task, library: str, **options: Any) -> Job:
    data = task.loader()
    if library == "posteriors":
        return Job(_posteriors_epoch(task, data))
    module, loss = MAKERS[library](task, **options)

    def work() -> None:
        for x, y in data:
            module.zero_grad(set_to_none=True)
            loss(x, y).backward()

    return Job(work)


def predict(task: Task, library: str, draws: int = 100, **options: Any) -> Job:
    """One draw of the weights for each pass, except where the library runs draws together."""
    x = task.inputs()
    if library == "whence":
        import whence

        posterior = whence.variational(
            task.network(), task.loader(task.fit_size), likelihood="classification", epochs=1, progress=False
        )
        return Job(lambda: posterior.predict(x, num_samples=draws).probs)
    module, _ = MAKERS[library](task, **options)

    @torch.no_grad()
    def work() -> Tensor:
        pieces = [sum(module(p).softmax(-1) for _ in range(draws)) / draws for p in x.split(task.batch)]
        return torch.cat(pieces)  # type: ignore[arg-type]

    return Job(work)


def _whence(task: Task, estimator: Any = "local") -> tuple[nn.Module, Loss]:
    from whence.likelihoods import Categorical
    from whence.posteriors.variational import VariationalModule
    from whence.posteriors.variational.elbo import nll_and_kl

    module = VariationalModule(task.network(), estimator=estimator).train()
    likelihood = Categorical()

    def loss(x: Tensor, y: Tensor) -> Tensor:
        nll, kl = nll_and_kl(module, likelihood, x, y, task.size)
        return (nll + kl) / task.size

    return module, loss


def _bayesian_torch(task: Task, kind: str = "Reparameterization") -> tuple[nn.Module, Loss]:
    from bayesian_torch.models.dnn_to_bnn import dnn_to_bnn, get_kl_loss

    net = task.network()
    parameters = {"prior_mu": 0.0, "prior_sigma": 1.0, "posterior_mu_init": 0.0, "posterior_rho_init": -4.0}
    dnn_to_bnn(net, parameters | {"type": kind, "moped_enable": False, "moped_delta": 0.5})
    net = net.to(task.device)
    return net, lambda x, y: F.cross_entropy(net(x), y) + get_kl_loss(net) / task.size


def _blitz(task: Task) -> tuple[nn.Module, Loss]:
    from blitz.modules import BayesianConv2d, BayesianLinear
    from blitz.utils import variational_estimator

    def bayesian(m: nn.Module) -> nn.Module:
        if isinstance(m, nn.Linear):
            return BayesianLinear(m.in_features, m.out_features)
        if isinstance(m, nn.Conv2d):
            return BayesianConv2d(m.in_channels, m.out_channels, m.kernel_size, padding=m.padding[0])
        return m

    @variational_estimator
    class Net(nn.Sequential):
        pass

    net: Any = Net(*(bayesian(m) for m in task.network().children())).to(task.device)
    return net, lambda x, y: F.cross_entropy(net(x), y) + net.nn_kl_divergence() / task.size


def _posteriors_epoch(task: Task, data: Any) -> Callable[[], Any]:
    """Its update, which holds an optimiser's step (plain gradient descent here)."""
    import torchopt
    from posteriors import vi
    from torch.func import functional_call

    model = task.network()
    params = {n: p.detach() for n, p in model.named_parameters()}

    def log_posterior(p: Any, batch: Any) -> tuple[Tensor, Tensor]:
        fit = -F.cross_entropy(functional_call(model, p, (batch[0],)), batch[1])
        prior = sum(-0.5 * v.square().sum() for v in p.values())
        return fit + prior / task.size, torch.tensor([])

    transform = vi.diag.build(log_posterior, torchopt.sgd(1e-4), temperature=1 / task.size, init_log_sds=-4.0)
    start = transform.init(params)

    def work() -> Any:
        state = start
        for batch in data:
            state, _ = transform.update(state, batch)
        return state

    return work


MAKERS: dict[str, Callable[..., tuple[nn.Module, Loss]]] = {
    "whence": _whence,
    "bayesian_torch": _bayesian_torch,
    "blitz": _blitz,
}
