"""Argument checks; every error names the field, its value, and the allowed values."""

import dataclasses
import difflib
import math
import numbers
import re
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

MANY = 10_000  # limit for agents or levels, far below the size at which memory runs out
HUGE = 1e18  # limit for numbers that an environment multiplies, so that squares fit in float32

# Characters that cannot be printed safely: control characters except tab and newline, characters
# that change the writing direction, and lone surrogates (from file names that are not UTF-8).
_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069\ud800-\udfff]")


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """Return the end of an error message, with the closest known name.

    Without a close match, it lists the names that begin with `name` as their first word ("tag"),
    or else all known names.
    """
    known = sorted(known)
    lower = {other.lower(): other for other in known}  # some names are upper case: LINK_MASS_1
    near = difflib.get_close_matches(name.lower(), lower, n=1, cutoff=0.5)
    near = near or [other for other in lower if other.startswith(f"{name.lower()}_")]
    if near:
        return f"did you mean {' or '.join(repr(lower[other]) for other in near)}?"
    return f"known names: {', '.join(known) or 'none'}"


def require_known(kind: str, name: str, known: Iterable[str]) -> None:
    """Raise TypeError unless `name` is a string, ValueError (with the closest name) if unknown."""
    known = list(known)
    if not isinstance(name, str):
        raise TypeError(f"{kind} {name!r}: must be a string, not {type(name).__name__}")
    if name not in known:
        raise ValueError(f"unknown {kind} {name!r}: {did_you_mean(name, known)}")


def require(
    condition: Any, field: str, value: Any, allowed: str, error: type[Exception] = ValueError
) -> None:
    """Raise error(f"{field} = {value}: must be {allowed}") if the condition is false.

    A value of more than 300 characters is cut.
    """
    if not bool(condition):
        shown = repr(getattr(value, "tolist", lambda: value)())
        if len(shown) > 300:
            shown = f"{shown[:100]} ... ({len(shown)} characters)"
        raise error(f"{field} = {shown}: must be {allowed}")


def require_finite(params: Any) -> None:
    """Raise ValueError if a number in params is infinite, NaN, or larger than HUGE in magnitude."""
    names = [field.name for field in dataclasses.fields(params)]
    names = [name for name in names if getattr(params, name) is not None]
    require_each(params, names, np.isfinite, "finite")
    allowed = f"between {-HUGE:g} and {HUGE:g}"
    require_each(params, names, lambda value: np.abs(value) <= HUGE, allowed)


def require_each(
    params: Any, names: Iterable[str], is_valid: Callable[[Any], Any], allowed: str
) -> None:
    """Raise ValueError unless all numbers of these fields of params are valid."""
    for name in names:
        value = getattr(params, name)
        require(np.all(is_valid(value)), name, value, allowed)


def require_all(params: Any, rules: Mapping[str, tuple[Any, str]]) -> None:
    """Raise ValueError for the first field of params that breaks its rule.

    Args:
        params: the params.
        rules: name of a field -> (bools that must all be true, allowed values).
    """
    for name, (condition, allowed) in rules.items():
        require(np.all(condition), name, getattr(params, name), allowed)


def require_positive(params: Any, *names: str) -> None:
    """Raise ValueError unless all numbers of these fields of params are above 0."""
    require_each(params, names, lambda value: value > 0, "above 0")


def require_not_negative(params: Any, *names: str) -> None:
    """Raise ValueError unless all numbers of these fields of params are at least 0."""
    require_each(params, names, lambda value: value >= 0, "at least 0")


def require_integer(field: str, value: Any, low: int, high: float = math.inf) -> None:
    """Raise TypeError unless `value` is an integer, ValueError unless it is in [low, high]."""
    # NumPy arrays are rejected too: they are not hashable
    if isinstance(value, bool) or not isinstance(value, numbers.Integral):
        raise TypeError(f"{field} = {value!r}: must be a whole number, not {type(value).__name__}")
    allowed = f"at least {low}" + (f" and at most {high}" if high < math.inf else "")
    require(low <= int(value) <= high, field, value, allowed)


def printable(text: Any) -> str:
    r"""Return a text with its control characters escaped as in a Python string, like "\x1b".

    Tab and newline are kept. Bidirectional controls and surrogates are escaped too.
    """
    return _CONTROL.sub(lambda match: ascii(match[0])[1:-1], str(text))


def one_line(error: Any) -> str:
    """Return an error message as a single line with control characters escaped."""
    return printable(" ".join(str(error).split()))


def require_key(key: Any) -> None:
    """Raise TypeError unless `key` is a typed key, concrete or traced."""
    if not jnp.issubdtype(getattr(key, "dtype", bool), jax.dtypes.prng_key):
        description = f"key of dtype {key.dtype}" if hasattr(key, "dtype") else f"key = {key!r}"
        raise TypeError(f"{description}: must be a typed key. Create it with jax.random.key(seed).")


def require_bool(field: str, value: Any) -> None:
    """Raise TypeError unless `value` is a bool."""
    allowed = f"True or False, not {type(value).__name__}"
    require(isinstance(value, bool | np.bool_), field, value, allowed, TypeError)
