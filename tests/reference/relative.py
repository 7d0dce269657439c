"""The relative prior by its written definition, weight by weight.

Index legend: N examples, C outputs, P parameters, S samples, T shared positions, D layer inputs,
O layer outputs.

V_oi = r_o / (tau D (A_i + nu kappa_i)): A_i the mean square of input i (of a convolution's input channel, meaned over
kernel positions; 1 for the bias), r_o = sum_i w_oi^2 A_i without the bias, D the number of inputs with the bias,
kappa_i = 1 / (D q_i), q_i = mean_o w_oi^2 / r_o.
"""

import torch
from torch import Tensor, nn

from .curvature import Inputs, count, output
from .patches import CONVS, TRANSPOSED, group_count, layer_rows, weight_matrices
from .positions import counted

NU = 0.01


def seen(model: nn.Module, module: nn.Module, x: Inputs) -> tuple[list[Tensor], bool]:
    """Per group all rows a [R, D] that count (without the 1), and whether parameters moved them."""
    rows: list[list[Tensor]] = [[] for _ in range(group_count(module))]
    touched, example, call = False, 0, 0

    def hook(_: nn.Module, args: tuple[Tensor, ...], kwargs: dict[str, Tensor], z: Tensor) -> None:
        nonlocal touched, call
        a_in = args[0] if args else kwargs["input"]
        touched = touched or a_in.requires_grad
        for group, (a, _, _) in enumerate(layer_rows(module, a_in.detach(), z.detach(), z.detach()[None])):
            a = a if module.bias is None else a[:, :-1]
            if isinstance(module, nn.Linear):
                a = a[torch.tensor(counts[example][call])]
            rows[group].append(a)
        call += 1

    counts = [counted(model, module, x, n) for n in range(count(x))]
    handle = module.register_forward_hook(hook, with_kwargs=True)
    try:
        for n in range(count(x)):
            example, call = n, 0
            output(model, x, n)
    finally:
        handle.remove()
    return [torch.cat(part) for part in rows], touched


def variances(
    model: nn.Module, module: nn.Module, x: Inputs, head: bool = False, tau: float = 1.0, nu: float = NU
) -> dict[str, Tensor]:
    """Prior variance of the weight and the bias of a Linear or convolution layer, in their shapes."""
    rows, touched = seen(model, module, x)
    kernel = torch.Size(module.kernel_size).numel() if isinstance(module, CONVS + TRANSPOSED) else 1
    found = []
    for a, matrix in zip(rows, weight_matrices(module), strict=True):
        weight = matrix if module.bias is None else matrix[:, :-1]
        if head:
            weight = weight - weight.mean(dim=0)
        found.append(matrix_variance(weight, a, kernel, module.bias is not None, touched, tau, nu))
    return {"weight": unpacked(module, [v for v, _ in found]), "bias": torch.cat([b for _, b in found])}


def matrix_variance(
    weight: Tensor, a: Tensor, kernel: int, bias: bool, touched: bool, tau: float, nu: float
) -> tuple[Tensor, Tensor]:
    """V [O, D] of the weights, and [O] of the bias, of one group."""
    outputs, inputs = weight.shape
    channels = inputs // kernel
    mean = [float((a[:, c * kernel : (c + 1) * kernel] ** 2).mean()) for c in range(channels)]
    number = inputs + bias
    energy = []
    for o in range(outputs):
        energy.append(sum(float(weight[o, i]) ** 2 * mean[i // kernel] for i in range(inputs)))
    live = [o for o in range(outputs) if energy[o] > 0]
    assert live, "a layer without any signal has no relative prior"
    middle = float(torch.tensor([energy[o] for o in live], dtype=torch.float64).median())
    worth = []
    for c in range(channels):
        parts = [float(weight[o, i]) ** 2 / energy[o] for o in live for i in range(c * kernel, (c + 1) * kernel)]
        q = sum(parts) / len(parts)
        kappa = 1 / (number * q) if q > 0 else 0.0
        if not touched:
            kappa = min(kappa, sum(mean) / channels)
        worth.append(mean[c] + nu * kappa)
    typical = [w for w in worth if w > 0]
    worth = [w if w > 0 else sum(typical) / len(typical) for w in worth]
    energy = [e if e > 0 else middle for e in energy]
    v = torch.zeros(outputs, inputs, dtype=torch.float64)
    for o in range(outputs):
        for i in range(inputs):
            v[o, i] = energy[o] / (tau * number * worth[i // kernel])
    return v, torch.tensor(energy, dtype=torch.float64) / (tau * number)


def unpacked(module: nn.Module, matrices: list[Tensor]) -> Tensor:
    """Matrices [O, D] of all groups in the shape of the weight."""
    shape = module.weight.shape
    if not isinstance(module, TRANSPOSED):
        return torch.cat(matrices).reshape(shape)
    parts = [m.reshape(m.shape[0], shape[0] // len(matrices), *shape[2:]).transpose(0, 1) for m in matrices]
    return torch.cat(parts)


def norm_variances(gamma: Tensor, beta: Tensor, normalised: Tensor, tau: float = 1.0, nu: float = NU) -> list[Tensor]:
    """Of a normalisation: outputs gamma x + beta with r = gamma^2 E[x^2] + beta^2 and D = 2; normalised is [R, F]."""
    of_gamma, of_beta = torch.zeros_like(gamma), torch.zeros_like(beta)
    for f in range(len(gamma)):
        mean = float((normalised[:, f] ** 2).mean())
        r = float(gamma[f] ** 2 * mean + beta[f] ** 2)
        kappa = 1 / (2 * float(gamma[f] ** 2) / r)
        of_gamma[f] = r / (tau * 2 * (mean + nu * kappa))
        of_beta[f] = r / (tau * 2)
    return [of_gamma, of_beta]


def table_variance(weight: Tensor, tokens: Tensor, padding: int | None = None, tau: float = 1.0) -> Tensor:
    """Of an embedding: the mean square of each dimension over the rows that were looked up."""
    looked_up = [weight[int(t)] for t in tokens.flatten() if padding is None or int(t) != padding]
    mean = (torch.stack(looked_up) ** 2).mean(dim=0) / tau
    return mean.expand_as(weight)
