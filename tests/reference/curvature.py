"""Dense curvature matrices by loops over examples and outputs.

Index legend: N examples, C outputs, P parameters, S samples, T shared positions, D layer inputs,
O layer outputs.
"""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager

import torch
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel

Inputs = Tensor | tuple[Tensor, ...] | Mapping[str, Tensor]
Nll = Callable[[Tensor, Tensor], Tensor]


def count(x: Inputs) -> int:
    """Number of examples N."""
    if isinstance(x, Tensor):
        return x.shape[0]
    return next(iter(x.values() if isinstance(x, Mapping) else x)).shape[0]


def take(x: Inputs, n: int) -> Inputs:
    """Example n as a batch of one."""
    if isinstance(x, Tensor):
        return x[n : n + 1]
    if isinstance(x, Mapping):
        return {key: value[n : n + 1] for key, value in x.items()}
    return tuple(value[n : n + 1] for value in x)


def call(model: nn.Module, x: Inputs) -> Tensor:
    """model(x), model(*x) or model(**x)."""
    if isinstance(x, Tensor):
        return model(x)
    return model(**x) if isinstance(x, Mapping) else model(*x)


def output(model: nn.Module, x: Inputs, n: int) -> Tensor:
    """f_n [C], differentiable, from example n alone."""
    f = call(model, take(x, n))
    assert f.shape[:-1] == (1,), f"expected outputs [1, C], got {tuple(f.shape)}"
    return f[0]


def outputs(model: nn.Module, x: Inputs) -> Tensor:
    """All outputs [N, C], examples evaluated one at a time."""
    return torch.stack([output(model, x, n).detach() for n in range(count(x))])


def trainable(model: nn.Module) -> dict[str, nn.Parameter]:
    """The parameters that require gradients, in the order of named_parameters (tied ones once)."""
    return {name: p for name, p in model.named_parameters() if p.requires_grad}


def theta(params: Mapping[str, Tensor]) -> Tensor:
    """The parameter vector [P]."""
    return torch.cat([p.detach().reshape(-1) for p in params.values()])


def positions(params: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """For every parameter the indices of its entries in theta, in the parameter's own shape."""
    found, start = {}, 0
    for name, p in params.items():
        found[name] = torch.arange(start, start + p.numel()).reshape(p.shape)
        start += p.numel()
    return found


@contextmanager
def differentiable(params: Mapping[str, Tensor]) -> Iterator[list[Tensor]]:
    """The parameters with requires_grad set for the duration, as a list."""
    before = [p.requires_grad for p in params.values()]
    try:
        yield [p.requires_grad_(True) for p in params.values()]
    finally:
        for p, flag in zip(params.values(), before, strict=True):
            p.requires_grad_(flag)


def gradient(scalar: Tensor, chosen: list[Tensor], create_graph: bool = False) -> Tensor:
    """d scalar / d theta [P], zeros for parameters that are not used."""
    if not scalar.requires_grad:
        return torch.cat([torch.zeros_like(p).reshape(-1) for p in chosen])
    grads = torch.autograd.grad(scalar, chosen, retain_graph=True, create_graph=create_graph, allow_unused=True)
    filled = [torch.zeros_like(p) if g is None else g for g, p in zip(grads, chosen, strict=True)]
    return torch.cat([g.reshape(-1) for g in filled])


def jacobian(model: nn.Module, params: Mapping[str, Tensor], x: Inputs) -> Tensor:
    """J[n, c, p] = d f_n[c] / d theta_p, [N, C, P]."""
    rows = []
    with differentiable(params) as chosen:
        for n in range(count(x)):
            f = output(model, x, n)
            rows.append(torch.stack([gradient(f[c], chosen) for c in range(f.shape[0])]))
    return torch.stack(rows)


def ggn_full(model: nn.Module, params: Mapping[str, Tensor], x: Inputs, lam: Tensor) -> Tensor:
    """sum_n J_n^T Lambda_n J_n, [P, P]; lam is [N, C, C]."""
    jac = jacobian(model, params, x)
    total = torch.zeros(jac.shape[2], jac.shape[2], dtype=jac.dtype)
    for n in range(jac.shape[0]):
        total += jac[n].T @ lam[n] @ jac[n]
    return total


def ggn_blocks(
    model: nn.Module, params: Mapping[str, Tensor], x: Inputs, lam: Tensor, groups: list[list[str]]
) -> list[Tensor]:
    """The dense diagonal blocks of ggn_full, one per group of parameter names (in the group's order)."""
    full = ggn_full(model, params, x, lam)
    where = positions(params)
    blocks = []
    for names in groups:
        index = torch.cat([where[name].reshape(-1) for name in names])
        blocks.append(full[index][:, index])
    return blocks


def ggn_diag(model: nn.Module, params: Mapping[str, Tensor], x: Inputs, lam: Tensor) -> Tensor:
    """sum_n sum_{c, c'} J[n, c, p] Lambda[n, c, c'] J[n, c', p], [P]."""
    jac = jacobian(model, params, x)
    n_examples, n_outputs, n_params = jac.shape
    total = torch.zeros(n_params, dtype=jac.dtype)
    for n in range(n_examples):
        for c in range(n_outputs):
            for d in range(n_outputs):
                total += jac[n, c] * lam[n, c, d] * jac[n, d]
    return total


def nll_gradients(model: nn.Module, params: Mapping[str, Tensor], x: Inputs, y: Tensor, nll: Nll) -> Tensor:
    """Per-example gradients of the negative log likelihood, [N, P]."""
    rows = []
    with differentiable(params) as chosen:
        for n in range(count(x)):
            rows.append(gradient(nll(output(model, x, n)[None], y[n : n + 1]), chosen))
    return torch.stack(rows)


def empirical_fisher_full(model: nn.Module, params: Mapping[str, Tensor], x: Inputs, y: Tensor, nll: Nll) -> Tensor:
    """sum_n grad_n grad_n^T with grad_n the gradient of example n's negative log likelihood, [P, P]."""
    grads = nll_gradients(model, params, x, y, nll)
    total = torch.zeros(grads.shape[1], grads.shape[1], dtype=grads.dtype)
    for grad in grads:
        total += torch.outer(grad, grad)
    return total


def hessian_full(model: nn.Module, params: Mapping[str, Tensor], x: Inputs, y: Tensor, nll: Nll) -> Tensor:
    """d^2 sum_n nll_n / d theta^2, [P, P], one row of every example's Hessian at a time.

    Attention runs with its plain kernel: the fused ones cannot be differentiated twice. The result must be
    symmetric; torch's fused weight_norm is not (its second derivative treats the norm as a constant).
    """
    n_params = sum(p.numel() for p in params.values())
    total = torch.zeros(n_params, n_params, dtype=torch.float64)
    with differentiable(params) as chosen, sdpa_kernel(SDPBackend.MATH):
        for n in range(count(x)):
            loss = nll(output(model, x, n)[None], y[n : n + 1])
            grad = gradient(loss, chosen, create_graph=True)
            for p in range(n_params):
                total[p] += gradient(grad[p], chosen)
    torch.testing.assert_close(total, total.T, rtol=1e-8, atol=1e-10, msg="the Hessian is not symmetric")
    return total
