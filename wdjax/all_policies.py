"""Names of the fields of every policy: "policies.all.FIELD"."""

import contextlib
import re
from collections.abc import Collection, Iterable, Iterator, Mapping

ALL = "policies.all."  # begins the name of a field of every policy


def for_each_policy(changes: Mapping[str, object], policies: Iterable[str]) -> dict[str, object]:
    """Return changes with the field of each policy in place of "policies.all.FIELD".

    A policy may be named "all".
    """
    names = list(policies)
    found: dict[str, object] = {}
    for name, value in changes.items():
        several = name.startswith(ALL) and "all" not in names
        fields = [f"policies.{policy}.{name.removeprefix(ALL)}" for policy in names]
        found |= dict.fromkeys(fields if several else [name], value)
    return found


@contextlib.contextmanager
def named_as_changed(changes: Collection[str], policies: Collection[str]) -> Iterator[None]:
    """Let errors name "policies.all.FIELD" in place of this field of the first policy."""
    try:
        yield
    except (ValueError, TypeError) as error:
        for name in changes:
            for first in list(for_each_policy({name: 0}, policies))[:1]:
                if first not in changes:  # a field with a longer name is another one
                    text = name.join(re.split(re.escape(first) + r"(?![\w-])", str(error)))
                    error.args = (text,) if text != str(error) else error.args
        raise
