"""The reference of novelty goes with a posterior that has seen validation data."""

from __future__ import annotations

import warnings
from dataclasses import replace
from typing import Any

from whence.errors import BadData, NotDefined, Notice
from whence.posteriors.laplace import Laplace
from whence.where.reference import reference_of


def with_reference(posterior: Laplace, validation: Any) -> Laplace:
    """The posterior with the profile of its validation inputs; as it was, where a profile is not defined."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", Notice)  # that there are few inputs matters only where novelty is asked for
        try:
            return replace(posterior, reference=reference_of(posterior, validation))
        except (NotDefined, BadData):
            return posterior
