"""Properties of a run that algorithms read when they build networks and learn."""

import dataclasses
from collections.abc import Mapping
from typing import cast

import jax
import jax.numpy as jnp

from wdjax.env import Env
from wdjax.spaces import Box, Dict, Space
from wdjax.train.config.schema import TrainConfig
from wdjax.train.networks.actor_critic import without_mask
from wdjax.train.networks.encoders import encode, encoded_size
from wdjax.train.state.agents import Assignment, group_sizes
from wdjax.train.state.aliases import EnvParams, EnvState, Observation


@dataclasses.dataclass(frozen=True, eq=False)
class Context:
    """The environment, the configuration of the run, and the agents of all policies."""

    env: Env
    env_params: EnvParams
    run_config: TrainConfig
    assignments: Mapping[str, Assignment]
    """by policy, frozen ones included: its agents and their spaces"""

    @property
    def global_state_space(self) -> Space:
        """Space of `global_state`: `Env.global_state_space`, or a vector of all observations."""
        own = self.env.global_state_space(self.env_params)
        if own is not None:
            return own
        size = sum(encoded_size(space) * count for space, count in self._observed().values())
        return Box(-jnp.inf, jnp.inf, (size,))

    def global_state(
        self, env_state: EnvState, obs: Mapping[str, Observation], env_params: EnvParams
    ) -> jax.Array:
        """Return the global state of each replica, [N, S]: `Env.global_state`, or all observations.

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
        """Return group -> (observation space of one agent without mask, number of agents)."""
        space, sizes = self.env.observation_space(self.env_params), group_sizes(self.env)
        one = {g: cast(Dict, space)[g].single if self.env.groups else space for g in sizes}
        return {group: (without_mask(one[group]), count) for group, count in sizes.items()}
