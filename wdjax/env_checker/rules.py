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
    expect,
    explained,
    fail,
    first_difference,
    has_mask,
    sample_action,
    space_parts,
)
from wdjax.env_checker.leaves import (
    as_numpy,
    different_types,
    element,
    is_number,
    named_leaves,
    structure_of,
    words,
)
from wdjax.kernels.backend import quick_jit
from wdjax.vector import RESERVED_INFO

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
            f"{name} is a field of both {case.name} and its params, so make(...) can set only one. Rename one of them."
        )
    for name, leaf in named_leaves({"params": params}):
        expect(
            is_number(leaf),
            f"{name} = {leaf!r:.80}: must be a number or an array. Make static choices fields of {case.name}.",
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
    except ValueError as error:
        fail(str(error))
    spaces: dict[str, Any] = {
        "observation_space": case.observation_space,
        "action_space": case.action_space,
    }
    for method, space in spaces.items():
        for group, num in case.env.groups.items():
            # true also if the agents have different bounds
            expect(
                space[group] == space[group].single.batch(num),
                f"{method}[{group!r}] is not a batch of {num} agents. Return one agent's space.batch({num}).",
            )


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
            f"{MASK}{of_group} masks a {type(actions[group]).__name__}: must be Discrete or MultiDiscrete",
        )
        expect(
            shape == (sum(sizes),),
            f"{MASK}{of_group} has shape {shape}: must be ({sum(sizes)},), one entry per choice",
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
            expect(
                "callback" not in name and name != "debug_print",
                f"{method} calls back to the host ({name}). Use jax operations, and do not print.",
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
    _trace_twice(
        case,
        jax.checking_leaks(),
        "Leaked",
        "leaks a traced value. "
        "Store nothing outside its return values, neither in attributes nor in globals.",
    )


def no_key_is_used_twice(case: Case) -> None:
    """Reject a key that is used twice in reset or step."""
    _trace_twice(
        case,
        jax.debug_key_reuse(True),
        "KeyReuseError",
        "uses one key twice. Split it with jax.random.split, and use each part once.",
    )


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
    groups = case.env.groups
    for name, dtype in (("reward", "float32"), ("terminated", "bool"), ("truncated", "bool")):
        value = case.step[1][name]
        if groups and (not isinstance(value, Mapping) or set(value) != set(groups)):
            keys = sorted(value) if isinstance(value, Mapping) else "a value that is not a dict"
            fail(f"step returns {name} as {keys}: must be a dict of the groups, {list(groups)}")
        for group, leaf in case.by_group(value).items():
            expected = f"{dtype} of shape {(int(groups[group]),) if group else ()}"
            place = f"{name}[{group!r}]" if group else name
            expect(
                words(leaf) == expected,
                f"step returns {place} as {words(leaf)}: must be {expected}",
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
            f"step returns info[{name!r}], a name reserved by wdjax.vectorize. Choose another name.",
        )
        expect(
            hasattr(leaf, "shape") and leaf.shape == () and leaf.dtype.kind in "biuf",
            f"step returns info[{name!r}] as {words(leaf)}: "
            "must be a scalar per step, which is summed over an episode",
        )


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
        expect(
            len(programs) == 1,
            f"{method} differs between two calls with the same inputs. "
            "Draw with jax.random from key, and keep nothing between calls.",
        )


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
        fail(
            f"step is compiled again for its own state: {', '.join(weak)} comes from a Python number. "
            "Give it a dtype in reset and in step, like jnp.float32(0.0)."
        )
    on_device = jax.tree.map(
        lambda leaf: jax.ShapeDtypeStruct(np.shape(leaf), jnp.result_type(leaf)), case.params
    )
    jax.eval_shape(step, case.key, second, case.action, on_device)
    bare = [
        name
        for name, leaf in named_leaves({"params": case.params})
        if isinstance(leaf, (int, float))
    ]
    expect(
        len(traces) == 1,
        f"step is compiled again for params on a device. Write {', '.join(bare)} as np.float32(...).",
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
        fail(
            "check_params fails for params with a leading axis. "
            "Compare with np.all(...), and compare array fields with params[..., None].",
            error,
        )
    play = functools.partial(first_step, case)
    keys = jax.vmap(jax.random.key)(case.seed + np.arange(len(variants)))
    together, alone = quick_jit(jax.vmap(play))(keys, batch), quick_jit(play)
    for i, params in enumerate(variants):
        one = alone(keys[i], params)
        for method in ("reset", "step"):
            of_batch = jax.tree.map(lambda leaf: leaf[i], together[method])  # noqa: B023
            if found := first_difference(case, one[method], of_batch):
                name, index, a, b = found
                fail(
                    f"{method} returns {name}{element(index)} = {b} under vmap, and {a} without it. "
                    "Correct its custom_vmap rule, or code that depends on the number of axes."
                )


def vary(case: Case, factor: float) -> Any:
    """Return params with every float multiplied by `factor`.

    If check_params rejects the result, the params are returned unchanged.
    """
    varied = jax.tree.map(
        lambda leaf: np.asarray(leaf * factor, leaf.dtype) if leaf.dtype.kind == "f" else leaf,
        jax.tree.map(np.asarray, case.params),
    )
    try:
        case.env.check_params(varied)
    except ValueError:
        return case.params
    return varied
