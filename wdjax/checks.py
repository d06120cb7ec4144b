"""Words for bad input: every refusal names the field, the value, and what is allowed."""

import dataclasses
import difflib
import math
import numbers
import re
from collections.abc import Iterable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

MANY = 10_000  # agents or levels of a game: more would fill the memory before anybody knew why
HUGE = 1e18  # of a number that rules square and multiply: its square is a float32

# Control characters except tab and newline, characters that reorder a line, and halves of characters (a file name that
# is not UTF-8), which cannot be printed.
_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069\ud800-\udfff]")


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """Returns the end of a sentence: the nearest of the `known` names, those of which `name` is the first word ("tag"),
    or all of them where none is near."""
    known = sorted(known)
    lower = {other.lower(): other for other in known}  # acrobot's are gymnasium's: LINK_MASS_1
    near = difflib.get_close_matches(name.lower(), lower, n=1, cutoff=0.5)
    near = near or [other for other in lower if other.startswith(f"{name.lower()}_")]
    if near:
        return f"did you mean {' or '.join(repr(lower[other]) for other in near)}?"
    return f"known names: {', '.join(known) or 'none'}"


def require_known(kind: str, name: str, known: Iterable[str]) -> None:
    """Raises where `name` is not among the `known` ones: a ValueError with the nearest right name, or a TypeError."""
    known = list(known)
    if not isinstance(name, str):
        raise TypeError(f"{kind} {name!r}: must be a name, not {type(name).__name__}")
    if name not in known:
        raise ValueError(f"unknown {kind} {name!r}: {did_you_mean(name, known)}")


def require(condition: Any, field: str, value: Any, allowed: str) -> None:
    """Raises ValueError("field = value: must be allowed") where the condition is false."""
    if not bool(condition):
        words = repr(getattr(value, "tolist", lambda: value)())
        shown = words if len(words) <= 300 else f"{words[:100]} ... ({len(words)} characters)"
        raise ValueError(f"{field} = {shown}: must be {allowed}")


def require_finite(params: Any) -> None:
    """Raises ValueError where a number in a field of params is infinite, NaN, or beyond HUGE in size."""
    for field in dataclasses.fields(params):
        value = getattr(params, field.name)
        require(value is None or np.all(np.isfinite(value)), field.name, value, "finite")
        require(
            value is None or np.all(np.abs(value) <= HUGE),
            field.name,
            value,
            f"between {-HUGE:g} and {HUGE:g}",
        )


def require_integer(field: str, value: Any, low: int, high: float = math.inf) -> None:
    """Raises where `value` is no whole number from `low` to `high` (a TypeError for the type, else a ValueError)."""
    # an array would not be hashable
    if isinstance(value, bool) or not isinstance(value, numbers.Integral):
        raise TypeError(f"{field} = {value!r}: must be a whole number, not {type(value).__name__}")
    require(
        low <= value <= high,
        field,
        value,
        f"at least {low}" + (f" and at most {high}" if high < math.inf else ""),
    )


def printable(text: Any) -> str:
    r"""Return a text with control characters escaped as in a Python string: "\x1b" in place of the character."""
    return _CONTROL.sub(lambda found: ascii(found[0])[1:-1], str(text))


def one_line(error: Any) -> str:
    """Return the words of an error, perhaps another library's, in one line that controls no terminal."""
    return printable(" ".join(str(error).split()))


def require_key(key: Any) -> None:
    """Raises TypeError for what is no typed key, traced or not: a seed, or old numbers."""
    if not jnp.issubdtype(getattr(key, "dtype", bool), jax.dtypes.prng_key):
        found = f"key of dtype {key.dtype}" if hasattr(key, "dtype") else f"key = {key!r}"
        raise TypeError(f"{found}: must be a typed key, as jax.random.key(seed) makes it")


def require_bool(field: str, value: Any) -> None:
    """Raises TypeError where `value` is neither true nor false."""
    if not isinstance(value, (bool, np.bool_)):
        raise TypeError(f"{field} = {value!r}: must be True or False, not {type(value).__name__}")
