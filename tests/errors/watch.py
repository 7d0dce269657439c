"""A network with everything that could be disturbed, and an eye on whether it was."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import whence
from whence import errors

HOOKS = (
    "_forward_hooks",
    "_forward_pre_hooks",
    "_backward_hooks",
    "_backward_pre_hooks",
    "_state_dict_hooks",
    "_state_dict_pre_hooks",
    "_load_state_dict_pre_hooks",
    "_load_state_dict_post_hooks",
)


def mlp(inputs: int = 4, outputs: int = 3, hidden: int = 5) -> nn.Sequential:
    return nn.Sequential(nn.Linear(inputs, hidden), nn.Tanh(), nn.Linear(hidden, outputs))


class Busy(nn.Module):
    """Batch norm, dropout, a buffer, a frozen layer, mixed training modes, a hook and gradients."""

    def __init__(self, inputs: int = 4, outputs: int = 3) -> None:
        super().__init__()
        self.first = nn.Linear(inputs, 6)
        self.norm = nn.BatchNorm1d(6)
        self.drop = nn.Dropout(0.5)
        self.frozen = nn.Linear(6, 6).requires_grad_(False)
        self.head = nn.Linear(6, outputs)
        self.register_buffer("scale", torch.tensor(0.9))
        self.train()
        self.drop.eval()
        self.seen: list[int] = []
        self.head.register_forward_hook(lambda *_: None)
        self.first.register_full_backward_hook(lambda *_: None)
        self.first.weight.grad = torch.full_like(self.first.weight, 0.5)

    def forward(self, x: Tensor) -> Tensor:
        x = self.drop(torch.tanh(self.norm(self.first(x))))
        return self.head(torch.tanh(self.frozen(x))) * self.scale


def data(size: int = 24, inputs: int = 4, classes: int = 3) -> tuple[Tensor, Tensor]:
    return torch.randn(size, inputs), torch.arange(size) % classes


def batches(x: Tensor, y: Tensor, size: int = 8) -> list[tuple[Tensor, Tensor]]:
    return [(x[i : i + size], y[i : i + size]) for i in range(0, len(x), size)]


def _of_tensor(t: Tensor) -> tuple[Any, ...]:
    grad = None if t.grad is None else (id(t.grad), t.grad.clone())
    return id(t), t.detach().clone(), t.requires_grad, grad, len(t._backward_hooks or {}), t._version


def state_of(model: nn.Module) -> dict[str, Any]:
    """Weights, buffers, gradients, hooks and modes of everything in a model."""
    found: dict[str, Any] = {}
    for name, tensor in [*model.named_parameters(), *model.named_buffers()]:
        found[f"tensor {name}"] = _of_tensor(tensor)
    for name, module in model.named_modules():
        found[f"mode {name}"] = module.training
        found[f"keys {name}"] = sorted(vars(module))
        for hooks in HOOKS:
            found[f"{hooks} {name}"] = list(getattr(module, hooks, {}))
    found["torch"] = (
        torch.is_grad_enabled(),
        torch.get_default_dtype(),
        torch.backends.mha.get_fastpath_enabled(),
        torch.backends.cuda.flash_sdp_enabled(),
        torch.backends.cuda.mem_efficient_sdp_enabled(),
        torch.backends.cuda.math_sdp_enabled(),
    )
    return found


def _same(a: Any, b: Any) -> bool:
    if isinstance(a, Tensor):
        return isinstance(b, Tensor) and torch.equal(a, b)
    if isinstance(a, (tuple, list)):
        return len(a) == len(b) and all(_same(i, j) for i, j in zip(a, b, strict=True))
    return bool(a == b)


@contextlib.contextmanager
def untouched(model: nn.Module) -> Iterator[None]:
    """The model is afterwards exactly what it was before."""
    before = state_of(model)
    yield
    after = state_of(model)
    assert before.keys() == after.keys()
    changed = [key for key in before if not _same(before[key], after[key])]
    assert not changed, f"changed: {changed}"


def says(message: str, parts: tuple[str, ...]) -> None:
    missing = [part for part in parts if part.lower() not in message.lower()]
    assert not missing, f"{missing} not in: {message}"


@contextlib.contextmanager
def refused(error: type[Exception], *parts: str, model: nn.Module | None = None) -> Iterator[None]:
    """What runs inside is refused by this typed error, whose words hold every part."""
    assert issubclass(error, errors.WhenceError)
    with contextlib.ExitStack() as stack:
        if model is not None:
            stack.enter_context(untouched(model))
        raised = stack.enter_context(pytest.raises(error))
        yield
    says(str(raised.value), parts)


def refuse(model: nn.Module, given: Any, error: type[Exception], *parts: str, **options: Any) -> None:
    """``laplace`` refuses these arguments by this error, and leaves the model alone."""
    options.setdefault("likelihood", "classification")
    with refused(error, *parts, model=model):
        whence.laplace(model, given, **options)
