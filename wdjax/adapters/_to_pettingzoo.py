"""wdjax environments with groups of agents as PettingZoo's `ParallelEnv`."""

from collections.abc import Mapping
from typing import Any

import gymnasium
import jax
import numpy as np
from gymnasium.utils import seeding
from pettingzoo import ParallelEnv

from wdjax.adapters import _translate as translate
from wdjax.checks import require_known
from wdjax.env import Env
from wdjax.spaces import Dict


class PettingZooEnv(translate.Played, ParallelEnv):
    """An environment with groups as a `pettingzoo.ParallelEnv`: agent i of group "runner" is "runner_i".

    `agents` are those whose episode goes on: an agent leaves it in the step in which it terminates or is truncated.
    `wdjax_env`, `env_params` and `env_state` are what it plays: the environment, its params (NumPy) and the state.

    Args:
        env: an environment with groups.
        params: its params; None: the default ones.
        render_mode: None, or "rgb_array": `render()` returns a picture of the state, [480, 640, 3] uint8.

    Raises:
        ValueError, TypeError: for a single-agent environment, and for other arguments out of range.
    """

    def __init__(self, env: Env, params: Any = None, render_mode: str | None = None):
        params = translate.check_env_and_params(env, params)
        if not env.groups:
            raise ValueError(f"{type(env).__name__} has one agent and no groups: use to_gymnasium")
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
        """Returns the space of one agent's observations; raises ValueError for an unknown name."""
        require_known("agent", agent, self.possible_agents)
        return self.observation_spaces[agent]

    def action_space(self, agent: str) -> gymnasium.Space:
        """Returns the space of one agent's actions; raises ValueError for an unknown name."""
        require_known("agent", agent, self.possible_agents)
        return self.action_spaces[agent]

    def reset(
        self, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[dict[str, Any], dict[str, dict[str, Any]]]:
        """Starts an episode.

        Args:
            seed: makes this episode and those after it the same as after every other `reset` with this seed.
            options: `{"params": {"max_speed": 2.0}}`, say, changes params by name, from this episode on. Other
                options are left alone, as PettingZoo's own tests ask.

        Returns:
            (observations, infos): dicts by agent; an info holds the action mask, where the agent has one.

        Raises:
            ValueError, TypeError: for an unknown parameter, with the nearest right name, or a wrong value.
        """
        self._change_params(options)
        if seed is not None or self._rng is None:
            self._rng, _ = seeding.np_random(seed)
        obs = self._start(self._rng)
        self.agents = list(self.possible_agents)
        return self._observe(obs, self.agents, {})

    def step(self, actions: Mapping[str, Any]) -> tuple[dict, dict, dict, dict, dict]:
        """Plays one step.

        Args:
            actions: an action for every one of `agents`, in its `action_space`. Those of agents that have left are
                ignored.

        Returns:
            (observations, rewards, terminations, truncations, infos): dicts by agent, for those that took part in the
            step; empty ones when all have left. An info holds the environment's statistics of the step, the same for
            all, and the agent's action mask, where it has one.

        Raises:
            ValueError: for an unknown agent, a missing action, and an action outside its space.
            gymnasium.error.ResetNeeded: before the first `reset`.
        """
        self._require_reset("step")
        action = self._collect(actions)
        if not self.agents:
            return {}, {}, {}, {}, {}
        obs, reward, terminated, truncated, info = translate.to_host(self._advance(action))
        agents = self.agents
        observations, infos = self._observe(obs, agents, translate.as_numbers(info))
        rewards, terminations, truncations = (
            {
                agent: kind(values[group][i])
                for agent in agents
                for group, i in (self._places[agent],)
            }
            for values, kind in ((reward, float), (terminated, bool), (truncated, bool))
        )
        self.agents = [agent for agent in agents if not (terminations[agent] or truncations[agent])]
        return observations, rewards, terminations, truncations, infos

    def state(self) -> np.ndarray:
        """Returns the whole state as one row of float32, the fields one after the other in their order."""
        self._require_reset("state")
        leaves = jax.tree.leaves(jax.device_get(self.env_state))
        return np.concatenate([np.ravel(leaf).astype(np.float32) for leaf in leaves])

    def _collect(self, actions: Mapping[str, Any]) -> dict[str, Any]:
        """Returns actions by agent as wdjax takes them: by group, with a leading agent axis."""
        if not isinstance(actions, Mapping):
            raise TypeError(f"actions = {actions!r}: must be a dict of agents and their actions")
        for agent in actions:
            require_known("agent", agent, self.possible_agents)
        missing = [agent for agent in self.agents if agent not in actions]
        if missing:
            raise ValueError(
                f"actions has none for {', '.join(missing)}: every one of `agents` must have one"
            )
        alive = set(self.agents)
        rows: dict[str, list] = {group: [] for group in self.wdjax_env.groups}
        for agent, (group, _) in self._places.items():
            space, own = self.action_spaces[agent], self._own_action_spaces[group]
            action = actions[agent] if agent in alive else translate.neutral_action(space)
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
