"""Adversarial attacks on the averaged prediction of a posterior or a network, for classification.

- :func:`fgsm`: one step against the predicted (or true) class, or towards a target;
- :func:`iterative`: many small steps towards a target;
- :func:`untargeted`, :func:`targeted`: accuracy and uncertainty over step sizes or updates, as a :class:`Robustness`;
- :func:`span`: the range of each input dimension over a data set, for scaling steps.

Keywords of all attacks:

- ``scale``: size of a unit step in each dimension; broadcasts against one input. None: 1. See :func:`span`;
- ``bounds``: (low, high) that inputs are clipped to; None: no clipping;
- ``likelihood``: ``"classification"``, for a network without a posterior;
- ``method``, ``num_samples``, ``generator``: as for ``posterior.predict``; the draws are the same for all inputs;
- ``batch_size=512``: inputs at a time. Draws are processed in chunks that fit into memory.
"""

from whence.extras.robustness.attacks import fgsm, iterative, span
from whence.extras.robustness.curves import Robustness, RobustnessRow, targeted, untargeted

__all__ = ["Robustness", "RobustnessRow", "fgsm", "iterative", "span", "targeted", "untargeted"]
