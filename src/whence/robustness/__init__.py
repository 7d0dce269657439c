"""Attacks on the averaged prediction of a posterior or a network, and how it stands them. For classification.

- :func:`fgsm`: one step against the predicted (or true) class, or towards a target;
- :func:`iterative`: many small steps towards a target;
- :func:`untargeted`, :func:`targeted`: accuracy and uncertainty over step sizes or updates, as a :class:`Robustness`;
- :func:`span`: the range of each input dimension over a data set, to scale steps by.
"""

from whence.robustness.attacks import fgsm, iterative
from whence.robustness.curves import targeted, untargeted
from whence.robustness.moving import span
from whence.robustness.table import Robustness, RobustnessRow

__all__ = ["Robustness", "RobustnessRow", "fgsm", "iterative", "span", "targeted", "untargeted"]
