"""Everything at once: fit, tune, score, profile, and one record of it all. See :func:`whence.audit`."""

from whence.auditing.front import SECTIONS, audit
from whence.auditing.result import Audit, schema

__all__ = ["SECTIONS", "Audit", "audit", "schema"]
