"""Algorithms by name, and what they make of a configuration: their options, and their hyperparameters."""

import dataclasses
import functools
import typing
from collections.abc import Collection, Iterable, Mapping
from typing import Any

from wdjax.checks import require, require_known
from wdjax.named import find_named
from wdjax.train.config.facts import changed, default_of, is_required, leaves
from wdjax.train.config.reading import SHORT, from_mapping, register, unknown_field
from wdjax.train.config.schema import PolicyConfig, TeamConfig, TrainConfig
from wdjax.train.state.algorithm import Algorithm, NoOptions

# Name in a preset -> where its class is, or the class; any other algorithm is named by its import path.
ALGORITHMS: dict[str, str | type[Algorithm]] = {
    "A2C": "wdjax.train.algorithms.a2c:A2C",
    "PPO": "wdjax.train.algorithms.ppo:PPO",
    "DDPG": "wdjax.train.algorithms.ddpg:DDPG",
}


BLOCKS = {"policies": PolicyConfig, "teams": TeamConfig}


def register_algorithm(name: str, algorithm: type[Algorithm]) -> None:
    """Register an algorithm in this process, so that the field `algorithm` of a policy can name it.

    To resume or load a run, register the name again. "package.module:Class" needs no registration.

    Args:
        name: name of the algorithm.
        algorithm: its class.

    Raises:
        TypeError: if `algorithm` is not a subclass of `wdjax.train.Algorithm`, or its `Options` is not a frozen
            dataclass with a default for every field.
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
    custom = 'a custom algorithm is "package.module:Class", or registered in this process by register_algorithm'
    found = find_named(field, name, ALGORITHMS, custom)
    _require_algorithm(f"{field} = {name!r}", found)
    return found()


def _require_algorithm(what: str, found: Any) -> None:
    if not (isinstance(found, type) and issubclass(found, Algorithm)):
        raise TypeError(f"{what}: must be a subclass of wdjax.train.Algorithm, not {found!r}")
    missing = ", ".join(sorted(found.__abstractmethods__))
    require(not missing, what, found.__name__, f"a complete algorithm. Implement {missing}.")
    learns = found.update is not Algorithm.update or found.update_team is not Algorithm.update_team
    require(learns, what, found.__name__, "a complete algorithm. Implement update or update_team.")
    options = found.Options
    words = f"{what}: Options must be a frozen dataclass with a default for every field"
    if not (
        isinstance(options, type)
        and dataclasses.is_dataclass(options)
        and options.__dataclass_params__.frozen
    ):
        raise TypeError(f"{words}, not {options!r}")
    for field in dataclasses.fields(options):
        if is_required(field):
            raise TypeError(f"{words}: {field.name} has none")
        taken = field.name in PolicyConfig.__dataclass_fields__
        require(
            not taken,
            f"{what}: an option",
            field.name,
            "a name that is not a field of every policy",
        )
    base = next(
        (base for base in found.__mro__[1:] if "Options" in vars(base) and base is not Algorithm),
        None,
    )
    if base is not None and not issubclass(options, base.Options):
        raise TypeError(
            f"{what}: Options must be a subclass of {base.__name__}.Options, which {base.__name__} reads"
        )


def read_config(values: Any, imports: bool = True) -> TrainConfig:
    """Read a run's configuration from nested mappings, or check one that was built in Python.

    Options of algorithms become their `Options` dataclasses; those that are not given have their defaults.

    Args:
        values: the fields of TrainConfig, or a TrainConfig.
        imports: import the code of custom algorithms. False: their options stay mappings and are not checked.

    Raises:
        ValueError, TypeError: naming the field, its value and what is allowed.
    """
    for block in ("policies", "teams") if isinstance(values, Mapping) else ():
        if isinstance(given := values.get(block), Mapping):
            place = functools.partial(place_options, cls=BLOCKS[block])
            values = {
                **values,
                block: {name: place(f"{block}.{name}", own) for name, own in given.items()},
            }
    config = from_mapping(TrainConfig, values)
    reads = lambda own: imports or own.algorithm in ALGORITHMS  # noqa: E731
    read = lambda path, own: with_options(path, own) if reads(own) else own  # noqa: E731
    teams = {name: read(f"teams.{name}", own) for name, own in config.teams.items()}
    policies = {name: read(f"policies.{name}", own) for name, own in config.policies.items()}
    return dataclasses.replace(config, policies=policies | members(policies, teams), teams=teams)


def members(
    policies: Mapping[str, PolicyConfig], teams: Mapping[str, TeamConfig]
) -> dict[str, PolicyConfig]:
    """Return the configurations of the policies that belong to teams, with the algorithm of their team.

    Raises:
        ValueError: for an unknown policy, a policy of two teams, or one that sets an algorithm or options of its own.
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
            options = (
                policy.options
                if isinstance(policy.options, Mapping)
                else dict(changed(policy.options))
            )
            for option, value in options.items():
                require(False, f"policies.{name}.{option}", value, f"{allowed}.{option}")
            found[name] = dataclasses.replace(policy, algorithm=own.algorithm, options=NoOptions())
    return found


def place_options(path: str, given: Any, cls: type = PolicyConfig) -> Any:
    """Return the fields of a policy or a team (`cls`) with all others, those of its algorithm, moved into `options`.

    Raises:
        ValueError: for an option that is given twice.
    """
    if not isinstance(given, Mapping):
        return given
    given, names = flat_policy(path, given), {*cls.__dataclass_fields__, *SHORT}
    own = {name: value for name, value in given.items() if name in names}
    return {**own, "options": {name: value for name, value in given.items() if name not in names}}


def option_fields(algorithm: str, path: str) -> Mapping[str, dataclasses.Field]:
    """Return the fields of an algorithm's options; `path` names the policy in errors."""
    return find_algorithm(algorithm, f"{path}.algorithm").Options.__dataclass_fields__


def flat_policy(path: str, given: Mapping[str, Any]) -> dict[str, Any]:
    """Return the fields of a policy with its blocks `options` and `ddpg` (until 0.2) written flat.

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
                    f"{path}.{name} = {flat[name]!r}: also given as {path}.{block}.{name}. Remove one."
                )
            flat[name] = value
    return flat


def without_unused(
    path: str,
    given: Mapping[str, Any],
    algorithm: str,
    owned: Mapping[str, dataclasses.Field],
    cls: type,
) -> dict[str, Any]:
    """Return the options of a policy without those of other built-in algorithms that are at their defaults.

    Raises:
        ValueError: for other options of these algorithms, all of them at once, and for an unknown field.
    """
    hints = typing.get_type_hints(cls)
    built_in = [name for name, place in ALGORITHMS.items() if isinstance(place, str)]
    known = [(other, option_fields(other, path)) for other in built_in]
    kept, unused, owners = {}, [], {}
    for name, value in given.items():
        others = {other: default_of(fields[name]) for other, fields in known if name in fields}
        if name in owned:
            kept[name] = value
        elif not others:
            del hints["options"]
            raise unknown_field(f"{path}.", name, {**hints, **owned})
        elif value not in others.values() and str(value) not in map(str, others.values()):
            unused.append(f"{path}.{name} = {value!r}")
            owners |= others
    if unused:
        what, them = ("option", "it") if len(unused) == 1 else ("options", "them")
        others = f"{' and '.join(owners)} {'has' if len(owners) == 1 else 'have'} {them}"
        raise ValueError(
            f"{', '.join(unused)}: {algorithm} has no such {what} ({others}). Remove {them}."
        )
    return kept


def without_old_options(policy: str, given: Any, before: Any, changes: Collection[str]) -> Any:
    """Return the fields of a policy whose algorithm changed without options that the new one does not have.

    Args:
        policy: its name.
        given: its fields, flat.
        before: its fields before the changes; None for a new policy.
        changes: dotted names of all changes. An option among them is kept, and refused later.
    """
    if not (isinstance(given, Mapping) and isinstance(before, Mapping)):
        return given
    old, new = (fields.get("algorithm", PolicyConfig.algorithm) for fields in (before, given))
    if old == new or not isinstance(new, str):
        return given
    path = f"policies.{policy}"
    lost = option_fields(old, path).keys() - option_fields(new, path).keys()
    return {
        name: value
        for name, value in given.items()
        if name not in lost or f"{path}.{name}" in changes
    }


def with_options(path: str, config: Any) -> Any:
    """Return the configuration of a policy or a team with the options of its algorithm read.

    Options of other built-in algorithms are dropped where they are at their defaults: files of 0.2 hold them all.

    Raises:
        ValueError, TypeError: naming the field, its value and what is allowed, or the closest name.
    """
    cls, given = find_algorithm(config.algorithm, f"{path}.algorithm").Options, config.options
    if dataclasses.is_dataclass(given) and type(given) is not cls:  # of another algorithm
        given = dict(changed(given))
    require(
        isinstance(given, Mapping | cls), f"{path}.options", given, "a mapping of fields", TypeError
    )
    if isinstance(given, Mapping):
        given = without_unused(
            path, given, config.algorithm, cls.__dataclass_fields__, type(config)
        )
    return dataclasses.replace(config, options=from_mapping(cls, given, f"{path}."))


def policy_fields(name: str, policies: Iterable[str]) -> list[str]:
    """Return the dotted names of a field of every policy, such as ["policies.agent.learning_rate"] for "lr".

    Empty if neither policies nor the options of any algorithm have such a field.
    """
    name = SHORT.get(name, name)
    found = next(
        (path for path in sorted(known_fields(), key=len) if path.split(".")[-1] == name), None
    )
    return [f"policies.{policy}.{found}" for policy in policies] if found else []


def known_fields() -> dict[str, dataclasses.Field]:
    """Return the fields of a policy by dotted name, those of all built-in algorithms' options included."""
    options = [
        find_algorithm(name).Options()
        for name, place in ALGORITHMS.items()
        if isinstance(place, str)
    ]
    fields = {
        path: field for one in (PolicyConfig(), *options) for path, (*_, field), _ in leaves(one)
    }
    return {path: field for path, field in fields.items() if not field.metadata.get("flat")}
