"""Rules of `wdjax.check_env` on fields, spaces, and the structure of outputs.

Each rule is a function of a Case that calls `fail` if the environment breaks it.
"""

import copy
import dataclasses
import functools
import inspect
import numbers
from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp

from wdjax.arguments import static_names
from wdjax.env import require_batched_spaces
from wdjax.env_checker.case import (
    MASK,
    Case,
    expect,
    fail,
    has_mask,
    space_parts,
)
from wdjax.env_checker.leaves import (
    different_types,
    is_number,
    named_leaves,
    structure_of,
    words,
)
from wdjax.stepping import RESERVED_INFO

# --- values ---


def env_is_a_value(case: Case) -> None:
    """Require a frozen, hashable dataclass that equals its copy."""
    own_class, names = type(case.env), {field.name for field in dataclasses.fields(case.env)}
    annotated = [
        name
        for name, kind in inspect.get_annotations(own_class).items()
        if "ClassVar" not in str(kind)
    ]
    assigned = [
        name
        for name in vars(case.env)
        if not isinstance(getattr(own_class, name, None), functools.cached_property)
    ]
    # equality ignores attributes that are not fields, so jit would confuse two environments
    for name in annotated + assigned:
        expect(
            name in names,
            f"{case.name}.{name} is not a field. Add @dataclasses.dataclass(frozen=True) to its "
            "class, with a line `name: type = default` for each field and no __init__.",
        )
    fields = {
        field.name: getattr(case.env, field.name)
        for field in dataclasses.fields(case.env)
        if field.init
    }
    for name, value in fields.items():
        try:
            hash(value)
        except TypeError as error:
            fail(
                f"{case.name}.{name} is a {type(value).__name__}, which is not hashable. "
                "Use a number, a string or a tuple.",
                error,
            )
    arguments = static_names(case.env)  # other fields hold objects of other libraries: not copied
    same = type(case.env)(
        **{
            name: copy.deepcopy(value) if name in arguments else value
            for name, value in fields.items()
        }
    )
    expect(
        same == case.env and hash(same) == hash(case.env),
        f"{case.name} does not equal a copy of itself. "
        "Use field values that compare by value, and leave __eq__ and __hash__ to the dataclass.",
    )


def params_are_frozen_numbers(case: Case) -> None:
    """Require default_params to be a frozen pytree of numbers that check_params accepts."""
    params = case.env.default_params
    expect(
        is_frozen_pytree(params),
        f"default_params has type {type(params).__name__}: must be a frozen pytree. "
        "Decorate it with flax.struct.dataclass.",
    )
    for name in sorted(
        {field.name for field in dataclasses.fields(params)} & set(static_names(case.env))
    ):
        fail(
            f"{name} is a field of both {case.name} and its params, so make(...) can set only "
            "one. Rename one of them."
        )
    for name, leaf in named_leaves({"params": params}):
        expect(
            is_number(leaf),
            f"{name} = {leaf!r:.80}: must be a number or an array. Make static choices fields of "
            f"{case.name}.",
        )
    try:
        case.env.check_params(case.params)
    except (ValueError, TypeError) as error:
        fail(f"check_params rejects the params of this check: {error}", error)


def is_frozen_pytree(value: Any) -> bool:
    """Return whether a value is a frozen dataclass registered as a pytree."""
    frozen = (
        dataclasses.is_dataclass(value)
        and type(value).__dataclass_params__.frozen  # type: ignore[union-attr]
        and hasattr(value, "replace")
    )
    return frozen and not jax.tree_util.all_leaves([value])  # also true without any field


def groups_are_counts(case: Case) -> None:
    """Require groups to map names to agent counts of at least 1."""
    groups = case.env.groups
    expect(
        isinstance(groups, Mapping),
        f"groups has type {type(groups).__name__}: must be a dict, group name -> number of agents",
    )
    for name, size in groups.items():
        expect(isinstance(name, str), f"groups has the key {name!r}: must be a string")
        expect(
            isinstance(size, numbers.Integral) and not isinstance(size, bool) and size >= 1,
            f"groups[{name!r}] = {size!r}: must be a whole number of at least 1",
        )


# --- spaces ---


def spaces_fit_the_groups(case: Case) -> None:
    """Require one space per group, batched by the number of its agents."""
    try:
        require_batched_spaces(case.env, case.params)
        _ = case.observation_space.single, case.action_space.single  # agents have equal bounds
    except ValueError as error:
        fail(str(error))


def masks_fit_the_actions(case: Case) -> None:
    """Require an action mask to have one entry per choice of a discrete action."""
    actions = case.by_group(case.action_space)
    for group, observation in case.by_group(case.observation_space).items():
        if not has_mask(observation):
            continue
        of_group = f" of group {group!r}" if group else ""
        sizes, shape = getattr(actions[group], "nvec", ()), observation[MASK].single.shape
        expect(
            sizes,
            f"{MASK}{of_group} masks a {type(actions[group]).__name__}: must be Discrete or "
            "MultiDiscrete",
        )
        expect(
            shape == (sum(sizes),),
            f"{MASK}{of_group} has shape {shape}: must be ({sum(sizes)},), one entry per choice",
        )


# --- structure ---


def state_is_a_frozen_dataclass(case: Case) -> None:
    """Require the state to be a frozen pytree dataclass."""
    state = case.reset[1]["state"]
    kind = "array" if isinstance(state, jax.ShapeDtypeStruct) else type(state).__name__
    expect(
        is_frozen_pytree(state),
        f"reset returns a state of type {kind}: must be a frozen pytree. "
        "Decorate it with flax.struct.dataclass, and return (obs, state).",
    )


def reset_observes_what_the_space_says(case: Case) -> None:
    """Require the observation of reset to match observation_space."""
    check_observation(case, "reset", case.reset[1]["obs"])


def step_observes_what_the_space_says(case: Case) -> None:
    """Require the observation of step to match observation_space."""
    check_observation(case, "step", case.step[1]["obs"])


def check_observation(case: Case, method: str, obs: Any) -> None:
    """Fail unless an observation has the structure, shapes and dtypes of observation_space."""
    for name, space, leaf in space_parts(case.observation_space, obs, "obs"):
        dtype = jnp.dtype(space.dtype)
        expect(
            hasattr(leaf, "shape") and (leaf.shape, leaf.dtype) == (space.shape, dtype),
            f"{method} returns {name} as {words(leaf)}: must be {dtype} of shape {space.shape}, "
            "like observation_space",
        )


def step_keeps_the_structure_of_the_state(case: Case) -> None:
    """Require the states of reset and step to have equal structure, shapes and dtypes."""
    first, after = {"state": case.reset[1]["state"]}, {"state": case.step[1]["state"]}
    expect(
        structure_of(first) == structure_of(after),
        "step returns a state with another structure than reset. "
        "Return the same fields, and the same values of static fields (pytree_node=False).",
    )
    for name, one, other in different_types(first, after):
        fail(f"step returns {name} as {other}, reset as {one}. Cast or reshape one of them.")


def rewards_and_ends_are_per_agent(case: Case) -> None:
    """Require a float32 reward and bool flags for every agent."""
    for name, dtype in (("reward", "float32"), ("terminated", "bool"), ("truncated", "bool")):
        check_per_agent(case, "step", name, case.step[1][name], dtype)


def check_per_agent(case: Case, method: str, name: str, value: Any, dtype: str) -> None:
    """Fail unless a method returns one number per agent, with groups in a dict."""
    groups = case.env.groups
    if groups and (not isinstance(value, Mapping) or set(value) != set(groups)):
        keys = sorted(value) if isinstance(value, Mapping) else "a value that is not a dict"
        fail(f"{method} returns {name} as {keys}: must be a dict of the groups, {list(groups)}")
    for group, leaf in case.by_group(value).items():
        expected = f"{dtype} of shape {(int(groups[group]),) if group else ()}"
        place = f"{name}[{group!r}]" if group else name
        expect(
            words(leaf) == expected,
            f"{method} returns {place} as {words(leaf)}: must be {expected}",
        )


def info_holds_scalars(case: Case) -> None:
    """Require info to be a dict of scalars without reserved names."""
    info = case.step[1]["info"]
    expect(
        isinstance(info, Mapping),
        f"step returns info as {type(info).__name__}: must be a dict, which may be empty",
    )
    for name, leaf in info.items():
        expect(
            name not in RESERVED_INFO,
            f"step returns info[{name!r}], a name reserved by wdjax.vectorize. Choose another "
            "name.",
        )
        expect(
            hasattr(leaf, "shape") and leaf.shape == () and leaf.dtype.kind in "biuf",
            f"step returns info[{name!r}] as {words(leaf)}: "
            "must be a scalar per step, which is summed over an episode",
        )
