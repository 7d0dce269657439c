"""Self-contained HTML pages of audits and comparisons. Needs ``whence[report]``."""

from whence.report.page.render import render

__all__ = ["render"]
