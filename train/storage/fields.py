"""Names and values of fields as on the command line, of `wdjax train` and `wdjax sweep`."""

import contextlib
import difflib
import re
from collections.abc import Collection, Iterator, Mapping
from typing import Any

from wdjax.all_policies import ALL
from wdjax.train.config.env_params import complete_env_params
from wdjax.train.config.facts import Fraction, Schedule, is_scheduled
from wdjax.train.config.reading import SHORT, convert
from wdjax.train.config.schema import TrainConfig
from wdjax.train.state.registry import known_fields
from wdjax.train.storage.folder import plain_config, plain_value
from wdjax.yaml_reader import read_yaml_value

FREE = ("env_params", "env_schedules", "stop_at", "opponents", "encoder_options")
"""fields with names that are not known in advance"""


class Fields:
    """Fields of a configuration, by names as on the command line.

    Args:
        config: a configuration; None: only the names of its fields are known.
    """

    def __init__(self, config: TrainConfig | None = None):
        self.known = dict(_fields_of(config) if config else TrainConfig.__dataclass_fields__)

    def find(self, name: str, options: Collection[str] = (), strict: bool = True) -> str:
        """Return the name of a field. Hyphens and underscores are alike.

        Other names are returned with underscores: `change_config` refuses the unknown ones.

        Args:
            name: dotted name; "policies.all.FIELD" is a field of every policy.
            options: other names that the user may have meant.
            strict: false if the algorithms, and thus their options, may change.

        Raises:
            ValueError: for a name that is close to another one.
        """
        fields = {_alike(field): field for field in self.known}
        if (found := fields.get(_alike(name))) is not None:
            return found
        block, _, last = name.rpartition(".")
        if fields.get(_alike(block), "").split(".")[-1] in FREE:
            return f"{fields[_alike(block)]}.{last}"
        known = {_alike(other): other.replace("_", "-") for other in options}
        if near := difflib.get_close_matches(_alike(name), known, 1, cutoff=0.7):
            raise ValueError(f"unknown option --{name}: did you mean --{known[near[0]]}?")
        cutoff = 0.8 if strict and last not in SHORT else 1.0
        beside = [field for field in fields if field.count(".") == name.count(".")]
        if near := difflib.get_close_matches(_alike(name), beside, 1, cutoff):
            raise ValueError(f"unknown field {name}: did you mean {fields[near[0]]!r}?")
        return _alike(name)

    def parse(self, field: str, values: list) -> list:
        """Return the values of a field. Lists and schedules may be written as for `wdjax train`.

        `64 64,128 128` is two lists, `0 1e-3 1e6 1e-4` a schedule.

        Args:
            field: name of a field, from `find`.
            values: values as read from YAML.

        Raises:
            ValueError: for an invalid schedule.
        """
        path = re.sub(r"^(policies|teams)\.[^.]+\.", "", field)
        known = known_fields().get(path)
        scheduled = field.startswith("env_schedules.") or (
            known is not None and is_scheduled(known)
        )
        is_list = isinstance(self.known.get(field), list) and not scheduled

        def read(value: Any) -> Any:
            if is_list and not isinstance(value, list):
                words = value.split() if isinstance(value, str) else [value]
                return [read_yaml_value(word) if isinstance(word, str) else word for word in words]
            if scheduled and isinstance(value, str) and " " in value:
                return plain_value(Fields.schedule(value.split()))
            return value

        return [read(value) for value in values]

    @staticmethod
    def schedule(words: list[str]) -> Schedule:
        """Return the schedule that words on the command line, or a text in YAML, specify.

        Raises:
            ValueError: for other words.
        """
        if words and words[0].startswith(("[", "{")):
            with contextlib.suppress(TypeError):
                return convert(Schedule, read_yaml_value(" ".join(words)), "schedule")
        kind, words = (Fraction, words[1:]) if words[:1] == ["fraction"] else (tuple, words)
        with contextlib.suppress(ValueError):
            numbers = [float(word) for word in words]
            if len(numbers) == 1 and kind is tuple:
                return numbers[0]
            if numbers:
                return kind(zip(numbers[::2], numbers[1::2], strict=True))
        raise ValueError(
            f"{' '.join(words)!r} must be a number, or pairs of env step and value "
            "(0 1e-3 100_000 1e-4), or of fraction and value (fraction 0 1e-3 1 1e-4)"
        )


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
