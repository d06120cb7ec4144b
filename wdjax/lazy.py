"""Packages whose names are imported when first used, so that to import them is quick and touches no device."""

import ast
import difflib
import importlib
import sys
from collections.abc import Callable
from typing import Any


def import_when_used(
    package: str,
) -> tuple[Callable[[str], Any], Callable[[], list[str]], dict[str, str]]:
    """Returns `__getattr__` and `__dir__` of a package, and public name -> the module that holds it.

    The names are what its `__init__.py` imports `if TYPE_CHECKING`, so that type checkers know them. What is returned
    goes under `if not TYPE_CHECKING`: a checker that saw a `__getattr__` would take every name for one of these.
    """
    tree = ast.parse(sys.modules[package].__spec__.loader.get_source(package))
    lines = [line for node in tree.body if isinstance(node, ast.If) for line in node.body]
    imports = [line for line in lines if isinstance(line, ast.ImportFrom)]
    home = {
        alias.name: f"{package}.{alias.name}" if line.module == package else line.module
        for line in imports
        for alias in line.names
    }

    def get(name: str) -> Any:
        if name not in home:
            raise AttributeError(f"module {package!r} has no attribute {name!r}{elsewhere(name)}")
        module = importlib.import_module(home[name])
        return module if home[name] == f"{package}.{name}" else getattr(module, name)

    def elsewhere(name: str) -> str:
        if name.startswith("_"):  # which other tools look for
            return ""
        parts = [path for part, path in home.items() if path == f"{package}.{part}"]
        inside = [
            path for path in parts if name in getattr(importlib.import_module(path), "__all__", ())
        ]
        near = [f"{path}.{name}" for path in inside] or [
            f"{package}.{other}" for other in difflib.get_close_matches(name, home, 1)
        ]
        return f": did you mean {near[0]}?" if near else ""

    return get, lambda: sorted(home), home
