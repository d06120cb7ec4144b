"""wdjax environments as gymnasium's `Env` and `VectorEnv`: NumPy in, NumPy out, one compiled program a step."""

import dataclasses
import inspect
from collections.abc import Callable
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
from wdjax.checks import require_bool, require_known
from wdjax.env import Env
from wdjax.envs import list_envs, make
from wdjax.spaces import Space
from wdjax.vector import RESERVED_INFO, ResetStrategy, vectorize


class _SingleAgent(Played):
    """What both share; `_prefix` stands before the names of the spaces of one replica."""

    _prefix = ""
    _spec: EnvSpec | None = None

    @property
    def spec(self) -> EnvSpec | None:
        """What gymnasium says of the environment, with the time limit that its params have."""
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
        """Starts an episode, in some replicas where `rows` are given. Returns the first observation."""
        if options is not None and not isinstance(options, dict):
            raise TypeError(f"options = {options!r}: must be a dict or None")
        for name in options or {}:
            require_known("option of reset", name, ("params",))
        self._change_params(options)
        super().reset(seed=seed)
        return translate.to_numpy(self.observation_space, self._start(self.np_random, rows))

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

    def __init__(
        self, env: Env, params: Any = None, render_mode: str | None = None, seed: int | None = None
    ):
        params = translate.check_single_agent(env, params, "gymnasium")
        self._set_up(env, params, render_mode)
        # its own: gymnasium's SyncVectorEnv writes to it
        self.metadata = translate.metadata_of(env)
        self._ended, self._warned = False, False
        if seed is not None:
            super().reset(seed=seed)

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Any, dict[str, Any]]:
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
            gymnasium.logger.warn(
                "step() after the end of the episode: call reset() to start a new one"
            )
            self._warned = True
        obs, reward, terminated, truncated, info = translate.to_host(self._step(action))
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

    Infos follow gymnasium's SyncVectorEnv: every value is an array over the replicas and has a mask `_name` of those
    that it is valid for. Where an episode is over, `episode` holds the return `r` and the length `l` of the whole of it
    and, in same-step mode, `final_obs` ([num_envs] objects) its last observation and `final_info` the environment's
    statistics of that step.

    `wdjax_env`, `env_params` and `env_state` are what it plays; `env_state.env_state` has those of the replicas.

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
        autoreset_mode: when a replica whose episode is over starts anew, by name or as gymnasium's AutoresetMode:
            "same_step": in that very step; "next_step": in the next one, in place of its action, as many of gymnasium's
            wrappers ask (NormalizeObservation, FlattenObservation); "disabled": by `reset`, whose option `reset_mask`
            ([num_envs] bool) says which.

    Raises:
        ValueError, TypeError: for an environment with groups, and for other arguments out of range.
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
        """Starts an episode in every replica; arguments and errors as those of `GymnasiumEnv.reset`, and

        Args:
            options: `{"reset_mask": mask}`, [num_envs] bool, starts one in these replicas only, where autoreset_mode is
                "disabled"; the others stay what they are, and params of `options` are everybody's from now on.
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
                "options['reset_mask']: replicas start anew by themselves (autoreset_mode='disabled')"
            )
        if not (
            isinstance(mask, np.ndarray)
            and mask.dtype == bool
            and mask.shape == (self.num_envs,)
            and mask.any()
        ):
            raise ValueError(
                f"options['reset_mask'] = {mask!r}: must be an array of {self.num_envs} bool, one true"
            )
        self._require_reset("reset with a reset_mask")

    def step(self, actions: Any) -> tuple[Any, np.ndarray, np.ndarray, np.ndarray, dict[str, Any]]:
        """Plays one step in every replica, and starts a new episode where `autoreset_mode` says so.

        Args:
            actions: in `action_space`: one for each replica.

        Returns:
            (obs, rewards, terminations, truncations, infos): obs in `observation_space`, in same-step mode the first of
            the next episode where one is over; [num_envs] float64, bool and bool; infos as the class says.

        Raises:
            ValueError: for actions outside the space.
            gymnasium.error.ResetNeeded: before the first `reset`, and where autoreset_mode is "disabled" and a replica
                whose episode is over was not reset.
        """
        waited = self._over if self.env_state is not None else False
        if self._mode is AutoresetMode.DISABLED and np.any(waited):
            ended = np.flatnonzero(waited).tolist()
            raise ResetNeeded(
                f"the episodes of replicas {ended} are over: reset(options={{'reset_mask': mask}})"
            )
        *results, info = self._step(actions)
        final_obs = info.pop("final_obs")  # stays on the device until an episode is over
        obs, rewards, terminations, truncations, info = translate.to_host((*results, info))
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
            infos |= _valid_in(~waited, step_info)
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
        """Returns what same-step mode says of the replicas whose episode is over, [num_envs] bool."""
        final_obs = translate.to_host(final_obs)
        if isinstance(final_obs, dict) and MASK in final_obs:
            step_info = {
                **step_info,
                MASK: translate.to_numpy(self.observation_space[MASK], final_obs[MASK]),
            }
        last = np.full(self.num_envs, None, object)
        for i in np.flatnonzero(over):
            last[i] = translate.take_row(self.single_observation_space, final_obs, i)
        info = _valid_in(over, step_info)
        return {
            "final_obs": last,
            "_final_obs": over,
            "final_info": info,
            "_final_info": over.copy(),
        }

    def _masks_of(self, obs: Any, rows: np.ndarray) -> dict[str, Any]:
        infos = translate.with_mask({}, obs)
        return _valid_in(rows, infos)


def _mode_of(mode: Any) -> AutoresetMode:
    """Returns gymnasium's AutoresetMode of this name; raises ValueError for another one."""
    if isinstance(mode, AutoresetMode):
        return mode
    require_known("autoreset_mode", mode, [each.name.lower() for each in AutoresetMode])
    return AutoresetMode[mode.upper()]


def _valid_in(rows: np.ndarray, infos: dict[str, Any]) -> dict[str, Any]:
    """Returns values (leaves [N, ...]) that hold in the given rows ([N] bool), 0 elsewhere, with masks `_name` of these
    rows; nothing where they hold in none."""

    def hold(leaf: np.ndarray) -> np.ndarray:
        return np.where(
            rows.reshape(rows.shape + (1,) * (leaf.ndim - 1)), leaf, np.zeros((), leaf.dtype)
        )

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
    already stays as it is. The game ends by its own time limit, `episode_length`, which is the `max_episode_steps` of
    what was made; gymnasium's argument of that name is a second limit around it (of `make_vec`: the same one). (It is a
    call, not a plug-in, because gymnasium would import a plug-in, and with it jax, in every program that imports
    gymnasium.)
    """
    envs = {name: make(name)[0] for name in list_envs()}
    ids = {f"wdjax/{name}": name for name, env in envs.items() if not env.groups}
    for env_id, name in ids.items():
        if env_id not in gymnasium.registry:
            points = {
                "entry_point": f"{__name__}:_make_env",
                "vector_entry_point": f"{__name__}:_make_vector",
            }
            threshold = envs[name].reward_threshold
            gymnasium.register(env_id, **points, reward_threshold=threshold, kwargs={"name": name})
    return list(ids)


def _make_env(name: str, **arguments: Any) -> GymnasiumEnv:
    return _make(GymnasiumEnv, name, arguments)


# by it gymnasium knows that "human" and "rgb_array_list" are for its wrappers
_make_env.metadata = translate.METADATA


def _make_vector(
    name: str, num_envs: int, max_episode_steps: int | None = None, **arguments: Any
) -> GymnasiumVectorEnv:
    if max_episode_steps is not None:
        arguments["episode_length"] = max_episode_steps
    return _make(GymnasiumVectorEnv, name, {**arguments, "num_envs": num_envs})


def _make(adapter: Callable, name: str, arguments: dict[str, Any]) -> Any:
    own = set(inspect.signature(adapter).parameters) - {"env", "params"}
    env, params = make(name, **{key: value for key, value in arguments.items() if key not in own})
    return adapter(
        env, params=params, **{key: value for key, value in arguments.items() if key in own}
    )
