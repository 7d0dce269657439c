"""The public name of :mod:`whence.extras.robustness`."""

from whence.extras.robustness import Robustness, RobustnessRow, fgsm, iterative, span, targeted, untargeted

__all__ = ["Robustness", "RobustnessRow", "fgsm", "iterative", "span", "targeted", "untargeted"]
