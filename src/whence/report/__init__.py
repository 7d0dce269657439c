"""Figures, pages and terminal views. Figures need ``whence[report]``."""

from whence.report.figures import *  # noqa: F403
from whence.report.figures import __all__ as __all__
