"""What gymnasium and PettingZoo share: how an environment is played, and spaces, values and actions translated."""

import dataclasses
import functools
import os
from collections.abc import Mapping
from typing import Any

import gymnasium
import jax
import numpy as np
from gymnasium import spaces

from wdjax.checks import require_known
from wdjax.env import Env, cast_params
from wdjax.metric_names import USER, free_name
from wdjax.rendering import SIZE, render
from wdjax.spaces import Box, Dict, Discrete, MultiDiscrete, Space
from wdjax.vector import VectorEnv

MASK = "action_mask"
# written by the adapters or by gymnasium's wrappers
IN_INFOS = (MASK, "episode", "final_info", "final_obs")
METADATA = {"render_modes": ["rgb_array"], "render_fps": 30}

# ids of the processes that have made an adapter: a forked one finds its parent's
_PLAYED_IN: set[int] = set()


def require_not_forked() -> None:
    """Raise RuntimeError in a process forked from one that has made an adapter: a fork does not copy jax's threads, and
    the first step would hang."""
    if _PLAYED_IN - {os.getpid()}:
        raise RuntimeError(
            "jax does not work in a forked process. Use gymnasium.make_vec without vectorization_mode='async', one "
            "program for all replicas, or start the processes with vector_kwargs={'context': 'spawn'}."
        )
    _PLAYED_IN.add(os.getpid())


def metadata_of(env: Env) -> dict[str, Any]:
    """Returns gymnasium's metadata of an environment; a list and a dict of its own, as wrappers write to them."""
    return {"render_modes": list(METADATA["render_modes"]), "render_fps": env.frames_per_second}


def check_env_and_params(env: Env, params: Any) -> Any:
    """Returns params checked and cast as `wdjax.make` does it, or the default ones for None.

    Raises:
        ValueError, TypeError: where env is no wdjax.Env or params are not its own.
    """
    if not isinstance(env, Env):
        raise TypeError(f"env = {env!r}: must be a wdjax.Env, the first that wdjax.make returns")
    defaults = env.default_params
    params = defaults if params is None else params
    if not isinstance(params, type(defaults)):
        found = f"{type(params).__module__}.{type(params).__name__}"
        raise TypeError(
            f"params is a {found}: must be a {type(defaults).__name__} of {type(env).__name__}"
        )
    params = cast_params(params, defaults)
    env.check_params(params)
    return params


def check_single_agent(env: Env, params: Any, library: str) -> Any:
    """Likewise; raises ValueError where the environment has groups of agents, which the library has not."""
    params = check_env_and_params(env, params)
    if env.groups:
        name, groups = type(env).__name__, ", ".join(env.groups)
        raise ValueError(
            f"{name} has groups of agents ({groups}), {library} one agent: use to_pettingzoo"
        )
    return params


class Played:
    """An environment, or replicas of it, with the params and the state that are played, and the key of the next step.

    `wdjax_env`, `env_params` and `env_state` are what is played: the environment, its params (NumPy) and the state.
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
        """Takes params, and by the `_use_spaces` of each adapter their spaces where these differ (a new one would
        forget its own seed)."""
        self.env_params, self._params = params, jax.device_put(params)
        self._use_spaces(
            self.wdjax_env.observation_space(params), self.wdjax_env.action_space(params)
        )

    def _change_params(self, options: Mapping[str, Any] | None) -> None:
        """Takes params with what `options["params"]`, a mapping of their names, changes in them.

        Raises:
            ValueError: for a name that params do not have, with the nearest right one, and for a value out of range.
            TypeError: for a value of the wrong kind.
        """
        changes = (options or {}).get("params")
        if changes is None:
            return
        if not isinstance(changes, Mapping):
            raise TypeError(f"options['params'] = {changes!r}: must be a dict of names and values")
        names = [field.name for field in dataclasses.fields(self.env_params)]
        for name in changes:
            require_known(f"parameter of {type(self.wdjax_env).__name__}", name, names)
        self._use_params(check_env_and_params(self.wdjax_env, self.env_params.replace(**changes)))

    def _start(self, rng: np.random.Generator, rows: np.ndarray | None = None) -> Any:
        """Starts an episode by a key that follows from the state of NumPy's generator. Returns obs (NumPy).

        `rows`, [num_envs] bool, are the replicas that start, where not all do; the others are seen as they were.
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
        """Plays one step. Returns (obs, reward, terminated, truncated, info), on the device."""
        results, self.env_state, self._key = advance(
            self._played, self._key, self.env_state, action, self._params
        )
        return results

    def render(self) -> Any:
        """Returns a picture of the state (of every replica's, in a tuple), [480, 640, 3] uint8, where render_mode is
        "rgb_array", else None."""
        self._require_reset("render")
        if self.render_mode is None:  # as gymnasium's own environments do
            why = (
                "render() draws nothing without a render_mode: make it with render_mode='rgb_array'"
            )
            return gymnasium.logger.warn(why)
        return self._draw(self.env_state)

    def _draw(self, state: Any) -> Any:
        # of one size, as videos need it
        return render(self.wdjax_env, state, self.env_params, size=SIZE)

    def _require_reset(self, method: str) -> None:
        """Raises gymnasium.error.ResetNeeded where there is no state yet."""
        if self.env_state is None:
            raise gymnasium.error.ResetNeeded(
                f"{method}() before the first reset(): call reset() to start an episode"
            )


def to_gymnasium_spaces(
    observation_space: Space, action_space: Space
) -> tuple[spaces.Space, spaces.Space]:
    """Returns both spaces of an agent in gymnasium's form.

    An observation's `action_mask` becomes what the `sample(mask)` of the action space takes: one int8 array for
    Discrete actions, a tuple of one for each choice of MultiDiscrete ones.
    """
    observed, done = to_gymnasium_space(observation_space), to_gymnasium_space(action_space)
    if (
        isinstance(observed, spaces.Dict)
        and MASK in observed.spaces
        and hasattr(action_space, "nvec")
    ):
        masks = [spaces.Box(0, 1, (n,), np.int8) for n in action_space.nvec]
        observed[MASK] = masks[0] if isinstance(action_space, Discrete) else spaces.Tuple(masks)
    return observed, done


def to_gymnasium_space(space: Space) -> spaces.Space:
    """Returns a space in gymnasium's form, with the bounds of concrete params.

    A Box of whole numbers without bounds gets those of its dtype.
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
    raise TypeError(f"{type(space).__name__} is no space that gymnasium has")


def to_host(values: Any) -> Any:
    """Returns arrays of jax as those of NumPy, which are not to be written to.

    `jax.device_get` first asks every array for a copy, two fifths of a step of one replica on a CPU, which needs none.
    """
    return (
        jax.tree.map(np.asarray, values)
        if jax.default_backend() == "cpu"
        else jax.device_get(values)
    )


def to_numpy(space: spaces.Space, value: Any) -> Any:
    """Returns a value (leaves of NumPy) with the dtypes of the space, in arrays of its own that may be written to."""
    if isinstance(space, spaces.Dict):
        return {name: to_numpy(part, value[name]) for name, part in space.spaces.items()}
    # the masks of several choices, which stand one after the other in wdjax
    if isinstance(space, spaces.Tuple):
        ends = np.cumsum([part.shape[-1] for part in space.spaces])
        return tuple(np.array(part, np.int8) for part in np.split(value, ends[:-1], axis=-1))
    if isinstance(space, spaces.Discrete):
        return np.int64(value)
    return np.array(value, space.dtype)


def to_action(space: spaces.Space, own: Space, action: Any, name: str = "action") -> Any:
    """Returns an action in gymnasium's `space` as NumPy arrays of the dtypes of `own`, the same space of wdjax.

    Raises:
        ValueError: in words, where the action is outside the space.
    """
    if isinstance(space, spaces.Dict):
        if not isinstance(action, Mapping) or set(action) != set(space.spaces):
            raise ValueError(f"{name} = {action!r}: must be a dict of {', '.join(space.spaces)}")
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
        found = repr(array.tolist()) if array.size <= 8 else f"an array of shape {array.shape}"
        outside = (
            isinstance(space, spaces.Box)
            and array.shape == space.shape
            and array.dtype.kind in "iuf"
        )
        hint = (
            " (gymnasium.wrappers.ClipAction clips)" if outside and np.isfinite(array).all() else ""
        )
        raise ValueError(f"{name} = {found}: must be in {space}{hint}")
    return array.astype(np.dtype(own.dtype))


def neutral_action(space: spaces.Space) -> Any:
    """Returns some action of the space, for an agent whose action has no effect."""
    if isinstance(space, spaces.Dict):
        return {name: neutral_action(part) for name, part in space.spaces.items()}
    if isinstance(space, spaces.Box):
        return np.clip(np.zeros(space.shape, space.dtype), space.low, space.high)
    return np.zeros(space.shape, np.int64)


def own_statistics(info: Mapping[str, Any]) -> dict[str, Any]:
    """Return an environment's statistics, those whose names gymnasium or an adapter writes as `user/NAME`."""
    written = {*IN_INFOS, *(f"_{name}" for name in (*IN_INFOS, *info))}
    found: dict[str, Any] = {}
    for name, value in info.items():
        found[free_name(name, USER, lambda name: name in written or name in found)] = value
    return found


def as_numbers(info: Mapping[str, Any]) -> dict[str, int | float]:
    """Returns scalar statistics as Python numbers; flags as 0 or 1, as `wdjax.vectorize` counts them."""
    numbers = {name: np.asarray(value).item() for name, value in own_statistics(info).items()}
    return {
        name: int(value) if isinstance(value, bool) else value for name, value in numbers.items()
    }


def take_row(space: spaces.Space, value: Any, i: int) -> Any:
    """Returns row i of a batched value (leaves [N, ...] of NumPy) as a value of `space`."""
    return to_numpy(space, jax.tree.map(lambda leaf: leaf[i], value))


def with_mask(info: dict[str, Any], obs: Any) -> dict[str, Any]:
    """Returns info and the observation's action mask, which the action space's `sample(mask)` takes, if it has one."""
    return (
        {**info, MASK: jax.tree.map(np.copy, obs[MASK])}
        if isinstance(obs, dict) and MASK in obs
        else info
    )


# Static in the environment, or in replicas of it: equal ones share a compilation, whatever their params.
@functools.partial(jax.jit, static_argnums=0)
def start(env: Env | VectorEnv, key: jax.Array, params: Any) -> tuple[Any, Any, jax.Array]:
    """Returns (obs, state, key) of a new episode, or of one in every replica; the key is for the steps."""
    reset_key, key = jax.random.split(key)
    obs, state = env.reset(reset_key, params)
    return obs, state, key


@functools.partial(jax.jit, static_argnums=0)
def restart(
    env: Any, key: jax.Array, rows: jax.Array, state: Any, params: Any
) -> tuple[Any, jax.Array]:
    """Returns (state, key) with a new episode in some replicas, `rows` [num_envs] bool; the key is for the steps."""
    start_key, key = jax.random.split(key)
    return env.restart(start_key, rows, state, params), key


@functools.partial(jax.jit, static_argnums=0)
def advance(
    env: Env | VectorEnv, key: jax.Array, state: Any, action: Any, params: Any
) -> tuple[tuple[Any, ...], Any, jax.Array]:
    """Plays one step. Returns ((obs, reward, terminated, truncated, info), state, the next step's key)."""
    step_key, key = jax.random.split(key)
    obs, state, *rest = env.step(step_key, state, action, params)
    return (obs, *rest), state, key
