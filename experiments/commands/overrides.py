"""Changes of fields on the command line, written alike for wdjax train and wdjax sweep.

--policies.agent.learning-rate 1e-3     hyphens and underscores are alike
--policies.all.learning-rate 1e-3       the field of every policy
--policies.all.learning-rate 1e-3,3e-3  several values, in a sweep
"""

import difflib
import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any

from wdjax.checks import require
from wdjax.experiments.commands.arguments import schedule_of
from wdjax.train import TrainConfig, complete_env_params, plain_config
from wdjax.train.config.facts import is_scheduled
from wdjax.train.config.reading import SHORT
from wdjax.train.load import ALL
from wdjax.train.state.registry import known_fields
from wdjax.train.storage.folder import plain_value
from wdjax.yaml_reader import read_yaml_value

FREE = ("env_params", "env_schedules", "stop_at", "opponents", "encoder_options")
"""fields with names that are not known in advance"""


def flags_with_values(arguments: Sequence[str]) -> list[list[str]]:
    """Split arguments before every flag; "--flag=value" is one word."""
    parts: list[list[str]] = [[]]
    for word in arguments:
        if word.startswith("--"):
            parts.append([])
        parts[-1].append(word)
    return [part for part in parts if part]


def for_each_policy(arguments: Sequence[str], policies: Collection[str]) -> list[str]:
    """Return arguments with a flag for each policy in place of `--policies.all.FIELD`."""
    found: list[str] = []
    for flag, *values in flags_with_values(arguments):
        start, field = f"--{ALL}", flag.removeprefix(f"--{ALL}")
        several = flag.startswith(start) and "all" not in policies
        names = [f"--policies.{name}.{field}" for name in policies] if several else [flag]
        found += [word for name in names for word in (name, *values)]
    return found


def as_typed(message: str, arguments: Sequence[str], policies: Collection[str]) -> str:
    """Return a message that names `--policies.all.FIELD` in place of the flag of each policy."""
    for typed in flags_with_values(arguments):
        each = for_each_policy(typed, policies)
        if each != typed and ", ".join(each) in message:
            message = message.replace(", ".join(each), ", ".join(typed))
            first, field = (own[0].removeprefix("--").split("=")[0] for own in (each, typed))
            message = message.replace(f"field {_alike(first)}", f"field {_alike(field)}")
    return message


def as_settings(arguments: Sequence[str], options: Collection[str]) -> list[str]:
    """Return the arguments of a sweep with `--set FIELD=VALUES` in place of `--FIELD VALUES`.

    Args:
        arguments: arguments after the preset.
        options: options of the sweep, with underscores. All other flags are fields.

    Raises:
        ValueError: for a field without a value, or a flag that is neither an option nor a field.
    """
    found: list[str] = []
    for flag, *values in flags_with_values(arguments):
        name, _, first = flag.removeprefix("--").partition("=")
        if not flag.startswith("--") or name.replace("-", "_") in options:
            found += [flag, *values]
            continue
        text = " ".join([*[first] * bool(first), *values])
        if not text:
            _require_field(name, options)
        require(text, flag, text, "followed by VALUE or VALUE,VALUE")
        found += ["--set", f"{name}={text}"]
    return found


def _require_field(name: str, options: Collection[str]) -> None:
    """Raise ValueError for a name without dots that is not a field of TrainConfig."""
    fields = TrainConfig.__dataclass_fields__
    if "." not in name and _alike(name) not in fields:
        near = difflib.get_close_matches(_alike(name), [*options, *fields], 1, cutoff=0.7)
        closest = f": did you mean --{near[0].replace('_', '-')}?" if near else " (see --help)"
        raise ValueError(f"--{name} is not an option of wdjax sweep{closest}")


def find_field(
    config: TrainConfig, name: str, options: Collection[str] = (), strict: bool = True
) -> str:
    """Return the name of a field. Hyphens and underscores are alike.

    Other names are returned with underscores: `change_config` refuses the unknown ones.

    Args:
        config: a configuration.
        name: dotted name; "policies.all.FIELD" is a field of every policy.
        options: other names that the user may have meant.
        strict: false if the algorithms, and thus their options, may change.

    Raises:
        ValueError: for a name that is close to another one.
    """
    fields = {_alike(field): field for field, _ in _fields_of(config)}
    if (found := fields.get(_alike(name))) is not None:
        return found
    block, _, last = name.rpartition(".")
    if fields.get(_alike(block), "").split(".")[-1] in FREE:
        return f"{fields[_alike(block)]}.{last}"
    known = {_alike(other): other.replace("_", "-") for other in options}
    if near := difflib.get_close_matches(_alike(name), known, 1, cutoff=0.7):
        raise ValueError(f"unknown option --{name}: did you mean --{known[near[0]]}?")
    cutoff = 0.8 if strict and last not in SHORT else 1.0
    if near := difflib.get_close_matches(_alike(name), fields, 1, cutoff):
        raise ValueError(f"unknown field {name}: did you mean {fields[near[0]]!r}?")
    return _alike(name)


def _alike(name: str) -> str:
    return name.replace("-", "_")


def _fields_of(config: TrainConfig) -> Iterator[tuple[str, Any]]:
    """Yield (dotted name, plain value) of all fields, of mappings too, and `policies.all.FIELD`."""

    def walk(values: Any, path: str) -> Iterator[tuple[str, Any]]:
        yield path, values
        for name, item in values.items() if isinstance(values, Mapping) else ():
            yield from walk(item, f"{path}.{name}" if path else name)

    plain = plain_config(complete_env_params(config))
    if "all" not in config.policies:
        for own in plain["policies"].values():
            yield from walk(own, ALL.rstrip("."))
    yield from walk(plain, "")


def field_values(config: TrainConfig, field: str, values: list) -> list:
    """Return the values of a field. Lists and schedules may be written as for `wdjax train`.

    `64 64,128 128` is two lists, `0 1e-3 1e6 1e-4` a schedule.

    Args:
        config: a configuration with this field.
        field: its name, from `find_field`.
        values: values as read from YAML.

    Raises:
        ValueError: for an invalid schedule.
    """
    path = re.sub(r"^(policies|teams)\.[^.]+\.", "", field)
    known = known_fields().get(path)
    scheduled = field.startswith("env_schedules.") or (known is not None and is_scheduled(known))
    is_list = isinstance(dict(_fields_of(config)).get(field), list) and not scheduled

    def read(value: Any) -> Any:
        if is_list and not isinstance(value, list):
            words = value.split() if isinstance(value, str) else [value]
            return [read_yaml_value(word) if isinstance(word, str) else word for word in words]
        if scheduled and isinstance(value, str) and " " in value:
            return plain_value(schedule_of(value.split()))
        return value

    return [read(value) for value in values]
