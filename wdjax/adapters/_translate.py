"""Stepping and conversion of spaces and values, shared by the gymnasium and PettingZoo adapters."""

import dataclasses
import functools
import os
from collections.abc import Mapping
from typing import Any

import gymnasium
import jax
import numpy as np
from gymnasium import spaces

from wdjax.arguments import cast_params
from wdjax.checks import require, require_known
from wdjax.env import Env
from wdjax.kernels.backend import to_host
from wdjax.metric_names import USER, free_name
from wdjax.rendering import SIZE, render
from wdjax.spaces import Box, Dict, Discrete, MultiDiscrete, Space
from wdjax.vector import VectorEnv

MASK = "action_mask"
# info entries written by the adapters or by gymnasium's wrappers
IN_INFOS = (MASK, "episode", "final_info", "final_obs")
METADATA = {"render_modes": ["rgb_array"], "render_fps": 30}

# ids of processes that created an adapter; a forked process inherits the id of its parent
_PLAYED_IN: set[int] = set()


def require_not_forked() -> None:
    """Raise RuntimeError in a process forked from one that created an adapter.

    A fork does not copy the threads of jax, so the first step would hang. Every adapter calls this
    when it is created, which also records the current process.
    """
    if _PLAYED_IN - {os.getpid()}:
        raise RuntimeError(
            "jax does not work in a forked process. Omit vectorization_mode='async' in "
            "gymnasium.make_vec, so that one program steps all replicas, or pass "
            "vector_kwargs={'context': 'spawn'}."
        )
    _PLAYED_IN.add(os.getpid())


def metadata_of(env: Env) -> dict[str, Any]:
    """Return gymnasium metadata in new containers, because wrappers modify them."""
    return {"render_modes": list(METADATA["render_modes"]), "render_fps": env.frames_per_second}


def check_env_and_params(env: Env, params: Any) -> Any:
    """Check and cast params as `wdjax.make` does, and return them; None: the defaults of `env`.

    Raises:
        ValueError: if a value in `params` is invalid.
        TypeError: if `env` is not a wdjax.Env, `params` belong to another environment, or a value
            has a wrong type.
    """
    require(
        isinstance(env, Env),
        "env",
        env,
        "a wdjax.Env, the first value of wdjax.make(...)",
        TypeError,
    )
    defaults = env.default_params
    params = defaults if params is None else params
    if not isinstance(params, type(defaults)):
        kind = f"{type(params).__module__}.{type(params).__name__}"
        raise TypeError(
            f"params is a {kind}: must be a {type(defaults).__name__} of {type(env).__name__}"
        )
    params = cast_params(params, defaults)
    env.check_params(params)
    return params


def check_single_agent(env: Env, params: Any, library: str) -> Any:
    """Return `check_env_and_params` of a single-agent environment.

    Args:
        env: the environment.
        params: its params; None: its defaults.
        library: name of the library, for the error message.

    Raises:
        ValueError: if `env` has groups, or a value in `params` is invalid.
        TypeError: as in `check_env_and_params`.
    """
    params = check_env_and_params(env, params)
    if env.groups:
        name, groups = type(env).__name__, ", ".join(env.groups)
        raise ValueError(
            f"{name} has groups of agents ({groups}): {library} supports a single agent. "
            "Use to_pettingzoo or to_jaxmarl."
        )
    return params


class Played:
    """An environment, or replicas of it, with its params, its current state and a random key.

    The attributes `wdjax_env`, `env_params` (NumPy) and `env_state` are public.
    """

    def _set_up(
        self, env: Env, params: Any, render_mode: str | None, replicas: VectorEnv | None = None
    ) -> None:
        require_not_forked()
        if render_mode is not None:
            require_known("render_mode", render_mode, METADATA["render_modes"])
        self.wdjax_env, self._played = env, replicas or env
        self.render_mode = render_mode
        self.env_state = None
        self._use_params(params)

    def _use_params(self, params: Any) -> None:
        """Set the params, and call `_use_spaces` of the adapter.

        `_use_spaces` replaces a space only if it differs, because a new space would lose its seed.
        """
        self.env_params, self._params = params, jax.device_put(params)
        self._use_spaces(
            self.wdjax_env.observation_space(params), self.wdjax_env.action_space(params)
        )

    def _change_params(self, options: Mapping[str, Any] | None) -> None:
        """Change the params listed in `options["params"]`, a mapping from names to values.

        Raises:
            ValueError: for an unknown name (the message contains the closest one), or an invalid
                value.
            TypeError: for a value of the wrong type.
        """
        changes = (options or {}).get("params")
        if changes is None:
            return
        require(
            isinstance(changes, Mapping),
            "options['params']",
            changes,
            "a dict of parameter names and values",
            TypeError,
        )
        names = [field.name for field in dataclasses.fields(self.env_params)]
        for name in changes:
            require_known(f"parameter of {type(self.wdjax_env).__name__}", name, names)
        self._use_params(check_env_and_params(self.wdjax_env, self.env_params.replace(**changes)))

    def _start(self, rng: np.random.Generator, rows: np.ndarray | None = None) -> Any:
        """Start an episode and return the observation (NumPy).

        Args:
            rng: NumPy generator that the jax key is drawn from.
            rows: [num_envs] bool, replicas to start. The others keep state and observation.
                None: all.
        """
        key = jax.random.key(int(rng.integers(2**31)))
        if rows is None:
            obs, self.env_state, self._key = start(self._played, key, self._params)
        else:
            self.env_state, self._key = restart(
                self._played, key, rows, self.env_state, self._params
            )
            obs = self.env_state.obs
        return to_host(obs)

    def _advance(self, action: Any) -> tuple[Any, ...]:
        """Advance one step.

        Returns:
            (obs, reward, terminated, truncated, info), jax arrays.
        """
        results, self.env_state, self._key = advance(
            self._played, self._key, self.env_state, action, self._params
        )
        return results

    def render(self) -> Any:
        """Draw the current state.

        Returns:
            [480, 640, 3] uint8, for replicas a tuple of these; None (and a warning) without a
            render_mode.
        """
        self._require_reset("render")
        if self.render_mode is None:  # environments of gymnasium also warn and return None
            return gymnasium.logger.warn(
                "render() requires a render_mode: make the environment with render_mode='rgb_array'"
            )
        return self._draw(self.env_state)

    def _draw(self, state: Any) -> Any:
        # a constant size, as videos require
        return render(self.wdjax_env, state, self.env_params, size=SIZE)

    def _require_reset(self, method: str) -> None:
        """Raise gymnasium.error.ResetNeeded before the first reset."""
        if self.env_state is None:
            raise gymnasium.error.ResetNeeded(
                f"{method}() before the first reset(): call reset() to start an episode"
            )


def to_gymnasium_spaces(
    observation_space: Space, action_space: Space
) -> tuple[spaces.Space, spaces.Space]:
    """Convert the observation space and action space of an agent to gymnasium.

    An `action_mask` has the form that `sample(mask)` of the action space accepts: an int8 array for
    Discrete actions, a tuple of int8 arrays for MultiDiscrete ones.
    """
    obs_space, act_space = to_gymnasium_space(observation_space), to_gymnasium_space(action_space)
    if (
        isinstance(obs_space, spaces.Dict)
        and MASK in obs_space.spaces
        and hasattr(action_space, "nvec")
    ):
        masks = [spaces.Box(0, 1, (n,), np.int8) for n in action_space.nvec]
        obs_space[MASK] = masks[0] if isinstance(action_space, Discrete) else spaces.Tuple(masks)
    return obs_space, act_space


def to_gymnasium_space(space: Space) -> spaces.Space:
    """Convert a space with concrete bounds to a gymnasium space.

    The bounds of a Box of integers are clipped to the range of its dtype.
    """
    if isinstance(space, Dict):
        return spaces.Dict({name: to_gymnasium_space(part) for name, part in space.spaces.items()})
    if isinstance(space, Box):
        dtype = np.dtype(space.dtype)
        low, high = (
            np.broadcast_to(np.asarray(bound), space.shape) for bound in (space.low, space.high)
        )
        if dtype.kind != "f":
            limits = (0, 1) if dtype.kind == "b" else (np.iinfo(dtype).min, np.iinfo(dtype).max)
            low, high = np.clip(low, *limits), np.clip(high, *limits)
        return spaces.Box(low.astype(dtype), high.astype(dtype), space.shape, dtype)
    if isinstance(space, MultiDiscrete):
        return spaces.MultiDiscrete(np.broadcast_to(np.array(space.nvec), space.shape))
    if isinstance(space, Discrete):
        return (
            spaces.MultiDiscrete(np.full(space.shape, space.n))
            if space.shape
            else spaces.Discrete(space.n)
        )
    raise TypeError(f"gymnasium has no counterpart of the space {type(space).__name__}")


def to_numpy(space: spaces.Space, value: Any) -> Any:
    """Convert a value (NumPy leaves) to the dtypes of the space, in new, writable arrays."""
    if isinstance(space, spaces.Dict):
        return {name: to_numpy(part, value[name]) for name, part in space.spaces.items()}
    # wdjax concatenates the masks of several choices
    if isinstance(space, spaces.Tuple):
        ends = np.cumsum([part.shape[-1] for part in space.spaces])
        return tuple(np.array(part, np.int8) for part in np.split(value, ends[:-1], axis=-1))
    if isinstance(space, spaces.Discrete):
        return np.int64(value)
    return np.array(value, space.dtype)


def to_action(space: spaces.Space, own: Space, action: Any, name: str = "action") -> Any:
    """Check a gymnasium action and convert it to the dtypes of the wdjax space.

    Args:
        space: the action space in gymnasium.
        own: the same space in wdjax.
        action: a value of `space`, of any integer dtype; for a float Box also of any float dtype.
        name: the name of the action in error messages.

    Returns:
        The action as NumPy arrays.

    Raises:
        ValueError: if the action is not in the space.
    """
    if isinstance(space, spaces.Dict):
        require(
            isinstance(action, Mapping) and set(action) == set(space.spaces),
            name,
            action,
            f"a dict of {', '.join(space.spaces)}",
        )
        return {
            key: to_action(part, own[key], action[key], f"{name}[{key!r}]")
            for key, part in space.spaces.items()
        }
    try:
        array = np.asarray(action)
    except ValueError:  # rows of unequal lengths
        array = np.array(None)
    kinds = "iuf" if np.dtype(own.dtype).kind == "f" else "iu"
    fits = array.shape == space.shape and array.dtype.kind in kinds
    if not (fits and space.contains(array.astype(space.dtype))):
        action_text = (
            repr(array.tolist()) if array.size <= 8 else f"an array of shape {array.shape}"
        )
        out_of_bounds = (
            isinstance(space, spaces.Box)
            and array.shape == space.shape
            and array.dtype.kind in "iuf"
        )
        hint = (
            ". Clip actions with gymnasium.wrappers.ClipAction."
            if out_of_bounds and np.isfinite(array).all()
            else ""
        )
        raise ValueError(f"{name} = {action_text}: must be in {space}{hint}")
    return array.astype(np.dtype(own.dtype))


def neutral_action(space: spaces.Space) -> Any:
    """Return a valid action for an agent whose action has no effect."""
    if isinstance(space, spaces.Dict):
        return {name: neutral_action(part) for name, part in space.spaces.items()}
    if isinstance(space, spaces.Box):
        return np.clip(np.zeros(space.shape, space.dtype), space.low, space.high)
    return np.zeros(space.shape, np.int64)


def own_statistics(info: Mapping[str, Any]) -> dict[str, Any]:
    """Rename statistics to `user/NAME` if gymnasium or an adapter uses their name."""
    written = {*IN_INFOS, *(f"_{name}" for name in (*IN_INFOS, *info))}
    statistics: dict[str, Any] = {}
    for name, value in info.items():
        statistics[free_name(name, USER, lambda name: name in written or name in statistics)] = (
            value
        )
    return statistics


def as_numbers(info: Mapping[str, Any]) -> dict[str, int | float]:
    """Convert scalar statistics to Python numbers, and flags to 0 or 1 as in `wdjax.vectorize`."""
    numbers = {name: np.asarray(value).item() for name, value in own_statistics(info).items()}
    return {
        name: int(value) if isinstance(value, bool) else value for name, value in numbers.items()
    }


def take_row(space: spaces.Space, value: Any, i: int) -> Any:
    """Return row i of a batched value (NumPy leaves [N, ...]) as a value of `space`."""
    return to_numpy(space, jax.tree.map(lambda leaf: leaf[i], value))


def with_mask(info: dict[str, Any], obs: Any) -> dict[str, Any]:
    """Add the observation's action mask, if any, to info, for `action_space.sample(mask)`."""
    return (
        {**info, MASK: jax.tree.map(np.copy, obs[MASK])}
        if isinstance(obs, dict) and MASK in obs
        else info
    )


# The environment is static: equal environments share a compilation, whatever their params.
@functools.partial(jax.jit, static_argnums=0)
def start(env: Env | VectorEnv, key: jax.Array, params: Any) -> tuple[Any, Any, jax.Array]:
    """Start an episode, in every replica if `env` is vectorized. Returns (obs, state, key)."""
    reset_key, key = jax.random.split(key)
    obs, state = env.reset(reset_key, params)
    return obs, state, key


@functools.partial(jax.jit, static_argnums=0)
def restart(
    env: Any, key: jax.Array, rows: jax.Array, state: Any, params: Any
) -> tuple[Any, jax.Array]:
    """Start an episode in the replicas `rows`, [num_envs] bool. Returns (state, key)."""
    start_key, key = jax.random.split(key)
    return env.restart(start_key, rows, state, params), key


@functools.partial(jax.jit, static_argnums=0)
def advance(
    env: Env | VectorEnv, key: jax.Array, state: Any, action: Any, params: Any
) -> tuple[tuple[Any, ...], Any, jax.Array]:
    """Advance one step. Returns ((obs, reward, terminated, truncated, info), state, next key)."""
    step_key, key = jax.random.split(key)
    obs, state, *rest = env.step(step_key, state, action, params)
    return (obs, *rest), state, key


@functools.partial(jax.jit, static_argnums=0)
def present(env: Env, state: Any, params: Any) -> Any:
    """Return `Env.present`."""
    return env.present(state, params)
