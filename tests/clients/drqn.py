"""Deep recurrent Q-learning (DRQN) from a replay buffer of sequences.

Source: Hausknecht, Stone, "Deep Recurrent Q-Learning for Partially Observable MDPs" (2015).
"""

import dataclasses

import jax
import jax.numpy as jnp
import optax
from flax import nnx

from wdjax.train.learning import (
    Algorithm,
    PolicyState,
    Schedule,
    Steps,
    Trunk,
    block_keys,
    descend,
    draw_blocks,
    make_optimizer,
    new_replay,
    num_shards,
    static,
    total,
    traced,
)


@dataclasses.dataclass(frozen=True)
class DRQNOptions:
    """Options of DRQN."""

    gamma: float = traced(0.9, allowed="between 0 and 1")
    """Discount factor."""
    epsilon: Schedule = traced(0.2, explores=True)
    """Probability of a random action in training."""
    tau: float = traced(0.1, allowed="between 0 and 1")
    """Step size of the target network."""
    length: int = static(4, allowed="at least 2")
    """Steps of a sequence."""
    buffer_size: int = static(2048, allowed="at least 1")
    """Sequences in the replay buffer."""
    batch_size: int = static(64, allowed="at least 1")
    """Sequences per gradient step."""
    gradient_steps: int = static(4, allowed="at least 1")
    """Gradient steps per rollout."""


class RecurrentValues(nnx.Module):
    """Q of all actions by a recurrent network: obs, carry -> ([..., actions], carry)."""

    def __init__(self, space, actions, config, rngs):
        self.trunk = Trunk(space, config, rngs=rngs)
        self.head = nnx.Linear(self.trunk.num_features, actions, rngs=rngs)

    def __call__(self, obs, carry):
        features, carry = self.trunk(obs, carry)
        return self.head(features), carry

    def unroll(self, obs, carry, restart):
        return self.head(self.trunk.unroll(obs, carry, restart))


class DRQN(Algorithm):
    """Q-learning on sequences, each from a zero carry."""

    Options = DRQNOptions

    def make_network(self, context, config, assignment, rngs):
        space, actions = assignment.observation_space, assignment.action_space.n
        return RecurrentValues(space, actions, config.network, rngs)

    def init(self, policy, params):
        optimizer = make_optimizer(policy.config, policy.config.max_grad_norm)
        return PolicyState(
            params, optimizer.init(params), target_params=jax.tree.map(jnp.copy, params)
        )

    def init_carry(self, policy, num_envs):
        size = policy.config.network.recurrent_size
        return jnp.zeros((num_envs, policy.assignment.num_agents, size), jnp.float32)

    def init_memory(self, policy, run):
        options, assignment = policy.config.options, policy.assignment
        replay = new_replay(
            Steps.shapes(assignment.observation_space, assignment.action_space),
            options.buffer_size,
            unit="sequence",
            length=options.length,
            shape=(run.rollout_length, run.num_envs, assignment.num_agents),
            num_blocks=run.blocks,
        )
        return super().init_memory(policy, run).replace(replay=replay)

    def act(self, policy, state, carry, obs, keys, hypers):
        values, carry = nnx.merge(policy.graphdef, state.params)(obs, carry)
        best, actions = jnp.argmax(values, axis=-1), values.shape[-1]
        keys = jax.vmap(lambda key: jax.random.split(key))(keys)
        explores = draw_blocks(jax.random.uniform, keys[:, 0], best.shape) < hypers["epsilon"]
        draw = lambda key, shape: jax.random.randint(key, shape, 0, actions)  # noqa: E731
        return jnp.where(explores, draw_blocks(draw, keys[:, 1], best.shape), best), {}, carry

    def play(self, policy, state, carry, obs, keys, greedy):
        values, carry = nnx.merge(policy.graphdef, state.params)(obs, carry)
        return jnp.argmax(values, axis=-1), carry

    def end_of_step(self, policy, state, carry, final_obs, truncated):
        return {"next_obs": final_obs}

    def update(self, policy, state, memory, hypers, rollout, key, num_blocks):
        options = policy.options(hypers)
        steps = Steps.of(rollout.rows[policy.name], rollout.over)
        replay = memory.replay.add(steps, options.gamma)
        share = options.batch_size // (num_blocks * num_shards())
        index = replay.draw(block_keys(key, num_blocks), (options.gradient_steps, share))

        def values(params, batch):  # [length + 1, B, actions]: of obs, then of next_obs
            obs = jnp.concatenate([batch.obs[:1], batch.next_obs])
            carry = jnp.zeros((obs.shape[1], policy.config.network.recurrent_size), jnp.float32)
            restart = jnp.zeros(obs.shape[:2], bool)
            return nnx.merge(policy.graphdef, params).unroll(obs, carry, restart)

        def step(state, index):
            batch = jax.tree.map(lambda leaf: jnp.swapaxes(leaf, 0, 1), replay.take(index))
            after = jnp.max(values(state.target_params, batch)[1:], axis=-1)
            target = batch.reward + batch.discount * after

            def summed_loss(params):
                before = values(params, batch)[:-1]
                chosen = jnp.take_along_axis(before, batch.action[..., None], axis=-1)[..., 0]
                return jnp.sum(jnp.where(batch.valid, (chosen - target) ** 2, 0.0))

            sums = jax.value_and_grad(summed_loss)(state.params)
            sums, count = total((sums, jnp.sum(batch.valid)))
            loss, grads = jax.tree.map(lambda leaf: leaf / count, sums)
            params, opt_state = descend(
                policy.config, hypers, hypers["learning_rate"], grads, state.opt_state, state.params
            )
            targets = optax.incremental_update(params, state.target_params, options.tau)
            state = state.replace(params=params, opt_state=opt_state, target_params=targets)
            return state, {"loss": loss, "grad_norm": optax.tree.norm(grads)}

        state, metrics = jax.lax.scan(step, state, index)
        return state, memory.replace(replay=replay), jax.tree.map(jnp.mean, metrics)
