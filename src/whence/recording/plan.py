"""A network's blocks, and how to record a batch for them."""

from __future__ import annotations

from collections import ChainMap
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

from torch import Tensor

from whence.engine.batches import Inputs, check_count, map_tensors, size_of, take
from whence.engine.memory import none_if_out_of_memory
from whence.errors import UnsupportedLayer
from whence.functional import Network
from whence.recording.blocks import Block, GradientSource, partition
from whence.recording.calls import Recording
from whence.recording.gradients import PerExample
from whence.recording.layout import DEAD, Inspection, Layout, Place, check_gradients, contradicted, inspect, lead_shape
from whence.recording.recorder import Pass, Recorder, Use, forward
from whence.recording.roles import Description, describe

CONFIRMED = 4  # examples of later batches that are checked


@dataclass(frozen=True, eq=False)
class Plan:
    """The blocks and layouts found on the first batch. Findings on later batches go into the network's runtime."""

    network: Network
    blocks: tuple[Block, ...]
    inspection: Inspection
    descriptions: Mapping[str, Description] = field(default_factory=dict)  # by block; only in a new plan

    block_of: Mapping[str, Block] = field(init=False, repr=False)  # by parameter; parameters with a rule
    example_blocks: tuple[Block, ...] = field(init=False, repr=False)  # blocks without a rule
    per_example: PerExample = field(init=False, repr=False)

    def __post_init__(self) -> None:
        explained = {p.name: b for b in self.blocks for p in b.params if b.source is not GradientSource.EXAMPLE}
        unexplained = tuple(b for b in self.blocks if b.source is GradientSource.EXAMPLE)
        object.__setattr__(self, "block_of", explained)
        object.__setattr__(self, "example_blocks", unexplained)
        names = [p.name for b in unexplained for p in b.params]
        object.__setattr__(self, "per_example", PerExample(self.network, names))
        if self.network.device.type == "cpu" and any("Conv" in key[0] for key in self.inspection.layouts):
            self.network.runtime.batched_backward = False  # no faster there, with a worse memory layout

    @classmethod
    def make(cls, network: Network, selected: list[str], inputs: Inputs, classes: bool = False) -> Plan:
        """Inspect the network on some inputs, and partition the selected parameters.

        ``classes`` says whether the outputs are class logits, of which only differences matter.
        """
        found = inspect(network, selected, inputs)
        found = replace(found, heads=found.heads if classes else set())
        blocks = partition(network, selected, found)
        descriptions = describe(network, blocks, found)
        return cls(network, tuple(blocks), replace(found, uses=[]), descriptions)  # uses hold the autograd graph

    @property
    def layouts(self) -> Mapping[Any, Layout]:
        """The example dimension of each call, from the first batch or the latest one that differed."""
        return ChainMap(self.network.runtime.layouts, self.inspection.layouts)

    def layout_of(self, use: Use, size: int | None = None) -> Layout | None:
        """The example dimension of a call; all rows belong to an example that is alone, if the dimension is dropped."""
        layout = self.layouts.get(use.key)
        dropped = size == 1 and layout is not None and not layout.fits(lead_shape(use), 1)
        return Layout(Place.ALONE) if dropped else layout

    def record(self, inputs: Inputs, size: int, keep_graph: bool = False, fused: bool = False) -> Recording:
        """Run a batch forward.

        With ``keep_graph`` the recorded inputs stay differentiable; with ``fused`` attention may use its fused
        kernels, which allow one backward pass.
        """
        seen = forward(self.network, inputs, fused, self._recorder(size))
        check_count(seen.outputs, size)
        self._inspect_new_calls(seen, inputs, size)
        moved = None if self.network.moved is None else self.network.moved(inputs)
        return Recording(self, inputs, seen, size, keep_graph, moved)

    def _inspect_new_calls(self, seen: Pass, inputs: Inputs, size: int) -> None:
        """Inspect calls that the first batch did not make; of an example alone also those that it does not make."""
        if size == 1 and seen.outputs.requires_grad and not self.layouts.keys() <= {use.key for use in seen.uses}:
            self._check_alone(inputs)
        if all(self._is_known(use, size) for use in seen.uses):
            return
        again = inspect(self.network, self.network.selected, inputs)
        self._refuse(again.unexplained)
        self.network.runtime.layouts.update(again.layouts)
        left = [use for use in seen.uses if not self._is_known(use, size)]
        self._refuse({n: "its rows cannot be assigned to examples" for use in left for n in self._own_parameters(use)})

    def _recorder(self, size: int) -> Recorder:
        return Recorder(self.network, self.layouts.keys() if size == 1 else ())

    def _check_alone(self, inputs: Inputs) -> None:
        """Refuse an example alone whose calls do not explain its gradients, as where its dimension is dropped."""
        inputs = map_tensors(Tensor.detach, inputs)
        alone = forward(self.network, inputs, recorder=self._recorder(1))
        odd, _ = check_gradients(self.network, self.network.selected, inputs, alone, self.layouts.keys())
        for name in sorted(odd.keys() & self.block_of.keys()):
            raise UnsupportedLayer(
                f"the forward pass uses {name!r} differently for one example alone than for several: {odd[name]}. "
                "Keep the dimension of the examples where there is one, or pass several together."
            )

    def _is_known(self, use: Use, size: int) -> bool:
        if not self._own_parameters(use):
            return True
        layout, fitting = self.layout_of(use, size), self.network.runtime.fitting_layouts
        if layout is None:
            return False
        key = (use.key, layout, use.shape, size)
        if key not in fitting:
            fitting[key] = layout.fits(lead_shape(use), size)
        return fitting[key]

    def confirm(self, inputs: Inputs, thoroughly: bool = False) -> None:
        """Refuse inputs on which the layouts of the first batch do not hold; ``thoroughly`` checks only once."""
        runtime = self.network.runtime
        if size_of(inputs) < 2 or (thoroughly and runtime.confirmed):
            return
        inputs = map_tensors(Tensor.detach, inputs)
        self.network.find_caches(take(inputs, slice(0, 2)))
        if thoroughly:
            otherwise = inspect(self.network, self.network.selected, inputs).unexplained
            self._refuse({name: reason for name, reason in otherwise.items() if reason != DEAD})
        few = take(inputs, slice(0, CONFIRMED))
        for use in none_if_out_of_memory(partial(contradicted, self.network, few, self.layout_of)) or []:
            self._refuse(dict.fromkeys(self._own_parameters(use), "its rows belong to other examples"))
        runtime.confirmed |= thoroughly

    def _own_parameters(self, use: Use) -> list[str]:
        """The parameters of a call that belong to a block with a rule."""
        return [ref.name for ref in use.refs if ref.name in self.block_of]

    def _refuse(self, otherwise: dict[str, str]) -> None:
        for name in sorted(otherwise.keys() & self.block_of.keys()):
            raise UnsupportedLayer(
                f"the forward pass uses {name!r} differently than on the first batch ({otherwise[name]}). Put "
                "a batch that takes every path first (with several examples, in no special order), or leave it out."
            )
