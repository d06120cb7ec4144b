"""Rules of `wdjax.check_env` on fields, spaces, tracing, structure and purity; no random play.

Each rule is a function of a Case that calls `fail` if the environment breaks it.
"""

import copy
import dataclasses
import functools
import inspect
import numbers
from collections.abc import Iterator, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.experimental import checkify

from wdjax.env import require_batched_spaces, static_names
from wdjax.env_checker.case import (
    MASK,
    RETURNS,
    Case,
    explained,
    fail,
    has_mask,
    quick_jit,
    sample_action,
    space_parts,
)
from wdjax.env_checker.leaves import as_numpy, is_number, named_leaves, words
from wdjax.vector import RESERVED_INFO

# --- values ---


def env_is_a_value(case: Case) -> None:
    """Require a frozen, hashable dataclass that equals its copy."""
    own_class, names = type(case.env), {field.name for field in dataclasses.fields(case.env)}
    annotations = inspect.get_annotations(own_class).items()
    annotated = [name for name, kind in annotations if "ClassVar" not in str(kind)]
    assigned = [
        name
        for name in vars(case.env)
        if not isinstance(getattr(own_class, name, None), functools.cached_property)
    ]
    # equality ignores attributes that are not fields, so jit would confuse two environments
    for name in annotated + assigned:
        if name not in names:
            remedy = (
                "to its class, with a line `name: type = default` for each field and no __init__"
            )
            fail(
                f"{case.name}.{name} is not a field. Add @dataclasses.dataclass(frozen=True) {remedy}."
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
            kind = type(value).__name__
            fail(
                f"{case.name}.{name} is a {kind}, which is not hashable. Use a number, a string or a tuple.",
                error,
            )
    arguments = static_names(case.env)  # other fields hold objects of other libraries: not copied
    same = type(case.env)(
        **{
            name: copy.deepcopy(value) if name in arguments else value
            for name, value in fields.items()
        }
    )
    if same != case.env or hash(same) != hash(case.env):
        remedy = (
            "Use field values that compare by value, and leave __eq__ and __hash__ to the dataclass"
        )
        fail(f"{case.name} does not equal a copy of itself. {remedy}.")


def params_are_frozen_numbers(case: Case) -> None:
    """Require default_params to be a frozen pytree of numbers that check_params accepts."""
    params = case.env.default_params
    kind = type(params).__name__
    if not is_frozen_pytree(params):
        fail(
            f"default_params has type {kind}: must be a frozen pytree. Decorate it with flax.struct.dataclass."
        )
    for name in sorted(
        {field.name for field in dataclasses.fields(params)} & set(static_names(case.env))
    ):
        fail(
            f"{name} is a field of both {case.name} and its params, so make(...) can set only one. Rename one of them."
        )
    for name, leaf in named_leaves({"params": params}):
        if not is_number(leaf):
            fail(
                f"{name} = {leaf!r:.80}: must be a number or an array. Make static choices fields of {case.name}."
            )
    try:
        case.env.check_params(case.params)
    except (ValueError, TypeError) as error:
        fail(f"check_params rejects the params of this check: {error}", error)


def is_frozen_pytree(value: Any) -> bool:
    """Return whether a value is a frozen dataclass registered as a pytree."""
    frozen = (
        dataclasses.is_dataclass(value)
        and type(value).__dataclass_params__.frozen
        and hasattr(value, "replace")
    )
    return frozen and not jax.tree_util.all_leaves([value])  # also true without any field


def groups_are_counts(case: Case) -> None:
    """Require groups to map names to agent counts of at least 1."""
    groups = case.env.groups
    if not isinstance(groups, Mapping):
        fail(
            f"groups has type {type(groups).__name__}: must be a dict, group name -> number of agents"
        )
    for name, size in groups.items():
        if not isinstance(name, str):
            fail(f"groups has the key {name!r}: must be a string")
        if isinstance(size, bool) or not isinstance(size, numbers.Integral) or size < 1:
            fail(f"groups[{name!r}] = {size!r}: must be a whole number of at least 1")


# --- spaces ---


def spaces_fit_the_groups(case: Case) -> None:
    """Require one space per group, batched by the number of its agents."""
    try:
        require_batched_spaces(case.env, case.params)
    except ValueError as error:
        fail(str(error))
    for method, space in (
        ("observation_space", case.observation_space),
        ("action_space", case.action_space),
    ):
        for group, num in case.env.groups.items():
            # true also if the agents have different bounds
            if space[group] != space[group].single.batch(num):
                fail(
                    f"{method}[{group!r}] is not a batch of {num} agents. Return one agent's space.batch({num})."
                )


def masks_fit_the_actions(case: Case) -> None:
    """Require an action mask to have one entry per choice of a discrete action."""
    actions = case.by_group(case.action_space)
    for group, observation in case.by_group(case.observation_space).items():
        if not has_mask(observation):
            continue
        of_group = f" of group {group!r}" if group else ""
        sizes, shape = getattr(actions[group], "nvec", ()), observation[MASK].single.shape
        if not sizes:
            fail(
                f"{MASK}{of_group} masks a {type(actions[group]).__name__}: must be Discrete or MultiDiscrete"
            )
        if shape != (sum(sizes),):
            fail(
                f"{MASK}{of_group} has shape {shape}: must be ({sum(sizes)},), one entry per choice"
            )


# --- tracing ---


def functions_are_traceable(case: Case) -> None:
    """Require reset, step and both spaces to be traceable."""
    _ = case.reset, case.step  # tracing raises its own explanation
    for method in ("observation_space", "action_space"):
        with explained(method):
            jax.eval_shape(
                lambda key, params, method=method: getattr(case.env, method)(params).sample(key),
                case.key,
                case.params,
            )


def nothing_calls_the_host(case: Case) -> None:
    """Reject host callbacks, including jax.debug.print, in reset and step."""
    for method, (jaxpr, _) in (("reset", case.reset), ("step", case.step)):
        for name in primitives(jaxpr):
            if "callback" in name or name == "debug_print":
                fail(
                    f"{method} calls back to the host ({name}). Use jax operations, and do not print."
                )


def primitives(jaxpr: Any) -> Iterator[str]:
    """Yield the name of every primitive, including those inside loops and branches."""
    for equation in jaxpr.eqns:
        yield equation.primitive.name
        for value in jax.tree.leaves(list(equation.params.values())):
            inner = getattr(value, "jaxpr", value)
            if hasattr(inner, "eqns"):
                yield from primitives(inner)


def nothing_leaks(case: Case) -> None:
    """Reject tracers that outlive reset or step."""
    remedy = "Store nothing outside its return values, neither in attributes nor in globals"
    _trace_twice(case, jax.checking_leaks(), "Leaked", f"leaks a traced value. {remedy}.")


def no_key_is_used_twice(case: Case) -> None:
    """Reject a key that is used twice in reset or step."""
    remedy = "Split it with jax.random.split, and use each part once"
    _trace_twice(case, jax.debug_key_reuse(True), "KeyReuseError", f"uses one key twice. {remedy}.")


def _trace_twice(case: Case, watch: Any, pattern: str, fault: str) -> None:
    """Trace reset and two steps, and fail if an error contains `pattern`.

    The second step also uses the keys that the first step stores in the state.

    Args:
        case: the environment under test.
        watch: context manager that raises the errors.
        pattern: text in the error's type or message; all other errors are raised unchanged.
        fault: end of the failure message.
    """
    env = case.env

    def steps(key: jax.Array, params: Any) -> Any:
        reset_key, *step_keys = jax.random.split(key, 3)
        _, state = env.reset(reset_key, params)
        for step_key in step_keys:
            _, state, *rest = env.step(
                step_key, state, jax.tree.map(jnp.zeros_like, case.action), params
            )
        return state, rest

    for method, calls in (("reset", lambda key, params: env.reset(key, params)), ("step", steps)):
        try:
            with watch:
                jax.eval_shape(calls, case.key, case.params)
        except Exception as error:
            if pattern not in f"{type(error).__name__}: {error}":
                raise
            fail(f"{method} {fault}", error)


# --- structure ---


def state_is_a_frozen_dataclass(case: Case) -> None:
    """Require the state to be a frozen pytree dataclass."""
    state = case.reset[1]["state"]
    if not is_frozen_pytree(state):
        kind = "array" if isinstance(state, jax.ShapeDtypeStruct) else type(state).__name__
        remedy = "Decorate it with flax.struct.dataclass, and return (obs, state)"
        fail(f"reset returns a state of type {kind}: must be a frozen pytree. {remedy}.")


def reset_observes_what_the_space_says(case: Case) -> None:
    """Require the observation of reset to match observation_space."""
    check_observation(case, "reset", case.reset[1]["obs"])


def step_observes_what_the_space_says(case: Case) -> None:
    """Require the observation of step to match observation_space."""
    check_observation(case, "step", case.step[1]["obs"])


def check_observation(case: Case, method: str, obs: Any) -> None:
    """Fail unless an observation has the structure, shapes and dtypes of observation_space."""
    for name, space, leaf in space_parts(case.observation_space, obs, "obs"):
        if not hasattr(leaf, "shape") or (leaf.shape, leaf.dtype) != (
            space.shape,
            jnp.dtype(space.dtype),
        ):
            expected = f"{jnp.dtype(space.dtype)} of shape {space.shape}"
            fail(
                f"{method} returns {name} as {words(leaf)}: must be {expected}, like observation_space"
            )


def step_keeps_the_structure_of_the_state(case: Case) -> None:
    """Require the states of reset and step to have equal structure, shapes and dtypes."""
    first, after = case.reset[1]["state"], case.step[1]["state"]
    if type(first) is not type(after) or jax.tree.structure(first) != jax.tree.structure(after):
        parts = "the same fields, and the same values of static fields (pytree_node=False)"
        fail(f"step returns a state with another structure than reset. Return {parts}.")
    pairs = zip(named_leaves({"state": first}), named_leaves({"state": after}), strict=True)
    for (name, one), (_, other) in pairs:
        if words(one) != words(other):
            fail(
                f"step returns {name} as {words(other)}, reset as {words(one)}. Cast or reshape one of them."
            )


def rewards_and_ends_are_per_agent(case: Case) -> None:
    """Require a float32 reward and bool flags for every agent."""
    groups = case.env.groups
    for name, dtype in (("reward", "float32"), ("terminated", "bool"), ("truncated", "bool")):
        value = case.step[1][name]
        if groups and (not isinstance(value, Mapping) or set(value) != set(groups)):
            keys = sorted(value) if isinstance(value, Mapping) else "a value that is not a dict"
            fail(f"step returns {name} as {keys}: must be a dict of the groups, {list(groups)}")
        for group, leaf in case.by_group(value).items():
            expected = f"{dtype} of shape {(int(groups[group]),) if group else ()}"
            if words(leaf) != expected:
                place = f"{name}[{group!r}]" if group else name
                fail(f"step returns {place} as {words(leaf)}: must be {expected}")


def info_holds_scalars(case: Case) -> None:
    """Require info to be a dict of scalars without reserved names."""
    info = case.step[1]["info"]
    if not isinstance(info, Mapping):
        fail(f"step returns info as {type(info).__name__}: must be a dict, which may be empty")
    for name, leaf in info.items():
        if name in RESERVED_INFO:
            fail(
                f"step returns info[{name!r}], a name reserved by wdjax.vectorize. Choose another name."
            )
        if not hasattr(leaf, "shape") or leaf.shape != () or leaf.dtype.kind not in "biuf":
            allowed = "a scalar per step, which is summed over an episode"
            fail(f"step returns info[{name!r}] as {words(leaf)}: must be {allowed}")


# --- running ---


def first_step(case: Case, key: jax.Array, params: Any) -> dict[str, dict[str, Any]]:
    """Reset and step once, and return the outputs of each method by name."""
    reset_key, action_key, step_key = jax.random.split(key, 3)
    obs, state = case.env.reset(reset_key, params)
    action = sample_action(case.env, case.env.action_space(params), action_key, obs)
    step = dict(zip(RETURNS["step"], case.env.step(step_key, state, action, params), strict=True))
    return {"reset": {"obs": obs, "state": state}, "step": step}


def same_inputs_give_the_same(case: Case) -> None:
    """Require reset and step to lower to the same program twice.

    Values from Python side effects, such as np.random, become constants in the program, so they
    differ between the two. `checkify.debug_check`s are removed first, because each of them gets a
    new number when traced.
    """
    state = case.reset[1]["state"]
    for method, args in (
        ("reset", (case.key, case.params)),
        ("step", (case.key, state, case.action, case.params)),
    ):

        def call(*args, method=method) -> Any:
            return getattr(case.env, method)(*args)

        programs = {
            jax.jit(checkify.checkify(call, frozenset())).lower(*args).as_text() for _ in range(2)
        }
        if len(programs) > 1:
            remedy = "Draw with jax.random from key, and keep nothing between calls"
            fail(f"{method} differs between two calls with the same inputs. {remedy}.")


def steps_compile_once(case: Case) -> None:
    """Require a jitted step to be traced only once.

    It is called with a state of reset, with a state of step, and with params on a device.
    """
    traces = []

    @jax.jit
    def step(key: jax.Array, state: Any, action: Any, params: Any) -> Any:
        traces.append(1)
        return case.env.step(key, state, action, params)

    first = case.reset[1]["state"]
    second = jax.eval_shape(step, case.key, first, case.action, case.params)[1]
    jax.eval_shape(step, case.key, second, case.action, case.params)
    if len(traces) > 1:
        pairs = zip(named_leaves({"state": first}), named_leaves({"state": second}), strict=True)
        weak = [name for (name, one), (_, other) in pairs if one.weak_type != other.weak_type]
        remedy = "Give it a dtype in reset and in step, like jnp.float32(0.0)"
        fail(
            f"step is compiled again for its own state: {', '.join(weak)} comes from a Python number. {remedy}."
        )
    on_device = jax.tree.map(
        lambda leaf: jax.ShapeDtypeStruct(np.shape(leaf), jnp.result_type(leaf)), case.params
    )
    jax.eval_shape(step, case.key, second, case.action, on_device)
    if len(traces) > 1:
        bare = [
            name
            for name, leaf in named_leaves({"params": case.params})
            if isinstance(leaf, (int, float))
        ]
        fail(
            f"step is compiled again for params on a device. Write {', '.join(bare)} as np.float32(...)."
        )


def params_can_be_batched(case: Case) -> None:
    """Require equal results for several params in one vmap and for each of them alone.

    Also requires check_params to accept params with a leading axis.
    """
    variants = [vary(case, factor) for factor in (1.0, 0.95, 0.9)]
    batch = jax.tree.map(lambda *leaves: np.stack([as_numpy(leaf) for leaf in leaves]), *variants)
    try:
        case.env.check_params(batch)
    except Exception as error:
        remedy = "Compare with np.all(...), and compare array fields with params[..., None]"
        fail(f"check_params fails for params with a leading axis. {remedy}.", error)

    def play(key, params) -> Any:
        return first_step(case, key, params)

    keys = jax.vmap(jax.random.key)(case.seed + np.arange(len(variants)))
    together, alone = quick_jit(jax.vmap(play))(keys, batch), quick_jit(play)
    for i, params in enumerate(variants):
        one = alone(keys[i], params)
        for method in ("reset", "step"):
            pairs = zip(named_leaves(one[method]), named_leaves(together[method]), strict=True)
            for (name, a), (_, b) in pairs:
                a, b = as_numpy(a), as_numpy(b)[i]
                if not np.allclose(a, b, case.rtol, case.atol, equal_nan=True):
                    remedy = (
                        "Correct its custom_vmap rule, or code that depends on the number of axes"
                    )
                    fail(f"{method} returns {name} = {b} under vmap, and {a} without it. {remedy}.")


def vary(case: Case, factor: float) -> Any:
    """Return params with every float multiplied by `factor`.

    If check_params rejects the result, the params are returned unchanged.
    """

    def scale(leaf) -> Any:
        return np.asarray(leaf * factor, leaf.dtype) if as_numpy(leaf).dtype.kind == "f" else leaf

    varied = jax.tree.map(lambda leaf: scale(np.asarray(leaf)), case.params)
    try:
        case.env.check_params(varied)
    except ValueError:
        return case.params
    return varied
