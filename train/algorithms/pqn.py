"""Parallelised Q-network (PQN): Q-learning from rollouts, without replay or target network.

Source: Gallici et al., "Simplifying Deep Temporal Difference Learning" (2024). The sum over a team:
Sunehag et al., "Value-Decomposition Networks For Cooperative Multi-Agent Learning" (2017).
"""

import dataclasses
import functools
from collections.abc import Mapping
from typing import Literal

import jax

from wdjax.train.algorithms.epsilon_greedy import EpsilonGreedy
from wdjax.train.algorithms.returns import final_fields
from wdjax.train.algorithms.team_values import team_batch, team_targets, team_value
from wdjax.train.learning import (
    Assignment,
    Batch,
    Evaluation,
    Experience,
    Hypers,
    Mean,
    Memory,
    Metric,
    Metrics,
    Policy,
    PolicyState,
    Rollout,
    Schedule,
    Team,
    Terms,
    TrainConfig,
    experience,
    fit,
    gae,
    make_optimizer,
    next_value,
    played_metrics,
    require_minibatches,
    static,
    traced,
    update_normalizers,
)
from wdjax.train.state.algorithm import TeamUpdate
from wdjax.train.state.aliases import ActingState, Carry, Fields, Observation, Params
from wdjax.train.state.engine import Evaluate
from wdjax.train.state.normalization import new_normalizer


@dataclasses.dataclass(frozen=True)
class PQNOptions:
    """Options of PQN. Traced fields can be swept without recompiling."""

    gamma: float = traced(0.99, allowed="between 0 and 1")
    """Discount factor."""
    q_lambda: float = traced(0.65, allowed="between 0 and 1")
    """Lambda of the targets. 0: one step. 1: the return until the end of the episode or rollout."""
    epsilon: Schedule = traced(
        ((0, 1.0), (100_000, 0.05)), allowed="between 0 and 1", explores=True
    )
    """Probability of a random action in training. Opponents from the past and from other runs take
    the best action."""
    reward_scale: float = traced(1.0, allowed="above 0")
    """Factor of rewards in the targets."""
    epochs: int = static(2, allowed="at least 1 and below 2**31")
    """Passes over a rollout per update."""
    minibatches: int = static(4, allowed="at least 1 and below 2**31")
    """Gradient steps per epoch. Must divide the transitions of a block (see PPO); for recurrent
    networks, its sequences."""
    mixer: Literal["none", "sum"] = static("none")
    """none: each agent learns the value of its own return. sum: the team learns the sum of the
    values of its agents from the sum of their rewards (PQN-VDN)."""


class PQN(EpsilonGreedy):
    """Epochs of minibatches on the squared error to lambda returns of the greedy policy.

    The network should have layer normalization (`network.layer_norm: true`), which takes the place
    of a target network.
    """

    Options = PQNOptions

    def check(self, name: str, run: TrainConfig, assignment: Assignment) -> None:
        agents = assignment.num_agents if run.policy(name).options.mixer == "none" else 1
        is_recurrent = run.policy(name).network.recurrent_size > 0
        require_minibatches(name, run, agents, is_recurrent)
        super().check(name, run, assignment)

    def init(self, policy: Policy, params: Params) -> PolicyState:
        config, space = policy.config, policy.assignment.observation_space
        normalizer = new_normalizer(config.normalize_observation, False, space)
        alone = config.trainable and config.options.mixer == "none"
        optimizer = make_optimizer(config, config.max_grad_norm)
        return PolicyState(params, optimizer.init(params) if alone else None, normalizer)

    def init_shared(
        self, team: Team, states: Mapping[str, PolicyState], params: Params | None
    ) -> PolicyState | None:
        """Return the optimizer of all policies of a team with `mixer: sum`."""
        config = team.first.config
        if config.options.mixer == "none":
            return None
        optimizer = make_optimizer(config, config.max_grad_norm)
        return PolicyState({}, optimizer.init({name: own.params for name, own in states.items()}))

    def end_of_step(
        self,
        policy: Policy,
        state: ActingState,
        carry: Carry,
        final_obs: Observation,
        truncated: jax.Array | None,
    ) -> Fields:
        return final_fields(policy, state, carry, final_obs, truncated)

    def loss(
        self, new: Evaluation, batch: Batch, options: PQNOptions, mean: Mean
    ) -> tuple[jax.Array, Terms]:
        """Return the loss and its metrics: mean((Q(obs, action) - target)^2) / 2.

        With `mixer: sum`, Q is the sum of the values of a team's agents.
        """
        means = mean({"q_loss": 0.5 * (new.value - batch.target) ** 2, "q_mean": new.value})
        return means["q_loss"], means

    def update(
        self,
        policy: Policy,
        state: PolicyState,
        memory: Memory,
        hypers: Hypers,
        rollout: Rollout,
        key: jax.Array,
        num_blocks: int,
    ) -> tuple[PolicyState, Memory, Metrics]:
        """Compute the targets, then take epochs x minibatches gradient steps.

            target_t = r_t + gamma (1 - terminated_t)
                       ((1 - lambda) max_a Q(obs_{t+1}, a) + lambda target_{t+1})

        This is `gae` with V = max_a Q. It bootstraps at truncations and after the last step.
        """
        data, following = self.experience(policy, state, hypers, rollout)
        terminated, discount = data.rows.terminated, (data.gamma, data.gae_lambda)
        reward, sums = data.reward, policy.engine.decayed_sums
        target = gae(reward, data.value, following, terminated, data.ends, *discount, sums=sums)[1]
        batch = Batch.of_values(data.rows.obs, data.value, target, data.valid)
        batch = batch.replace(action=data.rows.action)
        if policy.is_recurrent:
            restarts = data.rows.restarts(rollout.over)
            batch = batch.in_sequences(restarts, rollout.first_carry[policy.name])

        def evaluate(policy: Policy, state: PolicyState, batch: Batch) -> Evaluation:
            sequences = (batch.carry, batch.restart)
            return Evaluation(value=self.chosen(policy, state, batch.obs, batch.action, *sequences))

        state, losses = self.fit(policy, state, hypers, batch, key, num_blocks, evaluate)
        state, memory = update_normalizers(state, memory, data, None)
        return state, memory, played_metrics(data.rows) | losses

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
        """With `mixer: sum`, update all policies as `update`, for the sums over their agents.

        A transition is a step of a replica. Agents that have left an episode do not count.
        """
        if shared is None:
            return super().update_team(
                team, states, shared, memories, hypers, rollout, key, num_blocks
            )
        first = team.first
        data, following = {}, {}
        for name, policy in team.policies.items():
            data[name], following[name] = self.experience(
                policy, states[name], hypers[first.name], rollout
            )
        value, target = team_targets(data, following, rollout.over, first.engine.decayed_sums)
        batch = team_batch(team, data, rollout, value, target)
        evaluate = functools.partial(team_value, self.chosen, team.policies, states)
        joint = PolicyState({name: own.params for name, own in states.items()}, shared.opt_state)
        joint, losses = self.fit(first, joint, hypers[first.name], batch, key, num_blocks, evaluate)
        states, memories = dict(states), dict(memories)
        metrics: dict[str, Mapping[str, jax.Array | Metric]] = {}
        for name, own in data.items():
            state = states[name].replace(params=joint.params[name])
            states[name], memories[name] = update_normalizers(state, memories[name], own, None)
            metrics[name] = {**played_metrics(own.rows), **losses}
        return states, shared.replace(opt_state=joint.opt_state), memories, metrics

    def experience(
        self, policy: Policy, state: PolicyState, hypers: Hypers, rollout: Rollout
    ) -> tuple[Experience, jax.Array]:
        """Return (transitions with scaled rewards, values after each of them [T, N, n])."""
        options = policy.options(hypers)
        data = experience(policy, state, rollout, options.gamma, options.q_lambda)
        data = data.replace(reward=options.reward_scale * data.reward)
        return data, next_value(policy, state, rollout, data)

    def fit(
        self,
        policy: Policy,
        state: PolicyState,
        hypers: Hypers,
        batch: Batch,
        key: jax.Array,
        num_blocks: int,
        evaluate: Evaluate,
    ) -> tuple[PolicyState, Terms]:
        """Call `fit` with the options of a policy."""
        options = policy.options(hypers)
        steps = {"epochs": options.epochs, "minibatches": options.minibatches}
        return fit(
            self.loss, policy, state, hypers, batch, key, num_blocks, evaluate=evaluate, **steps
        )
