"""Words for bad input: every refusal names the field, the value, and what is allowed."""

import difflib
from collections.abc import Iterable
from typing import Any


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """Returns the end of a sentence: the nearest of the `known` names, or all of them where none is near."""
    known = sorted(known)
    near = difflib.get_close_matches(name, known, n=1, cutoff=0.5)
    return f"did you mean {near[0]!r}?" if near else f"known names: {', '.join(known) or 'none'}"


def require_known(kind: str, name: str, known: Iterable[str]) -> None:
    """Raises ValueError, with the nearest right name, where `name` is not among the `known` ones."""
    known = list(known)
    if name not in known:
        raise ValueError(f"unknown {kind} {name!r}: {did_you_mean(name, known)}")


def require(condition: Any, field: str, value: Any, allowed: str) -> None:
    """Raises ValueError("field = value: must be allowed") where the condition is false."""
    if not bool(condition):
        raise ValueError(f"{field} = {value!r}: must be {allowed}")


def require_integer(field: str, value: Any, low: int) -> None:
    """Raises where `value` is not a whole number of at least `low` (a TypeError for the type, else a ValueError)."""
    if isinstance(value, bool) or not hasattr(value, "__index__"):
        raise TypeError(f"{field} = {value!r}: must be a whole number, not {type(value).__name__}")
    require(value >= low, field, value, f"at least {low}")
