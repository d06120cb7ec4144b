"""Code by name: "package.module:Name", and what installed packages announce by entry points."""

import contextlib
import importlib
import importlib.metadata
import os
import sys
from collections.abc import Iterator
from importlib.machinery import PathFinder
from pathlib import Path
from typing import Any

from wdjax.checks import one_line, require

_FOLDERS: list[str] = []  # the folder in which a shell started this command; empty: no command


def find_modules_here() -> None:
    """Let `import_named` find modules in the current folder from now on, as a shell's command does.

    The folder is on sys.path only while such a module is imported: a library that probes for an optional module must
    not find a file of that name there.
    """
    with contextlib.suppress(FileNotFoundError):  # a deleted folder
        _FOLDERS[:] = [os.getcwd()]
        _ignore_matplotlibrc(*_FOLDERS)


def _ignore_matplotlibrc(folder: str) -> None:
    """Import matplotlib from elsewhere if it would read its settings, which may name a LaTeX preamble, in `folder`."""
    if Path(folder, "matplotlibrc").exists() and "matplotlib" not in sys.modules:
        os.chdir(os.sep)
        try:
            importlib.import_module("matplotlib")
        finally:
            os.chdir(folder)


def import_named(field: str, name: str) -> Any:
    """Returns what "package.module:name" names; raises ValueError, naming the field, where there is nothing, or where
    importing the module raises anything at all: it is the user's code."""
    module, _, attribute = name.partition(":")
    words = [*module.split("."), attribute]
    require(
        all(map(str.isidentifier, words)), field, name, '"package.module:Name", a whole import path'
    )
    try:
        with _current_folder_on_path(words[0]):
            return getattr(importlib.import_module(module), attribute)
    except (Exception, SystemExit) as error:
        kind = (
            "" if isinstance(error, (ImportError, AttributeError)) else f"{type(error).__name__}: "
        )
        raise ValueError(f"{field} {name!r}: {kind}{one_line(error)}") from error


@contextlib.contextmanager
def _current_folder_on_path(package: str) -> Iterator[None]:
    """Append the folder of `find_modules_here` to sys.path while a package is imported from there."""
    folders = (
        [folder for folder in _FOLDERS if folder not in sys.path] if lies_here(package) else []
    )
    sys.path.extend(folders)
    try:
        yield
    finally:
        for folder in folders:
            with contextlib.suppress(ValueError):  # the user's code may remove it
                sys.path.remove(folder)


def lies_here(package: str) -> bool:
    """Return whether a top-level package would be imported from the current folder, not from an installed one."""
    if package == "wdjax":  # this one, also in its own checkout
        return False
    spec = PathFinder.find_spec(package, [*sys.path, *_FOLDERS])
    places = (spec.submodule_search_locations or [spec.origin]) if spec else ()
    return any(_is_current(Path(place).parent) for place in places if place)


def _is_current(folder: Path) -> bool:
    try:
        return folder.resolve() == Path(*_FOLDERS or [Path.cwd()]).resolve()
    except FileNotFoundError:  # the current folder was deleted
        return False


def announced(groups: str) -> list[importlib.metadata.EntryPoint]:
    """Returns the entry points of installed packages in the groups that begin so: "wdjax.envs", or "wdjax." for all;
    what lies in the current folder is not installed."""
    places = [place for place in sys.path if place and not _is_current(Path(place))]
    found = [
        entry for own in importlib.metadata.distributions(path=places) for entry in own.entry_points
    ]
    return [entry for entry in found if entry.group.startswith(groups)]
