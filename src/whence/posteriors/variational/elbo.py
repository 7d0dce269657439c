"""Maximising the ELBO, E_q[log p(D | w)] − KL(q ‖ p), estimated on batches.

Index legend: N examples, S draws.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor

from whence.engine.batches import Data, Inputs, size_of
from whence.engine.randomness import derived_seed
from whence.errors import BadOption, NotConverged
from whence.functional import arguments, call_with
from whence.likelihoods import Likelihood
from whence.outputs import output_tensor
from whence.posteriors.variational.history import ElboEpoch, quantiles, uncertainties
from whence.posteriors.variational.module import VariationalModule
from whence.training.feed import Feed
from whence.training.loop import Tensors, Trainable
from whence.training.losses import absolute_sum
from whence.training.step import LossValues

KlSchedule = Literal["plain", "blundell"] | int | float
VALIDATION_DRAWS = 8
LOOKED_AT = 256  # steps on a GPU between checks of the losses


@dataclass(frozen=True)
class KlWeight:
    """Weight of the KL: ``temperature`` · schedule. "plain" and "blundell" average to the temperature over an epoch."""

    temperature: float = 1.0
    schedule: KlSchedule = "plain"

    def __post_init__(self) -> None:
        t, schedule = self.temperature, self.schedule
        if isinstance(t, bool) or not isinstance(t, (int, float)) or not (math.isfinite(t) and t >= 0):
            raise BadOption(f"kl_weight={t!r} must be a number of at least 0; 1 is the plain ELBO.")
        number = isinstance(schedule, (int, float)) and not isinstance(schedule, bool)
        known = isinstance(schedule, str) and schedule in SCHEDULES
        if not known and not (number and 0 < float(schedule) < math.inf):
            raise BadOption(
                f"kl_schedule={schedule!r} is neither 'plain', 'blundell' nor a positive number of warm-up epochs."
            )

    def at(self, epoch: int, step: int, steps: int) -> float:
        """The weight at step 0, 1 … of an epoch with ``steps`` steps."""
        if isinstance(self.schedule, str):
            return SCHEDULES[self.schedule](self.temperature, step, steps)
        return self.temperature * min(1.0, (epoch + (step + 1) / steps) / float(self.schedule))

    def describe(self, last: float | None) -> str:
        """The objective, if it was not the ELBO itself; ``last`` is the mean weight of the last epoch."""
        if last is not None and not isinstance(self.schedule, str) and last < self.temperature * (1 - 1e-9):
            return f"tempered: KL × {last:.3g}, before the end of a warm-up over {self.schedule:g} epochs"
        return "" if self.temperature == 1.0 else f"tempered: KL × {self.temperature:g}"


def blundell(step: int, steps: int) -> float:
    """π_i = 2^(M−i) / (2^M − 1) for i = 1 … M: Blundell et al. (2015), section 3.4. They sum to one."""
    return 2.0 ** -(step + 1) / -math.expm1(-steps * math.log(2.0))


# Weights of an epoch's steps, whose mean is the temperature.
SCHEDULES: dict[str, Callable[[float, int, int], float]] = {
    "plain": lambda temperature, step, steps: temperature,
    "blundell": lambda temperature, step, steps: temperature * steps * blundell(step, steps),
}


class ElboTraining(Trainable[ElboEpoch]):
    """Minimises [(N / |batch|) Σ NLL + weight · KL] / N + l1 · Σ|μ| by Adam."""

    label = "variational"
    record: ClassVar = ElboEpoch

    def __init__(
        self,
        module: VariationalModule,
        feed: Feed,
        likelihood: Likelihood,
        *,
        size: int,
        steps: int,
        validation: Data | None = None,
        lr: float = 1e-3,
        lr_std: float = 1e-3,
        num_samples: int = 1,
        kl_draws: int = 1,
        kl_weight: KlWeight | None = None,
        l1: float = 0.0,
        probe: Any = None,
        seed: int = 0,
    ) -> None:
        self.module, self.feed, self.likelihood, self.validation = module, feed, likelihood, validation
        self.size, self.seed, self.device = size, seed, feed.device
        self.steps = self._steps = steps
        self.num_samples, self.kl_draws, self.kl_weight = num_samples, kl_draws, kl_weight or KlWeight()
        self.optimiser = make_optimiser(module, lr, lr_std)
        remedy = f"Lower lr={lr:g} or lr_std={lr_std:g}, or check the data of that batch."
        self._losses = StepLosses(module, kl_draws, 0, remedy)
        self.l1, self.probe = l1, probe
        self._step, self._weights = 0, 0.0  # step, and the sum of KL weights
        # The KL weight, in memory that a captured step reads.
        self._weight = torch.zeros((), device=self.device, dtype=next(module.parameters()).dtype)

    def begin(self, epoch: int) -> Iterator[tuple[Inputs, Tensor]]:
        self.module.train()
        self._losses = StepLosses(self.module, self.kl_draws, epoch, self._losses.remedy)
        self._step, self._weights = 0, 0.0
        return self.feed.epoch(derived_seed(self.seed, "order", epoch))

    def before_step(self, epoch: int, index: int) -> None:
        weight = self.kl_weight.at(epoch, index, self._steps)
        self._weight.fill_(weight)
        self._weights += weight

    def loss(self, inputs: Inputs, targets: Tensor) -> LossValues:
        number: Any = self.batch_number.now()
        nll, kl = nll_and_kl(
            self.module, self.likelihood, inputs, targets, self.size, self.num_samples, self.kl_draws, number
        )
        objective = (nll + self._weight * kl) / self.size
        if self.l1:
            objective = objective + self.l1 * absolute_sum(self.module.mean().values())
        return objective, torch.stack([nll.detach(), kl.detach()])

    def before_update(self, values: Tensor, targets: Tensor) -> None:
        self.optimiser.found_inf = self._losses.add(values)  # type: ignore[attr-defined]
        self._step += 1
        if self.device.type == "cpu" or self._step % LOOKED_AT == 0:
            self._losses.read()

    def end(self, epoch: int, lr: float) -> ElboEpoch:
        losses = self._losses
        losses.read()
        nll, kl = losses.nll / losses.steps, losses.kl / losses.steps
        checked = None
        if self.validation is not None:
            seed = derived_seed(self.seed, "validation", epoch)
            checked = predictive_nll(self.module, self.validation, self.likelihood, VALIDATION_DRAWS, seed)
        split = (
            (None, None) if self.probe is None else uncertainties(self.module, self.probe, self.likelihood, self.seed)
        )
        return ElboEpoch(
            epoch + 1, -nll - kl, nll, kl, self._weights / losses.steps, lr, checked,
            aleatoric=split[0], epistemic=split[1], layers=quantiles(self.module),
        )  # fmt: skip

    def quality(self, record: ElboEpoch) -> float | None:
        return None if record.validation is None else -record.validation

    def state(self) -> Tensors:
        return self.module.blocks.state_dict()

    def load_state(self, tensors: Tensors) -> None:
        self.module.blocks.load_state_dict(tensors)

    def finish(self) -> None:
        self.module.eval()


class StepLosses:
    """The losses of an epoch, which stay on the device until they are read, so that no step waits for the host.

    After the first loss that is not finite, Adam changes nothing (``found_inf``), so that the layer can be named later.
    """

    def __init__(self, module: VariationalModule, kl_draws: int, epoch: int, remedy: str) -> None:
        self.module, self.kl_draws, self.epoch, self.remedy = module, kl_draws, epoch, remedy
        self.nll, self.kl, self.steps = 0.0, 0.0, 0  # sums of the losses read so far
        self._unseen: list[Tensor] = []
        self._failed: Tensor | None = None

    def add(self, values: Tensor) -> Tensor:
        """Add a step's (NLL, KL); return 1.0 on the device if any step so far was not finite, else 0.0."""
        self._unseen.append(values.clone())  # a captured step overwrites its values
        failed = (~torch.isfinite(values).all()).float()
        self._failed = failed if self._failed is None else torch.maximum(self._failed, failed)
        return self._failed

    def read(self) -> None:
        """Read and add the new losses; raise at the first that is not finite."""
        if not self._unseen:
            return
        for nll, kl in torch.stack(self._unseen).cpu().double().tolist():
            self._refuse_not_finite(nll, kl)
            self.nll, self.kl, self.steps = self.nll + nll, self.kl + kl, self.steps + 1
        self._unseen = []

    def _refuse_not_finite(self, nll: float, kl: float) -> None:
        """Raise an error that names the layer and the step."""
        place = f"at step {self.steps + 1} of epoch {self.epoch + 1}"
        if not math.isfinite(kl):
            with torch.no_grad():
                parts = self.module.kl_by_layer(self.kl_draws)
            layer = next((n for n, v in parts.items() if not bool(torch.isfinite(v))), "?")
            value = float(parts.get(layer, kl))
            raise NotConverged(f"the KL of layer {layer!r} became {value:g} {place}. {self.remedy}")
        if not math.isfinite(nll):
            raise NotConverged(f"the negative log likelihood became {nll:g} {place}. {self.remedy}")


def make_optimiser(module: VariationalModule, lr: float, lr_std: float) -> torch.optim.Adam:
    """Adam, with separate learning rates for the means and the covariance."""
    means = [mean for block in module.variational_blocks() for mean in block.locs]
    known = {id(p) for p in means}
    others = [p for p in module.blocks.parameters() if id(p) not in known]
    return torch.optim.Adam([{"params": means, "lr": lr}, {"params": others, "lr": lr_std}], fused=True)


def nll_and_kl(
    module: VariationalModule,
    likelihood: Likelihood,
    inputs: Inputs,
    targets: Tensor,
    size: int,
    num_samples: int = 1,
    kl_draws: int = 1,
    index: int = 0,
) -> tuple[Tensor, Tensor]:
    """(N / |batch|) Σ NLL, averaged over ``num_samples`` forward passes, and the KL; ``index`` numbers the batch."""
    total = torch.zeros((), device=next(module.parameters()).device)
    for _ in range(num_samples):
        outputs = module.outputs(inputs)
        total = total + likelihood.nll(outputs, likelihood.check(outputs, targets, index)).sum()
    return total * (size / (size_of(inputs) * num_samples)), module.kl(kl_draws)


@torch.no_grad()
def predictive_nll(module: VariationalModule, data: Data, likelihood: Likelihood, draws: int, seed: int) -> float:
    """Mean over examples of −log (1/S) Σ_s p(y | x, w_s), with weight draws shared by all batches."""
    values = module.sample(draws, torch.Generator().manual_seed(seed))
    total, seen = 0.0, 0
    for batch in data:
        args, kwargs = arguments(batch.inputs)
        each = []
        for s in range(draws):
            weights = {n: v[s] for n, v in values.items()}
            outputs = output_tensor(call_with(module.model, weights, args, kwargs), (args, kwargs))
            targets = likelihood.check(outputs, batch.targets, batch.index)
            each.append(likelihood.nll(outputs, targets).double())
        total += float((math.log(draws) - torch.logsumexp(-torch.stack(each), dim=0)).sum())
        seen += size_of(batch.inputs)
    return total / seen
