"""Processes of their own, forked from one server that has imported torch and whence once."""

from __future__ import annotations

import multiprocessing
from collections.abc import Callable
from multiprocessing.context import ForkServerProcess
from typing import Any

PRELOADED = ["torch", "whence", "tests.curvature.distributed_work"]


def process(target: Callable[..., Any], *args: Any) -> ForkServerProcess:
    """Not started yet."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(PRELOADED)
    return context.Process(target=target, args=args)
