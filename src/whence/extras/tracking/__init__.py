"""Uncertainty by layer during training.

- ``track``: :func:`whence.track` and :class:`whence.Track`, the table of records;
- ``measure``: one record: a cheap posterior of the current network, and its uncertainties for a few inputs;
- ``subset``: the fixed examples of every record;
- ``records``: the records, and their file of JSON lines.
"""
