"""Common parts of PPO and A2C: an actor-critic network, acting, options and transforms."""

import dataclasses
import functools
from collections.abc import Mapping
from typing import ClassVar, Literal, cast

import jax
import jax.numpy as jnp
from flax import nnx

from wdjax.checks import require
from wdjax.overrides import overridden
from wdjax.spaces import sample_shapes
from wdjax.train.algorithms.returns import final_fields
from wdjax.train.algorithms.transforms import (
    RewardScale,
    decision_steps,
    scale_reward,
    select_replicas,
)
from wdjax.train.learning import (
    ActorCritic,
    Algorithm,
    Assignment,
    Batch,
    Context,
    Distribution,
    Evaluation,
    Experience,
    Hypers,
    Memory,
    Policy,
    PolicyConfig,
    PolicyState,
    Schedule,
    TrainConfig,
    gae,
    make_distribution,
    make_optimizer,
    sample_blocks,
    static,
    traced,
)
from wdjax.train.networks.actor_critic import empty_carry, has_memory, without_mask
from wdjax.train.state.actors import require_carry
from wdjax.train.state.aliases import ActingState, Carry, Fields, Metrics, Observation, Params
from wdjax.train.state.engine import evaluate_actions
from wdjax.train.state.normalization import (
    Normalizer,
    RunningStatistics,
    new_normalizer,
    reward_factor,
    update_observation_statistics,
)


@dataclasses.dataclass(frozen=True)
class OnPolicyOptions:
    """Options of PPO and A2C. Traced fields can be swept without recompiling."""

    gamma: float = traced(0.99, allowed="between 0 and 1")
    """Discount factor."""
    gae_lambda: float = traced(0.95, allowed="between 0 and 1")
    """Lambda of generalized advantage estimation. 1: Monte Carlo returns."""
    value_coefficient: Schedule = traced(0.5)
    """Weight of the value loss (mean squared error)."""
    entropy_coefficient: Schedule = traced(0.01)
    """Weight of the entropy bonus."""
    normalize_advantage: bool = static(False)
    """Normalize the advantages of each minibatch to mean 0 and standard deviation 1 over its valid
    transitions."""
    normalize_reward: bool = static(False)
    """Divide rewards by the running standard deviation of the discounted return, and clip them to
    [-10, 10]."""
    decisions_only: bool = static(False)
    """Learn only from transitions in which the action mask allows more than one action. Rewards are
    summed between these decisions, and gamma discounts per decision, not per step. Choose
    rollout_length so that rollouts end at a decision: the value function is learned only there."""
    neg_pos_env_ratio: float = static(-1.0, allowed="finite (below 0: use all replicas)")
    """For sparse rewards: learn from all replicas in which an agent terminated (positive), and from
    at most this many randomly chosen other (negative) replicas per positive one. Without a positive
    replica, all replicas are used. Below 0: disabled."""
    action_distribution: Literal["gaussian", "squashed_gaussian"] = static("gaussian", read=True)
    """Distribution of continuous actions: a normal distribution clipped to the box, or one squashed
    into the box by tanh."""


class OnPolicy(Algorithm):
    """Base class of on-policy algorithms with an actor-critic network.

    A subclass implements `loss` and `update`, and may override `advantages`. Most custom algorithms
    are subclasses of `PPO` or `A2C` instead, with another `loss` (see `PPO.loss`).

    Attributes:
        keeps_log_prob: whether `act` stores log pi(a) of the policy that acted, which A2C does not
            need.
        critic_is_shared: whether `update_team` computes the values by a module of the team. The
            value head of the policy's network is then not trained.

    `Algorithm` documents the other attributes.
    """

    Options = OnPolicyOptions
    has_kernels: ClassVar[bool] = True
    keeps_log_prob: ClassVar[bool] = True
    critic_is_shared: ClassVar[bool] = False

    def check(self, name: str, run: TrainConfig, assignment: Assignment) -> None:
        config = run.policy(name)
        space, group = assignment.observation_space, assignment.segments[0].group
        decisions = config.options.decisions_only and without_mask(space) is space
        allowed = f"false, as the observations of group {group!r} have no action_mask"
        require(not decisions, f"policies.{name}.decisions_only", decisions, allowed)

    def check_network(self, policy: Policy, network: nnx.Module) -> None:
        path, kind = f"policies.{policy.name}.algorithm", type(network).__name__
        if self.overridden("make_distribution"):
            require_sums(path, policy.distribution)
        has_carry = jax.eval_shape(lambda: self.init_carry(policy, 1)) is not None
        words = f"the carry at the start of an episode, as the network {kind} has unroll"
        require(has_carry or not has_memory(network), f"{path}: its init_carry", None, words)
        own_update = not type(self).update.__module__.startswith("wdjax.")
        own_update |= type(self).update_team is not Algorithm.update_team
        is_custom = not has_carry or own_update or self.overridden("act")
        words = "a module with unroll(obs, carry, restart), because init_carry returns a carry"
        require(is_custom or hasattr(network, "unroll"), f"{path}: its network", kind, words)
        if policy.is_recurrent and self.overridden("make_network", "init_carry"):
            params = nnx.to_pure_dict(nnx.state(network, nnx.Param))
            require_sequences(policy, jax.eval_shape(functools.partial(self.init, policy), params))

    def make_distribution(self, config: PolicyConfig, assignment: Assignment) -> Distribution:
        return make_distribution(assignment.action_space, config.options.action_distribution)

    def make_network(
        self, context: Context, config: PolicyConfig, assignment: Assignment, rngs: nnx.Rngs
    ) -> nnx.Module:
        space = without_mask(assignment.observation_space)
        distribution = self.make_distribution(config, assignment)
        return ActorCritic(space, distribution, config.network, rngs=rngs)

    def init(self, policy: Policy, params: Params) -> PolicyState:
        config, space = policy.config, policy.assignment.observation_space
        rewards = config.options.normalize_reward
        normalizer = new_normalizer(config.normalize_observation, rewards, space)
        optimizer = make_optimizer(config, config.max_grad_norm)
        return PolicyState(params, optimizer.init(params) if config.trainable else None, normalizer)

    def init_carry(self, policy: Policy, num_envs: int) -> Carry:
        shape = (num_envs, policy.assignment.num_agents)
        return empty_carry(policy.memory, policy.config.network, shape)

    def init_memory(self, policy: Policy, run: TrainConfig) -> Memory:
        shape = (run.num_envs, policy.assignment.num_agents)
        running = jnp.zeros(shape, jnp.float32) if policy.config.options.normalize_reward else None
        return Memory(self.init_carry(policy, run.num_envs), running)

    def before_rollout(self, policy: Policy, state: PolicyState) -> ActingState:
        return policy.engine.prepare(policy, state)

    def act(
        self,
        policy: Policy,
        state: ActingState,
        carry: Carry,
        obs: Observation,
        keys: jax.Array,
        hypers: Hypers,
    ) -> tuple[jax.Array, Fields, Carry]:
        return policy.engine.act(policy, state, carry, obs, keys)

    def play(
        self,
        policy: Policy,
        state: PolicyState,
        carry: Carry,
        obs: Observation,
        keys: jax.Array,
        greedy: bool,
    ) -> tuple[jax.Array, Carry]:
        outputs, _, carry = policy.apply(state, obs, carry)
        if greedy:
            return policy.distribution.mode(outputs), carry
        return sample_blocks(policy.distribution, keys, outputs), carry

    def describe(
        self, policy: Policy, state: PolicyState, carry: Carry, obs: Observation
    ) -> Fields:
        outputs, value, _ = policy.apply(state, obs, carry)
        own_value = {} if self.critic_is_shared else {"value": value}
        return {**policy.distribution.describe(outputs), **own_value}

    def end_of_step(
        self,
        policy: Policy,
        state: ActingState,
        carry: Carry,
        final_obs: Observation,
        truncated: jax.Array | None,
    ) -> Fields:
        own_carry = None if self.critic_is_shared else carry
        return final_fields(policy, state, own_carry, final_obs, truncated)

    def value(
        self, policy: Policy, state: PolicyState, obs: Observation, carry: Carry
    ) -> jax.Array:
        """Return V(obs), [...], for observations with leading axes [...].

        It bootstraps returns at the end of a rollout and at truncations.

        Args:
            policy: static part of the policy.
            state: its state.
            obs: leaves [..., *part].
            carry: carry of a recurrent policy before this observation.
        """
        return policy.engine.note(policy, state, obs, carry=carry)["value"]

    def evaluate(self, policy: Policy, state: PolicyState, batch: Batch) -> Evaluation:
        """Return what `loss` receives as `new`; by default without `extra`.

        Override it for a term that depends on more than log_prob, entropy and value: return
        numbers per transition as `extra`. The gradient is then computed by plain XLA.

        Args:
            policy: static part of the policy.
            state: its state, with the parameters being trained.
            batch: the transitions, leaves [B, ...]; [T, M, ...] for a recurrent policy.
        """
        return evaluate_actions(policy, state, batch)

    def advantages(
        self, policy: Policy, state: PolicyState, data: Experience, next_value: jax.Array
    ) -> tuple[jax.Array, jax.Array]:
        """Return (advantages, value targets), [T, N, n] each, by `gae` unless overridden.

        Args:
            policy: static part of the policy.
            state: state of the policy before the update.
            data: the rollout after the transforms, leaves [T, N, n, ...]; with `decisions_only`,
                gamma and gae_lambda are [T, N, n].
            next_value: [T, N, n] V of the observation after each transition, the final one of an
                episode.
        """
        return gae(
            data.reward,
            data.value,
            next_value,
            data.rows.terminated,
            data.ends,
            data.gamma,
            data.gae_lambda,
            sums=policy.engine.decayed_sums,
        )

    def losses(
        self,
        policy: Policy,
        before: PolicyState,
        after: PolicyState,
        metrics: Mapping[str, jax.Array],
    ) -> tuple[jax.Array, jax.Array]:
        losses = super().losses(policy, before, after, metrics)
        counts = ("gradient_steps", "decision_fraction", "live_fraction")
        took_steps = next((metrics[name] > 0 for name in counts if name in metrics), None)
        if took_steps is None:
            return losses
        loss, grad_norm = (jnp.where(took_steps, value, 0.0) for value in losses)
        return loss, grad_norm

    @property
    def takes_uniform(self) -> bool:  # type: ignore[override]  # depends on the subclass
        return not self.overridden("act")

    def overridden(self, *names: str) -> str | None:
        """Return the first of these functions that a subclass overrides, or None."""
        return overridden(self, OnPolicy, names)


def require_sums(path: str, distribution: Distribution) -> None:
    """Raise ValueError unless `log_prob` and `entropy` return one number per action."""
    outputs = jnp.zeros((2, 3, distribution.num_outputs + distribution.num_free))
    action = jax.eval_shape(distribution.sample, jax.random.key(0), outputs)
    results = {
        "log_prob": jax.eval_shape(distribution.log_prob, outputs, action),
        "entropy": jax.eval_shape(distribution.entropy, outputs),
    }
    for name, result in results.items():
        field = f"{path}: shape of {type(distribution).__name__}.{name}"
        words = f"(2, 3) for outputs {outputs.shape}: one number per action"
        require(result.shape == (2, 3), field, result.shape, words)


def apply_transforms(
    policy: Policy,
    state: PolicyState,
    memory: Memory,
    data: Experience,
    key: jax.Array,
    num_blocks: int,
) -> tuple[Experience, RewardScale | None, jax.Array, Metrics]:
    """Apply the transforms of a policy.

    Args:
        policy: static part of the policy.
        state: its state before the update.
        memory: its memory before the update.
        data: its transitions, from `experience`.
        key: () key for this update.
        num_blocks: blocks of replicas on this device.

    Returns:
        (data, new state of `scale_reward` or None, key for the rest of the update, metrics).
    """
    options, scale = policy.config.options, None
    metrics: Metrics = {}
    if options.decisions_only:
        data, metrics["undecided_ends"] = decision_steps(policy, data)
    if options.normalize_reward:
        # both exist with normalize_reward
        statistics = cast(RunningStatistics, cast(Normalizer, state.normalizer).reward)
        scale = RewardScale(statistics, cast(jax.Array, memory.discounted_return))
        metrics["reward_scale"] = 1.0 / reward_factor(scale.statistics)
        data, scale = scale_reward(scale, data)
    if options.neg_pos_env_ratio >= 0:
        key, own_key = jax.random.split(key)
        data, selected = select_replicas(data, options.neg_pos_env_ratio, own_key, num_blocks)
        metrics |= selected
    return data, scale, key, metrics


def update_normalizers(
    state: PolicyState, memory: Memory, data: Experience, scale: RewardScale | None
) -> tuple[PolicyState, Memory]:
    """Add the observations and rewards of a rollout to the normalizers.

    Args:
        state: state of the policy.
        memory: its memory.
        data: its transitions, after the transforms.
        scale: state of `scale_reward` from `apply_transforms`.

    Returns:
        (state, memory).
    """
    if state.normalizer is None:
        return state, memory
    seen = update_observation_statistics(state.normalizer.obs, data.rows.obs, data.rows.learned)
    if scale is not None:
        memory = memory.replace(discounted_return=scale.discounted_return)
    return state.replace(normalizer=Normalizer(seen, scale and scale.statistics)), memory


def require_sequences(policy: Policy, state: PolicyState) -> None:
    """Raise TypeError unless a recurrent network accepts and returns the carry of `init_carry`.

    Only the shapes of one step, and of `unroll` with two steps, are computed.

    Args:
        policy: static part of the policy.
        state: shapes of its state.
    """
    carry = jax.eval_shape(lambda: policy.algorithm.init_carry(policy, 3))
    axes = (3, policy.assignment.num_agents)
    obs = sample_shapes(policy.assignment.observation_space, axes)

    def unroll(state: PolicyState, obs: Observation, carry: Carry) -> tuple[jax.Array, jax.Array]:
        steps = jax.tree.map(lambda leaf: jnp.stack([leaf[:, 0], leaf[:, 0]]), obs)
        carry = jax.tree.map(lambda leaf: leaf[:, 0], carry)
        return policy.unroll(state, steps, carry, jnp.zeros((2, 3), bool), carry)

    try:
        *step, after = jax.eval_shape(policy.apply, state, obs, carry)
    except Exception as error:  # of any kind: it is the user's code
        given = jax.tree.map(lambda leaf: jax.typeof(leaf).str_short(), carry)
        text = f"policies.{policy.name}: its network does not accept the carry of init_carry"
        raise TypeError(f"{text}, {given}: {error}") from error
    require_carry(policy, "its network", carry, after)
    unrolled = jax.eval_shape(unroll, state, obs, carry)
    expected = [(2, 3, *leaf.shape[2:]) for leaf in step]
    shapes = [leaf.shape for leaf in unrolled]
    allowed = f"{expected}, outputs and value of 2 steps of 3 sequences"
    require(shapes == expected, f"policies.{policy.name}: shapes of unroll", shapes, allowed)
