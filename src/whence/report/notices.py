"""Messages of the library in the words of somebody who reads an audit; others stay as they are, marked as messages."""

from __future__ import annotations

import re

KNOWN = (
    (
        r"the network has ([\d,]+) outputs per example, so the curvature is the sampled Fisher \((\d+) label draw",
        "The curvature of the training loss was estimated with {1} random label for each training input, since the "
        "exact one needs all {0} outputs (`curvature='ggn'`, slower).",
    ),
    (
        r"where\(\) uses (\d+) random columns for each input instead of all ([\d,]+) outputs",
        "The shares of layers and units were estimated from {0} random directions of the outputs for each input, in "
        "place of all {1} outputs; the table of the layers has their standard errors.",
    ),
    (
        r"connections\(\) uses (\d+) random columns for each input instead of all ([\d,]+) outputs",
        "The shares of groups of weights were estimated from {0} random directions of the outputs for each input too.",
    ),
    (
        r"the detectors of the plain network were skipped: (.*)",
        "Apart from the uncertainty of its predictions, detectors of novel inputs that use the plain network alone "
        "(energy, distances between features) were not computed: {0}",
    ),
    (
        r"the detectors that need training data were skipped: (.*)",
        "Detectors of novel inputs that need the training data were not computed: {0}",
    ),
    (
        r"the reference has (\d+) inputs, so no p-value can be below ([\d.]+); use (\d+) or more",
        "Novelty is relative to only {0} validation inputs, so no p-value can be below {1}; {2} or more would do.",
    ),
)


def in_words(message: str) -> str:
    """A sentence for readers; what is unknown is marked as a message."""
    for pattern, words in KNOWN:
        if found := re.match(pattern, message, re.DOTALL):
            return words.format(*found.groups())
    return f"Message of the library: {message}"
