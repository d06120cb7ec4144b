"""Deep deterministic policy gradient (DDPG), off-policy, for actions in a bounded box.

Sources: Lillicrap et al., "Continuous control with deep reinforcement learning" (2016); Fujimoto,
van Hoof, Meger, "Addressing Function Approximation Error in Actor-Critic Methods" (2018) for TD3:
twin critics, delayed policy updates and target policy smoothing.
"""

import dataclasses
import math
from typing import Literal

import jax
import jax.numpy as jnp
from flax import nnx

from wdjax.train.algorithms.critics import critic_target, num_values, q_values
from wdjax.train.algorithms.noise import explore, uniform_actions
from wdjax.train.algorithms.off_policy import draw_normal
from wdjax.train.algorithms.off_policy_critic import (
    OffPolicyCritic,
    OffPolicyCriticOptions,
    box_of,
    num_actions,
)
from wdjax.train.learning import (
    Assignment,
    Context,
    Hypers,
    Policy,
    PolicyConfig,
    PolicyState,
    ReplayBatch,
    Schedule,
    Terms,
    static,
    traced,
)
from wdjax.train.networks.actor_critic import without_mask
from wdjax.train.networks.values import ActorActionValue, to_box
from wdjax.train.state.aliases import ActingState, Carry, Fields, Observation, Params


@dataclasses.dataclass(frozen=True)
class DDPGOptions(OffPolicyCriticOptions):
    """Options of DDPG. TD3: twin_critics, policy_delay 2, target_noise 0.2 and gaussian noise."""

    twin_critics: bool = static(False, read=True)
    """Train two critics and use the lower of their targets."""
    target_noise: float = traced(0.0, allowed="finite and at least 0")
    """Standard deviation of the normal noise on the target actor's actions, in half-widths of the
    box. 0: no noise."""
    target_noise_clip: float = traced(0.5, allowed="finite and at least 0")
    """Clipping bound of target_noise, in half-widths of the box."""
    noise: Literal["ornstein_uhlenbeck", "gaussian", "none"] = "ornstein_uhlenbeck"
    """Exploration noise in training. ornstein_uhlenbeck: s <- (1 - damping) s + stddev N(0, 1),
    reset to 0 at the start of each episode. gaussian: stddev N(0, 1)."""
    noise_scale: Schedule = traced(1.0, explores=True)
    """Factor of the exploration noise. Opponents from the past and from other runs add no noise."""
    noise_stddev: float = traced(0.2, allowed="finite and at least 0")
    """Standard deviation of the noise, in half-widths of the box."""
    noise_damping: float = traced(0.15, allowed="between 0 and 1")
    """Damping of the Ornstein-Uhlenbeck process. Its stationary standard deviation is
    stddev / sqrt(1 - (1 - damping)^2)."""


class DDPG(OffPolicyCritic):
    """A deterministic actor that maximizes the value of a critic, both with replayed data."""

    Options = DDPGOptions

    def make_network(
        self, context: Context, config: PolicyConfig, assignment: Assignment, rngs: nnx.Rngs
    ) -> ActorActionValue:
        space, twin = without_mask(assignment.observation_space), config.options.twin_critics
        size = math.prod(assignment.action_space.shape)
        return ActorActionValue(space, size, config.network, twin, num_values(config), rngs=rngs)

    def init_carry(self, policy: Policy, num_envs: int) -> jax.Array | None:
        if not policy.config.trainable or policy.config.options.noise != "ornstein_uhlenbeck":
            return None
        shape = (num_envs, policy.assignment.num_agents, num_actions(policy))
        return jnp.zeros(shape, jnp.float32)

    def act(
        self,
        policy: Policy,
        state: ActingState,
        carry: Carry,
        obs: Observation,
        keys: jax.Array,
        hypers: Hypers,
    ) -> tuple[jax.Array, Fields, Carry]:
        """Choose the actor's action with noise, clipped to the box.

        With `uniform_warmup`, actions are uniform until the first gradient step. A policy that is
        not trainable acts without noise.
        """
        unit, options = actor_of(policy, state, obs), policy.options(hypers)
        if policy.config.trainable:
            keys = jax.vmap(jax.random.split)(keys)
            scale, stddev = options.noise_scale, options.noise_stddev
            noise, carry = explore(
                options.noise, carry, keys[:, 0], unit.shape, scale, stddev, options.noise_damping
            )
            unit = jnp.clip(unit + noise, -1.0, 1.0)
            if options.uniform_warmup:
                uniform = uniform_actions(keys[:, 1], unit.shape)
                unit = jnp.where(state.gradient_steps == 0, uniform, unit)
        return to_box(box_of(policy), unit), {}, carry

    def play(
        self,
        policy: Policy,
        state: PolicyState,
        carry: Carry,
        obs: Observation,
        keys: jax.Array,
        greedy: bool,
    ) -> tuple[jax.Array, Carry]:
        """Choose the actor's action without noise, whether greedy or not."""
        return to_box(box_of(policy), actor_of(policy, state, obs)), carry

    def draw(self, policy: Policy, keys: jax.Array, shape: tuple[int, int]) -> jax.Array:
        """Return standard normal numbers for target policy smoothing, [steps, B, A]."""
        return draw_normal(keys, (*shape, num_actions(policy)))

    def bellman_target(
        self,
        policy: Policy,
        state: PolicyState,
        hypers: Hypers,
        batch: ReplayBatch,
        drawn: jax.Array,
    ) -> jax.Array:
        """Return the targets y of the critics by the target networks Q'_i and mu'.

        action = clip(mu'(next_obs) + clip(sigma N, -c, c), -1, 1)
        y      = reward + discount min_i Q'_i(next_obs, action)
        """
        target = nnx.merge(policy.graphdef, state.target_params)
        next_obs = policy.inputs(state, batch.next_obs)[0]
        limit = hypers["target_noise_clip"]
        noise = jnp.clip(hypers["target_noise"] * drawn, -limit, limit)
        action = jnp.clip(target.actor(next_obs) + noise, -1.0, 1.0)
        return critic_target(policy, hypers, batch, target.values(next_obs, action))

    def actor_loss(
        self,
        policy: Policy,
        state: PolicyState,
        actor: Params,
        hypers: Hypers,
        batch: ReplayBatch,
        drawn: jax.Array,
    ) -> tuple[jax.Array, Terms]:
        """Return (-mean(Q_1(obs, mu(obs))), {}) of the batch on this device."""
        networks = nnx.merge(policy.graphdef, {**state.params, "actor": actor})
        obs = policy.inputs(state, batch.obs)[0]
        outputs = networks.critic(obs, networks.actor(obs))[None]
        return -jnp.mean(q_values(policy, hypers, outputs)), {}


def actor_of(policy: Policy, state: PolicyState, obs: Observation) -> jax.Array:
    """Return mu(obs), [..., A] in [-1, 1], for observations with any leading axes."""
    return nnx.merge(policy.graphdef, state.params).actor(policy.inputs(state, obs)[0])
