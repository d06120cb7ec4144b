"""Q-learning on rollouts: epsilon-greedy, with Peng's Q(lambda) as targets.

Source: Peng, Williams, "Incremental multi-step Q-learning" (1994).
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
    ValueNetwork,
    descend,
    gae,
    make_optimizer,
    sample_blocks,
    static,
    total,
    traced,
)


@dataclasses.dataclass(frozen=True)
class QOptions:
    """Options of Q-learning."""

    gamma: float = traced(0.99, allowed="between 0 and 1")
    """Discount factor."""
    q_lambda: float = traced(0.7, allowed="between 0 and 1")
    """Lambda of the targets. 0: one step. 1: the whole return."""
    epsilon: Schedule = traced(0.1, allowed="between 0 and 1")
    """Probability of a random action in training."""
    tau: float = traced(0.1, allowed="above 0 and at most 1")
    """Step of the target parameters towards the new ones after each update."""
    epochs: int = static(4, allowed="at least 1")
    """Gradient steps per rollout, each on all transitions."""


class QLearning(Algorithm):
    """One network for the values of all discrete actions."""

    Options = QOptions

    def make_network(self, context, config, assignment, rngs):
        space, num_values = assignment.network_space, assignment.action_space.n
        return ValueNetwork(space, config.network, num_values=num_values, rngs=rngs)

    def init(self, policy, params):
        optimizer = make_optimizer(policy.config, policy.config.max_grad_norm)
        return PolicyState(params, optimizer.init(params), target_params=params)

    def values(self, policy, state, obs):
        """Q of every action, [..., actions], very low for forbidden ones; and the mask or None."""
        seen, mask = policy.inputs(state, obs)
        return policy.masked(nnx.merge(policy.graphdef, state.params)(seen), mask), mask

    def act(self, policy, state, carry, obs, keys, hypers):
        q, mask = self.values(policy, state, obs)
        best = jax.nn.one_hot(jnp.argmax(q, axis=-1), q.shape[-1])
        random = jax.nn.softmax(policy.masked(jnp.zeros_like(q), mask))
        probs = hypers["epsilon"] * random + (1 - hypers["epsilon"]) * best
        return sample_blocks(policy.distribution, keys, jnp.log(probs)), {}, carry

    def play(self, policy, state, carry, obs, keys, greedy):
        return jnp.argmax(self.values(policy, state, obs)[0], axis=-1), carry

    def end_of_step(self, policy, state, carry, final_obs, truncated):
        return {"next_obs": final_obs}  # before any reset

    def update(self, policy, state, memory, hypers, rollout, key, num_blocks):
        rows, options = rollout.rows[policy.name], policy.options(hypers)  # leaves [T, N, n, ...]
        target = state.replace(params=state.target_params)
        value, next_value = (
            self.values(policy, target, obs)[0].max(axis=-1) for obs in (rows.obs, rows.next_obs)
        )
        ends = rows.ends(rollout.over)
        _, returns = gae(
            rows.reward, value, next_value, rows.terminated, ends, options.gamma, options.q_lambda
        )

        def summed_loss(params):
            q, _ = self.values(policy, state.replace(params=params), rows.obs)
            chosen = jnp.take_along_axis(q, rows.action[..., None], axis=-1)[..., 0]
            return jnp.sum(jnp.where(rows.learned, (chosen - returns) ** 2, 0.0))

        def step(state, _):
            sums = jax.value_and_grad(summed_loss)(state.params)
            sums, count = total((sums, jnp.sum(rows.learned)))  # over devices
            loss, grads = jax.tree.map(lambda leaf: leaf / jnp.maximum(count, 1), sums)
            rate = hypers["learning_rate"]
            params, opt_state = descend(
                policy.config, hypers, rate, grads, state.opt_state, state.params
            )
            metrics = {"loss": loss, "grad_norm": optax.tree.norm(grads)}
            return state.replace(params=params, opt_state=opt_state), metrics

        state, metrics = jax.lax.scan(step, state, length=options.epochs)
        target = optax.incremental_update(state.params, state.target_params, options.tau)
        state = state.replace(target_params=target)
        return state, memory, jax.tree.map(jnp.mean, metrics)
