"""Networks of one architecture with stacked weights, evaluated and trained together under ``vmap``.

Index legend: M members, N examples, B examples of a batch.
"""

from __future__ import annotations

import copy
import math
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from whence.engine.batches import Inputs, take, tensors_in
from whence.engine.randomness import derived_seed, preserved_random_state
from whence.errors import NotConverged
from whence.functional import arguments, call_with
from whence.likelihoods import Likelihood
from whence.outputs import output_tensor
from whence.posteriors.ensembles.factory import History, MemberTrainer, shapes
from whence.training.examples import Examples
from whence.training.feed import ExamplesFeed, Feed, outputs_of
from whence.training.loop import EpochRecord, Tensors, Trainable
from whence.training.losses import MeanNegativeLogLikelihood, evaluation_mode
from whence.training.step import LossValues
from whence.training.supervised import fast_kernels, make_optimiser

CPU_BYTES = 2**30
GPU_SHARE = 0.25  # share of the free memory that is used
VMAP_FAILS = (RuntimeError, ValueError, NotImplementedError, TypeError)


def difference(modules: Sequence[nn.Module]) -> str | None:
    """Why the modules cannot be stacked, by their classes, settings and shapes; None if they can."""
    first = modules[0]
    for index, module in enumerate(modules[1:], 1):
        if type(module) is not type(first) or repr(module) != repr(first):
            return f"member {index} is a different network than member 0"
        if shapes(module) != shapes(first):
            return f"member {index} has different shapes than member 0"
    return None


def slower_vectorised(module: nn.Module, device: torch.device) -> bool:
    """Whether stacking is slower: on a CPU, convolutions of many networks become grouped convolutions."""
    return device.type == "cpu" and any(isinstance(m, nn.modules.conv._ConvNd) for m in module.modules())


class StackedNetworks:
    """Stacked weights and buffers [M, …] of networks, and their common function."""

    def __init__(self, modules: Sequence[nn.Module]) -> None:
        params, buffers = torch.func.stack_module_state(list(modules))
        self.params: Tensors = {n: p.detach() for n, p in params.items()}
        self.buffers: Tensors = {n: b.detach() for n, b in buffers.items()}
        self.base = copy.deepcopy(modules[0])

    def member(self, params: Tensors, buffers: Tensors, inputs: Inputs) -> Tensor:
        """Outputs of one member."""
        args, kwargs = arguments(inputs)
        return output_tensor(call_with(self.base, {**params, **buffers}, args, kwargs), (args, kwargs))

    def outputs(self, inputs: Inputs) -> Tensor:
        """Outputs of all members for the same inputs, [M, N, …]."""
        run = torch.func.vmap(self.member, in_dims=(0, 0, None), randomness="different")
        with _quiet():
            return run(self.params, self.buffers, inputs)

    def differs(self, modules: Sequence[nn.Module], inputs: Inputs) -> str | None:
        """Why the stack's outputs differ from the modules' in evaluation mode, on a few inputs; None if they agree."""
        few = take(inputs, slice(0, 2))
        try:
            with torch.no_grad():
                together = self.outputs(few)
                apart = torch.stack([outputs_of(module, few) for module in modules])
        except VMAP_FAILS as error:
            return f"vmap cannot run it ({_first_line(error)})"
        scale = float(apart.detach().abs().max()) + 1e-30
        tolerance = 1e-9 if apart.dtype == torch.float64 else 1e-2 if apart.dtype != torch.float32 else 2e-3
        if together.shape != apart.shape or float((together - apart).abs().max()) > tolerance * scale:
            return "its outputs under vmap differ from the members' own"
        return None


@contextmanager
def _quiet() -> Iterator[None]:
    """Suppress torch's warning about operations without a batched form."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="There is a performance drop")
        yield


def _first_line(error: Exception) -> str:
    return str(error).splitlines()[0][:120]


# Training


@dataclass(frozen=True)
class VectorisedEpoch(EpochRecord):
    """One epoch: the mean training loss of each member."""

    epoch: int
    lr: float
    losses: list[float]
    seconds: float = 0.0

    def summary(self) -> str:
        return f"loss {sum(self.losses) / len(self.losses):.4g}"


class VectorisedTraining(Trainable[VectorisedEpoch]):
    """Trains several members together, each with its own batches."""

    record: ClassVar = VectorisedEpoch

    def __init__(
        self,
        trainer: MemberTrainer,
        members: Sequence[int],
        models: Sequence[nn.Module],
        feed: ExamplesFeed,
        likelihood: Likelihood,
    ) -> None:
        for model in models:
            model.train()
        self.members, self.models, self.settings = members, models, trainer.settings
        self.label = f"training {len(members)} members"
        self.seeds = [trainer.member_seed(m) for m in members]
        self.seed, self.device, self.steps = self.seeds[0], feed.device, feed.steps
        self.nll = MeanNegativeLogLikelihood(likelihood)
        self.feed = ExamplesFeed(_checked(feed.examples, models[0], likelihood), feed.batch_size)
        self.stack = StackedNetworks(models)
        free = [n for n, p in models[0].named_parameters() if p.requires_grad]
        self.trained = {n: nn.Parameter(self.stack.params.pop(n)) for n in free}  # the others are frozen
        self.optimiser = make_optimiser(nn.ParameterList(self.trained.values()), self.settings)
        self._totals, self._seen = torch.zeros(len(members)), 0

    def begin(self, epoch: int) -> Iterator[tuple[Tensor, Tensor]]:
        self._totals, self._seen = torch.zeros(len(self.members), device=self.device), 0
        feeds = [self.feed.epoch(derived_seed(seed, "data", epoch)) for seed in self.seeds]
        for batches in zip(*feeds, strict=True):
            yield torch.stack([b[0] for b in batches]), torch.stack([b[1] for b in batches])  # [M, B, …]

    def loss(self, inputs: Tensor, targets: Tensor) -> LossValues:  # type: ignore[override]
        def of_one(trained: Mapping[str, Tensor], frozen: Tensors, buffers: Tensors, x: Tensor, y: Tensor) -> Tensor:
            return self.nll.of_checked(self.stack.member({**trained, **frozen}, buffers, x), y)

        with _quiet():
            run = torch.func.vmap(of_one, randomness="different")
            values = run(self.trained, self.stack.params, self.stack.buffers, inputs, targets)
        return values.sum(), values  # members are independent, so each gets the gradient of its own loss

    def before_update(self, values: Tensor, targets: Tensor) -> None:
        self._totals += values * targets.shape[1]
        self._seen += targets.shape[1]
        if self.settings.clip is not None:
            self._clip(self.settings.clip)

    def _clip(self, most: float) -> None:
        """Clip the gradient norm of each member to ``most``, like ``clip_grad_norm_``."""
        grads = [p.grad for p in self.trained.values() if p.grad is not None]
        squares = torch.stack([g.flatten(1).square().sum(1) for g in grads]).sum(0)
        factor = (most / (squares.sqrt() + 1e-6)).clamp(max=1.0)
        for g in grads:
            g.mul_(factor.reshape(-1, *[1] * (g.dim() - 1)))

    def end(self, epoch: int, lr: float) -> VectorisedEpoch:
        means: list[float] = (self._totals / max(self._seen, 1)).tolist()
        for member, mean in zip(self.members, means, strict=True):
            if not math.isfinite(mean):
                raise NotConverged(
                    f"the training loss of member {member} became {mean} in epoch {epoch + 1} with "
                    f"lr={self.settings.lr}. Lower it, or set clip=1."
                )
        return VectorisedEpoch(epoch + 1, lr, means)

    def state(self) -> Tensors:
        return {n: p.detach() for n, p in self.trained.items()} | self.stack.buffers

    def load_state(self, tensors: Tensors) -> None:
        for name, value in self.state().items():
            value.copy_(tensors[name])

    def context(self) -> AbstractContextManager[Any]:
        return fast_kernels(self.device)

    def finish(self) -> None:
        """Copy the weights back into the networks."""
        for index, model in enumerate(self.models):
            own = dict(model.named_parameters()) | dict(model.named_buffers())
            with torch.no_grad():
                for name, value in self.state().items():
                    own[name].copy_(value[index])
            model.eval()


def histories(records: Sequence[VectorisedEpoch]) -> list[History]:
    """The history of each member."""
    members = range(len(records[0].losses))
    return [
        [{"epoch": r.epoch, "lr": r.lr, "loss": r.losses[m], "seconds": r.seconds} for r in records] for m in members
    ]


def _checked(examples: Examples, model: nn.Module, likelihood: Likelihood) -> Examples:
    """The examples with all targets checked, in the shape that the likelihood needs."""
    with torch.no_grad(), preserved_random_state(), evaluation_mode(model):
        out = outputs_of(model, examples.take(1).tensors()[0])
    like = out.new_zeros(()).expand(examples.size, *out.shape[1:])
    return examples.with_(targets=likelihood.check(like, examples.targets))


# Whether members can be trained together, and how many at a time


def obstacle(trainer: MemberTrainer, feed: Feed, models: Sequence[nn.Module]) -> str | None:
    """Why members cannot be trained together; None if they can."""
    settings = trainer.settings
    if not isinstance(feed, ExamplesFeed):
        return "the data are a loader; pass a pair of tensors to train members together"
    if trainer.validation is not None or settings.patience is not None:
        return "each member is evaluated on validation data"
    for name, plain in (("decay", "all"), ("amp", False), ("capture", False), ("label_smoothing", 0.0), ("l1", 0.0)):
        if getattr(settings, name) != plain:
            return f"{name}={getattr(settings, name)!r} applies only to networks trained one after the other"
    if why := difference(models):
        return why
    two, inputs = list(models[:2]), feed.first()[0]
    with evaluation_mode(two[0]), evaluation_mode(two[-1]), preserved_random_state():
        try:
            return StackedNetworks(two).differs(two, inputs) or _other_buffers(two, inputs)
        except RuntimeError as error:
            return f"it cannot be stacked ({_first_line(error)})"


def _other_buffers(two: list[nn.Module], inputs: Inputs) -> str | None:
    """Whether buffers that change in training (batch normalisation) would change differently under vmap."""
    before = [{n: b.clone() for n, b in model.named_buffers()} for model in two]
    if not before[0]:
        return None
    for model in two:
        model.train()
    stack = StackedNetworks(two)
    try:
        with torch.no_grad():
            stack.outputs(inputs)
            for model in two:
                outputs_of(model, inputs)
        for index, model in enumerate(two):
            for name, buffer in model.named_buffers():
                mine = stack.buffers[name][index]
                if not torch.allclose(mine.double(), buffer.double(), rtol=1e-4, atol=1e-6):
                    return f"the buffer {name!r} changes differently under vmap"
    except VMAP_FAILS as error:
        return f"vmap cannot train it ({_first_line(error)})"
    finally:
        for model, buffers in zip(two, before, strict=True):
            for name, buffer in model.named_buffers():
                buffer.copy_(buffers[name])
    return None


def group_size(model: nn.Module, feed: ExamplesFeed) -> int:
    """Number of members that fit into memory together: weights, gradients, two moments, activations and batches."""
    weights = sum(p.numel() * p.element_size() for p in model.parameters())
    one = feed.examples.take(1).tensors()[0]
    batches = one.numel() * one.element_size() * (feed.examples._chunk(feed.batch_size) + feed.batch_size)
    activations = 3 * feed.batch_size * _activations(model, one)
    free = GPU_SHARE * torch.cuda.mem_get_info(feed.device)[0] if feed.device.type == "cuda" else CPU_BYTES
    return max(1, int(free // max(6 * weights + batches + activations, 1)))


def _activations(model: nn.Module, one: Inputs) -> int:
    """Bytes of the outputs of all modules for one example."""
    sizes: list[int] = []

    def note(_module: Any, _args: Any, out: Any) -> None:
        sizes.extend(t.numel() * t.element_size() for t in tensors_in(out))

    handles = [m.register_forward_hook(note) for m in model.modules()]
    try:
        with torch.no_grad(), preserved_random_state(), evaluation_mode(model):
            outputs_of(model, one)
    finally:
        for handle in handles:
            handle.remove()
    return sum(sizes)
