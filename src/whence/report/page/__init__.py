"""The audit page: one self-contained HTML file from the record of an audit. Needs ``whence[report]``."""

from whence.report.page.render import render

__all__ = ["render"]
