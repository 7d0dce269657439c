"""Members trained side by side: stacked weights, one pass for all, each with its own batches.

Index legend: M members, B examples of a batch.
"""

from __future__ import annotations

import math
import time
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from tqdm.auto import tqdm

from whence.batches import tensors_in
from whence.engine.checkpoint import TOGETHER, CheckpointFile
from whence.errors import NotConverged
from whence.likelihoods import Likelihood
from whence.posteriors.ensembles.build import Job, guarded, seeded
from whence.posteriors.ensembles.loss import MeanNll
from whence.posteriors.ensembles.stack import Stack, call, difference, unstacked
from whence.randomness import derived_seed

CPU_BYTES = 2**30
GPU_SHARE = 0.25  # of the free memory
EVERY = 30.0  # seconds between two checkpoints


def obstacle(job: Job, feed: Any, models: Sequence[nn.Module]) -> str | None:
    """Why members cannot be trained side by side, or None."""
    from whence.zoo import Examples

    settings = job.settings
    if not isinstance(feed.source, Examples):
        return "the data are a loader; pass a pair of tensors to train members side by side"
    if feed.validation is not None or settings.patience is not None:
        return "each member is to be scored on validation data"
    for name, plain in (("decay", "all"), ("amp", False), ("capture", False), ("label_smoothing", 0.0)):
        if getattr(settings, name) != plain:
            return f"{name}={getattr(settings, name)!r} is for networks that are trained one after the other"
    return difference(models) or _differs_in_training(models, feed)


def _differs_in_training(models: Sequence[nn.Module], feed: Any) -> str | None:
    """Whether two members under vmap are not the two: outputs in evaluation mode, buffers in training mode."""
    two = list(models[:2])
    modes = [(m, m.training) for model in two for m in model.modules()]
    inputs = feed.first()[0]
    try:
        for model in two:
            model.eval()
        with guarded():
            stack = Stack(two)
            return stack.agrees(two, inputs) or _other_buffers(two, inputs)
    except RuntimeError as error:
        return f"it cannot be stacked ({str(error).splitlines()[0][:120]})"
    finally:
        for module, mode in modes:
            module.training = mode


def _other_buffers(two: list[nn.Module], inputs: Any) -> str | None:
    """Whether buffers that change in training (batch normalisation) would change in another way."""
    kept = [{n: b.clone() for n, b in model.named_buffers()} for model in two]
    if not kept[0]:
        return None
    for model in two:
        model.train()
    stack = Stack(two)
    try:
        with torch.no_grad():
            stack.outputs(inputs)
            for model in two:
                call(model, inputs)
        for index, model in enumerate(two):
            for name, buffer in model.named_buffers():
                mine = stack.buffers[name][index]
                if not torch.allclose(mine.double(), buffer.double(), rtol=1e-4, atol=1e-6):
                    return f"the buffer {name!r} changes in another way under vmap"
    except (RuntimeError, ValueError, NotImplementedError, TypeError) as error:
        return f"vmap cannot train it ({str(error).splitlines()[0][:120]})"
    finally:
        for model, buffers in zip(two, kept, strict=True):
            for name, buffer in model.named_buffers():
                buffer.copy_(buffers[name])
    return None


def group_size(model: nn.Module, feed: Any) -> int:
    """How many members fit into memory together: weights, gradients, two moments, activations and batches."""
    held = sum(p.numel() * p.element_size() for p in model.parameters())
    one = feed.source.take(1).tensors()[0]
    each = sum(t.numel() * t.element_size() for t in tensors_in(one))
    batches = each * (feed.source._chunk(feed.batch_size) + feed.batch_size)
    passing = 3 * feed.batch_size * _activations(model, one)
    if feed.device.type == "cuda":
        limit = GPU_SHARE * torch.cuda.mem_get_info(feed.device)[0]
    else:
        limit = CPU_BYTES
    return max(1, int(limit // max(6 * held + batches + passing, 1)))


def _activations(model: nn.Module, one: Any) -> int:
    """Bytes of the outputs of all modules for one example."""
    total = 0

    def note(_module: Any, _args: Any, out: Any) -> None:
        nonlocal total
        total += sum(t.numel() * t.element_size() for t in tensors_in(out))

    modes = [(m, m.training) for m in model.modules()]
    handles = [m.register_forward_hook(note) for m in model.modules()]
    try:
        model.eval()
        with torch.no_grad(), guarded():
            call(model, one)
    finally:
        for handle in handles:
            handle.remove()
        for module, mode in modes:
            module.training = mode
    return total


@dataclass
class Together:
    """Some members in training. Every epoch draws from seeds of its own, so that there is no random state to save."""

    job: Job
    members: list[int]
    stack: Stack
    trained: dict[str, nn.Parameter]  # the stacked weights that are not frozen, as leaves
    optimiser: torch.optim.Optimizer
    feed: Any
    likelihood: Likelihood
    rows: list[list[dict[str, float]]]

    @classmethod
    def of(cls, job: Job, members: list[int], models: list[nn.Module], feed: Any, likelihood: Likelihood) -> Together:
        from whence.zoo.loop import make_optimiser

        for model in models:
            model.train()
        free = [n for n, p in models[0].named_parameters() if p.requires_grad]
        stack = Stack(models)
        trained = {n: nn.Parameter(stack.params[n]) for n in free}
        optimiser = make_optimiser(nn.ParameterList(trained.values()), job.settings)
        checked = replace(feed, source=_checked(feed.source, models[0], likelihood))
        return cls(job, members, stack, trained, optimiser, checked, likelihood, [[] for _ in members])

    def run(self, path: Path | None, progress: bool) -> Iterator[tuple[dict[str, Tensor], list[dict[str, float]]]]:
        """Train; weights and buffers by name, and the history, of each member."""
        settings = self.job.settings
        start = 0 if path is None or not path.exists() else self._resume(path)
        began = time.perf_counter() - (self.rows[0][-1]["seconds"] if start else 0.0)
        written = time.monotonic()
        what = f"training {len(self.members)} members"
        bar = tqdm(range(start, settings.epochs), desc=what, disable=not progress, leave=False, unit="epoch")
        with _tensor_float(self.feed.device):
            for epoch in bar:
                losses = self._epoch(epoch)
                bar.set_postfix_str(f"loss {sum(losses) / len(losses):.4g}")
                rate = settings.lr * settings.schedule.factor(epoch + 1, settings.epochs)
                for rows, loss in zip(self.rows, losses, strict=True):
                    seconds = time.perf_counter() - began
                    rows.append({"epoch": epoch + 1, "lr": rate, "loss": loss, "seconds": seconds})
                if path is not None and time.monotonic() - written > EVERY:
                    self._write(path)
                    written = time.monotonic()
        for index in range(len(self.members)):
            state = unstacked(self.stack, index) | {n: p[index].detach().clone() for n, p in self.trained.items()}
            yield state, self.rows[index]

    def _epoch(self, epoch: int) -> list[float]:
        """One pass with steps; the mean loss of each member."""
        seeds = [self.job.member_seed(m) for m in self.members]
        feeds = [self.feed.epoch(derived_seed(seed, "data", epoch)) for seed in seeds]
        total = torch.zeros(len(self.members), device=self.feed.device)
        seen, settings, steps = 0, self.job.settings, self.feed.steps
        with seeded(derived_seed(seeds[0], "epoch", epoch)):
            for index, batches in enumerate(zip(*feeds, strict=True)):
                for group in self.optimiser.param_groups:
                    group["lr"] = settings.lr * settings.schedule.factor(epoch + (index + 0.5) / steps, settings.epochs)
                x, y = torch.stack([b[0] for b in batches]), torch.stack([b[1] for b in batches])
                total += self._step(x, y) * y.shape[1]
                seen += y.shape[1]
        means: list[float] = (total / max(seen, 1)).tolist()
        for member, mean in zip(self.members, means, strict=True):
            if not math.isfinite(mean):
                raise NotConverged(
                    f"the training loss of member {member} became {mean} in epoch {epoch + 1} with lr={settings.lr}. "
                    "Lower it, or set clip=1."
                )
        return means

    def _step(self, x: Tensor, y: Tensor) -> Tensor:
        """Update all members; their mean losses before that, [M]."""
        loss = MeanNll(self.likelihood)
        fixed = {n: p for n, p in self.stack.params.items() if n not in self.trained}

        def of_one(params: Any, rest: Any, inputs: Tensor, targets: Tensor) -> Tensor:
            frozen, buffers = rest
            return loss.of(self.stack.member({**params, **frozen}, buffers, inputs), targets)

        self.optimiser.zero_grad(set_to_none=True)
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", message="There is a performance drop")
            run = torch.func.vmap(of_one, randomness="different")
            values = run(self.trained, (fixed, self.stack.buffers), x, y)
        values.sum().backward()  # members do not meet, so each gets the gradient of its own loss
        if self.job.settings.clip is not None:
            self._clip(self.job.settings.clip)
        self.optimiser.step()
        return values.detach()

    def _clip(self, most: float) -> None:
        """The gradient of each member to a norm of at most ``most``, as ``clip_grad_norm_`` does for one."""
        grads = [p.grad for p in self.trained.values() if p.grad is not None]
        squares = torch.stack([g.flatten(1).square().sum(1) for g in grads]).sum(0)
        factor = (most / (squares.sqrt() + 1e-6)).clamp(max=1.0)
        for g in grads:
            g.mul_(factor.reshape(-1, *[1] * (g.dim() - 1)))

    def _write(self, path: Path) -> None:
        tensors = {f"buffer.{n}": b for n, b in self.stack.buffers.items()}
        tensors |= {f"weight.{n}": p for n, p in self.trained.items()}
        for index, values in self.optimiser.state_dict()["state"].items():
            tensors |= {f"optimiser.{index}.{k}": torch.as_tensor(v) for k, v in values.items() if v is not None}
        CheckpointFile(path, TOGETHER).write(tensors, {"members": self.members, "rows": self.rows})

    def _resume(self, path: Path) -> int:
        """Go on from a checkpoint of the same members; 0 if it is of others."""
        tensors, meta = CheckpointFile(path, TOGETHER).existing()
        if meta["members"] != self.members:
            return 0
        with torch.no_grad():
            for name, parameter in self.trained.items():
                parameter.copy_(tensors[f"weight.{name}"])
            for name, buffer in self.stack.buffers.items():
                buffer.copy_(tensors[f"buffer.{name}"])
        state = self.optimiser.state_dict()
        state["state"] = {}
        for key, value in tensors.items():
            if key.startswith("optimiser."):
                _, index, name = key.split(".", 2)
                state["state"].setdefault(int(index), {})[name] = value
        self.optimiser.load_state_dict(state)
        self.rows = meta["rows"]
        return len(self.rows[0])


def _checked(source: Any, model: nn.Module, likelihood: Likelihood) -> Any:
    """The examples with all targets in the shape that the likelihood needs, looked at once."""
    was = model.training
    with torch.no_grad(), guarded():
        out = call(model.eval(), source.take(1).tensors()[0])
    model.train(was)
    like = out.new_zeros(()).expand(source.size, *out.shape[1:])
    return source.with_(targets=likelihood.check(like, source.targets))


@contextmanager
def _tensor_float(device: torch.device) -> Iterator[None]:
    """On a GPU TensorFloat-32 products and tuned convolutions, as in :func:`whence.zoo.train`; put back afterwards."""
    before = torch.get_float32_matmul_precision(), torch.backends.cudnn.benchmark
    try:
        if device.type == "cuda":
            torch.set_float32_matmul_precision("high")
            torch.backends.cudnn.benchmark = True
        yield
    finally:
        torch.set_float32_matmul_precision(before[0])
        torch.backends.cudnn.benchmark = before[1]
