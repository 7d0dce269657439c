"""Results of audits and comparisons as frozen dataclasses; JSON and its schema are generated from their types.

``record.audit`` and ``record.comparison`` list the classes; a new section is a class there.
"""
