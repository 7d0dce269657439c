"""What a likelihood can be asked."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any, Literal

import torch
from torch import Tensor

from whence.engine.options import Option
from whence.errors import BadData

Task = Literal["classification", "binary", "regression", "count", "outputs"]
FEW = 8  # examples that a likelihood's values are compared at


class TaskKind(Option):
    """What outputs mean: a :data:`Task` that was read."""

    CLASSIFICATION = "classification"
    BINARY = "binary"
    REGRESSION = "regression"
    COUNT = "count"
    OUTPUTS = "outputs"

    @property
    def has_labels(self) -> bool:
        """Whether targets are labels, so that a prediction is right or wrong."""
        return self in (TaskKind.CLASSIFICATION, TaskKind.BINARY)


class Likelihood(ABC):
    """How targets arise from outputs. Subclass it, or use :class:`Custom`, for your own.

    The fit, the evidence and tuning use your own ``elements``. ``task`` says what the outputs mean, and so how
    predictions, metrics and audits of your own class read them: ``"classification"`` as logits of a softmax,
    ``"binary"`` as logits of independent labels, ``"count"`` as logarithms of Poisson rates; otherwise the prediction
    is that of the raw outputs, with their variance and without noise. Declare ``"count"`` only where the noise is
    Poisson's: the intervals of overdispersed counts (negative binomial, zero-inflated) would be too narrow.
    """

    task: Task = "outputs"
    uniforms: int | None = None  # uniform numbers that a draw takes at each position; None: one for each output
    from_functions: bool = False  # of the user's, which no spec can tell
    fisher_draws: int | None = None  # label draws that stand in for Λ where it has no exact root

    @property
    def task_kind(self) -> TaskKind:
        """``task``, as the class declares it."""
        return TaskKind.parse(self.task, "task")

    @property
    def has_labels(self) -> bool:
        """Whether targets are labels, so that a prediction is right or wrong."""
        return self.task_kind.has_labels

    @property
    def shift_invariant(self) -> bool:
        """Whether only differences of the outputs matter, as under a softmax."""
        return self.task_kind is TaskKind.CLASSIFICATION

    def quality(self, outputs: Tensor, targets: Tensor) -> dict[str, Tensor | float]:
        """Sums over a batch of what a fit records: ``targets`` counted, ``correct``, ``confidence``, ``squares``."""
        return {"targets": targets.numel()}

    def looks_like_probabilities(self, outputs: Tensor) -> str:
        """Why the outputs seem to be probabilities where logits are meant; empty where they do not."""
        return ""

    def counts(self, targets: Tensor) -> Tensor | None:
        """Which examples have a target that counts, [N]; None for all."""
        return None

    def mask(self, targets: Tensor) -> Tensor | None:
        """Which checked targets count, [N, M]; None for all."""
        return None

    def flatten(self, outputs: Tensor) -> Tensor:
        """``outputs`` as [N, M, C]."""
        return outputs.reshape(outputs.shape[0], 1, -1)

    def unflatten(self, flat: Tensor, outputs: Tensor) -> Tensor:
        """The inverse of :meth:`flatten`, with leading dimensions: [..., N, M, C] → [..., *outputs.shape]."""
        return flat.reshape(*flat.shape[:-3], *outputs.shape)

    def check(self, outputs: Tensor, targets: Tensor, index: int = 0) -> Tensor:
        """The targets in the shape that :meth:`nll` needs, or :class:`BadData`."""
        return match_shape(outputs, targets, type(self).__name__, index)

    @abstractmethod
    def elements(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """Negative log likelihood of each label or value of each example, [N, L], with all constants."""

    def nll(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """Negative log likelihood of each example, [N]."""
        return self.elements(outputs, targets).sum(1)

    @abstractmethod
    def root(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """R with Λ = R Rᵀ, [N, M, C, K]."""

    def hessian(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """Λ, [N, M, C, C]."""
        root = self.root(outputs, targets)
        return root @ root.mT

    def hessian_sum(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """Σ Λ over examples and positions, [C, C]."""
        root = self.root(outputs, targets)
        return torch.einsum("nmck,nmdk->cd", root, root)

    def hessian_diagonal(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """diag Λ, [N, M, C]."""
        return self.root(outputs, targets).square().sum(-1)

    def gradient(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """Derivative of the summed NLL in the outputs, [N, M, C]."""
        leaf = outputs.detach().requires_grad_()
        with torch.enable_grad():
            (grad,) = torch.autograd.grad(self.nll(leaf, targets).sum(), leaf)
        return self.flatten(grad)

    @abstractmethod
    def sample(self, outputs: Tensor, uniform: Tensor) -> Tensor:
        """Targets drawn from p(y | outputs), from uniform numbers in the flat layout [N, M, C]."""

    def drawn_gradient(self, outputs: Tensor, targets: Tensor, uniform: Tensor) -> Tensor:
        """Gradient of the NLL at a drawn target, [N, M, C]: E[g gᵀ] = Λ."""
        return self.gradient(outputs, self.sample(outputs, uniform))

    def spec(self) -> dict[str, Any]:
        """Plain values that :func:`from_spec` rebuilds the likelihood from."""
        return {"name": type(self).__name__}

    def fingerprint(self, outputs: Tensor, targets: Tensor) -> dict[str, list[float]]:
        """Numbers that tell it from others with the same :meth:`spec`; none where that says everything."""
        if type(self).__module__.startswith("whence.likelihoods.") and not self.from_functions:
            return {}
        outputs = outputs[:FEW].detach()
        targets = self.check(outputs, targets[:FEW])
        grads = self.gradient(outputs, targets).flatten(1).double()
        signs = torch.cos(torch.arange(grads.shape[1], device=grads.device, dtype=torch.float64))
        found = {"nll": self.nll(outputs, targets), "gradient": grads @ signs, "its size": grads.norm(dim=1)}
        return {key: value.detach().double().tolist() for key, value in found.items()}

    def __repr__(self) -> str:
        inner = ", ".join(f"{k}={v}" for k, v in self.spec().items() if k != "name")
        return f"{type(self).__name__}({inner})"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Likelihood) and self.spec() == other.spec()

    __hash__ = None  # type: ignore[assignment]


def match_shape(outputs: Tensor, targets: Tensor, kind: str, index: int) -> Tensor:
    """Targets in the shape of the outputs; only a missing or extra dimension of size one is forgiven."""
    if targets.shape == outputs.shape:
        matched = targets
    elif targets.shape == outputs.shape[:-1] and outputs.shape[-1] == 1:
        matched = targets.unsqueeze(-1)
    elif targets.shape[:-1] == outputs.shape and targets.shape[-1] == 1:
        matched = targets.squeeze(-1)
    else:
        labels = not targets.is_floating_point() and targets.shape == outputs.shape[:1] and outputs.dim() == 2
        hint = " Whole numbers for several outputs are class labels: use likelihood='classification'." if labels else ""
        raise BadData(
            f"batch {index}: {kind} targets of shape {list(targets.shape)} do not fit outputs of shape "
            f"{list(outputs.shape)}; they must have the same shape.{hint}"
        )
    return matched.to(outputs.dtype)
