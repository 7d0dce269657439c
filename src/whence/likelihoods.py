"""Negative log likelihoods: the loss, its Hessian in the outputs with a root, and drawn labels.

Index legend: N examples, M positions per example (dense outputs), C outputs, K root columns.
Outputs are brought to the layout ``[N, M, C]``; the Hessian Λ is block-diagonal over (n, m), and a root is
``[N, M, C, K]`` with Λ = R Rᵀ. No likelihood divides by N: curvature is a sum over the data.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any, Literal

import torch
from torch import Tensor
from torch.nn import functional as F

from whence.errors import BadData, BadOption, one_of
from whence.randomness import normal_from_uniform

Task = Literal["classification", "binary", "regression", "count", "outputs"]


class Likelihood(ABC):
    """How targets arise from outputs. Subclass it, or use :class:`Custom`, for your own."""

    task: Task = "outputs"

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

    def __repr__(self) -> str:
        inner = ", ".join(f"{k}={v}" for k, v in self.spec().items() if k != "name")
        return f"{type(self).__name__}({inner})"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Likelihood) and self.spec() == other.spec()

    __hash__ = None  # type: ignore[assignment]


class Categorical(Likelihood):
    """Softmax over logits. ``class_dim`` is 1 (torch's cross entropy: N × C × …) or −1 (N × … × C)."""

    task: Task = "classification"

    def __init__(self, ignore_index: int = -100, class_dim: int = 1) -> None:
        if class_dim not in (1, -1):
            raise BadOption(f"class_dim={class_dim} is not 1 (N × C × …) or -1 (N × … × C).")
        self.ignore_index, self.class_dim = ignore_index, class_dim

    def spec(self) -> dict[str, Any]:
        return {"name": "Categorical", "ignore_index": self.ignore_index, "class_dim": self.class_dim}

    def flatten(self, outputs: Tensor) -> Tensor:
        if outputs.dim() < 2:
            raise BadData(
                f"classification needs outputs [N, C]; the network gives {list(outputs.shape)}. "
                "For one logit per example use likelihood='binary'."
            )
        last = outputs if self.class_dim == -1 else outputs.movedim(1, -1)
        return last.reshape(outputs.shape[0], -1, last.shape[-1])

    def unflatten(self, flat: Tensor, outputs: Tensor) -> Tensor:
        if self.class_dim == -1 or outputs.dim() == 2:
            return flat.reshape(*flat.shape[:-3], *outputs.shape)
        spatial = outputs.shape[2:]
        moved = flat.reshape(*flat.shape[:-3], outputs.shape[0], *spatial, outputs.shape[1])
        return moved.movedim(-1, -1 - len(spatial))

    def check(self, outputs: Tensor, targets: Tensor, index: int = 0) -> Tensor:
        flat = self.flatten(outputs)
        last_shape = (*outputs.shape[:1], *outputs.shape[2:]) if self.class_dim == 1 else outputs.shape[:-1]
        if targets.is_floating_point() or targets.is_complex():
            raise BadData(
                f"batch {index}: class labels must be whole numbers, not {targets.dtype} of shape "
                f"{list(targets.shape)}. Pass class indices, or use likelihood='binary' or 'regression'."
            )
        if tuple(targets.shape) == (*last_shape, 1):
            targets = targets.squeeze(-1)
        if tuple(targets.shape) != tuple(last_shape):
            hint = ""
            if self.class_dim == 1 and tuple(targets.shape) == tuple(outputs.shape[:-1]):
                hint = " If the classes lie in the last dimension, pass Categorical(class_dim=-1)."
            raise BadData(
                f"batch {index}: class labels of shape {list(targets.shape)} do not fit outputs of shape "
                f"{list(outputs.shape)}; expected {list(last_shape)}.{hint}"
            )
        targets = targets.long()
        classes = flat.shape[-1]
        wrong = (targets != self.ignore_index) & ((targets < 0) | (targets >= classes))
        if bool(wrong.any()):
            value = int(targets[wrong][0])
            raise BadData(
                f"batch {index}: class label {value} is out of range: the network has {classes} outputs, so "
                f"labels go from 0 to {classes - 1} (ignore_index is {self.ignore_index})."
            )
        return targets.reshape(flat.shape[:2])

    def mask(self, targets: Tensor) -> Tensor:
        return targets != self.ignore_index

    def elements(self, outputs: Tensor, targets: Tensor) -> Tensor:
        flat = self.flatten(outputs)
        loss = F.cross_entropy(
            flat.reshape(-1, flat.shape[-1]), targets.reshape(-1), ignore_index=self.ignore_index, reduction="none"
        )
        return loss.reshape(flat.shape[:2])

    def root(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """diag(√p) − p √pᵀ, turned by the Householder reflection that sends e_C to √p.

        √p spans its kernel, so the last column vanishes and C − 1 columns are exact.
        """
        p = self.flatten(outputs).softmax(-1)
        s = p.sqrt()  # [N, M, C], unit vectors
        plain = torch.diag_embed(s) - p.unsqueeze(-1) * s.unsqueeze(-2)
        v = s.clone()
        v[..., -1] += 1.0  # reflects −e_C to √p; no cancellation
        scale = 2.0 / v.square().sum(-1, keepdim=True)
        turned = plain - (plain @ v.unsqueeze(-1)) * (scale * v).unsqueeze(-2)
        return turned[..., :-1] * self.mask(targets)[..., None, None]

    def gradient(self, outputs: Tensor, targets: Tensor) -> Tensor:
        p = self.flatten(outputs).softmax(-1)
        keep = self.mask(targets)
        hot = F.one_hot(targets.clamp(min=0) * keep, p.shape[-1]).to(p.dtype)
        return (p - hot) * keep.unsqueeze(-1)

    def sample(self, outputs: Tensor, uniform: Tensor) -> Tensor:
        cdf = self.flatten(outputs).softmax(-1).cumsum(-1)  # [N, M, C]
        draw = uniform[..., :1].to(cdf.dtype) * cdf[..., -1:]
        return (cdf <= draw).sum(-1).clamp(max=cdf.shape[-1] - 1)

    def drawn_gradient(self, outputs: Tensor, targets: Tensor, uniform: Tensor) -> Tensor:
        drawn = torch.where(self.mask(targets), self.sample(outputs, uniform), self.ignore_index)
        return self.gradient(outputs, drawn)


class _Diagonal(Likelihood):
    """A likelihood whose Λ is diagonal in the outputs."""

    @abstractmethod
    def weight(self, outputs: Tensor) -> Tensor:
        """Diagonal of Λ in the flat layout, [N, M, C]."""

    def root(self, outputs: Tensor, targets: Tensor) -> Tensor:
        return torch.diag_embed(self.weight(outputs).sqrt())


class Bernoulli(_Diagonal):
    """Independent logits, one for each label (one for binary classification, several for multi-label)."""

    task: Task = "binary"

    def check(self, outputs: Tensor, targets: Tensor, index: int = 0) -> Tensor:
        targets = match_shape(outputs, targets, "Bernoulli", index).to(outputs.dtype)
        if bool(((targets < 0) | (targets > 1)).any()):
            bad = float(targets[(targets < 0) | (targets > 1)].reshape(-1)[0])
            raise BadData(f"batch {index}: binary targets lie between 0 and 1, but {bad:g} was met.")
        return targets

    def elements(self, outputs: Tensor, targets: Tensor) -> Tensor:
        return F.binary_cross_entropy_with_logits(outputs, targets, reduction="none").flatten(1)

    def weight(self, outputs: Tensor) -> Tensor:
        p = self.flatten(outputs).sigmoid()
        return p * (1 - p)

    def sample(self, outputs: Tensor, uniform: Tensor) -> Tensor:
        drawn = uniform.to(outputs.dtype) < self.flatten(outputs).sigmoid()
        return drawn.to(outputs.dtype).reshape(outputs.shape)


class Gaussian(_Diagonal):
    """Normal targets with known standard deviation ``noise``: a number, or one for each output."""

    task: Task = "regression"

    def __init__(self, noise: float | Tensor | list[float] = 1.0) -> None:
        value = torch.as_tensor(noise, dtype=torch.float64).detach().cpu()
        if value.dim() > 1 or not bool(torch.isfinite(value).all()) or bool((value <= 0).any()):
            raise BadOption(f"the noise must be a positive number or a vector of them, not {noise!r}.")
        self.noise = value

    def spec(self) -> dict[str, Any]:
        return {"name": "Gaussian", "noise": self.noise.tolist()}

    def variance(self, outputs: Tensor) -> Tensor:
        """σ² broadcast to the flat layout [N, M, C]."""
        flat = self.flatten(outputs)
        if self.noise.dim() and len(self.noise) != flat.shape[-1]:
            raise BadData(f"{len(self.noise)} noise values for {flat.shape[-1]} outputs.")
        return self.noise.to(flat.device, flat.dtype).square().expand_as(flat)

    def elements(self, outputs: Tensor, targets: Tensor) -> Tensor:
        var = self.variance(outputs)
        squares = (self.flatten(outputs) - self.flatten(targets)).square()
        return (0.5 * squares / var + 0.5 * torch.log(2 * math.pi * var)).flatten(1)

    def weight(self, outputs: Tensor) -> Tensor:
        return 1 / self.variance(outputs)

    def gradient(self, outputs: Tensor, targets: Tensor) -> Tensor:
        return (self.flatten(outputs) - self.flatten(targets)) / self.variance(outputs)

    def sample(self, outputs: Tensor, uniform: Tensor) -> Tensor:
        z = normal_from_uniform(uniform).to(outputs.dtype)
        return (self.flatten(outputs) + self.variance(outputs).sqrt() * z).reshape(outputs.shape)


class HeteroscedasticGaussian(_Diagonal):
    """Outputs (mean₁ … mean_K, log σ₁² … log σ_K²). The NLL is not convex in them, so Λ is the Fisher."""

    task: Task = "regression"

    def halves(self, outputs: Tensor) -> tuple[Tensor, Tensor]:
        """Mean and log variance, [N, K] each."""
        flat = outputs.reshape(len(outputs), -1)
        if flat.shape[1] % 2:
            raise BadData(
                f"a heteroscedastic Gaussian needs an even number of outputs (means, then log variances); "
                f"the network has {flat.shape[1]}."
            )
        mean, log_var = flat.chunk(2, dim=1)
        return mean, log_var

    def check(self, outputs: Tensor, targets: Tensor, index: int = 0) -> Tensor:
        return match_shape(self.halves(outputs)[0], targets.reshape(len(targets), -1), type(self).__name__, index)

    def elements(self, outputs: Tensor, targets: Tensor) -> Tensor:
        mean, log_var = self.halves(outputs)
        return 0.5 * (math.log(2 * math.pi) + log_var + (targets - mean).square() * (-log_var).exp())

    def weight(self, outputs: Tensor) -> Tensor:
        _, log_var = self.halves(outputs)
        return torch.cat([(-log_var).exp(), torch.full_like(log_var, 0.5)], dim=1).unsqueeze(1)

    def sample(self, outputs: Tensor, uniform: Tensor) -> Tensor:
        mean, log_var = self.halves(outputs)
        z = normal_from_uniform(uniform.reshape(len(outputs), -1)[:, : mean.shape[1]]).to(outputs.dtype)
        return mean + (0.5 * log_var).exp() * z


class Poisson(_Diagonal):
    """Counts; the outputs are log rates."""

    task: Task = "count"

    def check(self, outputs: Tensor, targets: Tensor, index: int = 0) -> Tensor:
        targets = match_shape(outputs, targets, "Poisson", index).to(outputs.dtype)
        if bool(((targets < 0) | (targets != targets.round())).any()):
            raise BadData(f"batch {index}: Poisson targets are counts (0, 1, 2, …); another value was met.")
        return targets

    def elements(self, outputs: Tensor, targets: Tensor) -> Tensor:
        return (outputs.exp() - targets * outputs + torch.lgamma(targets + 1)).flatten(1)

    def weight(self, outputs: Tensor) -> Tensor:
        return self.flatten(outputs).exp()

    def sample(self, outputs: Tensor, uniform: Tensor) -> Tensor:
        """Inverse distribution function by bisection on P(Y ≤ k) = Q(k + 1, rate)."""
        rate = self.flatten(outputs).exp().double()
        return poisson_quantile(rate, uniform.double()).to(outputs.dtype).reshape(outputs.shape)


class Custom(Likelihood):
    """Your own likelihood, from ``nll(outputs, targets) -> [N]``.

    Λ is the Hessian of ``nll`` in the outputs, by automatic differentiation. Where it is indefinite, pass
    ``sample(outputs, generator) -> targets``: the Fisher is then estimated from ``draws`` of it.
    """

    def __init__(
        self,
        nll: Callable[[Tensor, Tensor], Tensor],
        sample: Callable[[Tensor, torch.Generator], Tensor] | None = None,
        draws: int = 16,
    ) -> None:
        self._nll, self._sample, self.draws = nll, sample, draws

    def check(self, outputs: Tensor, targets: Tensor, index: int = 0) -> Tensor:
        return targets

    def elements(self, outputs: Tensor, targets: Tensor) -> Tensor:
        loss = self._nll(outputs, targets)
        if loss.shape != outputs.shape[:1]:
            raise BadData(
                f"the negative log likelihood must return one number for each example ([{len(outputs)}]); "
                f"it returned {list(loss.shape)}. Sum over outputs, not over examples."
            )
        return loss.unsqueeze(1)

    def hessian(self, outputs: Tensor, targets: Tensor) -> Tensor:
        def one(f: Tensor, y: Tensor) -> Tensor:
            return self._nll(f.unsqueeze(0), y.unsqueeze(0)).sum()

        hess = torch.func.vmap(torch.func.hessian(one))(outputs.detach(), targets)
        size = self.flatten(outputs).shape[-1]
        return hess.reshape(len(outputs), 1, size, size)

    def root(self, outputs: Tensor, targets: Tensor) -> Tensor:
        if self._sample is not None:
            columns = []
            for draw in range(self.draws):
                generator = torch.Generator(outputs.device).manual_seed(draw)
                columns.append(self.gradient(outputs, self._sample(outputs.detach(), generator)))
            return torch.stack(columns, dim=-1) / math.sqrt(self.draws)
        values, vectors = torch.linalg.eigh(self.hessian(outputs, targets).double())
        lowest, highest = float(values.min()), float(values.abs().max())
        if lowest < -1e-6 * max(highest, 1e-12):
            raise BadOption(
                f"the Hessian of your negative log likelihood in the outputs is indefinite (eigenvalue "
                f"{lowest:.3g}), so it gives no Gauss–Newton matrix. Pass Custom(nll, sample=…) with "
                "sample(outputs, generator) -> targets, and the Fisher is used."
            )
        return (vectors * values.clamp(min=0).sqrt().unsqueeze(-2)).to(outputs.dtype)

    def sample(self, outputs: Tensor, uniform: Tensor) -> Tensor:
        if self._sample is None:
            raise BadOption("the sampled Fisher needs Custom(nll, sample=…) with sample(outputs, generator).")
        drawn = []
        for n, u in enumerate(uniform.reshape(len(outputs), -1)[:, 0].tolist()):
            generator = torch.Generator(outputs.device).manual_seed(int(u * 2**53))
            drawn.append(self._sample(outputs[n : n + 1].detach(), generator))
        return torch.cat(drawn)


def match_shape(outputs: Tensor, targets: Tensor, kind: str, index: int) -> Tensor:
    """Targets in the shape of the outputs; only a missing or extra dimension of size one is forgiven."""
    if targets.shape == outputs.shape:
        matched = targets
    elif targets.shape == outputs.shape[:-1] and outputs.shape[-1] == 1:
        matched = targets.unsqueeze(-1)
    elif targets.shape[:-1] == outputs.shape and targets.shape[-1] == 1:
        matched = targets.squeeze(-1)
    else:
        raise BadData(
            f"batch {index}: {kind} targets of shape {list(targets.shape)} do not fit outputs of shape "
            f"{list(outputs.shape)}; they must have the same shape."
        )
    return matched.to(outputs.dtype)


def poisson_quantile(rate: Tensor, level: Tensor) -> Tensor:
    """Smallest k with P(Y ≤ k) > level, element by element, in float64."""
    low = torch.full_like(rate, -1.0)
    high = (rate + 12 * rate.sqrt() + 40).floor()
    while bool((high - low > 1).any()):
        mid = ((low + high) / 2).floor()
        above = torch.special.gammaincc(mid + 1, rate) > level
        high, low = torch.where(above, mid, high), torch.where(above, low, mid)
    return high


BY_NAME: dict[str, Callable[[], Likelihood]] = {
    "classification": Categorical,
    "binary": Bernoulli,
    "regression": Gaussian,
}
KINDS: dict[str, type[Likelihood]] = {
    c.__name__: c for c in (Categorical, Bernoulli, Gaussian, HeteroscedasticGaussian, Poisson)
}


def resolve(likelihood: Likelihood | str) -> tuple[Likelihood, bool]:
    """The likelihood object, and whether its noise is to be estimated from the training residuals."""
    if isinstance(likelihood, Likelihood):
        return likelihood, False
    if not isinstance(likelihood, str):
        raise BadOption(f"likelihood must be a whence.Likelihood or a name, not a {type(likelihood).__name__}.")
    name = one_of(likelihood, BY_NAME, "likelihood")
    return BY_NAME[name](), name == "regression"


def from_spec(spec: dict[str, Any]) -> Likelihood | None:
    """Rebuild a likelihood from its spec; None for one that the user must pass again."""
    kind = KINDS.get(spec["name"])
    return None if kind is None else kind(**{k: v for k, v in spec.items() if k != "name"})
