"""wdjax environments as gymnasium's `Env` and `VectorEnv`: NumPy in, NumPy out, one compiled program a step."""

from typing import Any

import gymnasium
import jax
import numpy as np
from gymnasium.vector.utils import batch_space

from wdjax.adapters._translate import (
    MASK,
    METADATA,
    advance,
    as_number,
    changed_params,
    check_env_and_params,
    check_render_mode,
    draw_key,
    draw_picture,
    refuse_groups,
    require_reset,
    start,
    take_row,
    to_action,
    to_gymnasium_spaces,
    to_numpy,
    warn_no_render_mode,
    with_mask,
)
from wdjax.checks import require_bool, require_known
from wdjax.env import Env
from wdjax.envs import list_envs, make
from wdjax.vector import RESERVED_INFO, ResetStrategy, vectorize


def to_gymnasium(
    env: Env, params: Any = None, render_mode: str | None = None, seed: int | None = None
) -> "GymnasiumEnv":
    """Returns a single-agent environment as a `gymnasium.Env`.

    Args:
        env: an environment without groups.
        params: its params; None: the default ones.
        render_mode: None, or "rgb_array": `render()` returns a picture of the state, [480, 640, 3] uint8.
        seed: of the first episode, where `reset` is given none.

    Returns:
        A GymnasiumEnv; it says what `reset`, `step` and `render` do.

    Raises:
        ValueError, TypeError: for an environment with groups, and for other arguments out of range.
    """
    return GymnasiumEnv(env, params, render_mode, seed)


def to_gymnasium_vector(
    env: Env,
    num_envs: int,
    params: Any = None,
    reset: ResetStrategy = "fresh",
    render_mode: str | None = None,
    seed: int | None = None,
    episode_statistics: bool = True,
) -> "GymnasiumVectorEnv":
    """Returns replicas of a single-agent environment as a `gymnasium.vector.VectorEnv`.

    Args:
        env: an environment without groups.
        num_envs: the number of replicas.
        params: their params; None: the default ones.
        reset: where episodes start, as in `wdjax.vectorize`: "fresh", "fixed" or ResetPool(n).
        render_mode: None, or "rgb_array": `render()` returns a picture of every replica.
        seed: of the first `reset` that is given none.
        episode_statistics: whether infos hold return and length of the episodes that end, so that no wrapper is needed.
            (gymnasium's vector RecordEpisodeStatistics refuses an environment that gives them itself, and in same-step
            mode leaves the first step of every later episode out.)

    Returns:
        A GymnasiumVectorEnv; it says what `reset` and `step` return.

    Raises:
        ValueError, TypeError: for an environment with groups, and for other arguments out of range.
    """
    return GymnasiumVectorEnv(env, num_envs, params, reset, render_mode, seed, episode_statistics)


def register_gymnasium() -> list[str]:
    """Registers every single-agent environment with gymnasium, as "wdjax/NAME"; returns these ids.

        wdjax.adapters.register_gymnasium()
        env = gymnasium.make("wdjax/cartpole", length=0.7)
        envs = gymnasium.make_vec("wdjax/cartpole", num_envs=64)

    Arguments by name are those of `wdjax.make` and of `to_gymnasium` or `to_gymnasium_vector`. What is registered
    already stays as it is. (It is a call, not a plug-in, because gymnasium would import a plug-in, and with it jax, in
    every program that imports gymnasium.)
    """
    ids = {f"wdjax/{name}": name for name in list_envs() if not make(name)[0].groups}
    for env_id, name in ids.items():
        if env_id not in gymnasium.registry:
            entry_point, vector_entry_point = f"{__name__}:_make_env", f"{__name__}:_make_vector"
            gymnasium.register(env_id, entry_point, vector_entry_point=vector_entry_point, kwargs={"name": name})
    return list(ids)


def _make_env(name: str, render_mode: str | None = None, seed: int | None = None, **arguments: Any) -> "GymnasiumEnv":
    env, params = make(name, **arguments)
    return to_gymnasium(env, params, render_mode, seed)


def _make_vector(
    name: str,
    num_envs: int,
    reset: ResetStrategy = "fresh",
    render_mode: str | None = None,
    seed: int | None = None,
    episode_statistics: bool = True,
    **arguments: Any,
) -> "GymnasiumVectorEnv":
    env, params = make(name, **arguments)
    return to_gymnasium_vector(env, num_envs, params, reset, render_mode, seed, episode_statistics)


class GymnasiumEnv(gymnasium.Env):
    """A single-agent wdjax environment under gymnasium's `reset`, `step` and `render`.

    `wdjax_env`, `env_params` and `env_state` are what it plays: the environment, its params (NumPy) and the state.
    """

    metadata = METADATA

    def __init__(self, env: Env, params: Any = None, render_mode: str | None = None, seed: int | None = None):
        params = check_env_and_params(env, params)
        refuse_groups(env, "gymnasium")
        check_render_mode(render_mode)
        self.metadata = dict(METADATA)  # its own: gymnasium's SyncVectorEnv writes to it
        self.wdjax_env = env
        self.render_mode = render_mode
        self.env_state = None
        self._ended, self._warned = False, False
        self._use_params(params)
        if seed is not None:
            super().reset(seed=seed)

    def _use_params(self, params: Any) -> None:
        """Takes params, and their spaces where these differ (a new space would forget its own seed)."""
        self.env_params, self._params = params, jax.device_put(params)
        own = (self.wdjax_env.observation_space(params), self.wdjax_env.action_space(params))
        observation_space, action_space = to_gymnasium_spaces(*own)
        if getattr(self, "observation_space", None) != observation_space:
            self.observation_space = observation_space
        if getattr(self, "action_space", None) != action_space:
            self.action_space = action_space
        self._own_action_space = own[1]

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        """Starts an episode.

        Args:
            seed: makes this episode and those after it the same as after every other `reset` with this seed.
            options: `{"params": {"length": 0.7}}` changes params by name, from this episode on; None: none.

        Returns:
            (obs, info): obs in `observation_space`; info holds its action mask, where it has one.

        Raises:
            ValueError, TypeError: for an unknown option or parameter, with the nearest right name, or a wrong value.
        """
        _check_options(options)
        if (options or {}).get("params") is not None:
            self._use_params(changed_params(self.wdjax_env, self.env_params, options))
        super().reset(seed=seed)
        self._ended, self._warned = False, False
        key = draw_key(self.np_random)
        obs, self.env_state, self._key = start(self.wdjax_env, key, self._params)
        return self._observe(jax.device_get(obs), {})

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        """Plays one step.

        Args:
            action: in `action_space`, as numbers or arrays of NumPy.

        Returns:
            (obs, reward, terminated, truncated, info); info holds the environment's statistics of this step, as Python
            numbers, and the action mask, where it has one. After the end, gymnasium's logger warns once; the state
            stays ended.

        Raises:
            ValueError: for an action outside the space.
            gymnasium.error.ResetNeeded: before the first `reset`.
        """
        require_reset(self.env_state, "step")
        action = to_action(self.action_space, self._own_action_space, action)
        self._warn_after_end()
        results, self.env_state, self._key = advance(self.wdjax_env, self._key, self.env_state, action, self._params)
        obs, reward, terminated, truncated, info = jax.device_get(results)
        terminated, truncated = bool(terminated), bool(truncated)
        self._ended = self._ended or terminated or truncated
        obs, info = self._observe(obs, {name: as_number(value) for name, value in info.items()})
        return obs, float(reward), terminated, truncated, info

    def render(self) -> np.ndarray | None:
        """Returns a picture of the state, [480, 640, 3] uint8, where render_mode is "rgb_array", else None."""
        require_reset(self.env_state, "render")
        if self.render_mode is None:
            return warn_no_render_mode()
        return draw_picture(self.wdjax_env, self.env_state, self.env_params)

    def _observe(self, obs: Any, info: dict[str, Any]) -> tuple[Any, dict[str, Any]]:
        obs = to_numpy(self.observation_space, obs)
        return obs, with_mask(info, obs)

    def _warn_after_end(self) -> None:
        if self._ended and not self._warned:
            gymnasium.logger.warn("step() after the end of the episode: call reset() to start a new one")
            self._warned = True


class GymnasiumVectorEnv(gymnasium.vector.VectorEnv):
    """Replicas of a single-agent wdjax environment under gymnasium's vector API, with same-step auto-reset.

    Infos follow gymnasium's SyncVectorEnv in the mode SAME_STEP: every value is an array over the replicas and has a
    mask `_name` of those that it is valid for. Where an episode is over, `final_obs` ([num_envs] objects) holds its
    last observation and `final_info` the environment's statistics of that step; `episode` holds the return `r` and
    the length `l` of the whole episode.

    `wdjax_env`, `env_params` and `env_state` are what it plays; `env_state` is that of `wdjax.vectorize`.
    """

    def __init__(
        self,
        env: Env,
        num_envs: int,
        params: Any = None,
        reset: ResetStrategy = "fresh",
        render_mode: str | None = None,
        seed: int | None = None,
        episode_statistics: bool = True,
    ):
        params = check_env_and_params(env, params)
        refuse_groups(env, "gymnasium")
        check_render_mode(render_mode)
        require_bool("episode_statistics", episode_statistics)
        self._replicas = vectorize(env, num_envs, reset)
        self.metadata = {**METADATA, "autoreset_mode": gymnasium.vector.AutoresetMode.SAME_STEP}
        self.wdjax_env = env
        self.num_envs = self._replicas.num_envs
        self.render_mode = render_mode
        self.env_state = None
        self._episode_statistics = episode_statistics
        self._use_params(params)
        if seed is not None:
            super().reset(seed=seed)

    def _use_params(self, params: Any) -> None:
        """Takes params, and their spaces where these differ (a new space would forget its own seed)."""
        self.env_params, self._params = params, jax.device_put(params)
        own = (self.wdjax_env.observation_space(params), self.wdjax_env.action_space(params))
        observation_space, action_space = to_gymnasium_spaces(*own)
        if getattr(self, "single_observation_space", None) != observation_space:
            self.single_observation_space = observation_space
            self.observation_space = batch_space(observation_space, self.num_envs)
        if getattr(self, "single_action_space", None) != action_space:
            self.single_action_space = action_space
            self.action_space = batch_space(action_space, self.num_envs)
        self._own_action_space = own[1]

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        """Starts an episode in every replica; arguments and errors as those of `GymnasiumEnv.reset`."""
        _check_options(options)
        if (options or {}).get("params") is not None:
            self._use_params(changed_params(self.wdjax_env, self.env_params, options))
        super().reset(seed=seed)
        key = draw_key(self.np_random)
        obs, self.env_state, self._key = start(self._replicas, key, self._params)
        obs = to_numpy(self.observation_space, jax.device_get(obs))
        return obs, self._masks_of(obs)

    def step(self, actions: Any) -> tuple[Any, np.ndarray, np.ndarray, np.ndarray, dict[str, Any]]:
        """Plays one step in every replica, and starts a new episode where one is over.

        Args:
            actions: in `action_space`: one for each replica.

        Returns:
            (obs, rewards, terminations, truncations, infos): obs in `observation_space`, the first of the next episode
            where one is over; [num_envs] float64, bool and bool; infos as the class says.

        Raises:
            ValueError: for actions outside the space.
            gymnasium.error.ResetNeeded: before the first `reset`.
        """
        require_reset(self.env_state, "step")
        actions = to_action(self.action_space, self._own_action_space, actions)
        results, self.env_state, self._key = advance(self._replicas, self._key, self.env_state, actions, self._params)
        obs, rewards, terminations, truncations, info = results
        final_obs = info.pop("final_obs")  # stays on the device until an episode is over
        obs, rewards, terminations, truncations, info = jax.device_get((obs, rewards, terminations, truncations, info))
        obs = to_numpy(self.observation_space, obs)
        infos = self._infos(info, final_obs, obs)
        return obs, rewards.astype(np.float64), np.array(terminations), np.array(truncations), infos

    def render(self) -> tuple[np.ndarray, ...] | None:
        """Returns a picture of every replica, [480, 640, 3] uint8, where render_mode is "rgb_array", else None."""
        require_reset(self.env_state, "render")
        if self.render_mode is None:
            return warn_no_render_mode()
        states = jax.device_get(self.env_state.env_state)
        rows = (jax.tree.map(lambda leaf: leaf[i], states) for i in range(self.num_envs))  # noqa: B023
        return tuple(draw_picture(self.wdjax_env, row, self.env_params) for row in rows)

    def _infos(self, info: dict[str, Any], final_obs: Any, obs: Any) -> dict[str, Any]:
        """Returns what `vectorize` says of a step (NumPy, [num_envs]) as gymnasium's infos."""
        over = np.array(info["over"])
        step_info = {name: _widen(values) for name, values in info.items() if name not in RESERVED_INFO}
        infos: dict[str, Any] = {}
        for name, values in step_info.items():
            _add(infos, name, values, ~over)
        infos.update(self._masks_of(obs))
        if not over.any():
            return infos
        final_obs = jax.device_get(final_obs)
        final_info: dict[str, Any] = {}
        for name, values in step_info.items():
            _add(final_info, name, values, over)
        if isinstance(final_obs, dict) and MASK in final_obs:
            _add(final_info, MASK, to_numpy(self.observation_space[MASK], final_obs[MASK]), over)
        infos["final_obs"] = np.full(self.num_envs, None, object)
        for i in np.flatnonzero(over):
            infos["final_obs"][i] = take_row(self.single_observation_space, final_obs, i)
        infos.update({"_final_obs": over, "final_info": final_info, "_final_info": over.copy()})
        if self._episode_statistics:
            returns = np.where(over, _widen(info["episode_return"]), 0.0)
            lengths = np.where(over, _widen(info["episode_length"]), 0)
            infos.update({"episode": {"r": returns, "l": lengths}, "_episode": over.copy()})
        return infos

    def _masks_of(self, obs: Any) -> dict[str, Any]:
        infos = with_mask({}, obs)
        return {**infos, f"_{MASK}": np.ones(self.num_envs, bool)} if infos else {}


def _add(infos: dict[str, Any], name: str, values: Any, rows: np.ndarray) -> None:
    """Adds values (leaves [N, ...]) that hold in the given rows ([N] bool), 0 elsewhere, unless they hold in none."""
    if rows.any():
        there = lambda leaf: rows.reshape(rows.shape + (1,) * (leaf.ndim - 1))  # noqa: E731
        infos[name] = jax.tree.map(lambda leaf: np.where(there(leaf), leaf, np.zeros((), leaf.dtype)), values)
        infos[f"_{name}"] = rows.copy()


def _widen(values: np.ndarray) -> np.ndarray:
    """Returns numbers as Python has them, of 64 bits, which is how gymnasium collects those of single environments."""
    return values.astype(np.float64 if values.dtype.kind == "f" else np.int64)


def _check_options(options: Any) -> None:
    if options is not None and not isinstance(options, dict):
        raise TypeError(f"options = {options!r}: must be a dict or None")
    for name in options or {}:
        require_known("option of reset", name, ("params",))
