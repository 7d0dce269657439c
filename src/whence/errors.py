"""Exceptions and notices of whence. Messages give the value, the bound and the remedy."""

from __future__ import annotations

import difflib
import functools
import importlib
import inspect
import sys
import warnings
from collections.abc import Callable, Iterable
from numbers import Integral, Real
from typing import Any, ParamSpec, TypeVar

from whence.vocabulary import ADVICE, KEYWORDS, SENTENCES, VALUES


class WhenceError(Exception):
    """Base class of every error that whence raises on purpose."""


class BadData(WhenceError, ValueError):
    """Data that cannot be used: not finite, empty, of the wrong shape, or read only once."""


class EmptyData(BadData):
    """Data without examples."""


class BadOption(WhenceError, ValueError):
    """An option that is unknown, out of its bounds, or cannot be combined with another one."""


class NothingSelected(WhenceError, ValueError):
    """The selection of weights matched no parameter."""


class UnsupportedLayer(WhenceError, TypeError):
    """A layer that the chosen method does not support; the message names it."""


class NotPositiveDefinite(WhenceError, ArithmeticError):
    """A precision or factor with a negative or vanishing eigenvalue; the message names the block."""


class NotConverged(WhenceError, ArithmeticError):
    """A decomposition or an optimisation that did not converge."""


class TooLarge(WhenceError, MemoryError):
    """More memory than the limit would be needed; the message says how much, and what to use instead."""


class BadFile(WhenceError, ValueError):
    """A file that is missing, truncated, changed, or of another kind: a posterior, a checkpoint, data."""


class RankFailed(WhenceError, RuntimeError):
    """Another rank of the process group failed or was lost; the message says which, and why if known."""


class RanksDiffer(WhenceError, ValueError):
    """Ranks of a process group that were given different networks, options or data where they must be the same."""


class MissingExtra(WhenceError, ImportError):
    """An optional package that is not installed; the message says how to install it."""


class NotDefined(WhenceError, ValueError, AttributeError):
    """A quantity that is not defined for this posterior or prediction."""


class Notice(UserWarning):
    """Something the user should know, in one line: a fallback, an automatic choice, a doubtful result."""


def need(module: str, extra: str) -> Any:
    """An optional module, or an error that names the extra of whence to install."""
    try:
        return importlib.import_module(module)
    except ImportError as error:
        package = {"sklearn": "scikit-learn"}.get(module.split(".")[0], module.split(".")[0])
        raise MissingExtra(f"this needs {package}: pip install 'whence[{extra}]'") from error


NO_MEMORY = ("out of memory", "can't allocate memory", "not enough memory", "alloc_failed", "cannot allocate memory")


def is_out_of_memory(error: BaseException) -> bool:
    """Whether an allocation failed, on the CPU or on a device."""
    if isinstance(error, WhenceError):
        return False  # raised by whence itself
    if isinstance(error, MemoryError):
        return True
    return isinstance(error, RuntimeError) and any(word in str(error).lower() for word in NO_MEMORY)


def first_line(error: BaseException) -> str:
    """The first line of an error's message; its class where it has none."""
    return (str(error).strip().splitlines() or [type(error).__name__])[0]


def notice(message: str) -> None:
    """Warn with a :class:`Notice` that points at the caller's line, outside whence."""
    level, frame = 1, sys._getframe(1)
    while frame.f_back is not None and _inside(frame.f_globals.get("__name__", "")):
        level, frame = level + 1, frame.f_back
    warnings.warn(message, Notice, stacklevel=level + 1)


def _inside(module: str) -> bool:
    """Whether a frame is ours, or a decorator's around one of ours."""
    return module.split(".")[0] == "whence" or module in ("torch.utils._contextlib", "contextlib")


def one_of(value: str, allowed: Iterable[str], option: str) -> str:
    """Return ``value`` if it is allowed; otherwise raise, naming the nearest known value."""
    known = list(allowed)
    if value in known:
        return value
    plain = str(value).strip().lower().replace("-", "_").replace(" ", "_")
    meant = plain if plain in known else VALUES.get(plain)
    near = [meant] if meant in known else difflib.get_close_matches(str(value), known, n=1, cutoff=0.4)
    hint = f" {ADVICE[plain]}" if plain in ADVICE else f" Did you mean {near[0]!r}?" if near else ""
    raise BadOption(f"unknown {option} {value!r}.{hint} Known: {', '.join(map(repr, known))}.")


P = ParamSpec("P")
R = TypeVar("R")


def explains_keywords(function: Callable[P, R]) -> Callable[P, R]:
    """A verb whose unknown keywords are refused with what they are called here, and that asks for a likelihood."""
    parameters = inspect.signature(function).parameters
    known = [name for name in parameters if name != "self"]
    any_keyword = any(p.kind is p.VAR_KEYWORD for p in parameters.values())
    needed = "likelihood" in parameters and parameters["likelihood"].default is inspect.Parameter.empty
    positional = [name for name, p in parameters.items() if p.kind is p.POSITIONAL_OR_KEYWORD]

    @functools.wraps(function)
    def called(*args: P.args, **kwargs: P.kwargs) -> R:
        for name in kwargs:
            if name not in parameters and not any_keyword:
                _refuse_keyword(name, function.__name__, known)
        if needed and len(args) > len(positional):
            hint = " Inputs and targets are one value, a pair: (x, y)." if "data" in positional else ""
            taken = " and ".join(positional)
            raise TypeError(f"{function.__name__}() takes {taken} by position; {len(args)} values were given.{hint}")
        if needed and "likelihood" not in kwargs and "likelihood" not in positional[: len(args)]:
            raise TypeError(
                f"{function.__name__}() needs likelihood='classification', 'binary' or 'regression', or a "
                "whence.Likelihood such as whence.Gaussian(noise=0.1)."
            )
        return function(*args, **kwargs)

    return called


def _refuse_keyword(name: str, verb: str, known: list[str]) -> None:
    """Raise TypeError, as Python does, with what the keyword is called here or which one is near."""
    meant = next((other for other in KEYWORDS.get(name, ()) if other in known), None)
    here = SENTENCES.get(name) if meant or name not in KEYWORDS else None
    near = difflib.get_close_matches(name, known, n=1, cutoff=0.6)
    hint = here or (f"It is {meant}= here." if meant else f"Did you mean {near[0]!r}?" if near else "")
    raise TypeError(f"{verb}() got an unexpected keyword argument {name!r}. {hint}".strip())


def whole_number(value: Any, option: str, least: int | None = 1, remedy: str = "") -> int:
    """The value as an int; raise unless it is a whole number, and at least ``least``."""
    if isinstance(value, Integral) and not isinstance(value, bool) and (least is None or int(value) >= least):
        return int(value)
    bound = "" if least is None else f", at least {least}"
    raise BadOption(f"{option}={value!r} must be a whole number{bound}{remedy and f'; {remedy}'}.")


def whole_numbers(least: int = 1, **options: object) -> None:
    """Refuse options that are not whole numbers of at least ``least``."""
    for name, value in options.items():
        whole_number(value, name, least)


def fraction(value: Any, option: str, remedy: str = "", zero: bool = False, one: bool = False) -> float:
    """The value as a float; raise unless it is between 0 and 1, either of which may be included."""
    if isinstance(value, Real) and not isinstance(value, bool):
        number = float(value)
        if 0 < number < 1 or (zero and number == 0) or (one and number == 1):
            return number
    bounds = f"{'[' if zero else '('}0, 1{']' if one else ')'}"
    raise BadOption(f"{option}={value!r} is not in {bounds}{remedy and f'; {remedy}'}.")
