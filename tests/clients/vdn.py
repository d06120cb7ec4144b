"""Value decomposition (VDN) over policies with different spaces: one gradient of summed Q values.

Source: Sunehag et al., "Value-Decomposition Networks For Cooperative Multi-Agent Learning" (2018).
Here without replay and target network: one gradient step on each rollout.
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
    average,
    draw_blocks,
    make_optimizer,
    traced,
)


@dataclasses.dataclass(frozen=True)
class VDNOptions:
    """Options of VDN."""

    gamma: float = traced(0.9, allowed="between 0 and 1")
    """Discount factor."""
    epsilon: Schedule = traced(0.1)
    """Probability of a random action in training."""


class QNetwork(nnx.Module):
    """Q of every action, [..., actions]."""

    def __init__(self, size, width, actions, rngs):
        self.hidden = nnx.Linear(size, width, rngs=rngs)
        self.head = nnx.Linear(width, actions, rngs=rngs)

    def __call__(self, obs):
        return self.head(jax.nn.relu(self.hidden(obs)))


class VDN(Algorithm):
    """The sum of the Q values of all agents of the team is fitted to their mean reward."""

    Options = VDNOptions

    def make_network(self, context, config, assignment, rngs):
        size, actions = assignment.observation_space.shape[0], assignment.action_space.n
        return QNetwork(size, config.network.hidden_sizes[0], actions, rngs)

    def init(self, policy, params):
        return PolicyState(params, None)

    def init_shared(self, team, states, params):
        config, both = team.first.config, {name: own.params for name, own in states.items()}
        return PolicyState({}, make_optimizer(config, config.max_grad_norm).init(both))

    def values(self, policy, params, obs):
        return nnx.merge(policy.graphdef, params)(obs)

    def act(self, policy, state, carry, obs, keys, hypers):
        best = jnp.argmax(self.values(policy, state.params, obs), axis=-1)
        keys = jax.vmap(lambda key: jax.random.split(key))(keys)
        shape, actions = best.shape, policy.assignment.action_space.n
        explores = draw_blocks(jax.random.uniform, keys[:, 0], shape) < hypers["epsilon"]
        draw = lambda key, shape: jax.random.randint(key, shape, 0, actions)  # noqa: E731
        return jnp.where(explores, draw_blocks(draw, keys[:, 1], shape), best), {}, carry

    def play(self, policy, state, carry, obs, keys, greedy):
        return jnp.argmax(self.values(policy, state.params, obs), axis=-1), carry

    def end_of_step(self, policy, state, carry, final_obs, truncated):
        return {"next_obs": final_obs}

    def update_team(self, team, states, shared, memories, hypers, rollout, key, num_blocks):
        rows, first = {name: rollout.rows[name] for name in team.policies}, team.first
        before = {name: own.params for name, own in states.items()}
        rewards = jnp.concatenate([own.reward for own in rows.values()], axis=-1)
        goes_on = ~jnp.all(
            jnp.concatenate([own.terminated for own in rows.values()], axis=-1), axis=-1
        )
        best = lambda name: jnp.max(  # noqa: E731
            self.values(team.policies[name], before[name], rows[name].next_obs), axis=-1
        )
        after = sum(jnp.sum(best(name), axis=-1) for name in rows)
        target = jnp.mean(rewards, axis=-1) + hypers[first.name]["gamma"] * goes_on * after

        def loss(params):
            chosen = 0.0
            for name, policy in team.policies.items():
                values = self.values(policy, params[name], rows[name].obs)
                own = jnp.take_along_axis(values, rows[name].action[..., None], axis=-1)[..., 0]
                chosen += jnp.sum(own, axis=-1)
            return jnp.mean((chosen - target) ** 2)

        value, grads = average(jax.value_and_grad(loss)(before))
        optimizer = make_optimizer(first.config, hypers[first.name]["max_grad_norm"])
        updates, opt_state = optimizer.update(grads, shared.opt_state, before)
        states = {
            name: own.replace(
                params=jax.tree.map(
                    lambda param, update, rate=hypers[name]["learning_rate"]: param - rate * update,
                    own.params,
                    updates[name],
                )
            )
            for name, own in states.items()
        }
        norms = {
            name: {"loss": value, "grad_norm": optax.tree.norm(grads[name])} for name in states
        }
        return (
            states,
            shared.replace(opt_state=opt_state),
            memories,
            {**norms, team.name: {"td_error": value}},
        )
