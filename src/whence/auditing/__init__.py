"""Everything at once: fit, tune, score, profile, compare, and one record of it all. See :func:`whence.audit`."""

from whence.auditing.comparing import compare
from whence.auditing.comparison import Comparison
from whence.auditing.front import SECTIONS, audit
from whence.auditing.result import Audit, schema

__all__ = ["SECTIONS", "Audit", "Comparison", "audit", "compare", "schema"]
