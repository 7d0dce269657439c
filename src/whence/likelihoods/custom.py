"""A likelihood from the user's own negative log likelihood."""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor

from whence.errors import BadData, BadOption
from whence.likelihoods.base import FEW, Likelihood


class Custom(Likelihood):
    """Your own likelihood, from ``nll(outputs, targets) -> [N]``.

    Λ is the Hessian of ``nll`` in the outputs, by automatic differentiation. Where it is indefinite, pass
    ``sample(outputs, generator) -> targets``: the Fisher is then estimated from ``draws`` of it.

    Predictions are of the raw outputs. If these are logits or log rates, say so by ``task`` in a subclass
    (:class:`Likelihood`).
    """

    from_functions = True

    def __init__(
        self,
        nll: Callable[[Tensor, Tensor], Tensor],
        sample: Callable[[Tensor, torch.Generator], Tensor] | None = None,
        draws: int = 16,
    ) -> None:
        self._nll, self._sample = nll, sample
        self.fisher_draws = draws if sample is not None else None

    def check(self, outputs: Tensor, targets: Tensor, index: int = 0) -> Tensor:
        if len(targets) != len(outputs):
            raise BadData(f"batch {index}: {len(outputs)} outputs but {len(targets)} targets.")
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
        if self._sample is not None and self.fisher_draws:
            columns = []
            for draw in range(self.fisher_draws):
                generator = torch.Generator(outputs.device).manual_seed(draw)
                columns.append(self.gradient(outputs, self._sample(outputs.detach(), generator)))
            return torch.stack(columns, dim=-1) / math.sqrt(self.fisher_draws)
        values, vectors = torch.linalg.eigh(self.hessian(outputs, targets).double())
        lowest, highest = float(values.min()), float(values.abs().max())
        if lowest < -1e-6 * max(highest, 1e-12):
            raise BadOption(
                f"the Hessian of your negative log likelihood in the outputs is indefinite (eigenvalue "
                f"{lowest:.3g}), so it gives no Gauss–Newton matrix. Pass Custom(nll, sample=…) with "
                "sample(outputs, generator) -> targets, and the Fisher is used."
            )
        return (vectors * values.clamp(min=0).sqrt().unsqueeze(-2)).to(outputs.dtype)

    def fingerprint(self, outputs: Tensor, targets: Tensor) -> dict[str, list[float]]:
        found = super().fingerprint(outputs, targets)
        if self._sample is not None:
            outputs = outputs[:FEW].detach()
            drawn = self._sample(outputs, torch.Generator(outputs.device).manual_seed(0))
            found["nll of draws"] = self.nll(outputs, drawn).detach().double().tolist()
        return found

    def sample(self, outputs: Tensor, uniform: Tensor) -> Tensor:
        if self._sample is None:
            raise BadOption("the sampled Fisher needs Custom(nll, sample=…) with sample(outputs, generator).")
        drawn = []
        for n, u in enumerate(uniform.reshape(len(outputs), -1)[:, 0].tolist()):
            generator = torch.Generator(outputs.device).manual_seed(int(u * 2**53))
            drawn.append(self._sample(outputs[n : n + 1].detach(), generator))
        return torch.cat(drawn)
