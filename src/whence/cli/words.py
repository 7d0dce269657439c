"""What options say in words → what whence takes."""

from __future__ import annotations

import torch

import whence
from whence.errors import BadOption, one_of
from whence.likelihoods import BY_NAME, Likelihood

LIKELIHOODS = (*BY_NAME, "gaussian:NOISE", "heteroscedastic", "poisson")


def likelihood(word: str) -> Likelihood | str:
    """A likelihood by its name; ``gaussian:0.3`` has a noise of standard deviation 0.3."""
    name, colon, value = word.strip().partition(":")
    if name == "gaussian":
        try:
            noise = float(value)
        except ValueError:
            noise = -1.0
        if not 0 < noise < float("inf"):
            raise BadOption(
                f"--likelihood: expected gaussian:NOISE with a number above 0, such as gaussian:0.3, but got {word!r}; "
                "regression finds the noise from the training data."
            )
        return whence.Gaussian(noise=noise)
    if colon or name not in ("heteroscedastic", "poisson"):
        return one_of(word.strip(), LIKELIHOODS, "likelihood")
    return whence.HeteroscedasticGaussian() if name == "heteroscedastic" else whence.Poisson()


def prior(word: str) -> float | whence.Relative:
    """``relative``, ``relative:10`` with τ = 10, or a number: an isotropic precision."""
    name, colon, value = word.strip().partition(":")
    try:
        number = float(value if name == "relative" and colon else 1.0 if name == "relative" else word)
    except ValueError:
        number = -1.0
    if not 0 < number < float("inf"):
        raise BadOption(f"--prior: expected relative, relative:TAU or a number above 0, but got {word!r}.")
    return whence.Relative(number) if name == "relative" else number


def device(word: str | None) -> str | None:
    """A device that this machine has."""
    if word is None:
        return None
    try:
        wanted = torch.device(word)
    except RuntimeError as error:
        raise BadOption(f"--device: expected cpu, cuda, cuda:0 or mps, but got {word!r}.") from error
    if wanted.type == "cuda":
        count = torch.cuda.device_count() if torch.cuda.is_available() else 0
        if not count:
            raise BadOption(f"--device: {word} was asked for, but torch {torch.__version__} sees no CUDA device here.")
        if (wanted.index or 0) >= count:
            raise BadOption(f"--device: {word} was asked for, but there are only cuda:0 to cuda:{count - 1}.")
    elif wanted.type == "mps" and not torch.backends.mps.is_available():
        raise BadOption("--device: mps was asked for, but torch sees no such device here.")
    elif wanted.type not in ("cpu", "mps"):
        raise BadOption(f"--device: expected cpu, cuda, cuda:0 or mps, but got {word!r}.")
    return word


def layers(patterns: list[str] | None) -> list[str] | str | None:
    """Patterns on module names; ``last`` alone is the last layer."""
    if not patterns:
        return None
    return "last" if patterns == ["last"] else patterns


def classes(word: str | None) -> list[str] | None:
    """Names between commas."""
    if word is None:
        return None
    names = [name.strip() for name in word.split(",")]
    if len(names) < 2 or not all(names):
        raise BadOption(f"--classes: expected names between commas, such as cat,dog, but got {word!r}.")
    return names
