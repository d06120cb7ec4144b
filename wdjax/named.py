"""Code by name: "package.module:Name", and what installed packages announce by entry points."""

import importlib
import importlib.metadata
import sys
from pathlib import Path
from typing import Any

from wdjax.checks import one_line, require

_OTHERS: list[str] = []  # modules that are not wdjax's and were asked for by name


def has_code_of_others() -> bool:
    """Returns whether this process has imported code that a configuration or a command names, and is not wdjax's: it
    may have changed anything."""
    return bool(_OTHERS)


def import_named(field: str, name: str) -> Any:
    """Returns what "package.module:name" names; raises ValueError, naming the field, where there is nothing, or where
    importing the module raises anything at all: it is the user's code."""
    module, _, attribute = name.partition(":")
    words = [*module.split("."), attribute]
    require(all(map(str.isidentifier, words)), field, name, '"package.module:Name", a whole import path')
    if words[0] != "wdjax":
        _OTHERS.append(module)
    try:
        return getattr(importlib.import_module(module), attribute)
    except (Exception, SystemExit) as error:
        kind = "" if isinstance(error, (ImportError, AttributeError)) else f"{type(error).__name__}: "
        raise ValueError(f"{field} {name!r}: {kind}{one_line(error)}") from error


def announced(groups: str) -> list[importlib.metadata.EntryPoint]:
    """Returns the entry points of installed packages in the groups that begin so: "wdjax.envs", or "wdjax." for all;
    what lies in the current folder is not installed."""
    here = Path.cwd()
    places = [place for place in sys.path if place and Path(place).resolve() != here]
    found = [entry for own in importlib.metadata.distributions(path=places) for entry in own.entry_points]
    return [entry for entry in found if entry.group.startswith(groups)]
