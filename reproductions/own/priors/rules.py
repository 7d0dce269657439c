"""Priors to compare, each a precision τ D for the blocks of one fit; ``Relative`` with another D, but for two.

Index legend: E Kronecker pairs, O outputs, I input channels, D inputs.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

import whence
from reproductions.own.priors.subjects import Subject
from whence.linalg.ratios import PerWeight, Ratio, Separable
from whence.linalg.structures import Kronecker
from whence.priors.relative import RelativePrecision, two_way
from whence.recording.blocks import Block

Variances = dict[str, Tensor]  # of each layer's outputs over the training data, by unit or channel


def prior_of(rule: str, posterior: whence.Laplace, subject: Subject) -> Any:
    """What ``with_prior`` takes."""
    if rule == "isotropic":
        return 1.0
    floor = re.fullmatch(r"signal, ν = (.*)", rule)
    relative = posterior.resolved(whence.Relative(1.0, float(floor.group(1))) if floor else whence.Relative())
    assert isinstance(relative, RelativePrecision)
    if rule == "signal" or floor:
        return relative
    if rule == "signal, r = variance":
        return _by_variance(relative, posterior, subject)
    make: Callable[[whence.Laplace, Block], Ratio] = {"by layer": _by_layer, "by size": _by_size, "g-prior": _g}[rule]
    return replace(relative, shapes={b.name: make(posterior, b) for b in posterior.blocks})


def _by_variance(relative: RelativePrecision, posterior: whence.Laplace, subject: Subject) -> RelativePrecision:
    """r_o is the variance of the pre-activation, Var(w·a), instead of Σ w² E[a²]."""
    known = output_variances(posterior, subject)
    shapes = dict(relative.shapes)
    for block in posterior.blocks:
        shape = shapes[block.name]
        if isinstance(shape, Separable) and block.name in known and block.form is not None:
            found = known[block.name].reshape(shape.rows.shape).clamp(min=1e-12)
            shapes[block.name] = Separable((block.form.inputs + block.form.bias) / found, shape.columns)
    return replace(relative, shapes=shapes)


def output_variances(posterior: whence.Laplace, subject: Subject) -> Variances:
    """Of linear and convolution layers; logits are centred over classes."""
    network = subject.network
    heads = {n for n, s in posterior.curvature.signals.items() if s.description.head and subject.classes}
    sums: dict[str, list[Tensor]] = {}

    def hook(name: str) -> Any:
        def keep(_: nn.Module, __: Any, output: Tensor) -> None:
            z = output.detach().double()
            z = z.movedim(1, -1) if z.dim() == 4 else z
            z = z.flatten(0, -2)
            z = z - z.mean(-1, keepdim=True) if name in heads else z
            each = [torch.tensor(float(len(z)), dtype=z.dtype), z.sum(0).cpu(), z.square().sum(0).cpu()]
            sums[name] = [a + b for a, b in zip(sums[name], each, strict=True)] if name in sums else each

        return keep

    layers = {n: m for n, m in network.named_modules() if isinstance(m, (nn.Linear, nn.Conv2d))}
    hooks = [module.register_forward_hook(hook(name)) for name, module in layers.items()]
    try:
        with torch.no_grad():
            for x in subject.train[0].split(500):
                network(x)
    finally:
        for handle in hooks:
            handle.remove()
    return {name: square / count - (total / count) ** 2 for name, (count, total, square) in sums.items()}


def _weights(posterior: whence.Laplace, block: Block) -> Tensor:
    return torch.cat([posterior.network.params[p.name].detach().double().cpu().reshape(-1) for p in block.params])


def _by_layer(posterior: whence.Laplace, block: Block) -> Ratio:
    """One number for each layer: 1 / the mean square of its weights."""
    flat = _weights(posterior, block)
    size = float(flat.square().mean()) or 1.0
    if block.form is None or not block.matrix_structured:
        return PerWeight(torch.full_like(flat, 1 / size))
    rows, columns = block.form.pack(flat)[..., 0], block.form.pack(flat)[..., 0, :]
    return Separable(torch.full_like(rows, 1 / size), torch.ones_like(columns))


def _by_size(posterior: whence.Laplace, block: Block) -> Ratio:
    """Rows and columns by what they explain of the squared weights (log-additive; Sinkhorn's relative)."""
    flat = _weights(posterior, block)
    if block.form is None or not block.matrix_structured:
        squares = flat.square()
        return PerWeight(1 / torch.where(squares > 0, squares, squares.mean() + 1e-12))
    rows, columns, size = two_way(block.form.pack(flat).square())
    return Separable(1 / (size * rows.exp()).squeeze(-1), (-columns).exp().squeeze(-2))


def _g(posterior: whence.Laplace, block: Block) -> Ratio:
    """diag(H) / N, as the neural g-prior has it (Antorán et al. 2022); at least 1e-6 of the layer's mean."""
    structure = posterior.curvature.structures[posterior.blocks.index(block)]
    size = posterior.record.data_size
    if isinstance(structure, Kronecker) and block.matrix_structured:
        a, g = structure.mean_input, structure.grads
        a, g = (f.diagonal(dim1=-2, dim2=-1) if f.dim() == 3 else f for f in (a, g))
        return Separable(_filled(g.double().cpu() / size), _filled(a.double().cpu()))
    return PerWeight(_filled(structure.diagonal().detach().double().cpu().reshape(-1) / size))


def _filled(values: Tensor) -> Tensor:
    return values.clamp(min=float(values.mean()) * 1e-6 or 1.0)
