"""``package.module:name`` or ``path/to/file.py:name`` → the object that it names."""

from __future__ import annotations

import difflib
import importlib
import importlib.util
import inspect
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

from torch import nn

from whence.errors import BadOption

EXAMPLE = "such as models:net or code/models.py:net"


def resolve(reference: str, option: str) -> Any:
    """The object of a reference; ``option`` names it in messages."""
    place, colon, name = reference.rpartition(":")
    if not colon or not place or not name:
        raise BadOption(f"{option}: expected MODULE:NAME, {EXAMPLE}, but got {reference!r}.")
    module = _file(place, option) if place.endswith(".py") else _module(place, option)
    found: Any = module
    path = place
    for part in name.split("."):
        if not hasattr(found, part):
            raise BadOption(f"{option}: {path} has no {part!r}.{_nearby(part, found)}")
        found, path = getattr(found, part), f"{path}:{part}" if found is module else f"{path}.{part}"
    return found


def made(reference: str, option: str, wanted: Callable[[Any], bool], expected: str) -> Any:
    """The object, or its return value if called, that is ``wanted``; ``expected`` describes it in messages."""
    found = resolve(reference, option)
    if wanted(found):
        return found
    if not callable(found) or isinstance(found, nn.Module):
        raise BadOption(f"{option}: expected {expected}, but {reference} is {kind(found)}.")
    needed = required(found)
    if needed:
        raise BadOption(
            f"{option}: {reference} cannot be called without arguments (it needs {', '.join(needed)}); "
            f"name {expected}, or a function without required arguments that returns one."
        )
    try:
        result = found()
    except (Exception, SystemExit) as error:
        raise BadOption(f"{option}: calling {reference}() failed: {type(error).__name__}: {error}") from error
    if not wanted(result):
        raise BadOption(f"{option}: expected {expected}, but {reference}() returned {kind(result)}.")
    return result


def model(reference: str, option: str = "MODEL") -> nn.Module:
    """A network."""
    return made(reference, option, lambda v: isinstance(v, nn.Module), "a torch.nn.Module")


def is_class(reference: str, option: str = "MODEL") -> bool:
    """Whether the reference names a class, so that each call makes a new object."""
    return isinstance(resolve(reference, option), type)


def kind(value: Any) -> str:
    """The type of a value, with an article."""
    if value is None:
        return "None"
    if isinstance(value, type):
        return f"the class {value.__name__}"
    if isinstance(value, ModuleType):
        return f"the module {value.__name__}"
    name = type(value).__name__
    article = "an" if name[0] in "aeiouAEIOU" else "a"
    length = f" of length {len(value)}" if isinstance(value, (tuple, list, dict, str)) else ""
    return f"{article} {name}{length}"


def required(found: Any) -> list[str]:
    """Parameters without a default."""
    try:
        parameters = inspect.signature(found).parameters.values()
    except (TypeError, ValueError):
        return []
    variadic = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
    return [p.name for p in parameters if p.default is p.empty and p.kind not in variadic]


def _nearby(name: str, inside: Any) -> str:
    """Suggest the nearest name, or list the existing ones."""
    known = [n for n in vars(inside) if not n.startswith("_")] if hasattr(inside, "__dict__") else []
    near = difflib.get_close_matches(name, known, n=1, cutoff=0.5)
    if near:
        return f" Did you mean {near[0]!r}?"
    own = [n for n in known if not isinstance(getattr(inside, n), ModuleType)]
    return f" It has {', '.join(own[:8])}{', …' * (len(own) > 8)}." if own else ""


def _module(name: str, option: str) -> ModuleType:
    _on_path(Path.cwd())
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name is None or not (name == error.name or name.startswith(f"{error.name}.")):
            raise _failed(name, option, error) from error
        hint = f" There is a file {name}.py; use {name}.py:…" if Path(f"{name}.py").is_file() else ""
        looked = f"looked in {Path.cwd()} and the installed packages"
        raise BadOption(f"{option}: there is no module {error.name!r} ({looked}).{hint}") from error
    except (Exception, SystemExit) as error:
        raise _failed(name, option, error) from error


def _file(name: str, option: str) -> ModuleType:
    """A module from its file, imported once; its folder and the current one are on the import path."""
    path = Path(name).resolve()
    if not path.is_file():
        raise BadOption(f"{option}: there is no file {name} (looked in {Path.cwd()}).")
    for loaded in list(sys.modules.values()):
        known = getattr(loaded, "__file__", None) or ""
        if known.endswith(path.name) and Path(known).resolve() == path and loaded.__name__ != "__main__":
            return loaded
    _on_path(Path.cwd())
    _on_path(path.parent)
    taken = path.stem in sys.modules or path.stem in sys.stdlib_module_names
    spec = importlib.util.spec_from_file_location(f"_whence_{path.stem}" if taken else path.stem, path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    try:
        spec.loader.exec_module(module)
    except (Exception, SystemExit) as error:
        del sys.modules[spec.name]
        raise _failed(name, option, error) from error
    return module


def _failed(name: str, option: str, error: BaseException) -> BadOption:
    if isinstance(error, SystemExit):
        return BadOption(
            f"{option}: importing {name} ended the program; move its main code under if __name__ == '__main__'."
        )
    return BadOption(f"{option}: importing {name} failed: {type(error).__name__}: {error}")


def _on_path(folder: Path) -> None:
    if str(folder) not in sys.path:
        sys.path.insert(0, str(folder))
