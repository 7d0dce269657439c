"""Kronecker factors by their written definition: explicit input patches, explicit gradient rows.

Index legend: N examples, C outputs, P parameters, S samples, T shared positions, D layer inputs,
O layer outputs.

A layer is z_t = W_mat a_t with W_mat [O, D] (bias as a last column when there is one: [O, D + 1]), one
W_mat per convolution group. A block is G kron A in row-major order of W_mat: entry (o, d) has index
o * (D + 1) + d. A layer whose bias is not among the chosen parameters has A without its last row and column.
"""

from collections.abc import Callable, Mapping

import torch
from torch import Tensor, nn

from .curvature import Inputs, count, output, positions
from .patches import group_count, layer_rows, weight_matrices
from .positions import counted

Factors = tuple[Tensor, Tensor]


def root(lam: Tensor) -> Tensor:
    """R [C, C] with R R^T = Lambda, from the eigendecomposition."""
    values, vectors = torch.linalg.eigh(lam)
    return vectors * torch.sqrt(values.clamp(min=0.0))


def layer_calls(model: nn.Module, module: nn.Module, x: Inputs, n: int, lam: Tensor) -> list[list[Factors]]:
    """Per group, per call of the module: inputs a [T, D(+1)] and gradients g [C, T, O] of example n.

    g[k, t] = d (R_k^T f_n) / d z_t, read off a zero added to the module's output.
    """
    recorded: list[tuple[Tensor, Tensor, Tensor]] = []

    def hook(_: nn.Module, args: tuple[Tensor, ...], kwargs: dict[str, Tensor], z: Tensor) -> Tensor:
        zero = torch.zeros_like(z, requires_grad=True)
        recorded.append(((args[0] if args else kwargs["input"]).detach().clone(), z.detach().clone(), zero))
        return z + zero

    handle = module.register_forward_hook(hook, with_kwargs=True)
    try:
        f = output(model, x, n)
    finally:
        handle.remove()
    assert recorded, "the module's forward was never called"
    per_root = []
    for column in root(lam[n]).T:
        zeros = [zero for _, _, zero in recorded]
        grads = torch.autograd.grad(column @ f, zeros, retain_graph=True, allow_unused=True)
        per_root.append([torch.zeros_like(z) if g is None else g for g, z in zip(grads, zeros, strict=True)])
    calls: list[list[Factors]] = [[] for _ in range(group_count(module))]
    for index, (a_in, z, _) in enumerate(recorded):
        stacked = torch.stack([grads[index] for grads in per_root])
        for group, (a, z_rows, g) in enumerate(layer_rows(module, a_in, z, stacked)):
            torch.testing.assert_close(a @ weight_matrices(module)[group].T, z_rows, rtol=1e-10, atol=1e-10)
            calls[group].append((a, g))
    return calls


def kron_factors(model: nn.Module, module: nn.Module, x: Inputs, lam: Tensor, mode: str) -> list[Factors]:
    """(A, G) for each group; lam is [N, C, C].

    expand: A = sum_{n,t,call} a a^T / (number of n, t, call), G = sum_{n,t,call,k} g g^T.
    reduce: A = sum_n abar abar^T / N with abar the mean over t and calls,
            G = sum_{n,k} (sum_{t,call} g) (sum_{t,call} g)^T.
    Positions of a sequence that no output depends on do not count.
    """
    n_examples = count(x)
    per_example = [layer_calls(model, module, x, n, lam) for n in range(n_examples)]
    result = []
    for group in range(group_count(module)):
        d, o = weight_matrices(module)[group].shape[1], weight_matrices(module)[group].shape[0]
        a_sum, g_sum = torch.zeros(d, d, dtype=lam.dtype), torch.zeros(o, o, dtype=lam.dtype)
        terms = 0
        for n, calls in enumerate(per_example):
            counts = torch.tensor([flag for call in counted(model, module, x, n) for flag in call])
            a = torch.cat([a for a, _ in calls[group]], dim=0)  # [T of all calls, D]
            g = torch.cat([g for _, g in calls[group]], dim=1)  # [C, T of all calls, O]
            if isinstance(module, nn.Linear):
                a, g = a[counts], g[:, counts]
            if mode == "reduce":
                a, g = a.mean(dim=0, keepdim=True), g.sum(dim=1, keepdim=True)
            elif mode != "expand":
                raise ValueError(mode)
            for t in range(a.shape[0]):
                a_sum += torch.outer(a[t], a[t])
                terms += 1
                for k in range(g.shape[0]):
                    g_sum += torch.outer(g[k, t], g[k, t])
        result.append((a_sum / terms, g_sum))
    return result


def kron_block(factors: Factors) -> Tensor:
    """G kron A, [O D, O D]."""
    a, g = factors
    return torch.kron(g, a)


def root_gradients(model: nn.Module, module: nn.Module, x: Inputs, lam: Tensor) -> list[Tensor]:
    """Per group J[n, k] = sum_{t,call} g_{n,t,k} a_{n,t}^T, [N, C, O, D(+1)]."""
    rows: list[list[Tensor]] = [[] for _ in range(group_count(module))]
    for n in range(count(x)):
        for group, calls in enumerate(layer_calls(model, module, x, n, lam)):
            total = 0
            for a, g in calls:
                total = total + torch.stack([g_k.T @ a for g_k in g])
            rows[group].append(total)
    return [torch.stack(group_rows) for group_rows in rows]


def ekfac_eigenvalues(
    model: nn.Module, module: nn.Module, x: Inputs, lam: Tensor, bases: list[Factors]
) -> list[Tensor]:
    """Per group lam[o, d] = sum_{n,k} (Q_G^T J_{n,k} Q_A)[o, d]^2; bases holds (Q_A, Q_G) per group."""
    result = []
    for jac, (q_a, q_g) in zip(root_gradients(model, module, x, lam), bases, strict=True):
        total = torch.zeros(jac.shape[2:], dtype=jac.dtype)
        for n in range(jac.shape[0]):
            for k in range(jac.shape[1]):
                total += (q_g.T @ jac[n, k] @ q_a) ** 2
        result.append(total)
    return result


def eigenbases(factors: list[Factors]) -> list[Factors]:
    """(Q_A, Q_G) of each (A, G)."""
    return [(torch.linalg.eigh(a)[1], torch.linalg.eigh(g)[1]) for a, g in factors]


def ekfac_block(eigenvalues: Tensor, basis: Factors) -> Tensor:
    """(Q_G kron Q_A) diag(lam) (Q_G kron Q_A)^T, [O D, O D]."""
    q = torch.kron(basis[1], basis[0])
    return q @ torch.diag(eigenvalues.reshape(-1)) @ q.T


def theta_index(params: Mapping[str, Tensor], module: nn.Module) -> list[Tensor]:
    """Per group the indices in theta of W_mat's entries, [O D(+1)]: H[index][:, index] is a block's twin.

    The module's weight and bias must both be among params.
    """
    where = positions(params)
    found = {id(p): where[name] for name, p in params.items()}
    bias = None if module.bias is None else found[id(module.bias)]
    return [matrix.reshape(-1) for matrix in weight_matrices(module, found[id(module.weight)], bias)]


def damped_factors(a: Tensor, g: Tensor, n_examples: int, tau: float) -> Factors:
    """Ritter et al. (2018), eq. 9: (sqrt(N) A + sqrt(tau) I, sqrt(N) G / N + sqrt(tau) I)."""
    eye_a, eye_g = torch.eye(a.shape[0], dtype=a.dtype), torch.eye(g.shape[0], dtype=g.dtype)
    scale = float(n_examples) ** 0.5
    return scale * a + tau**0.5 * eye_a, scale * g / n_examples + tau**0.5 * eye_g


def factored_damping(a: Tensor, g: Tensor, n_examples: int, tau: float) -> Tensor:
    """The posterior precision of a block under factored damping: kron(G-part, A-part)."""
    return kron_block(damped_factors(a, g, n_examples, tau))


def kfra_factors(
    linears: list[nn.Linear], activations: list[Callable[[Tensor], Tensor]], x: Tensor, lam: Tensor
) -> list[Factors]:
    """(A, G) per layer of Linear, activation, Linear, ..., Linear (Botev et al. 2017).

    H_L = mean_n Lambda_n, H_l = mean_n B_n W_{l+1}^T H_{l+1} W_{l+1} B_n with B_n = diag(activation'(z_l)),
    G_l = N H_l, A_l = mean_n a a^T (1 appended to a when the layer has a bias).
    """
    assert len(activations) == len(linears) - 1
    n_examples = x.shape[0]
    a_sums: list[Tensor] = [torch.zeros((), dtype=x.dtype) for _ in linears]
    slopes: list[list[Tensor]] = [[] for _ in activations]
    for n in range(n_examples):
        a = x[n]
        for layer, linear in enumerate(linears):
            with_one = a if linear.bias is None else torch.cat([a, torch.ones(1, dtype=a.dtype)])
            a_sums[layer] = a_sums[layer] + torch.outer(with_one, with_one)
            if layer < len(activations):
                z = linear(a).detach().requires_grad_(True)
                a = activations[layer](z)
                slopes[layer].append(torch.autograd.grad(a.sum(), z)[0])
                a = a.detach()
    bar = lam.mean(dim=0)
    bars = [bar]
    for layer in reversed(range(len(activations))):
        weight = linears[layer + 1].weight.detach()
        back = weight.T @ bar @ weight
        bar = torch.stack([torch.diag(s) @ back @ torch.diag(s) for s in slopes[layer]]).mean(dim=0)
        bars.insert(0, bar)
    return [(a_sum / n_examples, n_examples * h) for a_sum, h in zip(a_sums, bars, strict=True)]
