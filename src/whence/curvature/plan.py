"""A network's blocks, and how to record a batch for them."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Any

from torch import Tensor

from whence.batches import Inputs, map_tensors, size_of, take
from whence.curvature.blocks import Block, plan
from whence.curvature.capture import Pass, Use, forward
from whence.curvature.jacobian import Recording
from whence.curvature.layout import Inspection, contradicted, inspect, lead_shape
from whence.curvature.memory import attempt
from whence.curvature.per_example import PerExample
from whence.curvature.signals import Description, describe
from whence.errors import BadData, UnsupportedLayer
from whence.functional import Network

CONFIRMED = 4  # examples of later batches that are looked at


class Plan:
    """A network's blocks, and how to record a batch for them."""

    def __init__(
        self,
        network: Network,
        blocks: list[Block],
        inspection: Inspection,
        descriptions: dict[str, Description] | None = None,
    ) -> None:
        self.network, self.blocks, self.inspection = network, blocks, inspection
        self.descriptions = descriptions or {}  # by block; of a plan that was just made
        self.fused = False  # whether attention may use its fused kernels: one backward pass and no more
        self.together: int | None = None  # inputs that are known to fit into memory, once that ran out
        self._confirmed, self._fitting = False, dict[Any, bool]()  # what has been seen of later inputs
        self.block_of = {p.name: b for b in blocks for p in b.params if b.source != "example"}
        if network.device.type == "cpu" and any("Conv" in key[0] for key in inspection.layouts):
            network.batched_backward = False  # no faster there, and columns would lie far from each other
        self.example_blocks = [b for b in blocks if b.source == "example"]
        self.per_example = PerExample(network, [p.name for b in self.example_blocks for p in b.params])

    @classmethod
    def make(cls, network: Network, selected: list[str], inputs: Inputs, classes: bool = False) -> Plan:
        """Inspect the network on some inputs, and partition the selected parameters.

        ``classes`` says whether the outputs are logits of classes, of which only differences matter.
        """
        inspection = inspect(network, selected, inputs)
        inspection.heads &= inspection.heads if classes else set()
        blocks = plan(network, selected, inspection)
        descriptions = describe(network, blocks, inspection)
        inspection.uses.clear()  # they hold the graph of the inspected pass
        return cls(network, blocks, inspection, descriptions)

    def record(self, inputs: Inputs, size: int, keep_graph: bool = False) -> Recording:
        """Run a batch forward; with ``keep_graph`` what it saw stays differentiable in the inputs."""
        seen = forward(self.network, inputs, self.fused)
        if seen.outputs.shape[0] != size:
            raise BadData(
                f"{size} examples go in, but the outputs have shape {list(seen.outputs.shape)}. The first "
                "dimension of inputs and outputs must count examples."
            )
        self._reinspect_if_new(seen, inputs, size)
        return Recording(self, inputs, seen, size, keep_graph)

    def _reinspect_if_new(self, seen: Pass, inputs: Inputs, size: int) -> None:
        """A forward pass that makes calls which the inspected one did not make is looked at again."""
        layouts = self.inspection.layouts
        if all(self._known(use, size) for use in seen.uses):
            return
        again = inspect(self.network, list(self.network_selected()), inputs)
        self._refuse(again.unexplained)
        layouts.update(again.layouts)
        left = [use for use in seen.uses if not self._known(use, size)]
        self._refuse({n: "its rows cannot be told apart by example" for use in left for n in self._ours(use)})

    def confirm(self, inputs: Inputs, thoroughly: bool = False) -> None:
        """Refuse inputs for which something else holds than on the first batch; ``thoroughly`` once and for all."""
        if size_of(inputs) < 2 or (thoroughly and self._confirmed):
            return
        inputs = map_tensors(Tensor.detach, inputs)
        self.network.find_caches(take(inputs, slice(0, 2)))
        if thoroughly:
            self._refuse(inspect(self.network, list(self.network_selected()), inputs).unexplained)
        few = take(inputs, slice(0, CONFIRMED))
        for use in attempt(partial(contradicted, self.network, few, self.inspection.layouts)) or []:
            self._refuse(dict.fromkeys(self._ours(use), "its rows belong to other examples"))
        self._confirmed |= thoroughly

    def _ours(self, use: Use) -> list[str]:
        """The parameters of a call that belong to a block with rows."""
        return [ref.name for ref in (use.weight, use.bias) if ref is not None and ref.name in self.block_of]

    def _refuse(self, otherwise: dict[str, str]) -> None:
        for name in sorted(otherwise.keys() & self.block_of.keys()):
            raise UnsupportedLayer(
                f"the forward pass uses {name!r} in a way that it did not on the first batch ({otherwise[name]}). Put "
                "a batch that takes every path first (with several examples, not in a special order), or leave it out."
            )

    def network_selected(self) -> Iterator[str]:
        return (name for name, p in self.network.params.items() if p.requires_grad)

    def _known(self, use: Use, size: int) -> bool:
        if not self._ours(use):
            return True
        layout = self.inspection.layouts.get(use.key)
        if layout is None:
            return False
        key = (use.key, layout, use.shape, size)
        if key not in self._fitting:
            self._fitting[key] = layout.fits(lead_shape(use), size)
        return self._fitting[key]
