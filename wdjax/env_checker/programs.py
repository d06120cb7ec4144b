"""Rules of `wdjax.check_env` on reset and step as programs: tracing, purity and compilation."""

import functools
from collections.abc import Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.experimental import checkify

from wdjax.env_checker.case import (
    RETURNS,
    Case,
    expect,
    explained,
    fail,
    first_difference,
    sample_action,
)
from wdjax.env_checker.leaves import as_numpy, element, named_leaves
from wdjax.kernels.backend import quick_jit


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
            f"step is compiled again for its own state: {', '.join(weak)} comes from a Python "
            "number. "
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
        f"step is compiled again for params on a device. Write {', '.join(bare)} as "
        "np.float32(...).",
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
                    f"{method} returns {name}{element(index)} = {b} under vmap, and {a} without "
                    "it. "
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
