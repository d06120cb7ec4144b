"""Detection of functions of a class that a subclass, an instance or a patch replaces."""

import dataclasses
import inspect
import sys
from collections.abc import Collection
from typing import Any


def overridden(owner: Any, cls: type, names: Collection[str] = ()) -> str | None:
    """Return the name of the first function of `cls` that `owner` replaces, or None.

    A function counts as replaced unless its code is part of the class body of `cls`, so attributes
    of an instance and patches of `cls` itself count too.

    Args:
        owner: an instance, a subclass, or `cls` itself.
        cls: the class that defines the functions.
        names: functions to check. If empty, all functions in the body of `cls`. The only special
            methods among them are `__call__` and, unless `cls` is a dataclass, `__init__`.
    """
    specials = {"__call__"} if dataclasses.is_dataclass(cls) else {"__init__", "__call__"}
    names = names or [
        n
        for n, value in vars(cls).items()
        if (callable(value) or isinstance(value, (property, staticmethod, classmethod)))
        and (n[:2] != "__" or n in specials)
    ]
    return next(
        (name for name in names if not _is_from(inspect.getattr_static(owner, name), cls, name)),
        None,
    )


def _is_from(value: Any, cls: type, name: str) -> bool:
    """Return whether `value` is the original function `name` from the class body of `cls`."""
    function = getattr(value, "fget", None) or getattr(value, "__func__", value)
    code, module = getattr(function, "__code__", None), sys.modules[cls.__module__]
    return (
        code is not None
        and function.__globals__ is vars(module)
        and code.co_qualname == f"{cls.__qualname__}.{name}"
    )
