"""Objects by import path ("package.module:Name"), and entry points of installed packages."""

import contextlib
import importlib
import importlib.metadata
import os
import sys
from collections.abc import Iterator, Mapping
from importlib.machinery import PathFinder
from pathlib import Path
from typing import Any

from wdjax.checks import did_you_mean, one_line, require

_FOLDERS: list[str] = []  # working directory of a command started in a shell; empty otherwise


def find_modules_here() -> None:
    """Let `import_named` also find modules in the current folder. Called by the command line.

    The folder is on sys.path only while `import_named` runs. If it stayed there, a library that
    tries to import an optional package could import a file of the same name from this folder.
    """
    with contextlib.suppress(FileNotFoundError):  # a deleted folder
        _FOLDERS[:] = [os.getcwd()]
        _ignore_matplotlibrc(*_FOLDERS)


def _ignore_matplotlibrc(folder: str) -> None:
    """Import matplotlib from another folder, so that it ignores a matplotlibrc in `folder`."""
    if Path(folder, "matplotlibrc").exists() and "matplotlib" not in sys.modules:
        os.chdir(os.sep)
        try:
            importlib.import_module("matplotlib")
        finally:
            os.chdir(folder)


def import_named(field: str, name: str) -> Any:
    """Import the object named by "package.module:name".

    Raises:
        ValueError: for a malformed or unknown name, and for any exception that the module raises
            when imported, since it is user code. The message names the field.
    """
    module, _, attribute = name.partition(":")
    parts = [*module.split("."), attribute]
    require(
        all(map(str.isidentifier, parts)),
        field,
        name,
        '"package.module:Name", a full import path',
    )
    try:
        with _current_folder_on_path(parts[0]):
            return getattr(importlib.import_module(module), attribute)
    except (Exception, SystemExit) as error:
        kind = (
            "" if isinstance(error, (ImportError, AttributeError)) else f"{type(error).__name__}: "
        )
        raise ValueError(f"{field} {name!r}: {kind}{one_line(error)}") from error


def find_named(field: str, name: str, known: Mapping[str, Any], custom: str) -> Any:
    """Return the object with a known name, or import "package.module:name".

    Args:
        field: the field that contains the name, for messages.
        name: a key of `known`, or an import path.
        known: objects, or their import paths, by name.
        custom: how to name a custom object, for the message.

    Raises:
        ValueError: for an unknown name (the message has the closest one); as `import_named`.
    """
    found = known.get(name, name)
    if not isinstance(found, str):
        return found
    if ":" not in found:
        raise ValueError(f"{field} = {name!r}: {did_you_mean(name, known)} ({custom})")
    return import_named(field, found)


@contextlib.contextmanager
def _current_folder_on_path(package: str) -> Iterator[None]:
    """Temporarily append the current folder to sys.path if `package` would be imported from it.

    Without a call of `find_modules_here`, sys.path stays unchanged.
    """
    folders = (
        [folder for folder in _FOLDERS if folder not in sys.path] if lies_here(package) else []
    )
    sys.path.extend(folders)
    try:
        yield
    finally:
        for folder in folders:
            with contextlib.suppress(ValueError):  # user code may have removed it
                sys.path.remove(folder)


def lies_here(package: str) -> bool:
    """Return whether a top-level package would be imported from the current folder."""
    if package == "wdjax":  # never the current folder, even in wdjax's own checkout
        return False
    spec = PathFinder.find_spec(package, [*sys.path, *_FOLDERS])
    places = list(spec.submodule_search_locations or [spec.origin or ""]) if spec else []
    return any(_is_current(Path(place).parent) for place in places if place)


def _is_current(folder: Path) -> bool:
    try:
        return folder.resolve() == Path(*_FOLDERS or [str(Path.cwd())]).resolve()
    except FileNotFoundError:  # the current folder was deleted
        return False


def announced(groups: str) -> list[importlib.metadata.EntryPoint]:
    """Return the entry points of installed packages whose group starts with `groups`.

    Packages in the current folder do not count as installed.

    Args:
        groups: a group such as "wdjax.envs", or "wdjax." for all.

    Returns:
        The entry points.
    """
    places = [place for place in sys.path if place and not _is_current(Path(place))]
    return [
        entry
        for distribution in importlib.metadata.distributions(path=places)
        for entry in distribution.entry_points
        if entry.group.startswith(groups)
    ]
