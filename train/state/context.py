"""The run as an algorithm sees it when it builds networks and learns."""

import dataclasses
from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp

from wdjax.env import Env
from wdjax.spaces import Box, Space
from wdjax.train.config.schema import TrainConfig
from wdjax.train.networks.actor_critic import without_mask
from wdjax.train.networks.encoders import encode, encoded_size
from wdjax.train.state.agents import Assignment, group_sizes


@dataclasses.dataclass(frozen=True, eq=False)
class Context:
    """The environment, the configuration of the run, and the agents of all policies, frozen ones included."""

    env: Env  # the environment
    env_params: Any  # its params
    run_config: TrainConfig  # the configuration of the run
    assignments: Mapping[str, Assignment]  # by policy: its agents and their spaces

    @property
    def global_state_space(self) -> Space:
        """The space of `global_state`: the environment's, or a row with all observations of a replica."""
        own = self.env.global_state_space(self.env_params)
        if own is not None:
            return own
        size = sum(encoded_size(space) * count for space, count in self._observed().values())
        return Box(-jnp.inf, jnp.inf, (size,))

    def global_state(self, env_state: Any, obs: Mapping[str, Any], env_params: Any) -> jax.Array:
        """Return the global state of each replica, [N, S]: the environment's, or all observations if it has none.

        Args:
            env_state: leaves [N, ...].
            obs: by group, leaves [N, n_group, ...]. Action masks are left out.
            env_params: shared by all replicas.
        """
        if self.env.global_state_space(self.env_params) is not None:
            return jax.vmap(self.env.global_state, (0, None))(env_state, env_params)
        rows = [encode(space, obs[group]) for group, (space, _) in self._observed().items()]
        return jnp.concatenate([row.reshape(row.shape[0], -1) for row in rows], axis=-1)

    def _observed(self) -> dict[str, tuple[Space, int]]:
        """Return group -> (observation space of one agent without the action mask, number of agents)."""
        space, sizes = self.env.observation_space(self.env_params), group_sizes(self.env)
        one = (lambda group: space[group].single) if self.env.groups else (lambda group: space)
        return {group: (without_mask(one(group)), count) for group, count in sizes.items()}
