"""Every test network: ALL maps a name to a function of a seed that returns a Case.

Index legend: N examples, C outputs, P parameters, S samples, T shared positions, D layer inputs,
O layer outputs.
"""

from collections.abc import Callable

from . import networks_conv, networks_dense, networks_sequence, networks_wiring
from .cases import CASES, Case

__all__ = ["ALL", "Case", "networks_conv", "networks_dense", "networks_sequence", "networks_wiring"]

ALL: dict[str, Callable[[int], Case]] = CASES
