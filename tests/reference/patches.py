"""Explicit input patches of linear and convolution layers, built by loops over positions and kernel offsets.

Index legend: N examples, C outputs, P parameters, S samples, T shared positions, D layer inputs,
O layer outputs.
"""

from collections.abc import Iterator
from itertools import product

import torch
from torch import Tensor, nn

Conv = nn.Conv1d | nn.Conv2d | nn.Conv3d
ConvTranspose = nn.ConvTranspose1d | nn.ConvTranspose2d | nn.ConvTranspose3d
CONVS = (nn.Conv1d, nn.Conv2d, nn.Conv3d)
TRANSPOSED = (nn.ConvTranspose1d, nn.ConvTranspose2d, nn.ConvTranspose3d)


def group_count(module: nn.Module) -> int:
    """Number of (A, G) pairs of the layer."""
    return module.groups if isinstance(module, CONVS + TRANSPOSED) else 1


def weight_matrices(module: nn.Module, weight: Tensor | None = None, bias: Tensor | None = None) -> list[Tensor]:
    """W_mat [O, D(+1)] per group; columns are (in channel, kernel index...), then the bias.

    weight and bias default to the layer's own; anything of the same shape may be rearranged alike.
    """
    if weight is None:
        weight = module.weight.detach()
        bias = None if module.bias is None else module.bias.detach()
    groups, matrices = group_count(module), []
    for group in range(groups):
        if isinstance(module, TRANSPOSED):  # weight[i, o, k...]
            rows = weight.shape[0] // groups
            part = weight[group * rows : (group + 1) * rows]
            matrix = torch.stack([part[:, o].reshape(-1) for o in range(part.shape[1])])
        else:  # weight[o, i, k...]
            rows = weight.shape[0] // groups
            part = weight[group * rows : (group + 1) * rows]
            matrix = part.reshape(rows, -1)
        if bias is not None:
            size = matrix.shape[0]
            matrix = torch.cat([matrix, bias[group * size : (group + 1) * size, None]], dim=1)
        matrices.append(matrix)
    return matrices


def layer_rows(module: nn.Module, a_in: Tensor, z: Tensor, g: Tensor) -> Iterator[tuple[Tensor, Tensor, Tensor]]:
    """Per group: inputs a [T, D(+1)], outputs [T, O] and gradients [C, T, O] of one call.

    z is the call's output and g [C, ...] has one gradient of z's shape per root column. All leading
    dimensions of a Linear's input, and batch and space of a convolution's output, are positions.
    """
    if isinstance(module, nn.Linear):
        a = a_in.reshape(-1, a_in.shape[-1])
        yield with_one(module, a), z.reshape(-1, z.shape[-1]), g.reshape(g.shape[0], -1, z.shape[-1])
        return
    if not isinstance(module, CONVS + TRANSPOSED):
        raise TypeError(type(module).__name__)
    n_space = len(module.kernel_size)
    if a_in.dim() == n_space + 1:  # no batch dimension
        a_in, z, g = a_in[None], z[None], g[:, None]
    channels_in, channels_out = a_in.shape[1] // module.groups, z.shape[1] // module.groups
    for group in range(module.groups):
        part = a_in[:, group * channels_in : (group + 1) * channels_in]
        out = slice(group * channels_out, (group + 1) * channels_out)
        a_rows, z_rows, g_rows = [], [], []
        for b in range(a_in.shape[0]):
            for t in product(*[range(size) for size in z.shape[2:]]):
                a_rows.append(patch(module, part[b], t))
                z_rows.append(z[(b, out, *t)])
                g_rows.append(torch.stack([g_k[(b, out, *t)] for g_k in g]))
        yield with_one(module, torch.stack(a_rows)), torch.stack(z_rows), torch.stack(g_rows, dim=1)


def with_one(module: nn.Module, a: Tensor) -> Tensor:
    """1 appended to every row when the layer has a bias."""
    return a if module.bias is None else torch.cat([a, torch.ones(a.shape[0], 1, dtype=a.dtype)], dim=1)


def patch(module: Conv | ConvTranspose, image: Tensor, t: tuple[int, ...]) -> Tensor:
    """The inputs that output position t is a weighted sum of, in the order (in channel, kernel index...).

    image is [in channels of one group, space...].
    """
    find = transposed_source if isinstance(module, TRANSPOSED) else conv_source
    entries = []
    for channel in range(image.shape[0]):
        for offset in product(*[range(size) for size in module.kernel_size]):
            source = [find(module, axis, t[axis], offset[axis], image.shape[1 + axis]) for axis in range(len(t))]
            inside = all(s is not None for s in source)
            entries.append(image[(channel, *source)] if inside else torch.zeros((), dtype=image.dtype))
    return torch.stack(entries)


def conv_source(module: Conv, axis: int, t: int, offset: int, length: int) -> int | None:
    """Input index s = t stride - padding + offset dilation, folded by the padding mode; None reads a zero."""
    dilation = module.dilation[axis]
    if module.padding == "same":
        padding = dilation * (module.kernel_size[axis] - 1) // 2
    elif module.padding == "valid":
        padding = 0
    else:
        padding = module.padding[axis]
    s = t * module.stride[axis] - padding + offset * dilation
    if 0 <= s < length:
        return s
    if module.padding_mode == "reflect":
        return -s if s < 0 else 2 * (length - 1) - s
    if module.padding_mode == "replicate":
        return 0 if s < 0 else length - 1
    if module.padding_mode == "circular":
        return s % length
    return None


def transposed_source(module: ConvTranspose, axis: int, t: int, offset: int, length: int) -> int | None:
    """Input index s with t = s stride - padding + offset dilation; None when there is none."""
    numerator = t + module.padding[axis] - offset * module.dilation[axis]
    s, rest = divmod(numerator, module.stride[axis])
    return s if rest == 0 and 0 <= s < length else None
