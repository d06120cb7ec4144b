"""MAPPO: actors that learn by PPO, and one central critic of the team over the global state.

Source: Yu et al., "The Surprising Effectiveness of PPO in Cooperative Multi-Agent Games" (2022).
"""

import jax
import jax.numpy as jnp
from flax import nnx

from wdjax.train.learning import (
    PPO,
    Batch,
    Evaluation,
    PolicyState,
    ValueNetwork,
    fit,
    gae,
    make_optimizer,
    policy_terms,
    value_error,
)


class MAPPO(PPO):
    """All policies of a team learn from the advantages of one critic."""

    keeps = frozenset({"global_state"})

    def make_shared(self, team, context, rngs):
        return ValueNetwork(context.global_state_space, team.first.config.network, rngs=rngs)

    def init_shared(self, team, states, params):
        config = team.first.config
        return PolicyState(params, make_optimizer(config, config.max_grad_norm).init(params))

    def loss(self, new, batch, options, mean):
        means = mean({**policy_terms(new.log_prob, batch, options), "entropy": new.entropy})
        return means["policy_loss"] - options.entropy_coefficient * means["entropy"], means

    def value_loss(self, new, batch, options, mean):
        means = mean({"value_loss": value_error(new.value, batch, options)})
        return means["value_loss"], means

    def update_team(self, team, states, shared, memories, hypers, rollout, key, num_blocks):
        critic = lambda state, global_state: nnx.merge(team.shared, state.params)(global_state)  # noqa: E731
        value = critic(shared, rollout.global_state)
        next_value = jnp.concatenate([value[1:], critic(shared, rollout.last_global_state)[None]])
        if rollout.final_global_state is not None:
            final = critic(shared, rollout.final_global_state)
            next_value = jnp.where(rollout.over, final, next_value)
        options, first = team.first.options(hypers[team.first.name]), team.first
        settings = {"epochs": options.epochs, "minibatches": options.minibatches}
        states, metrics, targets = dict(states), {}, []
        for i, (name, policy) in enumerate(team.policies.items()):
            rows = rollout.rows[name]
            own, after = (
                jnp.broadcast_to(v[..., None], rows.reward.shape) for v in (value, next_value)
            )
            ends = rows.ends(rollout.over)
            advantage, target = gae(
                rows.reward, own, after, rows.terminated, ends, options.gamma, options.gae_lambda
            )
            batch = Batch(
                rows.obs, rows.action, rows.log_prob, own, advantage, target, rows.learned
            )
            states[name], metrics[name] = fit(
                self.loss,
                policy,
                states[name],
                hypers[name],
                batch,
                jax.random.fold_in(key, i),
                num_blocks,
                normalize_advantage=options.normalize_advantage,
                **settings,
            )
            targets.append(target)
        # one transition per replica: the mean target of all agents
        target = jnp.mean(jnp.concatenate(targets, axis=-1), axis=-1, keepdims=True)
        zeros, valid = jnp.zeros_like(target), jnp.ones(target.shape, bool)
        batch = Batch(
            rollout.global_state[:, :, None], zeros, zeros, value[..., None], zeros, target, valid
        )

        def evaluate(policy, state, batch):
            value = critic(state, batch.obs)
            return Evaluation(jnp.zeros_like(value), jnp.zeros_like(value), value)

        shared, metrics[team.name] = fit(
            self.value_loss,
            first,
            shared,
            hypers[first.name],
            batch,
            jax.random.fold_in(key, len(team.policies)),
            num_blocks,
            evaluate=evaluate,
            **settings,
        )
        return states, shared, memories, metrics
