"""wdjax environments as gymnasium's `Env` and `VectorEnv`: NumPy in, NumPy out, one compiled program a step."""

import inspect
from collections.abc import Callable
from typing import Any

import gymnasium
import jax
import numpy as np
from gymnasium.vector.utils import batch_space

from wdjax.adapters import _translate as translate
from wdjax.adapters._translate import MASK, Played
from wdjax.checks import require_bool, require_known
from wdjax.env import Env
from wdjax.envs import list_envs, make
from wdjax.spaces import Space
from wdjax.vector import RESERVED_INFO, ResetStrategy, vectorize


class _SingleAgent(Played):
    """What both share; `_prefix` stands before the names of the spaces of one replica."""

    _prefix = ""

    def _use_spaces(self, observation_space: Space, action_space: Space) -> None:
        self._own_action_space = action_space
        spaces = translate.to_gymnasium_spaces(observation_space, action_space)
        for name, space in zip(("observation_space", "action_space"), spaces, strict=True):
            if getattr(self, self._prefix + name, None) != space:
                setattr(self, self._prefix + name, space)
                if self._prefix:
                    setattr(self, name, batch_space(space, self.num_envs))

    def _reset(self, seed: int | None, options: dict[str, Any] | None) -> Any:
        """Starts an episode. Returns its first observation."""
        if options is not None and not isinstance(options, dict):
            raise TypeError(f"options = {options!r}: must be a dict or None")
        for name in options or {}:
            require_known("option of reset", name, ("params",))
        self._change_params(options)
        super().reset(seed=seed)
        return translate.to_numpy(self.observation_space, self._start(self.np_random))

    def _step(self, action: Any) -> tuple[Any, ...]:
        """Plays one step, with an action of `action_space`. Returns what it gave, on the device."""
        self._require_reset("step")
        return self._advance(translate.to_action(self.action_space, self._own_action_space, action))


class GymnasiumEnv(_SingleAgent, gymnasium.Env):
    """A single-agent environment as a `gymnasium.Env`, under its `reset`, `step` and `render`.

    `wdjax_env`, `env_params` and `env_state` are what it plays: the environment, its params (NumPy) and the state.

    Args:
        env: an environment without groups.
        params: its params; None: the default ones.
        render_mode: None, or "rgb_array": `render()` returns a picture of the state, [480, 640, 3] uint8.
        seed: of the first episode, where `reset` is given none.

    Raises:
        ValueError, TypeError: for an environment with groups, and for other arguments out of range.
    """

    metadata = translate.METADATA

    def __init__(self, env: Env, params: Any = None, render_mode: str | None = None, seed: int | None = None):
        params = translate.check_single_agent(env, params, "gymnasium")
        self._set_up(env, params, render_mode)
        self.metadata = dict(translate.METADATA)  # its own: gymnasium's SyncVectorEnv writes to it
        self._ended, self._warned = False, False
        if seed is not None:
            super().reset(seed=seed)

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
        obs = self._reset(seed, options)
        self._ended, self._warned = False, False
        return obs, translate.with_mask({}, obs)

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
        if self._ended and not self._warned:
            gymnasium.logger.warn("step() after the end of the episode: call reset() to start a new one")
            self._warned = True
        obs, reward, terminated, truncated, info = jax.device_get(self._step(action))
        terminated, truncated = bool(terminated), bool(truncated)
        self._ended = self._ended or terminated or truncated
        obs = translate.to_numpy(self.observation_space, obs)
        return obs, float(reward), terminated, truncated, translate.with_mask(translate.as_numbers(info), obs)


class GymnasiumVectorEnv(_SingleAgent, gymnasium.vector.VectorEnv):
    """Replicas of a single-agent environment as a `gymnasium.vector.VectorEnv`, with same-step auto-reset.

    Infos follow gymnasium's SyncVectorEnv in the mode SAME_STEP: every value is an array over the replicas and has a
    mask `_name` of those that it is valid for. Where an episode is over, `final_obs` ([num_envs] objects) holds its
    last observation and `final_info` the environment's statistics of that step; `episode` holds the return `r` and
    the length `l` of the whole episode.

    `wdjax_env`, `env_params` and `env_state` are what it plays; `env_state` is that of `wdjax.vectorize`.

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

    Raises:
        ValueError, TypeError: for an environment with groups, and for other arguments out of range.
    """

    _prefix = "single_"

    def __init__(
        self, env: Env, num_envs: int, params: Any = None, reset: ResetStrategy = "fresh",
        render_mode: str | None = None, seed: int | None = None, episode_statistics: bool = True,
    ):  # fmt: skip
        params = translate.check_single_agent(env, params, "gymnasium")
        require_bool("episode_statistics", episode_statistics)
        replicas = vectorize(env, num_envs, reset)
        self.num_envs = replicas.num_envs
        self.metadata = {**translate.METADATA, "autoreset_mode": gymnasium.vector.AutoresetMode.SAME_STEP}
        self._episode_statistics = episode_statistics
        self._set_up(env, params, render_mode, replicas)
        if seed is not None:
            super().reset(seed=seed)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        """Starts an episode in every replica; arguments and errors as those of `GymnasiumEnv.reset`."""
        obs = self._reset(seed, options)
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
        *results, info = self._step(actions)
        final_obs = info.pop("final_obs")  # stays on the device until an episode is over
        obs, rewards, terminations, truncations, info = jax.device_get((*results, info))
        obs = translate.to_numpy(self.observation_space, obs)
        infos = self._infos(info, final_obs, obs)
        return obs, rewards.astype(np.float64), np.array(terminations), np.array(truncations), infos

    def _draw(self, state: Any) -> tuple[np.ndarray, ...]:
        states = jax.device_get(state.env_state)
        draw = super()._draw
        return tuple(draw(jax.tree.map(lambda leaf: leaf[i], states)) for i in range(self.num_envs))  # noqa: B023

    def _infos(self, info: dict[str, Any], final_obs: Any, obs: Any) -> dict[str, Any]:
        """Returns what `vectorize` says of a step (NumPy, [num_envs]) as gymnasium's infos."""
        over = np.array(info["over"])
        step_info = {name: _widen(values) for name, values in info.items() if name not in RESERVED_INFO}
        infos = {**_valid_in(~over, step_info), **self._masks_of(obs)}
        if not over.any():
            return infos
        final_obs = jax.device_get(final_obs)
        if isinstance(final_obs, dict) and MASK in final_obs:
            step_info[MASK] = translate.to_numpy(self.observation_space[MASK], final_obs[MASK])
        infos["final_obs"] = np.full(self.num_envs, None, object)
        for i in np.flatnonzero(over):
            infos["final_obs"][i] = translate.take_row(self.single_observation_space, final_obs, i)
        infos.update({"_final_obs": over, "final_info": _valid_in(over, step_info), "_final_info": over.copy()})
        if self._episode_statistics:
            returns = np.where(over, _widen(info["episode_return"]), 0.0)
            lengths = np.where(over, _widen(info["episode_length"]), 0)
            infos.update({"episode": {"r": returns, "l": lengths}, "_episode": over.copy()})
        return infos

    def _masks_of(self, obs: Any) -> dict[str, Any]:
        infos = translate.with_mask({}, obs)
        return {**infos, f"_{MASK}": np.ones(self.num_envs, bool)} if infos else {}


def _valid_in(rows: np.ndarray, infos: dict[str, Any]) -> dict[str, Any]:
    """Returns values (leaves [N, ...]) that hold in the given rows ([N] bool), 0 elsewhere, with masks `_name` of these
    rows; nothing where they hold in none."""

    def hold(leaf: np.ndarray) -> np.ndarray:
        return np.where(rows.reshape(rows.shape + (1,) * (leaf.ndim - 1)), leaf, np.zeros((), leaf.dtype))

    masks = {f"_{name}": rows.copy() for name in infos}
    return {**jax.tree.map(hold, infos), **masks} if rows.any() else {}


def _widen(values: np.ndarray) -> np.ndarray:
    """Returns numbers as Python has them, of 64 bits, which is how gymnasium collects those of single environments."""
    return values.astype(np.float64 if values.dtype.kind == "f" else np.int64)


to_gymnasium, to_gymnasium_vector = GymnasiumEnv, GymnasiumVectorEnv


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


def _make_env(name: str, **arguments: Any) -> GymnasiumEnv:
    return _make(GymnasiumEnv, name, arguments)


def _make_vector(name: str, num_envs: int, **arguments: Any) -> GymnasiumVectorEnv:
    return _make(GymnasiumVectorEnv, name, {**arguments, "num_envs": num_envs})


def _make(adapter: Callable, name: str, arguments: dict[str, Any]) -> Any:
    own = set(inspect.signature(adapter).parameters) - {"env", "params"}
    env, params = make(name, **{key: value for key, value in arguments.items() if key not in own})
    return adapter(env, params=params, **{key: value for key, value in arguments.items() if key in own})
