"""Everything at once: fit, tune, score, profile, compare, and one record of it all. See :func:`whence.audit`."""

from whence.auditing.comparing import Comparison, compare
from whence.auditing.front import SECTIONS, audit
from whence.auditing.result import Audit, schema

__all__ = ["SECTIONS", "Audit", "Comparison", "audit", "compare", "schema"]
