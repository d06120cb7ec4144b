"""wdjax environments as gymnasium `Env` and `VectorEnv`: NumPy in, NumPy out."""

import dataclasses
from typing import Any

import gymnasium
import jax
import numpy as np
from gymnasium.envs.registration import EnvSpec
from gymnasium.error import ResetNeeded
from gymnasium.vector import AutoresetMode
from gymnasium.vector.utils import batch_space

from wdjax.adapters import _translate as translate
from wdjax.adapters._pausing import PausingEnv
from wdjax.adapters._translate import MASK, Played
from wdjax.checks import require, require_bool, require_known
from wdjax.env import Env
from wdjax.kernels.backend import to_host
from wdjax.spaces import Space
from wdjax.stepping import RESERVED_INFO
from wdjax.vector import ResetStrategy, vectorize


class _SingleAgent(Played):
    """Base class of both environments.

    `_prefix` is the prefix of the attributes that hold the spaces of one replica.
    """

    _prefix = ""
    _spec: EnvSpec | None = None

    @property
    def spec(self) -> EnvSpec | None:
        """The gymnasium spec, with the time limit of the current params."""
        limit = getattr(self.env_params, "episode_length", None)
        return self._spec and dataclasses.replace(
            self._spec, max_episode_steps=None if limit is None else int(limit)
        )

    @spec.setter
    def spec(self, spec: EnvSpec | None) -> None:
        self._spec = spec

    def _use_spaces(self, observation_space: Space, action_space: Space) -> None:
        self._own_action_space = action_space
        spaces = translate.to_gymnasium_spaces(observation_space, action_space)
        for name, space in zip(("observation_space", "action_space"), spaces, strict=True):
            if getattr(self, self._prefix + name, None) != space:
                setattr(self, self._prefix + name, space)
                if self._prefix:
                    setattr(self, name, batch_space(space, self.num_envs))

    def _reset(
        self, seed: int | None, options: dict[str, Any] | None, rows: np.ndarray | None = None
    ) -> Any:
        """Start an episode (in the replicas `rows`, or in all if None); return the observation."""
        require(isinstance(options, dict | None), "options", options, "a dict or None", TypeError)
        for name in options or {}:
            require_known("option of reset", name, ("params",))
        self._change_params(options)
        super().reset(seed=seed)
        return translate.to_numpy(self.observation_space, self._start(self.np_random, rows))

    def _step(self, action: Any) -> tuple[Any, ...]:
        """Advance one step with an action in `action_space`; return jax arrays."""
        self._require_reset("step")
        return self._advance(translate.to_action(self.action_space, self._own_action_space, action))


class GymnasiumEnv(_SingleAgent, gymnasium.Env):
    """A single-agent environment as a `gymnasium.Env`.

    The attributes `wdjax_env`, `env_params` (NumPy) and `env_state` are the wrapped environment,
    its params and its current state.

    Args:
        env: an environment without groups.
        params: params of `env`; None: its defaults.
        render_mode: None, or "rgb_array": `render()` returns a picture, [480, 640, 3] uint8.
        seed: seed of the first episode, unless `reset` receives a seed.

    Raises:
        ValueError: if `env` has groups, a value in `params` is invalid, or `render_mode` is
            unknown.
        TypeError: for an argument of the wrong type.
    """

    metadata = translate.METADATA

    def __init__(
        self, env: Env, params: Any = None, render_mode: str | None = None, seed: int | None = None
    ):
        params = translate.check_single_agent(env, params, "gymnasium")
        self._set_up(env, params, render_mode)
        # a copy for each instance, because gymnasium's SyncVectorEnv writes to it
        self.metadata = translate.metadata_of(env)
        self._ended, self._warned = False, False
        if seed is not None:
            super().reset(seed=seed)

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Any, dict[str, Any]]:
        """Start an episode.

        Args:
            seed: makes this episode and the following ones reproducible; None: continue the
                current random sequence.
            options: `{"params": {"length": 0.7}}` changes params by name from this episode on.

        Returns:
            (obs, info). obs is in `observation_space`; info contains the action mask, if any.

        Raises:
            ValueError: for an unknown option or parameter (the message contains the closest name),
                or an invalid value.
            TypeError: for a value of the wrong type.
        """
        obs = self._reset(seed, options)
        self._ended, self._warned = False, False
        return obs, translate.with_mask({}, obs)

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        """Advance one step.

        After the end of an episode, the state no longer changes, and gymnasium's logger warns once.

        Args:
            action: in `action_space`, as numbers or NumPy arrays.

        Returns:
            (obs, reward, terminated, truncated, info). info contains the environment's statistics
            of this step as Python numbers, and the action mask, if any.

        Raises:
            ValueError: if the action is not in `action_space`.
            gymnasium.error.ResetNeeded: before the first `reset`.
        """
        if self._ended and not self._warned:
            gymnasium.logger.warn(
                "step() after the end of the episode: call reset() to start a new one"
            )
            self._warned = True
        obs, reward, terminated, truncated, info = to_host(self._step(action))
        terminated, truncated = bool(terminated), bool(truncated)
        self._ended = self._ended or terminated or truncated
        obs = translate.to_numpy(self.observation_space, obs)
        return (
            obs,
            float(reward),
            terminated,
            truncated,
            translate.with_mask(translate.as_numbers(info), obs),
        )


class GymnasiumVectorEnv(_SingleAgent, gymnasium.vector.VectorEnv):
    """Replicas of a single-agent environment as a `gymnasium.vector.VectorEnv`.

    Infos follow gymnasium's SyncVectorEnv: every value `name` is an array over the replicas, and
    the mask `_name` marks the replicas for which it is valid. For episodes that end in this step,
    `episode` contains the return `r` and the length `l`. In same-step mode, `final_obs` ([num_envs]
    objects) contains their last observations and `final_info` the statistics of that step.

    The attributes `wdjax_env`, `env_params` (NumPy) and `env_state` are the wrapped environment,
    its params and the current state; `env_state.env_state` holds the states of the replicas.

    Args:
        env: an environment without groups.
        num_envs: number of replicas.
        params: params of `env`, shared by all replicas; None: its defaults.
        reset: reset strategy, as in `wdjax.vectorize`: "fresh", "fixed" or ResetPool(n).
        render_mode: None, or "rgb_array": `render()` returns a picture of every replica.
        seed: seed of the first `reset`, unless `reset` receives a seed.
        episode_statistics: whether infos contain the return and length of finished episodes. Set
            to False to use gymnasium's vector RecordEpisodeStatistics, which rejects environments
            that already report them. In same-step mode, that wrapper ignores the first step of
            every episode except the first one.
        autoreset_mode: when a replica is reset after its episode, as a name or a gymnasium
            AutoresetMode. "same_step": in the last step of the episode. "next_step": in the step
            after it, ignoring the action; required by several gymnasium wrappers
            (NormalizeObservation, FlattenObservation). "disabled": only by `reset` with the option
            `reset_mask`, [num_envs] bool.

    Raises:
        ValueError: if `env` has groups, or an argument has an invalid value.
        TypeError: for an argument of the wrong type.
    """

    _prefix = "single_"

    def __init__(
        self,
        env: Env,
        num_envs: int,
        params: Any = None,
        reset: ResetStrategy = "fresh",
        render_mode: str | None = None,
        seed: int | None = None,
        episode_statistics: bool = True,
        autoreset_mode: str | AutoresetMode = "same_step",
    ):
        params = translate.check_single_agent(env, params, "gymnasium")
        require_bool("episode_statistics", episode_statistics)
        replicas = vectorize(env, num_envs, reset)
        self.num_envs = replicas.num_envs
        self._mode = _mode_of(autoreset_mode)
        self.metadata = {**translate.metadata_of(env), "autoreset_mode": self._mode}
        self._episode_statistics = episode_statistics
        if self._mode is not AutoresetMode.SAME_STEP:
            replicas = PausingEnv(replicas, next_step=self._mode is AutoresetMode.NEXT_STEP)
        self._set_up(env, params, render_mode, replicas)
        if seed is not None:
            super().reset(seed=seed)

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Any, dict[str, Any]]:
        """Start an episode in every replica, or in those selected by `reset_mask`.

        Args:
            seed: makes these episodes and the following ones reproducible; None: continue the
                current random sequence.
            options: `{"params": {"length": 0.7}}` changes params of all replicas by name.
                `{"reset_mask": mask}`, [num_envs] bool, starts an episode only in these replicas.
                It requires autoreset_mode="disabled".

        Returns:
            (obs, infos). obs is in `observation_space`; infos contains the action masks, if any.

        Raises:
            ValueError: for an unknown option or parameter (the message contains the closest name),
                an invalid value, or an invalid `reset_mask`.
            TypeError: for a value of the wrong type.
        """
        mask = options.get("reset_mask") if isinstance(options, dict) else None
        if mask is None:
            obs = self._reset(seed, options)
            self._over = np.zeros(self.num_envs, bool)
            return obs, self._masks_of(obs, ~self._over)
        self._check_mask(mask)
        obs = self._reset(
            seed, {name: value for name, value in options.items() if name != "reset_mask"}, mask
        )
        self._over = self._over & ~mask
        return obs, self._masks_of(obs, mask.copy())

    def _check_mask(self, mask: Any) -> None:
        if self._mode is not AutoresetMode.DISABLED:
            raise ValueError(
                "options['reset_mask']: requires autoreset_mode='disabled'. In the other modes "
                "replicas reset automatically."
            )
        require(
            isinstance(mask, np.ndarray)
            and mask.dtype == bool
            and mask.shape == (self.num_envs,)
            and mask.any(),
            "options['reset_mask']",
            mask,
            f"a bool array of shape ({self.num_envs},) with at least one True",
        )
        self._require_reset("reset with a reset_mask")

    def step(self, actions: Any) -> tuple[Any, np.ndarray, np.ndarray, np.ndarray, dict[str, Any]]:
        """Advance every replica one step, and reset replicas according to `autoreset_mode`.

        Args:
            actions: one action for each replica, in `action_space`.

        Returns:
            (obs, rewards, terminations, truncations, infos). obs is in `observation_space`; in
            same-step mode it is the first one of the next episode where an episode ended. The next
            three are [num_envs] float64, bool and bool. The class docstring describes infos.

        Raises:
            ValueError: if the actions are not in `action_space`.
            gymnasium.error.ResetNeeded: before the first `reset`; with autoreset_mode="disabled",
                also if a replica whose episode has ended was not reset.
        """
        was_over = self._over if self.env_state is not None else False
        if self._mode is AutoresetMode.DISABLED and np.any(was_over):
            ended = np.flatnonzero(was_over).tolist()
            raise ResetNeeded(
                f"the episodes of replicas {ended} have ended: call "
                "reset(options={'reset_mask': mask}) before step()"
            )
        *results, info = self._step(actions)
        final_obs = info.pop("final_obs")  # stays on the device until an episode is over
        obs, rewards, terminations, truncations, info = to_host((*results, info))
        obs = translate.to_numpy(self.observation_space, obs)
        step_info = translate.own_statistics(
            {k: _widen(v) for k, v in info.items() if k not in RESERVED_INFO}
        )
        over = np.array(info["over"])
        infos = self._masks_of(obs, np.ones(self.num_envs, bool))
        if self._mode is AutoresetMode.SAME_STEP:
            infos |= _valid_in(~over, step_info) | (
                self._final_infos(over, step_info, final_obs) if over.any() else {}
            )
        else:
            infos |= _valid_in(~was_over, step_info)
            self._over = over
        if self._episode_statistics and over.any():
            returns = np.where(over, _widen(info["episode_return"]), 0.0)
            lengths = np.where(over, _widen(info["episode_length"]), 0)
            infos |= {"episode": {"r": returns, "l": lengths}, "_episode": over.copy()}
        return obs, rewards.astype(np.float64), np.array(terminations), np.array(truncations), infos

    def _draw(self, state: Any) -> tuple[np.ndarray, ...]:
        states = jax.device_get(state.env_state)
        draw = super()._draw
        return tuple(draw(jax.tree.map(lambda leaf: leaf[i], states)) for i in range(self.num_envs))  # noqa: B023

    def _final_infos(
        self, over: np.ndarray, step_info: dict[str, Any], final_obs: Any
    ) -> dict[str, Any]:
        """Return the infos of episodes that ended, `over` [num_envs] bool, in same-step mode."""
        final_obs = to_host(final_obs)
        if isinstance(final_obs, dict) and MASK in final_obs:
            step_info = {
                **step_info,
                MASK: translate.to_numpy(self.observation_space[MASK], final_obs[MASK]),
            }
        last = np.full(self.num_envs, None, object)
        for i in np.flatnonzero(over):
            last[i] = translate.take_row(self.single_observation_space, final_obs, i)
        return {
            "final_obs": last,
            "_final_obs": over,
            "final_info": _valid_in(over, step_info),
            "_final_info": over.copy(),
        }

    def _masks_of(self, obs: Any, rows: np.ndarray) -> dict[str, Any]:
        return _valid_in(rows, translate.with_mask({}, obs))


def _mode_of(mode: Any) -> AutoresetMode:
    """Convert a name or an AutoresetMode to an AutoresetMode; raise ValueError if unknown."""
    if isinstance(mode, AutoresetMode):
        return mode
    require_known("autoreset_mode", mode, [each.name.lower() for each in AutoresetMode])
    return AutoresetMode[mode.upper()]


def _valid_in(rows: np.ndarray, infos: dict[str, Any]) -> dict[str, Any]:
    """Add masks to infos (leaves [N, ...]) that are valid in `rows` ([N] bool).

    The mask of a value `name` is called `_name`. Values are 0 in the other rows. The result is
    empty if `rows` is all false.
    """

    def hold(leaf: np.ndarray) -> np.ndarray:
        return np.where(
            rows.reshape(rows.shape + (1,) * (leaf.ndim - 1)), leaf, np.zeros((), leaf.dtype)
        )

    masks = {f"_{name}": rows.copy() for name in infos}
    return {**jax.tree.map(hold, infos), **masks} if rows.any() else {}


def _widen(values: np.ndarray) -> np.ndarray:
    """Cast to 64 bits, the type that gymnasium gives to numbers of single environments."""
    return values.astype(np.float64 if values.dtype.kind == "f" else np.int64)


to_gymnasium, to_gymnasium_vector = GymnasiumEnv, GymnasiumVectorEnv
