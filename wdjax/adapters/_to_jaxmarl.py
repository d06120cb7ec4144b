"""wdjax environments with groups of agents as JaxMARL environments."""

from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import struct
from jaxmarl.environments import spaces
from jaxmarl.environments.multi_agent_env import MultiAgentEnv

from wdjax.adapters._translate import MASK, check_env_and_params
from wdjax.env import Env
from wdjax.spaces import Box, Dict, Discrete, MultiDiscrete, Space


@struct.dataclass
class JaxMARLState:
    """Environment state and the values that JaxMARL reads from a state."""

    env_state: Any  # state of the wdjax environment
    obs: Any  # the last observation, by group
    done: jax.Array  # () bool
    step: jax.Array  # () int32, steps since the reset


class WdjaxInJaxMARL(MultiAgentEnv):
    """An environment with groups as a JaxMARL `MultiAgentEnv`.

        env = to_jaxmarl(*wdjax.make("tag_gridworld"))
        obs, state = env.reset(key)
        obs, state, rewards, dones, infos = env.step(key, state, actions)  # resets automatically

    Agent i of group "runner" is named "runner_i". JaxMARL has a single `done`, which includes
    truncation, and no params, so they are fixed here. `get_avail_actions(state)` returns the action
    masks; observations do not contain them. `infos` holds each statistic of the step as an array
    [num_agents], the shape that JaxMARL's baselines expect.

    Args:
        env: an environment with groups. Each observation is one array, or a dict of one array and
            an `action_mask`.
        params: params of `env`; None: its defaults.

    Raises:
        ValueError: if `env` has no groups, or a value in `params` is invalid.
        TypeError: for an unsupported space, or an argument of the wrong type, such as the params of
            another environment.
    """

    def __init__(self, env: Env, params: Any = None):
        self._params = check_env_and_params(env, params)
        if not env.groups:
            raise ValueError(f"{type(env).__name__} has no groups of agents: use to_gymnax")
        super().__init__(sum(env.groups.values()))
        self.wdjax_env = env
        self._places = {
            f"{group}_{i}": (group, i) for group, num in env.groups.items() for i in range(num)
        }
        self.agents = list(self._places)
        observed, done = env.observation_space(self._params), env.action_space(self._params)
        for agent, (group, _) in self._places.items():
            seen = strip_mask({group: observed[group].single}, group)
            self.observation_spaces[agent] = to_jaxmarl_space(seen, f"observation of {group}")
            self.action_spaces[agent] = to_jaxmarl_space(done[group].single, f"action of {group}")

    @property
    def name(self) -> str:
        return type(self.wdjax_env).__name__

    @property
    def agent_classes(self) -> dict[str, list[str]]:
        """Names of the agents of each group, by group name."""
        return {
            group: [agent for agent in self.agents if self._places[agent][0] == group]
            for group in self.wdjax_env.groups
        }

    def reset(self, key: jax.Array) -> tuple[dict[str, jax.Array], JaxMARLState]:
        """Start an episode. Returns (obs by agent, state)."""
        obs, env_state = self.wdjax_env.reset(key, self._params)
        state = JaxMARLState(env_state, obs, jnp.bool_(False), jnp.int32(0))
        return self.get_obs(state), state

    def get_world_state(self, state: JaxMARLState) -> jax.Array:
        """Return the global state of the environment, [S]; NotImplementedError if it has none."""
        return self.wdjax_env.global_state(state.env_state, self._params)

    def step_env(
        self, key: jax.Array, state: JaxMARLState, actions: Mapping[str, jax.Array]
    ) -> tuple[dict, JaxMARLState, dict, dict, dict]:
        """Advance one step without a reset. Returns (obs, state, rewards, dones, infos).

        All but state and infos are dicts by agent; `dones` also has the key "__all__".
        """
        action = {
            group: jnp.stack([jnp.asarray(actions[agent]) for agent in agents])
            for group, agents in self.agent_classes.items()
        }
        obs, env_state, reward, terminated, truncated, info = self.wdjax_env.step(
            key, state.env_state, action, self._params
        )
        ended = jax.tree.map(jnp.logical_or, terminated, truncated)
        over = jnp.concatenate(list(ended.values())).all()
        state = JaxMARLState(env_state, obs, over, state.step + 1)
        infos = {name: jnp.full(self.num_agents, value) for name, value in info.items()}
        return (
            self.get_obs(state),
            state,
            self._by_agent(reward),
            {**self._by_agent(ended), "__all__": over},
            infos,
        )

    def get_obs(self, state: JaxMARLState) -> dict[str, jax.Array]:
        """Return the observations by agent, without action masks."""
        return self._by_agent(
            {group: strip_mask(state.obs, group) for group in self.wdjax_env.groups}
        )

    def get_avail_actions(self, state: JaxMARLState) -> dict[str, jax.Array]:
        """Return the action masks by agent.

        Raises:
            NotImplementedError: if no agent has an action mask.
        """
        masks = {
            group: obs[MASK]
            for group, obs in state.obs.items()
            if isinstance(obs, Mapping) and MASK in obs
        }
        if not masks:
            raise NotImplementedError(
                f"observations of {self.name} have no {MASK}: all actions are available"
            )
        return self._by_agent(masks)

    def _by_agent(self, rows: Mapping[str, jax.Array]) -> dict[str, jax.Array]:
        return {
            agent: rows[group][i] for agent, (group, i) in self._places.items() if group in rows
        }


to_jaxmarl = WdjaxInJaxMARL


def strip_mask(by_group: Mapping[str, Any], group: str) -> Any:
    """Return a group's observation or observation space without the mask.

    Raises:
        TypeError: if not exactly one array remains.
    """
    obs = by_group[group]
    if not isinstance(obs, Dict | Mapping):
        return obs
    parts = obs.spaces if isinstance(obs, Dict) else obs
    others = [name for name in parts if name != MASK]
    if len(others) != 1:
        raise TypeError(
            f"observation of {group} contains {', '.join(others)}: must be one array, with or "
            "without "
            f"an {MASK}, for JaxMARL"
        )
    return parts[others[0]]


def to_jaxmarl_space(space: Space, name: str) -> spaces.Space:
    """Convert an agent's space to JaxMARL; `name` appears in the TypeError for unsupported ones."""
    if isinstance(space, Box):
        return spaces.Box(space.low, space.high, space.shape, space.dtype)
    if isinstance(space, Discrete):
        return spaces.Discrete(space.n)
    if isinstance(space, MultiDiscrete):
        return spaces.MultiDiscrete(np.asarray(space.nvec))
    raise TypeError(
        f"space of {name} = {space}: must be Box, Discrete or MultiDiscrete for JaxMARL"
    )
