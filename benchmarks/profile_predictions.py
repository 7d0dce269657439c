"""Where the time of a linearised prediction goes, beside the arithmetic limit: ``benchmarks.profile --predictions``.

The limit is what these would take at the rate of a large float32 matrix product on this machine: one forward pass, one
backward pass to the layers' outputs for each of the K outputs, and J Σ Jᵀ of every layer in the cheaper order. A layer
with T positions, O outputs and D inputs needs its rows (K T O D), its inputs turned into the eigenbasis (before the
rows T D², or after them K O D²), its outputs likewise (K T O², or K O² D), and the products of K rows (K² O D / 2); one
with a single position needs no rows (T = 1: D² + K O² + O D + K² O / 2).

*Forward*, *backward* and *rest* are parts of a prediction that waits for the device after each; *undisturbed* is one
that does not. Times by kind are undisturbed predictions from a posterior of these layers alone, passes included.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any

import torch
from torch.utils.flop_counter import FlopCounterMode

from benchmarks import report
from benchmarks.answers_networks import NETWORKS as ALL
from benchmarks.answers_networks import Subject
from benchmarks.answers_works import Asked
from benchmarks.contenders import Clock, Stopwatch, synchronise
from whence.recording.calls import Recording
from whence.recording.plan import Plan

KINDS = ("convolution", "linear, positions", "linear", "other")
STEPS: dict[str, tuple[type, str]] = {"forward": (Plan, "record"), "backward": (Recording, "differentiate")}
NETWORKS = [name for name, spec in ALL.items() if spec.classes <= 100 and not spec.dense]  # exact, one row of outputs
INPUTS = {"cpu": 16, "cuda": 64}
EXAMPLES = {"cpu": 32, "cuda": 64}  # of the fit, which changes no time of a prediction


@dataclass(frozen=True)
class Layer:
    """Numbers of one Kronecker pair, or of a diagonal; ``turned`` says which sides have a basis of eigenvectors."""

    kind: str
    positions: float
    outputs: int
    inputs: int
    turned_inputs: bool = True
    turned_outputs: bool = True

    def flops(self, k: int) -> float:
        """Operations of J Σ Jᵀ for one example with ``k`` outputs."""
        t, o, d = self.positions, self.outputs, self.inputs
        if t <= 1 and self.kind != "other":
            return 2 * d * d * self.turned_inputs + 2 * k * o * o * self.turned_outputs + 2 * o * d + k * (k + 1) * o
        inputs = min(2 * t * d * d, 2 * k * o * d * d) * self.turned_inputs
        outputs = min(2 * k * t * o * o, 2 * k * o * o * d) * self.turned_outputs
        return 2 * k * t * o * d + inputs + outputs + k * (k + 1) * o * d


def layers(posterior: Any, examples: int) -> Iterator[tuple[str, list[Layer]]]:
    """The name of every block and its pairs. A block without factors is counted by its weights alone."""
    for block, structure in zip(posterior.blocks, posterior.curvature.structures, strict=True):
        tensors = structure.tensors()
        if "inputs" not in tensors or "grads" not in tensors:
            yield block.name, [Layer("other", 1.0, 1, block.size, False, False)]
            continue
        a, g, count = tensors["inputs"], tensors["grads"], tensors["count"].reshape(-1).tolist()
        kind = "convolution" if len(block.params[0].shape) >= 4 else "linear, positions"
        pairs = []
        for i in range(len(a)):
            t = count[i % len(count)] / examples
            here = kind if t > 1 or kind == "convolution" else "linear"
            pairs.append(Layer(here, t, g.shape[1], a.shape[1], a.dim() == 3, g.dim() == 3))
        yield block.name, pairs


def needed(subject: Subject, found: list[tuple[str, list[Layer]]], inputs: int) -> dict[str, float]:
    """Operations by part, for all inputs; J Σ Jᵀ by kind of layer."""
    k = subject.classes
    with FlopCounterMode(display=False) as counter, torch.no_grad():
        subject.model(subject.data(2, 2)[0])
    forward = counter.get_total_flops() / 2 * inputs
    kinds = dict.fromkeys(KINDS, 0.0)
    for _, pairs in found:
        for layer in pairs:
            kinds[layer.kind] += layer.flops(k) * inputs
    return {"forward": forward, "backward": forward * k} | kinds


def seconds_of(work: Callable[[], Any]) -> float:
    """The better of two after a first; the only one if it took long."""
    took = []
    while not took or (len(took) < 3 and took[0] < 10.0):
        synchronise()
        start = time.perf_counter()
        work()
        synchronise()
        took.append(time.perf_counter() - start)
    return min(took[1:] or took)


def profile(asked: Asked) -> tuple[dict[str, float], list[tuple[str, list[Layer]]]]:
    """Seconds of a prediction: undisturbed, by part, and by kind of layer."""
    x, posterior = asked.x, asked.posterior
    seconds = {"undisturbed": seconds_of(lambda: posterior.predict(x, link="probit").probs)}
    clock = Clock(list(STEPS))
    with ExitStack() as stack:
        for part, (owner, method) in STEPS.items():
            stack.enter_context(clock.around(part, owner, method))
        synchronise()
        start = time.perf_counter()
        posterior.predict(x, link="probit").probs  # noqa: B018
        synchronise()
        total = time.perf_counter() - start
    seconds |= clock.seconds | {"rest": max(0.0, total - sum(clock.seconds.values())), "total": total}
    found = list(layers(posterior, asked.examples))
    for kind in KINDS:
        names = [name for name, pairs in found if pairs[0].kind == kind]
        if 0 < len(names) < len(found):
            part = asked.fitted(layers=names)
            seconds[kind] = seconds_of(lambda p=part: p.predict(x, link="probit").probs)  # type: ignore[misc]
    return seconds, found


def rows(device: str, quick: bool, networks: list[str], rate: float) -> Iterator[dict[str, Any]]:
    """One row for each network. Decompositions give the identity, which changes no time of a prediction."""
    for name in networks:
        subject = Subject(name, device, quick)
        limits = {} if quick else {"inputs": INPUTS[device], "examples": EXAMPLES[device]}
        asked = Asked(subject, limits)
        with Stopwatch(placeholder=True).running():
            seconds, found = profile(asked)
        flops = needed(subject, found, asked.inputs)
        forward = asked.plain("predict", asked.inputs).wall
        limit = {part: value / rate for part, value in flops.items()}
        yield {"network": name, "inputs": asked.inputs, "seconds": seconds, "plain": forward, "limit": limit}


PARTS = ("forward", "backward", "rest")
HEAD = [
    "network", "inputs", *PARTS, "total", "undisturbed", "forward passes", "limit: forward", "backward",
    *(f"J Σ Jᵀ, {kind}" for kind in KINDS), "limit", "× limit", *(f"only {kind}, × its limit" for kind in KINDS),
]  # fmt: skip


def cells(row: dict[str, Any]) -> list[str]:
    seconds, limit = row["seconds"], row["limit"]
    passes, whole, spent = limit["forward"] + limit["backward"], sum(limit.values()), seconds["undisturbed"]
    alone = [f"{seconds[k] / (passes + limit[k]):.3g}" if k in seconds else "–" for k in KINDS]
    return [
        row["network"], f"{row['inputs']:,}", *(report.number(seconds[part]) for part in PARTS),
        report.number(seconds["total"]), report.number(spent), report.number(spent / row["plain"]),
        *(report.number(value) if value > 1e-6 else "–" for value in limit.values()), report.number(whole),
        report.number(spent / whole), *alone,
    ]  # fmt: skip


def markdown(results: dict[str, Any]) -> str:
    return report.profile_table(results, "exact linearised predictions, probit link", HEAD, cells)
