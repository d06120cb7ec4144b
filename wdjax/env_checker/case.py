"""What `wdjax.check_env` looks at: an environment with what its functions gave, and how its faults are told."""

import contextlib
import dataclasses
import functools
import traceback
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, NoReturn

import jax
import jax.numpy as jnp
import numpy as np

from wdjax.env import Env
from wdjax.env_checker.leaves import is_number, named_leaves
from wdjax.spaces import Dict, Discrete, Space

MASK = "action_mask"
_PLAYED = ("state", "reward", "terminated", "truncated", "info")
RETURNS = {"reset": ("obs", "state"), "step": ("obs", *_PLAYED), "advance": ("scene", *_PLAYED)}

# What tracing cannot do -> (what the author's code did, what to write instead). The first that fits is told.
_TRACING_ERRORS: dict[type[Exception], tuple[str, str]] = {
    jax.errors.TracerBoolConversionError: (
        "branches on a traced value",
        "use jnp.where or lax.cond",
    ),
    jax.errors.TracerIntegerConversionError: (
        "uses a traced value as a Python index or count",
        "index a jax array with it, or use lax.fori_loop",
    ),
    jax.errors.TracerArrayConversionError: ("hands a traced value to NumPy", "use jax.numpy"),
    jax.errors.NonConcreteBooleanIndexError: ("picks elements by a traced mask", "use jnp.where"),
    jax.errors.ConcretizationTypeError: (
        "makes a Python number of a traced value",
        "keep it a jax array",
    ),
}
_LIBRARIES = tuple(str(Path(module.__file__).parent) for module in (jax, np))
# the folders of this file and of wdjax's core, not of its games
_CHECKER, _CORE = Path(__file__).parents[:2]


class EnvCheckError(ValueError):
    """An environment breaks the contract of wdjax.Env; the message says where, and what to change."""


def fail(sentence: str, cause: BaseException | None = None) -> NoReturn:
    """Raises EnvCheckError, with the author's own traceback where there is one."""
    raise EnvCheckError(sentence) from cause


@dataclasses.dataclass(frozen=True, eq=False)
class Case:
    """One call of `check_env`: its arguments, and what follows from them, computed when first asked for."""

    env: Env
    params: Any
    twin: Callable | None
    num_steps: int
    seed: int
    rtol: float
    atol: float

    @property
    def name(self) -> str:
        return type(self.env).__name__

    @property
    def key(self) -> jax.ShapeDtypeStruct:
        """The shape of a key: what is traced needs no more, and no device."""
        return jax.eval_shape(lambda: jax.random.key(self.seed))

    @functools.cached_property
    def observation_space(self) -> Space:
        return self.env.observation_space(self.params)

    @functools.cached_property
    def action_space(self) -> Space:
        return self.env.action_space(self.params)

    @functools.cached_property
    def reset(self) -> tuple[Any, dict[str, Any]]:
        """(the jaxpr of reset, what it returns by name, as shapes)."""
        return trace("reset", self.env.reset, self.key, self.params)

    @functools.cached_property
    def step(self) -> tuple[Any, dict[str, Any]]:
        """(the jaxpr of step, what it returns by name, as shapes)."""
        return trace(
            "step", self.env.step, self.key, self.reset[1]["state"], self.action, self.params
        )

    @functools.cached_property
    def advance(self) -> tuple[Any, dict[str, Any]]:
        """(the jaxpr of advance, what it returns by name, as shapes)."""
        return trace(
            "advance", self.env.advance, self.key, self.reset[1]["state"], self.action, self.params
        )

    @functools.cached_property
    def step_replicas(self) -> Callable:
        """The step of a batch, as one compiled program for all calls, so that equal inputs give equal bits."""
        return quick_jit(jax.vmap(self.env.step, (0, 0, 0, None)))

    @functools.cached_property
    def action(self) -> Any:
        """The shapes of an action."""
        return jax.eval_shape(self.action_space.sample, self.key)

    def by_group(self, value: Any) -> dict[str, Any]:
        """Returns the parts of an observation, a reward ... by group; a single agent's under the name ''."""
        return (
            {group: value[group] for group in self.env.groups} if self.env.groups else {"": value}
        )


def quick_jit(function: Callable) -> Callable:
    """Returns jax.jit for a program that runs once: on the CPU it is compiled in half the time, to slower code."""
    on_cpu = jax.default_backend() == "cpu"
    return jax.jit(
        function, compiler_options={"xla_backend_optimization_level": 0} if on_cpu else None
    )


def trace(method: str, function: Callable, *args: Any) -> tuple[Any, dict[str, Any]]:
    """Traces `reset`, `step` or `advance`. Returns (its jaxpr, its outputs by name, leaves jax.ShapeDtypeStruct)."""

    def traced(*args: Any) -> dict[str, Any]:
        leaves, structure = jax.tree.flatten(args)
        result = function(*args)
        leaves_after, structure_after = jax.tree.flatten(args)
        if structure != structure_after or any(
            a is not b for a, b in zip(leaves, leaves_after, strict=True)
        ):
            fail(
                f"{method} changes its arguments in place: build new dicts and lists, as {{**old, name: new}} does"
            )
        names = RETURNS[method]
        if not isinstance(result, tuple) or len(result) != len(names):
            found = f"{len(result)} values" if isinstance(result, tuple) else type(result).__name__
            fail(f"{method} returns {found}: return ({', '.join(names)})")
        named = dict(zip(names, result, strict=True))
        for name, leaf in named_leaves(named):
            if not is_number(leaf):
                fail(
                    f"{method} returns {name} = {leaf!r:.80}: must be an array, a number, or a pytree of them"
                )
        return named

    with explained(method):
        jaxpr, shapes = jax.make_jaxpr(traced, return_shape=True)(*args)
    return jaxpr.jaxpr, shapes


@contextlib.contextmanager
def explained(method: str) -> Iterator[None]:
    """Turns what tracing refuses, raised within, into a sentence with the author's line; all else passes unchanged."""
    try:
        yield
    except Exception as error:
        for refused, (deed, remedy) in _TRACING_ERRORS.items():
            if isinstance(error, refused):
                fail(f"{method} {deed} at {author_line(error)}: {remedy}", error)
        if isinstance(error, (TypeError, ValueError)) and (
            "concrete values" in str(error) or _is_of_a_tracer(error)
        ):
            remedy = "a size must be a static field of the environment"
            fail(
                f"{method} makes a shape of a traced value at {author_line(error)}: {remedy}", error
            )
        raise


def author_line(error: BaseException) -> str:
    """Returns "file.py:line" of the innermost frame that is neither jax's, NumPy's nor the wdjax core's."""
    others = ("<string>", *_LIBRARIES)  # the first: a constructor that dataclasses wrote
    frames = [
        frame
        for frame in traceback.extract_tb(error.__traceback__)
        if not frame.filename.startswith(others)
    ]
    frames = [frame for frame in frames if Path(frame.filename).parent not in (_CHECKER, _CORE)]
    return f"{Path(frames[-1].filename).name}:{frames[-1].lineno}" if frames else "an unknown line"


def _is_of_a_tracer(error: Exception) -> bool:
    """Whether the core itself refused a traced value: as a number of choices, say."""
    innermost = traceback.extract_tb(error.__traceback__)[-1].filename
    return "Tracer" in str(error) and Path(innermost).parent == _CORE


# --- spaces ---


def space_parts(space: Space, value: Any, name: str) -> Iterator[tuple[str, Space, Any]]:
    """Yields (name, space, value) for every part that is no Dict; fails where the names of a dict are others."""
    if not isinstance(space, Dict):
        yield name, space, value
        return
    if not isinstance(value, Mapping) or set(value) != set(space.spaces):
        found = sorted(value) if isinstance(value, Mapping) else type(value).__name__
        fail(
            f"{name} is {found}: observation_space says a dict with the keys {sorted(space.spaces)}"
        )
    for key, part in space.spaces.items():
        yield from space_parts(part, value[key], f"{name}[{key!r}]")


def has_mask(value: Any) -> bool:
    """Returns whether a space, or an observation, of one group holds an action mask."""
    parts = value.spaces if isinstance(value, Dict) else value
    return isinstance(parts, Mapping) and MASK in parts


def sample_action(env: Env, space: Space, key: jax.Array, obs: Any) -> Any:
    """Draws an action for one replica, uniformly from what the masks in `obs` allow."""
    if not env.groups:
        return _sample_allowed(space, key, obs)
    keys = dict(zip(env.groups, jax.random.split(key, len(env.groups)), strict=True))
    return {group: _sample_allowed(space[group], keys[group], obs[group]) for group in env.groups}


def _sample_allowed(space: Space, key: jax.Array, obs: Any) -> jax.Array:
    if not has_mask(obs):
        return space.sample(key)
    sizes = space.nvec
    masks = jnp.split(obs[MASK], np.cumsum(sizes)[:-1], axis=-1)
    keys = jax.random.split(key, len(sizes))
    logits = [jnp.where(mask > 0, 0.0, -1e9) for mask in masks]
    chosen = [
        jax.random.categorical(keys[i], row).astype(jnp.int32) for i, row in enumerate(logits)
    ]
    return chosen[0] if isinstance(space, Discrete) else jnp.stack(chosen, axis=-1)
