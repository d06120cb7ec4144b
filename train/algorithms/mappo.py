"""Multi-agent PPO (MAPPO): actors that learn by PPO, and a central critic of their team.

Source: Yu et al., "The Surprising Effectiveness of PPO in Cooperative Multi-Agent Games" (2022).
"""

import dataclasses
import functools
from collections.abc import Mapping
from typing import cast

import jax
import jax.numpy as jnp
from flax import nnx

from wdjax.train.algorithms.central_critic import (
    Values,
    add_global_states,
    add_targets,
    evaluate_critic,
    evaluate_rollout,
    make_critic,
    restarts_of,
    to_outputs,
)
from wdjax.train.algorithms.team_values import names_of_team
from wdjax.train.learning import (
    PPO,
    Batch,
    Context,
    Evaluation,
    Experience,
    Hypers,
    Mean,
    Memory,
    Metric,
    Metrics,
    Policy,
    PolicyState,
    PPOOptions,
    Rollout,
    Team,
    Terms,
    TrainConfig,
    apply_transforms,
    fit,
    make_optimizer,
    new_statistics,
    policy_terms,
    rollout_metrics,
    static,
    update_normalizers,
    value_after,
    value_error,
)
from wdjax.train.state.algorithm import TeamUpdate
from wdjax.train.state.aliases import Params
from wdjax.train.state.normalization import new_normalizer


@dataclasses.dataclass(frozen=True)
class MAPPOOptions(PPOOptions):
    """Options of MAPPO."""

    critic_observes: bool = static(True)
    """Give the critic the observation of the agent, in addition to the global state and the number
    of the agent."""
    normalize_value: bool = static(False)
    """Normalize the targets of the critic by their running mean and standard deviation. Its last
    layer is rescaled so that its values do not change (PopArt)."""


class MAPPO(PPO):
    """PPO with advantages from one critic, which sees the global state and acts for no agent.

    The critic is a feed-forward or recurrent network with the configuration of the team's first
    policy. Its input is the global state, the number of the agent, and the agent's observation.
    """

    Options = MAPPOOptions
    keeps = frozenset({"global_state"})
    critic_is_shared = True

    def make_shared(self, team: Team, context: Context, rngs: nnx.Rngs) -> nnx.Module:
        return make_critic(team, context, team.first.config.options.critic_observes, rngs)

    def init_shared(
        self, team: Team, states: Mapping[str, PolicyState], params: Params | None
    ) -> PolicyState:
        config, space = team.first.config, team.first.context.global_state_space
        optimizer = make_optimizer(config, config.max_grad_norm)
        normalizer = new_normalizer(config.normalize_observation, False, space)
        targets = new_statistics() if config.options.normalize_value else None
        return PolicyState(params, optimizer.init(params), normalizer, own=targets)

    def init_memory(self, policy: Policy, run: TrainConfig) -> Memory:
        """Return the memory. The critic's carry is in `own` of the team's first policy."""
        memory, assignments = super().init_memory(policy, run), policy.context.assignments
        names = names_of_team(policy, run)
        if policy.memory is None or policy.name != names[0]:
            return memory
        agents = sum(assignments[name].num_agents for name in names)
        return memory.replace(own=policy.memory.empty((run.num_envs, agents)))

    def loss(
        self, new: Evaluation, batch: Batch, options: PPOOptions, mean: Mean
    ) -> tuple[jax.Array, Terms]:
        """Return the loss of an actor: mean(policy_loss) - c_e mean(entropy)."""
        means = mean({**policy_terms(new.log_prob, batch, options), "entropy": new.entropy})
        c_e = options.entropy_coefficient
        return means["policy_loss"] - c_e * means["entropy"], means  # type: ignore[operator]  # scalars

    def critic_loss(
        self, new: Evaluation, batch: Batch, options: PPOOptions, mean: Mean
    ) -> tuple[jax.Array, Terms]:
        """Return the loss of the critic: c_v mean(value_loss)."""
        means = mean({"value_loss": value_error(new.value, batch, options)})
        c_v = options.value_coefficient
        return c_v * means["value_loss"], means  # type: ignore[return-value]  # scalars

    def update_team(
        self,
        team: Team,
        states: dict[str, PolicyState],
        shared: PolicyState | None,
        memories: dict[str, Memory],
        hypers: Mapping[str, Hypers],
        rollout: Rollout,
        key: jax.Array,
        num_blocks: int,
    ) -> TeamUpdate:
        """Take epochs x minibatches gradient steps for every actor, then for the critic."""
        shared = cast(PolicyState, shared)
        first, carry = team.first, memories[team.first.name].own
        sees_own = first.config.options.critic_observes
        values = evaluate_rollout(team, states, shared, rollout, carry, sees_own)
        keys = jax.random.split(key, 1 + len(states))
        states, memories, batches = dict(states), dict(memories), []
        metrics: dict[str, Mapping[str, jax.Array | Metric]] = {}
        for i, (name, policy) in enumerate(team.policies.items()):
            states[name], memories[name], metrics[name], batch = self.update_actor(
                policy,
                states[name],
                memories[name],
                hypers[name],
                rollout,
                values.of(team, name),
                keys[i],
                num_blocks,
            )
            batches.append(batch)
        target, valid = (
            jnp.concatenate([getattr(batch, field) for batch in batches], axis=-1)
            for field in ("target", "valid")
        )
        batch = Batch.of_values(values.inputs, values.value, target, valid)
        if carry is not None:
            batch = batch.in_sequences(restarts_of(team, rollout), carry)
            memories[first.name] = memories[first.name].replace(own=values.carry)
        shared, learned = self.update_critic(
            team, shared, hypers[first.name], batch, rollout, keys[-1], num_blocks
        )
        metrics[team.name] = {**metrics.get(team.name, {}), **learned}
        return states, shared, memories, metrics

    def update_actor(
        self,
        policy: Policy,
        state: PolicyState,
        memory: Memory,
        hypers: Hypers,
        rollout: Rollout,
        values: Values,
        key: jax.Array,
        num_blocks: int,
    ) -> tuple[PolicyState, Memory, Metrics, Batch]:
        """Update one policy, as PPO does. Return (state, memory, metrics, its transitions).

        Args:
            policy: static part of the policy.
            state: state of the policy.
            memory: memory of the policy.
            hypers: hyperparameters at this point of the run.
            rollout: the rollout.
            values: values of its agents.
            key: () key.
            num_blocks: blocks of replicas on this device.
        """
        options = policy.options(hypers)
        rows = rollout.rows[policy.name]
        rows = rows.replace(value=values.value, final_value=values.final, next_obs=None)
        last_obs, discount = rollout.last_obs[policy.name], (options.gamma, options.gae_lambda)
        data = Experience(rows, rows.reward, rows.learned, rollout.over, *discount, last_obs)
        data, scale, key, metrics = apply_transforms(policy, state, memory, data, key, num_blocks)
        following = value_after(data, values.last)
        advantage, target = self.advantages(policy, state, data, following)
        metrics |= rollout_metrics(policy, data.rows, advantage, target)
        batch = Batch.of(policy, rollout, data, advantage, target)
        state, losses = fit(
            self.loss,
            policy,
            state,
            hypers,
            batch,
            key,
            num_blocks,
            evaluate=self.evaluate,
            epochs=options.epochs,
            minibatches=options.minibatches,
            normalize_advantage=options.normalize_advantage,
            target_kl=options.target_kl,
        )
        state, memory = update_normalizers(state, memory, data, scale)
        return state, memory, metrics | losses, batch

    def update_critic(
        self,
        team: Team,
        shared: PolicyState,
        hypers: Hypers,
        batch: Batch,
        rollout: Rollout,
        key: jax.Array,
        num_blocks: int,
    ) -> tuple[PolicyState, Metrics]:
        """Fit the critic to the value targets of all agents. Return (state, metrics).

        Args:
            team: static part of the team.
            shared: state of the critic.
            hypers: hyperparameters of the team's first policy.
            batch: transitions of all agents, leaves [T, N, n, ...], with the inputs of the critic.
            rollout: the rollout.
            key: () key.
            num_blocks: blocks of replicas on this device.
        """
        options, valid = team.first.options(hypers), batch.valid
        shared = add_targets(shared, batch.target, valid)
        value, target = (to_outputs(shared, leaf) for leaf in (batch.value, batch.target))
        shared, metrics = fit(
            self.critic_loss,
            team.first,
            shared,
            hypers,
            batch.replace(value=value, target=target),
            key,
            num_blocks,
            evaluate=functools.partial(evaluate_critic, team),
            epochs=options.epochs,
            minibatches=options.minibatches,
        )
        shared = add_global_states(shared, rollout, jnp.any(valid, axis=-1))
        own = {f"critic_{name}": metrics[name] for name in ("grad_norm", "grad_clip_fraction")}
        return shared, {"value_loss": metrics["value_loss"], **own}
