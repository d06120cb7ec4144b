"""The update that A2C and PPO share: advantages, then epochs of minibatches, each one gradient step."""

import abc
import functools
from collections.abc import Mapping
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
from flax import nnx

from wdjax.kernels.support import decide
from wdjax.overrides import overridden
from wdjax.train.algorithms.on_policy.acting import ByKernel, draw_actions, for_kernel
from wdjax.train.algorithms.on_policy.losses import a2c_loss, gradient, ppo_loss
from wdjax.train.algorithms.on_policy.minibatches import (
    Batch,
    merge_axes,
    normalized_advantages,
    shuffle,
    take_rows,
)
from wdjax.train.algorithms.on_policy.returns import (
    by_decision,
    final_value,
    gae,
    next_decides,
    next_values,
    undecided_ends,
)
from wdjax.train.algorithms.optimizer import descend, make_optimizer, to_vectors
from wdjax.train.config.schema import PolicyConfig, TrainConfig
from wdjax.train.devices.blocks import block_keys, draw_blocks
from wdjax.train.devices.collectives import all_rows, any_of, own_rows, total
from wdjax.train.devices.moments import normalize
from wdjax.train.devices.packing import Packed, pack, unpack
from wdjax.train.kernels.layers import Shape, shape_of, why_plain
from wdjax.train.networks.actor_critic import ActorCritic, empty_carry, without_mask
from wdjax.train.networks.distributions import Distribution, make_distribution
from wdjax.train.rollout.draws import sample_blocks
from wdjax.train.rollout.metrics import learned_fraction, nan_unless, rollout_metrics
from wdjax.train.state.agents import Assignment
from wdjax.train.state.algorithm import Algorithm
from wdjax.train.state.hypers import Hypers, hypers_of
from wdjax.train.state.metric import Metric
from wdjax.train.state.normalization import (
    Normalizer,
    discounted_returns,
    new_normalizer,
    normalize_reward,
    reward_factor,
    update_observation_statistics,
    update_statistics,
)
from wdjax.train.state.policy import Policy
from wdjax.train.state.rows import OBSERVATIONS, Rollout, Rows
from wdjax.train.state.state import Memory, PolicyState


class OnPolicy(Algorithm):
    """Base class of on-policy algorithms such as A2C and PPO.

    A subclass implements `policy_loss` and may override `advantages`.
    """

    takes = frozenset({"on-policy"})
    keeps_log_prob: ClassVar[bool] = True
    """whether transitions store log pi(a) of the policy that acted"""
    has_kernels: ClassVar[bool] = False
    """whether fused kernels may act and learn; they trace `policy_loss` and support only simple operations in it"""

    @abc.abstractmethod
    def policy_loss(
        self, log_prob: jax.Array, old_log_prob: jax.Array | None, advantage: jax.Array, live: jax.Array,
        hypers: Mapping[str, jax.Array],
    ) -> tuple[jax.Array, dict[str, jax.Array]]:  # fmt: skip
        """Return the loss of each of R transitions, to be averaged over valid ones.

        Args:
            log_prob: [R], log probability of the actions under the current policy.
            old_log_prob: [R], under the policy that acted, without gradient; None unless `keeps_log_prob`.
            advantage: [R], without gradient; normalized with `normalize_advantage`.
            live: [R] bool, valid transitions.
            hypers: () each: "clip", "entropy_coefficient" and so on; traced options as "options.NAME".

        Returns:
            (loss [R], metrics {name: [R]}).
        """

    def advantages(
        self, policy: Policy, hypers: Hypers, rows: Rows, next_value: jax.Array, over: jax.Array
    ) -> tuple[jax.Array, jax.Array]:
        """Return the advantages and value targets, by default generalized advantage estimation (`gae`).

        Args:
            policy: static part of the policy.
            hypers: hyperparameters; with `decisions_only`, gamma and gae_lambda are [T, N, n].
            rows: transitions of the rollout, leaves [T, N, n, ...], with rewards normalized if configured.
            next_value: [T, N, n], V of the observation after each transition, the final one at the end of an episode.
            over: [T, N, n] or [T, N, 1] bool, the agent's episode ended in this step or before.

        Returns:
            (advantages [T, N, n], value targets [T, N, n]).
        """
        return gae(rows.reward, rows.value, next_value, rows.terminated, over, hypers.gamma, hypers.gae_lambda)

    def check(self, name: str, run: TrainConfig, assignment: Assignment) -> None:
        config = run.policies[name]
        try:
            make_distribution(assignment.action_space, config.action_distribution)
        except (TypeError, ValueError) as error:
            raise type(error)(f"policies.{name}: {error}") from None

    def make_kernels(
        self, config: PolicyConfig, assignment: Assignment, distribution: Distribution, encoder: type
    ) -> Shape | None:
        found = shape_of(config, assignment, distribution, encoder) if self.has_kernels else None
        return found if isinstance(found, Shape) else None

    def overridden(self, *names: str) -> str | None:
        """Return the first of these functions that a subclass overrides, or None."""
        return overridden(self, OnPolicy, names)

    @property
    def takes_uniform(self) -> bool:
        return not self.overridden("act")

    def acts_by_kernel(self, policy: Policy) -> bool:
        custom = self.overridden("act", "end_of_step")  # they would get a ByKernel as `state`
        return decide(f"acting of {policy.name}", why_plain(policy) or (custom and f"its {custom} is custom"))

    def before_rollout(self, policy: Policy, state: PolicyState) -> PolicyState | ByKernel:
        return for_kernel(policy, state) if self.acts_by_kernel(policy) else state

    def make_network(self, config: PolicyConfig, assignment: Assignment, rngs: nnx.Rngs) -> ActorCritic:
        distribution = make_distribution(assignment.action_space, config.action_distribution)
        return ActorCritic(without_mask(assignment.observation_space), distribution, config.network, rngs=rngs)

    def init(self, policy: Policy, params: Any) -> PolicyState:
        config, normalizer = policy.config, new_normalizer(policy.config, policy.assignment.observation_space)
        if not config.trainable:
            return PolicyState(params, None, normalizer)
        return PolicyState(params, make_optimizer(config, hypers_of(config, self.takes)).init(params), normalizer)

    def init_carry(self, policy: Policy, num_envs: int) -> Any:
        return empty_carry(policy.config.network, (num_envs, policy.assignment.num_agents))

    def init_memory(self, policy: Policy, run: TrainConfig) -> Memory:
        shape = (run.num_envs, policy.assignment.num_agents)
        running = jnp.zeros(shape, jnp.float32) if policy.config.normalize_reward else None
        return Memory(self.init_carry(policy, run.num_envs), running)

    def act(
        self, policy: Policy, state: PolicyState | ByKernel, carry: Any, obs: Any, keys: jax.Array, hypers: Hypers
    ) -> tuple[jax.Array, dict[str, Any], Any]:
        return draw_actions(policy, state, carry, obs, keys)

    def play(
        self, policy: Policy, state: PolicyState, carry: Any, obs: Any, keys: jax.Array, greedy: bool
    ) -> tuple[jax.Array, Any]:
        outputs, _, carry = policy.apply(state, obs, carry)
        if greedy:
            return policy.distribution.mode(outputs), carry
        return sample_blocks(policy.distribution, keys, outputs), carry

    def describe(self, policy: Policy, state: PolicyState, carry: Any, obs: Any) -> dict[str, Any]:
        outputs, value, _ = policy.apply(state, obs, carry)
        return {**policy.distribution.describe(outputs), "value": value}

    def end_of_step(
        self, policy: Policy, state: PolicyState, carry: Any, final_obs: Any, truncated: jax.Array | None
    ) -> dict[str, Any]:
        if truncated is None:
            return {}
        if carry is None:
            return {"next_obs": final_obs}  # its value is found after the rollout, for all steps at once
        return {"final_value": final_value(policy, state, carry, final_obs, truncated)}

    def update(
        self, policy: Policy, state: PolicyState, memory: Memory, hypers: Hypers, played: Rollout, key: jax.Array,
        num_blocks: int,
    ) -> tuple[PolicyState, Memory, dict[str, jax.Array]]:  # fmt: skip
        """Compute advantages, take gradient steps, then update the normalizers.

        Metrics are means over valid transitions; metrics of losses and gradients are means over gradient steps.
        """
        over = played.over
        rows = played.rows[policy.name]
        may_be_cut = rows.truncated is not None and rows.next_obs is not None
        if may_be_cut and rows.final_value is None:  # of those that a time limit cut off
            found = final_value(policy, state, None, rows.next_obs, rows.truncated & rows.live)
            rows = rows.replace(final_value=found, next_obs=None)
        discounts, ends = hypers, {}
        if rows.decides is not None:
            decides_next = next_decides(rows, policy.decides(played.last_obs[policy.name]), over)
            ends["undecided_ends"] = undecided_ends(rows, decides_next, over)
            rows, discounts = by_decision(rows, hypers, decides_next)
        reward, statistics, memory = scale_reward(state.normalizer, memory, discounts, rows, over)
        last_value = policy.apply(state, played.last_obs[policy.name], played.last_carry[policy.name])[1]
        next_value = next_values(rows, last_value, over)
        learned_from = rows.replace(reward=reward)
        advantage, target = self.advantages(policy, discounts, learned_from, next_value, rows.ends(over))
        metrics = rollout_metrics(rows.replace(action=policy.distribution.to_space(rows.action)), advantage, target)
        if statistics is not None:
            metrics["reward_scale"] = 1.0 / reward_factor(state.normalizer.reward)
        live = rows.learned
        if policy.config.neg_pos_env_ratio >= 0:
            key, choice_key = jax.random.split(key)
            positive, usable = (jnp.any(flags, axis=(0, 2)) for flags in (rows.terminated & rows.live, live))
            if rows.decides is not None:  # nothing is learned of an end without a decision
                positive &= usable
            chosen = choose_replicas(choice_key, positive, usable, policy.config.neg_pos_env_ratio, num_blocks)
            live &= chosen[None, :, None]
            metrics["positive_envs"] = total(jnp.sum(positive))
            metrics["negative_envs"] = total(jnp.sum(chosen & ~positive))
        batch = Batch(rows.obs, rows.action, rows.log_prob, rows.value, advantage, target, live)
        if policy.config.network.recurrent_size:
            started = jnp.concatenate([jnp.zeros_like(over[:1]), over[:-1]])  # a reset before the first row is done
            restart = jnp.broadcast_to(started[..., None], live.shape)
            start = self.init_carry(policy, over.shape[1]) if self.overridden("init_carry") else None
            batch = batch.replace(restart=restart, carry=(played.first_carry[policy.name], start))
        state, losses = gradient_steps(policy, state, hypers, batch, key, num_blocks)
        if (mean := "normalized_advantage_mean") in losses:
            losses[mean] = Metric(losses[mean], weight=(learned_fraction(rows),))
        if state.normalizer is not None:  # of rows that are learned from: their scale is what a loss feels
            seen = update_observation_statistics(state.normalizer.obs, rows.obs, rows.learned)
            state = state.replace(normalizer=Normalizer(seen, statistics))
        return state, memory, {**metrics, **ends, **losses}

    def losses(
        self, policy: Policy, before: PolicyState, after: PolicyState, metrics: Mapping[str, jax.Array]
    ) -> tuple[jax.Array, jax.Array]:
        steps = next(name for name in ("gradient_steps", "decision_fraction", "live_fraction") if name in metrics)
        took_steps = metrics[steps] > 0
        return tuple(jnp.where(took_steps, metrics[name], 0.0) for name in ("loss", "grad_norm"))


class A2C(OnPolicy):
    """Advantage actor-critic: one gradient step on all transitions of a rollout."""

    takes = OnPolicy.takes | {"decisions"}
    keeps_log_prob = False
    has_kernels = True
    policy_loss = staticmethod(a2c_loss)


class PPO(OnPolicy):
    """Proximal policy optimization: epochs of minibatches with a clipped probability ratio."""

    takes = OnPolicy.takes | {"decisions", "minibatches", "PPO"}
    has_kernels = True
    policy_loss = staticmethod(ppo_loss)


def scale_reward(
    normalizer: Normalizer | None, memory: Memory, hypers: Hypers, rows: Rows, over: jax.Array
) -> tuple[jax.Array, Any, Memory]:
    """Returns (reward to learn from [T, N, n], statistics that have seen this rollout too, memory)."""
    if normalizer is None or normalizer.reward is None:
        return rows.reward, None, memory
    totals, last = discounted_returns(memory.discounted_return, rows.reward, over, hypers.gamma)
    statistics = update_statistics(normalizer.reward, totals, rows.learned)
    return normalize_reward(normalizer.reward, rows.reward), statistics, memory.replace(discounted_return=last)


def choose_replicas(key: jax.Array, positive: jax.Array, usable: jax.Array, ratio: float, num_blocks: int) -> jax.Array:
    """Returns [N] bool: the positive replicas and floor(ratio x their number) others, drawn without replacement.

    All, where there is no positive one or not so many others. (WarpDrive's neg_pos_env_ratio.) Of all only the usable
    ones, [N] bool, in which there is a live row.
    """
    draw = functools.partial(jax.random.uniform, dtype=jnp.float32)
    score = draw_blocks(draw, block_keys(key, num_blocks), positive.shape)
    positive, usable, score = all_rows((positive, usable, score))  # the choice is one of all replicas
    rank = jnp.argsort(jnp.argsort(jnp.where(positive | ~usable, 2.0, score)))  # of the negative ones: 0, 1, 2 ...
    wanted = jnp.floor(ratio * jnp.sum(positive)).astype(jnp.int32)
    return own_rows(usable & (positive | (rank < wanted) | ~jnp.any(positive)))


def gradient_steps(
    policy: Policy, state: PolicyState, hypers: Hypers, batch: Batch, key: jax.Array, num_blocks: int
) -> tuple[PolicyState, dict[str, jax.Array]]:
    """Epochs of minibatches over the rows of a rollout, leaves [T, N, n, ...].

    Rows without a live one teach nothing: no step is taken, where the optimizer's momentum alone would move parameters.

    Returns:
        (state, metrics): means over the gradient steps that were taken, all unless `target_kl` stopped them (NaN where
        there was none); approx_kl also counts the one that it stopped.
    """
    config, shape, batch = policy.config, batch.live.shape, merge_axes(batch)
    if config.epochs == config.minibatches == 1:  # all rows at once: nothing to shuffle
        if config.normalize_advantage:
            batch = batch.replace(advantage=normalize(batch.advantage, batch.live))
        some, (grads, losses) = any_of(batch.live), gradient(policy, state, hypers, batch)
        return descend_where(some, policy, state, hypers, grads), nan_unless(some, losses)
    if batch.carry is not None:
        shape = (1, *shape[1:])  # whole sequences are shuffled, not rows
    # all epochs at once: inside the loop each would wait for the one before, and most are too small to fill a GPU
    keys = jax.random.split(key, config.epochs)
    index = jax.vmap(lambda key: shuffle(key, shape, num_blocks, config.minibatches))(keys)
    index = index.reshape(config.epochs * config.minibatches, -1)
    normalized = normalized_advantages(batch, index) if config.normalize_advantage else None
    rows = pack(batch.replace(carry=None), batch.live.ndim, OBSERVATIONS)
    state, to_names = to_vectors(state)

    def step(carry: tuple[PolicyState, jax.Array], taken: tuple[jax.Array, Any]) -> tuple[tuple, Packed]:
        state, stopped = carry
        index, advantage = taken
        minibatch = take_rows(rows, batch.carry, index)
        if advantage is not None:
            minibatch = minibatch.replace(advantage=advantage)
        some, (grads, losses) = any_of(minibatch.live), gradient(policy, state, hypers, minibatch, to_names)
        # approx_kl is that before the step: one that would begin too far off is not taken, nor any after it
        stops = stopped | (losses.get("approx_kl", -jnp.inf) > hypers.target_kl)
        takes = some & ~stops
        state = descend_where(takes, policy, state, hypers, grads)
        return (state, stops), pack((losses, some & ~stopped, takes))

    (state, _), steps = jax.lax.scan(step, (state, jnp.bool_(False)), (index, normalized))
    return to_names(state), means_over_steps(*unpack(steps))


def means_over_steps(losses: dict[str, jax.Array], looked_at: jax.Array, taken: jax.Array) -> dict[str, jax.Array]:
    """Returns the means of `gradient_steps`, and their number.

    Args:
        losses: [steps] each.
        looked_at: [steps] bool, steps whose approx_kl counts.
        taken: [steps] bool, steps of which all else counts.
    """
    counts = jnp.stack([looked_at if name == "approx_kl" else taken for name in losses])
    sums = jnp.sum(jnp.where(counts, jnp.stack(list(losses.values())), 0.0), axis=1)
    means = jnp.where(jnp.any(counts, axis=1), sums / jnp.maximum(jnp.sum(counts, axis=1), 1), jnp.nan)
    return dict(zip(losses, means, strict=True)) | {"gradient_steps": jnp.sum(taken)}


def descend_where(takes: jax.Array, policy: Policy, state: PolicyState, hypers: Hypers, grads: Any) -> PolicyState:
    """Returns the state after a step down the clipped gradient where `takes`, () bool; else the state as it is.

    Args:
        state, grads: as they are, or in vectors (optimizer.to_vectors).
    """

    def step(state: PolicyState) -> PolicyState:
        params, opt_state = descend(policy.config, hypers, hypers.learning_rate, grads, state.opt_state, state.params)
        return state.replace(params=params, opt_state=opt_state)

    if jax.default_backend() == "cpu":  # else its operations are among those ready at once (rollout.draw_ahead)
        return jax.lax.cond(takes, step, lambda state: state, state)
    return jax.tree.map(lambda new, old: jnp.where(takes, new, old), step(state), state)
