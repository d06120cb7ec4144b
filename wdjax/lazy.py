"""Lazy imports of public names, which touch no device, and imports without garbage collection."""

import ast
import contextlib
import difflib
import gc
import importlib
import sys
from collections.abc import Callable, Iterator
from typing import Any, cast


def import_when_used(
    package: str,
) -> tuple[Callable[[str], Any], Callable[[], list[str]], dict[str, str]]:
    """Return `__getattr__`, `__dir__`, and a dict from public name to defining module.

    The public names are those that the package's `__init__.py` imports under `if TYPE_CHECKING`,
    which makes them visible to type checkers. Assign the results under `if not TYPE_CHECKING`:
    a type checker that sees `__getattr__` accepts every name.
    """
    source = cast(Any, sys.modules[package].__spec__).loader.get_source(package)
    home = {
        alias.name: f"{package}.{alias.name}" if line.module == package else str(line.module)
        for node in ast.parse(source).body
        if isinstance(node, ast.If)
        for line in node.body
        if isinstance(line, ast.ImportFrom)
        for alias in line.names
    }

    def get(name: str) -> Any:
        if name not in home:
            raise AttributeError(f"module {package!r} has no attribute {name!r}{elsewhere(name)}")
        module = importlib.import_module(home[name])
        return module if home[name] == f"{package}.{name}" else getattr(module, name)

    def elsewhere(name: str) -> str:
        if name.startswith("_"):  # probed by other tools
            return ""
        inside = [
            path
            for part, path in home.items()
            if path == f"{package}.{part}"
            and name in getattr(importlib.import_module(path), "__all__", ())
        ]
        matches = [f"{path}.{name}" for path in inside] or [
            f"{package}.{other}" for other in difflib.get_close_matches(name, home, 1)
        ]
        return f": did you mean {matches[0]}?" if matches else ""

    return get, lambda: sorted(home), home


@contextlib.contextmanager
def no_garbage_collection() -> Iterator[None]:
    """Disable garbage collection, which would search imported modules again and again."""
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()
