"""Audits: fit, tune, score, profile and compare, with one record of the results. See :func:`whence.audit`."""

from whence.auditing.comparison import compare
from whence.auditing.difference import diff
from whence.auditing.pipeline import SECTIONS, audit
from whence.auditing.results import Audit, Comparison, Diff, schema

__all__ = ["SECTIONS", "Audit", "Comparison", "Diff", "audit", "compare", "diff", "schema"]
