"""The data, the network and its most probable weights.

Index legend: N examples.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor, nn

import whence
from reproductions.ritter2018.toy.config import Config

ACTIVATIONS: dict[str, type[nn.Module]] = {"relu": nn.ReLU, "tanh": nn.Tanh}
Pair = tuple[Tensor, Tensor]


@dataclass(frozen=True)
class Problem:
    """One draw of the data; tensors [N, 1] in the scaled units, in float64."""

    config: Config
    activation: str
    seed: int
    device: str = "cpu"

    def _cubic(self, count: int, part: int) -> Pair:
        """x ~ U(−4, 4), y ~ N(x³, 3²), scaled."""
        generator = torch.Generator().manual_seed(10 * self.seed + part)
        x = self.config.edge * (2 * torch.rand(count, 1, generator=generator, dtype=torch.float64) - 1)
        y = x**3 + self.config.noise * torch.randn(count, 1, generator=generator, dtype=torch.float64)
        return (x / self.config.x_scale).to(self.device), (y / self.config.y_scale).to(self.device)

    @cached_property
    def train(self) -> Pair:
        return self._cubic(self.config.points, 0)

    @cached_property
    def validation(self) -> Pair:
        return self._cubic(self.config.points, 1)

    @cached_property
    def test(self) -> Pair:
        return self._cubic(self.config.test, 2)

    def _line(self, count: int) -> Tensor:
        x = torch.linspace(-self.config.reach, self.config.reach, count, dtype=torch.float64)
        return (x / self.config.x_scale).unsqueeze(1).to(self.device)

    @cached_property
    def grid(self) -> Tensor:
        """Inputs that predictions are compared for, [N, 1], scaled."""
        return self._line(self.config.grid)

    @cached_property
    def fine(self) -> Tensor:
        """Inputs that predictions are shown for."""
        return self._line(self.config.fine)

    @property
    def noise(self) -> float:
        return self.config.noise / self.config.y_scale

    @property
    def likelihood(self) -> whence.Likelihood:
        return whence.Gaussian(noise=self.noise)

    def network(self, start: int) -> nn.Sequential:
        """1-7-7-1 with weights drawn from the prior."""
        units, act = self.config.hidden, ACTIVATIONS[self.activation]
        net = nn.Sequential(nn.Linear(1, units), act(), nn.Linear(units, units), act(), nn.Linear(units, 1)).double()
        generator = torch.Generator().manual_seed(1000 * (self.seed + 1) + start)
        with torch.no_grad():
            for p in net.parameters():
                p.copy_(torch.randn(p.shape, generator=generator, dtype=p.dtype) / self.config.prior_precision**0.5)
        return net.to(self.device)

    def energy(self, net: nn.Module) -> Tensor:
        """Σ (y − f)² / 2σ² + δ/2 |θ|²."""
        x, y = self.train
        squares = (net(x) - y).square().sum() / (2 * self.noise**2)
        return squares + self.config.prior_precision / 2 * sum(p.square().sum() for p in net.parameters())


@dataclass(frozen=True)
class Mode:
    """The most probable weights of several starts, and how good a mode they are."""

    net: nn.Sequential
    energies: list[float]  # of every start, before the last steps
    energy: float
    gradient: float  # its norm


def mode(problem: Problem) -> Mode:
    """Adam from all starts at once, with a falling step; then L-BFGS from the best of them."""
    nets = [problem.network(start) for start in range(problem.config.starts)]
    energies = _descend(problem, nets)
    net = nets[min(range(len(nets)), key=lambda i: energies[i])]
    _polish(problem, net)
    energy = problem.energy(net)
    gradients = torch.autograd.grad(energy, list(net.parameters()))
    norm = torch.stack([g.square().sum() for g in gradients]).sum().sqrt()
    return Mode(net, energies, float(energy.detach()), float(norm))


def _descend(problem: Problem, nets: list[nn.Sequential]) -> list[float]:
    """Their energies, after ``config.steps`` of Adam; the weights are written back."""
    params, buffers = torch.func.stack_module_state(nets)  # [starts, …]
    leaves = [p.requires_grad_() for p in params.values()]
    optimiser = torch.optim.Adam(leaves, lr=problem.config.lr)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimiser, problem.config.steps)
    x, y = problem.train

    def outputs(own: dict[str, Tensor]) -> Tensor:
        return torch.func.functional_call(nets[0], (own, buffers), x)

    def each() -> Tensor:
        squares = (torch.func.vmap(outputs)(params) - y).square().sum((1, 2)) / (2 * problem.noise**2)
        return squares + problem.config.prior_precision / 2 * sum(p.square().flatten(1).sum(1) for p in leaves)

    for _ in range(problem.config.steps):
        optimiser.zero_grad()
        each().sum().backward()
        optimiser.step()
        schedule.step()
    with torch.no_grad():
        for i, net in enumerate(nets):
            for name, p in net.named_parameters():
                p.copy_(params[name][i])
    return each().tolist()


def _polish(problem: Problem, net: nn.Sequential) -> None:
    """The last digits of a smooth mode; at a kink it ends at once."""
    optimiser = torch.optim.LBFGS(
        net.parameters(), max_iter=problem.config.iterations, history_size=50, line_search_fn="strong_wolfe",
        tolerance_grad=1e-7, tolerance_change=1e-14,
    )  # fmt: skip

    def closure() -> Tensor:
        optimiser.zero_grad()
        energy = problem.energy(net)
        energy.backward()
        return energy

    optimiser.step(closure)
