"""Algorithms by name, and configurations with the options of their algorithms."""

import dataclasses
import typing
from collections.abc import Collection, Iterable, Mapping
from typing import Any, TypeVar

from wdjax.checks import did_you_mean, require, require_known
from wdjax.named import find_named
from wdjax.train.config.facts import (
    changed,
    default_of,
    is_required,
    is_scheduled,
    is_traced,
    leaves,
)
from wdjax.train.config.reading import SHORT, from_mapping, register, unknown_field
from wdjax.train.config.schema import PolicyConfig, TeamConfig, TrainConfig
from wdjax.train.state.algorithm import Algorithm, NoOptions
from wdjax.train.state.aliases import OptionsClass
from wdjax.train.state.rows import KEPT

# name in a preset -> class or import path; a preset names any other algorithm by its import path
ALGORITHMS: dict[str, str | type[Algorithm]] = {
    "A2C": "wdjax.train.algorithms.a2c:A2C",
    "PPO": "wdjax.train.algorithms.ppo:PPO",
    "MAPPO": "wdjax.train.algorithms.mappo:MAPPO",
    "PQN": "wdjax.train.algorithms.pqn:PQN",
    "DQN": "wdjax.train.algorithms.dqn:DQN",
    "VDN": "wdjax.train.algorithms.vdn:VDN",
    "QMIX": "wdjax.train.algorithms.qmix:QMIX",
    "DDPG": "wdjax.train.algorithms.ddpg:DDPG",
    "SAC": "wdjax.train.algorithms.sac:SAC",
}
OF_0_2 = ("A2C", "PPO", "DDPG")
"""algorithms whose options are in every file of 0.2"""

BLOCKS: dict[str, OptionsClass] = {"policies": PolicyConfig, "teams": TeamConfig}
ConfigT = TypeVar("ConfigT", PolicyConfig, TeamConfig)


def register_algorithm(name: str, algorithm: type[Algorithm]) -> None:
    """Register an algorithm in this process, so that the field `algorithm` of a policy can name it.

    To resume or load a run, register the name again. "package.module:Class" needs no registration.

    Args:
        name: name of the algorithm.
        algorithm: its class.

    Raises:
        TypeError: if `algorithm` is not a subclass of `wdjax.train.Algorithm`, or its `Options` is
            not a frozen dataclass with a default for every field.
        ValueError: if the name contains ":" or belongs to another class.
    """
    _require_algorithm(f"algorithm {name!r}", algorithm)
    register("algorithm", ALGORITHMS, name, algorithm)


def find_algorithm(name: str, field: str = "algorithm") -> Algorithm:
    """Return an instance of an algorithm.

    Args:
        name: built-in or registered name, or "package.module:Class".
        field: name of the configuration's field in errors.

    Raises:
        ValueError: if the name is unknown, or its module or class cannot be imported.
        TypeError: if it is not a complete algorithm.
    """
    found = find_named(
        field,
        name,
        ALGORITHMS,
        'a custom algorithm is "package.module:Class", or registered in this process by '
        "register_algorithm",
    )
    _require_algorithm(f"{field} = {name!r}", found)
    return found()


def _require_algorithm(what: str, found: object) -> None:
    if not (isinstance(found, type) and issubclass(found, Algorithm)):
        raise TypeError(f"{what}: must be a subclass of wdjax.train.Algorithm, not {found!r}")
    missing = ", ".join(sorted(found.__abstractmethods__))
    require(not missing, what, found.__name__, f"a complete algorithm. Implement {missing}.")
    learns = found.update is not Algorithm.update or found.update_team is not Algorithm.update_team
    require(learns, what, found.__name__, "a complete algorithm. Implement update or update_team.")
    for entry in found.keeps:
        require(
            entry in KEPT,
            f"{what}: keeps",
            found.keeps,
            f"a frozenset with {' and '.join(map(repr, KEPT))}, or empty; "
            f"{did_you_mean(str(entry), KEPT)}",
        )
    options = found.Options
    words = f"{what}: Options must be a frozen dataclass with a default for every field"
    parameters = getattr(options, "__dataclass_params__", None)
    if not (isinstance(options, type) and parameters and parameters.frozen):
        raise TypeError(f"{words}, not {options!r}")
    for field in dataclasses.fields(options):
        if is_required(field):
            raise TypeError(f"{words}: {field.name} has none")
        require(
            field.name not in PolicyConfig.__dataclass_fields__,
            f"{what}: an option",
            field.name,
            "a name that is not a field of every policy",
        )
    bases = (base for base in found.__mro__[1:] if issubclass(base, Algorithm))
    base = next((base for base in bases if "Options" in vars(base)), Algorithm)
    if base is not Algorithm and not issubclass(options, base.Options):
        raise TypeError(
            f"{what}: Options must be a subclass of {base.__name__}.Options, "
            f"which {base.__name__} reads"
        )


def read_config(values: TrainConfig | Mapping[str, object], imports: bool = True) -> TrainConfig:
    """Read a run's configuration from nested mappings, or check one that was built in Python.

    Options of algorithms become their `Options` dataclasses. Missing options have their defaults.

    Args:
        values: the fields of TrainConfig, or a TrainConfig.
        imports: import custom algorithms. False: their options stay mappings and are not checked.

    Raises:
        ValueError, TypeError: with the field, its value and the allowed values.
    """
    if isinstance(values, Mapping):
        values = dict(values)
        for block, cls in BLOCKS.items():
            given = values.get(block)
            if isinstance(given, Mapping):
                values[block] = {
                    name: place_options(f"{block}.{name}", own, cls) for name, own in given.items()
                }
    config = from_mapping(TrainConfig, values)

    def read(path: str, own: ConfigT) -> ConfigT:
        return with_options(path, own) if imports or own.algorithm in ALGORITHMS else own

    teams = {name: read(f"teams.{name}", own) for name, own in config.teams.items()}
    policies = {name: read(f"policies.{name}", own) for name, own in config.policies.items()}
    return dataclasses.replace(config, policies=policies | members(policies, teams), teams=teams)


def members(
    policies: Mapping[str, PolicyConfig], teams: Mapping[str, TeamConfig]
) -> dict[str, PolicyConfig]:
    """Return the configurations of the policies in teams, without an algorithm and options.

    Raises:
        ValueError: for an unknown policy, a policy of two teams, or one that sets its own algorithm
            or options.
    """
    found: dict[str, PolicyConfig] = {}
    for team, own in teams.items():
        for name in own.policies:
            require_known(f"policy in teams.{team}.policies", name, policies)
            require(name not in found, f"teams.{team}.policies", name, "a policy of no other team")
            policy = policies[name]
            allowed = f"left out, as policies.{name} belongs to team {team!r}. Set teams.{team}"
            is_own = policy.algorithm in (PolicyConfig.algorithm, own.algorithm)
            require(is_own, f"policies.{name}.algorithm", policy.algorithm, f"{allowed}.algorithm")
            options: Any = policy.options
            set_here = options.items() if isinstance(options, Mapping) else changed(options)
            for option, value in set_here:
                require(False, f"policies.{name}.{option}", value, f"{allowed}.{option}")
            found[name] = dataclasses.replace(
                policy, algorithm=PolicyConfig.algorithm, options=NoOptions()
            )
    return found


def place_options(path: str, given: object, cls: OptionsClass = PolicyConfig) -> object:
    """Return the fields of a policy or team with the options of its algorithm in `options`.

    Args:
        path: name of the policy or team, for messages.
        given: its fields; anything but a mapping is returned unchanged.
        cls: PolicyConfig or TeamConfig. All other fields are options.

    Raises:
        ValueError: for an option that is given twice.
    """
    if not isinstance(given, Mapping):
        return given
    flat, names = flat_policy(path, given), {*cls.__dataclass_fields__, *SHORT}
    own = {name: value for name, value in flat.items() if name in names}
    return {**own, "options": {name: value for name, value in flat.items() if name not in names}}


def option_fields(algorithm: str, path: str) -> Mapping[str, dataclasses.Field]:
    """Return the fields of an algorithm's options; `path` names the policy in errors."""
    return find_algorithm(algorithm, f"{path}.algorithm").Options.__dataclass_fields__


def built_in_options() -> dict[str, Mapping[str, dataclasses.Field]]:
    """Return the fields of the options of all built-in algorithms, by algorithm."""
    built_in = (name for name, place in ALGORITHMS.items() if isinstance(place, str))
    return {name: option_fields(name, "policies") for name in built_in}


def flat_policy(path: str, given: Mapping[str, object]) -> dict[str, object]:
    """Return the fields of a policy without the blocks `options` and `ddpg` (until 0.2).

    Their fields move to the top level.

    Raises:
        ValueError: for an option that is given twice.
    """
    flat = dict(given)
    for block in ("options", "ddpg"):
        inside = flat.pop(block, {})
        if not isinstance(inside, Mapping):
            raise TypeError(f"{path}.{block} = {inside!r}: must be a mapping of fields")
        for name, value in inside.items():
            if name in flat:
                raise ValueError(
                    f"{path}.{name} = {flat[name]!r}: "
                    f"also given as {path}.{block}.{name}. Remove one."
                )
            flat[name] = value
    return flat


def inherits(name: str, others: Collection[str]) -> bool:
    """Return whether an algorithm is a subclass of another one of these, as MAPPO is of PPO."""
    cls = type(find_algorithm(name))
    return any(type(find_algorithm(other)) in cls.__mro__[1:] for other in others)


def without_unused(
    path: str,
    config: PolicyConfig | TeamConfig,
    given: Mapping[str, object],
    owned: Mapping[str, dataclasses.Field],
) -> dict[str, object]:
    """Return the options of an algorithm; other options of 0.2 at their defaults are dropped.

    Args:
        path: name of the policy or team, for messages.
        config: its configuration.
        given: options by name.
        owned: fields of the options of its algorithm.

    Raises:
        ValueError: for options of these algorithms with other values, all of them at once, and for
            an unknown field.
    """
    known, unused = built_in_options(), []
    owners: dict[str, object] = {}  # algorithms with the unused options, in order
    for name, value in given.items():
        others = {other: default_of(own[name]) for other, own in known.items() if name in own}
        if name in owned:
            continue
        if not others:
            hints = typing.get_type_hints(type(config))
            del hints["options"]
            raise unknown_field(f"{path}.", name, {**hints, **owned})
        usual = [others[other] for other in OF_0_2 if other in others]
        if value not in usual and str(value) not in map(str, usual):
            unused.append(f"{path}.{name} = {value!r}")
            owners |= {other: None for other in others if not inherits(other, others)}
    if unused:
        what, them = ("option", "it") if len(unused) == 1 else ("options", "them")
        names = " and ".join(", ".join(owners).rsplit(", ", 1))
        raise ValueError(
            f"{', '.join(unused)}: {config.algorithm} has no such {what} ({names} "
            f"{'has' if len(owners) == 1 else 'have'} {them}). Remove {them}."
        )
    return {name: value for name, value in given.items() if name in owned}


def without_old_options(
    path: str, given: object, before: object, changes: Collection[str]
) -> object:
    """Return the fields of a policy or team without options of its previous algorithm.

    Args:
        path: its name, "policies.runner" or "teams.pair".
        given: its fields, flat.
        before: its fields before the changes; None for a new one.
        changes: dotted names of all changes. An option among them is kept, and refused later.
    """
    if not (isinstance(given, Mapping) and isinstance(before, Mapping)):
        return given
    old, new = (fields.get("algorithm", PolicyConfig.algorithm) for fields in (before, given))
    if old == new or not isinstance(new, str):
        return given
    lost = option_fields(old, path).keys() - option_fields(new, path).keys()
    return {
        name: value
        for name, value in given.items()
        if name not in lost or f"{path}.{name}" in changes
    }


def with_options(path: str, config: ConfigT) -> ConfigT:
    """Return the configuration of a policy or team with the `Options` of its algorithm.

    Options of other built-in algorithms are dropped if they are at their defaults, because files of
    0.2 contain the options of all algorithms.

    Raises:
        ValueError, TypeError: with the field, its value and the allowed ones, or the closest name.
    """
    cls = find_algorithm(config.algorithm, f"{path}.algorithm").Options
    given: Any = config.options
    if dataclasses.is_dataclass(given) and type(given) is not cls:  # of another algorithm
        given = dict(changed(given))
    require(
        isinstance(given, Mapping | cls), f"{path}.options", given, "a mapping of fields", TypeError
    )
    if isinstance(given, Mapping):
        given = without_unused(path, config, given, cls.__dataclass_fields__)
        require_no_schedules(path, cls, given)
    return dataclasses.replace(config, options=from_mapping(cls, given, f"{path}."))


def require_no_schedules(path: str, cls: OptionsClass, given: Mapping[str, object]) -> None:
    """Raise TypeError, with the annotation to use, for a schedule of a custom option."""
    for name, value in given.items():
        field = cls.__dataclass_fields__[name]
        owner = next(base for base in cls.__mro__ if name in vars(base).get("__annotations__", ()))
        is_custom = is_traced(field) and not owner.__module__.startswith("wdjax.train.algorithms.")
        if is_custom and not is_scheduled(field) and isinstance(value, (list, tuple, Mapping)):
            raise TypeError(
                f"{path}.{name} = {value!r}: must be a number. To allow a schedule, annotate the "
                "field with wdjax.train.learning.Schedule"
            )


def policy_fields(name: str, policies: Iterable[str]) -> list[str]:
    """Return the dotted names of a field in every policy; empty if it is unknown.

    For example ["policies.agent.learning_rate"] for "lr".
    """
    name = SHORT.get(name, name)
    found = next(
        (path for path in sorted(known_fields(), key=len) if path.split(".")[-1] == name), None
    )
    return [f"policies.{policy}.{found}" for policy in policies] if found else []


def known_fields() -> dict[str, dataclasses.Field]:
    """Return the fields of policies and of all built-in algorithms' options, by dotted name."""
    fields = {path: field for path, (*_, field), _ in leaves(PolicyConfig())}
    del fields["options"]
    return fields | {
        name: field for own in built_in_options().values() for name, field in own.items()
    }
