"""Vectorized environments for gymnasium's autoreset modes NEXT_STEP and DISABLED."""

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
from flax import struct

from wdjax.branches import select, when_any
from wdjax.stepping import StepResult, VectorState, step_replicas
from wdjax.vector import VectorEnv


@struct.dataclass
class PausedState:
    """State of the replicas. After its episode, a replica keeps the last state and observation."""

    obs: Any  # [num_envs, ...], the last observation
    replicas: VectorState
    over: jax.Array  # [num_envs] bool: the episode is over

    @property
    def env_state(self) -> Any:
        return self.replicas.env_state


@dataclasses.dataclass(frozen=True)
class PausingEnv:
    """A `VectorEnv` whose `step` does not reset a replica in the last step of an episode.

    With `next_step`, the following step resets the replica and ignores its action: the reward is 0
    and both end flags are false. Without it, only `restart` resets a replica.
    """

    replicas: VectorEnv
    next_step: bool

    def reset(self, key: jax.Array, params: Any) -> tuple[Any, PausedState]:
        obs, state = self.replicas.reset(key, params)
        return obs, PausedState(obs, state, jnp.zeros(self.replicas.num_envs, bool))

    def step(self, key: jax.Array, state: PausedState, action: Any, params: Any) -> StepResult:
        """Step every replica. Where `info["over"]`, obs is the last observation of the episode."""
        step_key, start_key = jax.random.split(key)
        keys, before = jax.random.split(step_key, self.replicas.num_envs), state.replicas
        obs, replicas, *ends, info = step_replicas(self.replicas.env, keys, before, action, params)
        info["final_obs"] = None
        if self.next_step:
            ends, info = select(
                state.over, jax.tree.map(jnp.zeros_like, (ends, info)), (ends, info)
            )
        after = PausedState(obs, replicas, info["over"])
        if self.next_step:
            after = self.restart(start_key, state.over, after, params)
        return after.obs, after, *ends, info

    def restart(
        self, key: jax.Array, rows: jax.Array, state: PausedState, params: Any
    ) -> PausedState:
        """Start episodes in the replicas `rows`, [num_envs] bool; skipped if all are false."""

        def start(
            current: tuple, rows: jax.Array, key: jax.Array, params: Any, starts: Any
        ) -> tuple:
            obs, env_state = self.replicas.start(
                jax.random.split(key, rows.shape[0]), params, starts
            )
            zeros = jax.tree.map(jnp.zeros_like, current[2:])
            return select(rows, (obs, env_state, *zeros), current)

        now = state.replicas
        sums = (now.episode_return, now.episode_length, now.episode_info)
        current = (state.obs, now.env_state, sums, state.over)
        inputs = (rows, key, params, now.starts)
        obs, env_state, (total, length, info), over = when_any(rows, start, current, *inputs)
        return PausedState(obs, VectorState(env_state, total, length, info, now.starts), over)
