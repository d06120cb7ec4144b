"""wdjax environments with groups of agents as PettingZoo `ParallelEnv`."""

from collections.abc import Mapping
from typing import Any

import gymnasium
import jax
import numpy as np
from gymnasium.utils import seeding
from pettingzoo import ParallelEnv

from wdjax.adapters import _translate as translate
from wdjax.checks import require, require_known
from wdjax.env import Env, is_key
from wdjax.kernels.backend import to_host
from wdjax.spaces import Dict


class PettingZooEnv(translate.Played, ParallelEnv):
    """An environment with groups as a `pettingzoo.ParallelEnv`.

    Agent i of group "runner" is named "runner_i". `agents` lists the active agents: an agent is
    removed in the step in which it terminates or is truncated. The attributes `wdjax_env`,
    `env_params` (NumPy) and `env_state` are the wrapped environment, its params and its current
    state.

    If agents join (`Env.present`), `agents` contains an agent from the step in which it joins, and
    may be empty before the episode is over: continue with `step({})`. An agent that joins in a used
    slot has the name of the agent before it, which PettingZoo's `parallel_api_test` does not allow.

    Args:
        env: an environment with groups.
        params: params of `env`; None: its defaults.
        render_mode: None, or "rgb_array": `render()` returns a picture, [480, 640, 3] uint8.

    Raises:
        ValueError: if `env` has no groups, a value in `params` is invalid, or `render_mode` is
            unknown.
        TypeError: for an argument of the wrong type.
    """

    def __init__(self, env: Env, params: Any = None, render_mode: str | None = None):
        params = translate.check_env_and_params(env, params)
        if not env.groups:
            raise ValueError(f"{type(env).__name__} has no groups of agents: use to_gymnasium")
        self.metadata = {
            **translate.metadata_of(env),
            "name": type(env).__name__,
            "is_parallelizable": True,
        }
        self._rng: np.random.Generator | None = None
        self._places = {
            f"{group}_{i}": (group, i) for group, num in env.groups.items() for i in range(num)
        }
        self.observation_spaces: dict[str, gymnasium.Space] = {}
        self.action_spaces: dict[str, gymnasium.Space] = {}
        self.possible_agents = list(self._places)
        self.agents: list[str] = []
        self._set_up(env, params, render_mode)

    def _use_spaces(self, observation_space: Dict, action_space: Dict) -> None:
        self._own_action_spaces = {
            group: action_space[group].single for group in self.wdjax_env.groups
        }
        for agent, (group, _) in self._places.items():
            spaces = translate.to_gymnasium_spaces(
                observation_space[group].single, self._own_action_spaces[group]
            )
            for known, space in zip(
                (self.observation_spaces, self.action_spaces), spaces, strict=True
            ):
                if known.get(agent) != space:
                    known[agent] = space

    def observation_space(self, agent: str) -> gymnasium.Space:
        """Return the observation space of an agent; raise ValueError for an unknown name."""
        require_known("agent", agent, self.possible_agents)
        return self.observation_spaces[agent]

    def action_space(self, agent: str) -> gymnasium.Space:
        """Return the action space of an agent; raise ValueError for an unknown name."""
        require_known("agent", agent, self.possible_agents)
        return self.action_spaces[agent]

    def reset(
        self, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[dict[str, Any], dict[str, dict[str, Any]]]:
        """Start an episode.

        Args:
            seed: makes this episode and the following ones reproducible; None: continue the
                current random sequence.
            options: `{"params": {"max_speed": 2.0}}` changes params by name from this episode on.
                Other options are ignored, as PettingZoo's tests require.

        Returns:
            (observations, infos), dicts by agent. An info contains the agent's action mask, if any.

        Raises:
            ValueError: for an unknown parameter (the message contains the closest name), or an
                invalid value.
            TypeError: for a value of the wrong type.
        """
        self._change_params(options)
        if seed is not None or self._rng is None:
            self._rng, _ = seeding.np_random(seed)
        obs = self._start(self._rng)
        self.agents, self._is_over = self._present(), False
        return self._observe(obs, self.agents, {})

    def step(self, actions: Mapping[str, Any]) -> tuple[dict, dict, dict, dict, dict]:
        """Advance one step.

        Args:
            actions: an action for each of `agents`, in its `action_space`. Actions of agents that
                are no longer active are ignored.

        Returns:
            (observations, rewards, terminations, truncations, infos), dicts by agent for the agents
            that were active in this step or joined in it. An info contains the
            environment's statistics of the step, equal for all agents, and the agent's action mask,
            if any.

        Raises:
            ValueError: for an unknown agent, a missing action, or an action outside its space.
            TypeError: if `actions` is not a dict.
            gymnasium.error.ResetNeeded: before the first `reset`.
        """
        self._require_reset("step")
        action = self._collect(actions)
        if self._is_over:
            return {}, {}, {}, {}, {}
        obs, reward, terminated, truncated, info = to_host(self._advance(action))
        ended = {group: terminated[group] | truncated[group] for group in self.wdjax_env.groups}
        self._is_over = all(flags.all() for flags in ended.values())
        shown = {agent for agent in self._present() if not self._row(ended, agent)} | {*self.agents}
        agents = [agent for agent in self.possible_agents if agent in shown]
        observations, infos = self._observe(obs, agents, translate.as_numbers(info))
        rewards, terminations, truncations = (
            {agent: kind(self._row(values, agent)) for agent in agents}
            for values, kind in ((reward, float), (terminated, bool), (truncated, bool))
        )
        self.agents = [agent for agent in agents if not (terminations[agent] or truncations[agent])]
        return observations, rewards, terminations, truncations, infos

    def state(self) -> np.ndarray:
        """Return the state as one float32 vector, the concatenation of all its fields but keys."""
        self._require_reset("state")
        leaves = [leaf for leaf in jax.tree.leaves(self.env_state) if not is_key(leaf)]
        leaves = jax.device_get(leaves)
        return np.concatenate([np.ravel(leaf).astype(np.float32) for leaf in leaves])

    def _present(self) -> list[str]:
        """Return the names of the agents for which `Env.present` is true; all if it is None."""
        flags = to_host(translate.present(self.wdjax_env, self.env_state, self._params))
        if flags is None:
            return list(self.possible_agents)
        return [agent for agent in self.possible_agents if self._row(flags, agent)]

    def _row(self, values: Mapping[str, Any], agent: str) -> Any:
        """Return an agent's number from arrays by group."""
        group, i = self._places[agent]
        return values[group][i]

    def _collect(self, actions: Mapping[str, Any]) -> dict[str, Any]:
        """Stack actions by agent into actions by group, leaves [num_agents, ...]."""
        require(
            isinstance(actions, Mapping),
            "actions",
            actions,
            "a dict of agent names and actions",
            TypeError,
        )
        for agent in actions:
            require_known("agent", agent, self.possible_agents)
        missing = [agent for agent in self.agents if agent not in actions]
        if missing:
            raise ValueError(
                f"actions: missing {', '.join(missing)}. Every agent in `agents` needs an action."
            )
        active = set(self.agents)
        rows: dict[str, list] = {group: [] for group in self.wdjax_env.groups}
        for agent, (group, _) in self._places.items():
            space, own = self.action_spaces[agent], self._own_action_spaces[group]
            action = actions[agent] if agent in active else translate.neutral_action(space)
            rows[group].append(translate.to_action(space, own, action, f"actions[{agent!r}]"))
        return {
            group: jax.tree.map(lambda *leaves: np.stack(leaves), *row)
            for group, row in rows.items()
        }

    def _observe(
        self, obs: dict[str, Any], agents: list[str], info: dict[str, Any]
    ) -> tuple[dict, dict]:
        observations, infos = {}, {}
        for agent in agents:
            group, i = self._places[agent]
            seen = translate.take_row(self.observation_spaces[agent], obs[group], i)
            observations[agent], infos[agent] = seen, translate.with_mask(dict(info), seen)
        return observations, infos


to_pettingzoo = PettingZooEnv
