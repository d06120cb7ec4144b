"""Names of the fields of every policy: "policies.all.FIELD"."""

from collections.abc import Iterable, Mapping

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
