"""Shared parts of `wdjax.check_env`: the environment under test, its traces, and its errors."""

import contextlib
import dataclasses
import functools
import traceback
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, NoReturn, cast

import jax
import jax.numpy as jnp
import numpy as np

from wdjax.env import Env
from wdjax.env_checker.leaves import as_numpy, find, is_number, named_leaves, structure_of
from wdjax.kernels.backend import quick_jit
from wdjax.spaces import Box, Dict, Discrete, MultiDiscrete, Space

MASK = "action_mask"
_PLAYED = ("state", "reward", "terminated", "truncated", "info")
RETURNS = {"reset": ("obs", "state"), "step": ("obs", *_PLAYED), "advance": ("scene", *_PLAYED)}

# jax tracing error -> (fault, remedy); the first matching class is reported.
_TRACING_ERRORS: dict[type[Exception], tuple[str, str]] = {
    jax.errors.TracerBoolConversionError: (
        "branches on a traced value",
        "Use jnp.where or lax.cond",
    ),
    jax.errors.TracerIntegerConversionError: (
        "uses a traced value as a Python index or count",
        "Index a jax array with it, or use lax.fori_loop",
    ),
    jax.errors.TracerArrayConversionError: ("passes a traced value to NumPy", "Use jax.numpy"),
    jax.errors.NonConcreteBooleanIndexError: ("indexes with a traced mask", "Use jnp.where"),
    jax.errors.ConcretizationTypeError: (
        "converts a traced value to a Python number",
        "Keep it a jax array",
    ),
}
_LIBRARIES = tuple(str(Path(str(module.__file__)).parent) for module in (jax, np))
# folders of this package and of wdjax's core, without its environments
_CHECKER, _CORE = Path(__file__).parents[:2]


class EnvCheckError(ValueError):
    """An environment breaks the contract of wdjax.Env; the message contains place and remedy."""


def fail(sentence: str, cause: BaseException | None = None) -> NoReturn:
    """Raise EnvCheckError, chained to the exception `cause` if there is one."""
    raise EnvCheckError(sentence) from cause


def expect(condition: Any, sentence: str) -> None:
    """Raise EnvCheckError if the condition is false."""
    if not condition:
        fail(sentence)


@dataclasses.dataclass(frozen=True, eq=False)
class Case:
    """Arguments of one call of `check_env`, and lazily computed values derived from them."""

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
        """Shape of a key, sufficient for tracing, which needs no device."""
        return jax.eval_shape(lambda: jax.random.key(self.seed))

    @functools.cached_property
    def observation_space(self) -> Space:
        return self.env.observation_space(self.params)

    @functools.cached_property
    def action_space(self) -> Space:
        return self.env.action_space(self.params)

    @functools.cached_property
    def reset(self) -> tuple[Any, dict[str, Any]]:
        """Jaxpr of `reset`, and a dict of its outputs as ShapeDtypeStructs."""
        return trace("reset", self.env.reset, self.key, self.params)

    @functools.cached_property
    def step(self) -> tuple[Any, dict[str, Any]]:
        """Jaxpr of `step`, and a dict of its outputs as ShapeDtypeStructs."""
        return trace(
            "step", self.env.step, self.key, self.reset[1]["state"], self.action, self.params
        )

    @functools.cached_property
    def advance(self) -> tuple[Any, dict[str, Any]]:
        """Jaxpr of `advance`, and a dict of its outputs as ShapeDtypeStructs."""
        return trace(
            "advance", self.env.advance, self.key, self.reset[1]["state"], self.action, self.params
        )

    @functools.cached_property
    def present(self) -> Any:
        """Shapes of the flags of `Env.present`; None if no agents join."""
        with explained("present"):
            return jax.eval_shape(self.env.present, self.reset[1]["state"], self.params)

    @functools.cached_property
    def step_replicas(self) -> Callable:
        """Batched step, compiled once, so that equal inputs give bitwise equal results."""
        return quick_jit(jax.vmap(self.env.step, (0, 0, 0, None)))

    @functools.cached_property
    def action(self) -> Any:
        """Shapes of an action."""
        return jax.eval_shape(self.action_space.sample, self.key)

    def by_group(self, value: Any) -> dict[str, Any]:
        """Return a dict with each group's part of a value, such as an observation or a reward.

        Without groups, the only key is ''.
        """
        return (
            {group: value[group] for group in self.env.groups} if self.env.groups else {"": value}
        )


def count_of(result: Any) -> str:
    """Return "3 values" for a tuple, the name of the type for anything else."""
    return f"{len(result)} values" if isinstance(result, tuple) else type(result).__name__


def trace(method: str, function: Callable, *args: Any) -> tuple[Any, dict[str, Any]]:
    """Trace `reset`, `step` or `advance`.

    Returns:
        The jaxpr, and a dict of the outputs as ShapeDtypeStructs.
    """

    def traced(*args: Any) -> dict[str, Any]:
        leaves, structure = jax.tree.leaves(args), structure_of(args)
        result = function(*args)
        leaves_after, structure_after = jax.tree.leaves(args), structure_of(args)
        expect(
            structure == structure_after
            and all(a is b for a, b in zip(leaves, leaves_after, strict=True)),
            f"{method} changes its arguments in place. Build new dicts and lists, like {{**old, "
            "name: new}.",
        )
        names = RETURNS[method]
        expect(
            isinstance(result, tuple) and len(result) == len(names),
            f"{method} returns {count_of(result)}: must be ({', '.join(names)})",
        )
        named = dict(zip(names, result, strict=True))
        for name, leaf in named_leaves(named):
            expect(
                is_number(leaf),
                f"{method} returns {name} = {leaf!r:.80}: must be an array, a number, or a pytree "
                "of them",
            )
        return named

    with explained(method):
        jaxpr, shapes = jax.make_jaxpr(traced, return_shape=True)(*args)
    return jaxpr.jaxpr, shapes


@contextlib.contextmanager
def explained(method: str) -> Iterator[None]:
    """Convert a tracing error to an EnvCheckError with the line of the environment that caused it.

    Other errors are raised unchanged.
    """
    try:
        yield
    except Exception as error:
        for error_type, (fault, remedy) in _TRACING_ERRORS.items():
            if isinstance(error, error_type):
                fail(f"{method} {fault} at {author_line(error)}. {remedy}.", error)
        if isinstance(error, (TypeError, ValueError)) and (
            "concrete values" in str(error) or _is_of_a_tracer(error)
        ):
            fail(
                f"{method} uses a traced value as a size at {author_line(error)}. "
                "Make the size a static field of the environment.",
                error,
            )
        raise


def author_line(error: BaseException) -> str:
    """Return "file.py:line" of the innermost frame in environment code, or "an unknown line".

    Environment code is all code outside jax, NumPy, the wdjax core and this package.
    """
    others = ("<string>", *_LIBRARIES)  # "<string>": constructors generated by dataclasses
    frames = [
        frame
        for frame in traceback.extract_tb(error.__traceback__)
        if not frame.filename.startswith(others)
    ]
    frames = [frame for frame in frames if Path(frame.filename).parent not in (_CHECKER, _CORE)]
    return f"{Path(frames[-1].filename).name}:{frames[-1].lineno}" if frames else "an unknown line"


def _is_of_a_tracer(error: Exception) -> bool:
    """Return whether the wdjax core rejected a traced value, for example as Discrete.n."""
    innermost = traceback.extract_tb(error.__traceback__)[-1].filename
    return "Tracer" in str(error) and Path(innermost).parent == _CORE


def first_difference(
    case: Case, actual: Mapping[str, Any], expected: Mapping[str, Any]
) -> tuple[str, tuple[int, ...], Any, Any] | None:
    """Return (leaf, index, actual, expected) of the first different elements, or None.

    Floats are compared with the tolerances of the case.
    """
    for (name, a), (_, b) in zip(named_leaves(actual), named_leaves(expected), strict=True):
        a, b = as_numpy(a), as_numpy(b)
        close = functools.partial(np.isclose, rtol=case.rtol, atol=case.atol, equal_nan=True)
        index = find(np.asarray(~close(a, b) if b.dtype.kind == "f" else a != b))
        if index is not None:
            return name, index, a[index], b[index]
    return None


# --- spaces ---


def space_parts(
    space: Space, value: Any, name: str
) -> Iterator[tuple[str, Discrete | MultiDiscrete | Box, Any]]:
    """Yield (name, space, value) for every part that is not a Dict; fail if dict keys differ."""
    if not isinstance(space, Dict):
        yield name, space, value
        return
    if not isinstance(value, Mapping) or set(value) != set(space.spaces):
        returned = sorted(value) if isinstance(value, Mapping) else type(value).__name__
        fail(
            f"{name} is {returned}: must be a dict with the keys {sorted(space.spaces)} of "
            "observation_space"
        )
    for key, part in space.spaces.items():
        yield from space_parts(part, value[key], f"{name}[{key!r}]")


def has_mask(value: Any) -> bool:
    """Return whether the space or the observation of a group contains an action mask."""
    parts = value.spaces if isinstance(value, Dict) else value
    return isinstance(parts, Mapping) and MASK in parts


def sample_action(env: Env, space: Space, key: jax.Array, obs: Any) -> Any:
    """Draw an action for one replica, uniformly among those allowed by the masks in `obs`."""
    if not env.groups:
        return _sample_allowed(space, key, obs)
    keys = dict(zip(env.groups, jax.random.split(key, len(env.groups)), strict=True))
    parts = cast(Dict, space).spaces
    return {group: _sample_allowed(parts[group], keys[group], obs[group]) for group in env.groups}


def _sample_allowed(space: Any, key: jax.Array, obs: Any) -> jax.Array:
    if not has_mask(obs):
        return space.sample(key)
    sizes = space.nvec
    masks = jnp.split(obs[MASK], np.cumsum(sizes)[:-1], axis=-1)
    keys = jax.random.split(key, len(sizes))
    chosen = [
        jax.random.categorical(keys[i], jnp.where(mask > 0, 0.0, -1e9)).astype(jnp.int32)
        for i, mask in enumerate(masks)
    ]
    return chosen[0] if isinstance(space, Discrete) else jnp.stack(chosen, axis=-1)
